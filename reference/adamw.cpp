// SPDX-License-Identifier: Apache-2.0
// adamw: one step of AdamW on fp32 master weights, with the parameters of the model as their rounded copy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"

namespace checkop {

extern const Emulation kAdamwForward;  // emulation/adamw.cpp

namespace adamw {
namespace {

constexpr std::string_view kAll = "numel";
constexpr TensorSpec kMaster{"master", kAll, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kM{"m", kAll, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kV{"v", kAll, Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kGrad{"grad", kAll, Fill::normal, "", {}, false, true};
constexpr TensorSpec kGradScale{"grad_scale", "1", Fill::normal, "", DType::f32, true, true};
constexpr TensorSpec kFoundInf{"found_inf", "1", Fill::normal, "", DType::f32, true, true};
enum Input : int { kOfMaster, kOfM, kOfV, kOfGrad, kOfGradScale, kOfFoundInf };
enum Output : int { kMasterOut, kMOut, kVOut, kParam };

constexpr std::array kForwardIn{kMaster, kM, kV, kGrad, kGradScale, kFoundInf};
constexpr std::array kForwardOut{
    OutputSpec{{"master_out", kAll, Fill::normal, "", DType::f32}, Numerics::pointwise, ""},
    OutputSpec{{"m_out", kAll, Fill::normal, "", DType::f32}, Numerics::pointwise, ""},
    OutputSpec{{"v_out", kAll, Fill::normal, "", DType::f32}, Numerics::pointwise, ""},
    OutputSpec{{"param", kAll}, Numerics::pointwise, ""},
};

enum Attr : size_t { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kStep };
constexpr std::array kAttrs{AttrSpec{"lr", 1e-3, "learning rate"},
                            AttrSpec{"beta1", 0.9, "what is kept of m"},
                            AttrSpec{"beta2", 0.999, "what is kept of v"},
                            AttrSpec{"eps", 1e-8, "added to the root of v, outside of it"},
                            AttrSpec{"weight_decay", 0.01, "share of a weight that lr takes away; decoupled"},
                            AttrSpec{"step", 1, "number of this step, the first one is 1; of the bias corrections"}};

// Squares below the smallest normal fp32 may be flushed: 2^-126 is 2^-102 unit roundoffs.
constexpr double kFlushed = 0x1p-102, kUnit = 0x1p-24;
constexpr double kPowUnits = 8;  // powf within 4 ulp

/// 1 - beta, where beta is an attribute in fp32: its rounding weighs more in the difference.
GoldElement complement(double beta) { return exact(1) - rounded(beta); }

/// 1 - beta^step. The rounding of beta counts in every factor.
GoldElement bias_correction(double beta, double step) {
  const double power = std::pow(beta, step);
  return exact(1) - GoldElement{power, 0, power * (step + kPowUnits)};
}

/// The root of e, whose own error may be larger than e.
GoldElement root_of(const GoldElement& e) {
  const double root = std::sqrt(e.value), error = std::sqrt(e.rounding / kUnit);
  return {root, 0, (root > 0 ? std::min(e.rounding / (2 * root), error) : error) + root};
}

/// Gold of adamw, for each element, with g = grad grad_scale:
///   in:  master, m, v[numel] fp32, grad[numel], grad_scale[1], found_inf[1] optional
///   out: m_out = beta1 m + (1 - beta1) g,  v_out = beta2 v + (1 - beta2) g^2
///        master_out = master (1 - lr weight_decay)
///                     - lr (m_out / (1 - beta1^step)) / (sqrt(v_out / (1 - beta2^step)) + eps)
///        param = master_out in the dtype of the case
///   If found_inf is not 0, master, m and v stay as they are, and param = master.
/// Every coefficient counts the roundings of these formulas with attributes, powers and all operations in fp32: no
/// fused kernel has less precision. Source: Loshchilov and Hutter, arXiv 1711.05101; roundings as in fused kernels of
/// Apex and PyTorch.
void forward(const GoldArgs& args) {
  const Tensor &master = args.in(kOfMaster), &m = args.in(kOfM), &v = args.in(kOfV), &grad = args.in(kOfGrad);
  const auto attr = [&](Attr which) { return args.attrs[which]; };
  const bool skipped = args.has(kOfFoundInf) && args.in(kOfFoundInf).at(0) != 0;
  const GoldElement scale = exact(args.has(kOfGradScale) ? args.in(kOfGradScale).at(0) : 1);
  const GoldElement beta1 = rounded(attr(kBeta1)), beta2 = rounded(attr(kBeta2)), lr = rounded(attr(kLr));
  const GoldElement new1 = complement(attr(kBeta1)), new2 = complement(attr(kBeta2));
  const GoldElement correction1 = bias_correction(attr(kBeta1), attr(kStep));
  const GoldElement correction2 = bias_correction(attr(kBeta2), attr(kStep));
  const GoldElement kept = exact(1) - lr * rounded(attr(kWeightDecay)), eps = rounded(attr(kEps));
  constexpr int64_t kBlock = 1024;
  args.parallel_for((master.count() + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t first = block * kBlock, n = std::min(kBlock, master.count() - first);
    std::array<GoldElements, 4> out{GoldElements(n), GoldElements(n), GoldElements(n), GoldElements(n)};
    for (int64_t i = 0; i < n; ++i) {
      GoldElement w = exact(master.at(first + i)), of_m = exact(m.at(first + i)), of_v = exact(v.at(first + i));
      if (!skipped) {
        const GoldElement g = exact(grad.at(first + i)) * scale;
        of_m = beta1 * of_m + new1 * g;
        of_v = beta2 * of_v + new2 * (g * g);
        of_v.rounding += kFlushed;
        w = w * kept - lr * (of_m / correction1 / (root_of(of_v / correction2) + eps));
      }
      out[kMasterOut].set(i, w), out[kMOut].set(i, of_m), out[kVOut].set(i, of_v), out[kParam].set(i, w);
    }
    for (int index = 0; index < 4; ++index) out[static_cast<size_t>(index)].emit_column(args, index, first);
  });
}

/// param must be master_out, rounded once: a copy that was computed apart drifts from the weights that are trained.
void identities(const IdentityArgs& args) {
  const Tensor &master = *args.out(kMasterOut), &param = *args.out(kParam);
  const DTypeInfo& stored = info(param.dtype);
  args.parallel_for(master.count(), [&](int64_t i) {
    double value = master.at(i);
    std::array<std::byte, sizeof(double)> bytes;
    stored.encode(&value, bytes.data(), 1);
    stored.decode(bytes.data(), &value, 1);
    const double copy = param.at(i);
    const bool is_same = copy == value || (std::isnan(copy) && std::isnan(value));
    args.sink({"rounded_copy", kParam, i, is_same ? 0 : copy - value, 0, 0, 0});
  });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, identities, nullptr, &kAdamwForward}};

void validate(const CaseSizes& sizes) {
  const auto require = [&](Attr which, bool holds, std::string_view expected, std::string_view usual) {
    if (holds) return;
    std::string flag = "--" + std::string(kAttrs[which].name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw InputError(flag, fmt::format("expected {}, got {}", expected, sizes.attrs[which]), std::string(usual));
  };
  const auto& at = sizes.attrs;
  for (const Attr beta : {kBeta1, kBeta2})
    require(beta, at[beta] >= 0 && at[beta] < 1, "a number from 0 to below 1", "0.9 and 0.999 are usual");
  for (const Attr other : {kLr, kEps, kWeightDecay})
    require(other, at[other] >= 0 && at[other] <= 1, "a number from 0 to 1", "see check_operator show adamw");
  require(kStep, at[kStep] >= 1 && at[kStep] == std::floor(at[kStep]), "a whole number from 1 on",
          "the first step is 1");
}

/// Sizes of a training: a v that fits the gradient, elements that were never used, and squares that vanish in fp32.
void refine(const FillArgs& args) {
  constexpr double kRanksThatFound = 2;
  Tensor &m = *args.find("m"), &v = *args.find("v"), &grad = *args.find("grad");
  const bool draws = args.mode == InputMode::random;
  for (int64_t i = 0; i < v.count(); ++i) {
    const double old = v.at(i);
    v.set(i, old * old);
    if (!draws) continue;
    m.set(i, 0.25 * m.at(i));
    switch (i % 16) {
      case 3:  // never used
        m.set(i, 0), v.set(i, 0), grad.set(i, 0);
        break;
      case 7:  // used for the first time
        m.set(i, 0), v.set(i, 0);
        break;
      case 11:  // a square that is subnormal in fp32, or 0
        v.set(i, 0), grad.set(i, std::ldexp(grad.at(i), grad.dtype == DType::f16 ? -14 : -64));
        break;
      case 15:  // of the size of eps
        v.set(i, 1e-16 * v.at(i)), m.set(i, 1e-8 * m.at(i)), grad.set(i, 0);
        break;
      default:
        break;
    }
  }
  if (Tensor* scale = args.find("grad_scale")) scale->set(0, 0.125 + 0.25 * args.uniform("adamw/grad_scale", 0));
  // Whether a step is skipped follows from the size, so that cases with both exist. Ranks that found infinities are
  // counted, as a sum over ranks does; some gradients of the step are then no numbers.
  if (Tensor* found = args.find("found_inf"); found != nullptr && v.count() % 2 == 1) {
    found->set(0, kRanksThatFound);
    for (int64_t i = 0; i < grad.count() && draws && args.ignored_every != 0; ++i)
      plant_payload(args, grad, 1, i, payload_kind(args, static_cast<uint64_t>(i)));
  } else if (found != nullptr) {
    found->set(0, 0);
  }
}

}  // namespace
}  // namespace adamw

extern const Operator kAdamw;
constexpr Operator kAdamw{"adamw",
                          "elementwise",
                          "m' = beta1 m + (1-beta1) g, v' = beta2 v + (1-beta2) g^2, w' = w (1 - lr decay) - lr m^ / "
                          "(sqrt(v^) + eps); param = w' rounded",
                          "numel",
                          adamw::kAttrs,
                          adamw::kPasses,
                          adamw::validate,
                          adamw::refine,
                          /*parallel_dim=*/"",
                          /*left_out=*/"gradients of a skipped step"};

}  // namespace checkop
