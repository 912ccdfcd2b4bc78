// SPDX-License-Identifier: Apache-2.0
// add_rms_norm: adds a residual stream to x, stores the sum, and normalises it as rms_norm does.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "rms_norm.hpp"

namespace checkop {

extern const Emulation kAddRmsNormForward, kAddRmsNormBackward;  // emulation/add_rms_norm.cpp

namespace add_rms_norm {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden";
constexpr TensorSpec kX{"x", kRowHidden}, kWeight{"weight", "hidden"};
// Its gradient is dx, of which kernels store one copy.
constexpr TensorSpec kResidual{"residual", kRowHidden, Fill::normal, "", {}, /*optional=*/false, /*constant=*/true};
constexpr TensorSpec kGradY{"grad_y", kRowHidden, Fill::upstream};
constexpr TensorSpec kGradResidual{"grad_residual_out", kRowHidden, Fill::upstream};

constexpr std::array kForwardIn{kX, kResidual, kWeight};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::reduction, "hidden"},
                                 OutputSpec{{"residual_out", kRowHidden}, Numerics::exact, ""}};
constexpr std::array kBackwardIn{kX, kResidual, kWeight, kGradY, kGradResidual};
constexpr std::array kBackwardOut{
    OutputSpec{{"dx", kRowHidden}, Numerics::reduction, "hidden"},
    OutputSpec{{"dweight", "hidden"}, Numerics::reduction, "hidden batch*seq"},
};
constexpr std::array kForwardRecipes{kRowOfY};
constexpr std::array kBackwardRecipes{
    kGradientOfRow, kRowOfWeight, kTermsOfWeight,
    Recipe{recipe::kRowGradient, "dx", k16Bit, /*exact=*/true,
           "dx = grad_residual_out + round(r g w - s r^3 mean_h(g w s))",
           "autograd of an addition and a norm that are kernels of their own, as in Hugging Face's models"}};

enum Attr : size_t { kOfEps, kOfRoundSum, kOfWeightOffset };
constexpr std::array kAttrs{
    kEps,
    AttrSpec{"round_sum", 1, "1: the sum is normalised as it is stored (vLLM), 0: before it is rounded (FlashInfer)"},
    kWeightOffset};

/// Sums of x and residual.
class Sums {
 public:
  explicit Sums(const GoldArgs& args)
      : args_(args), hidden_(args.in(0).shape.back()), rounds_(args.attrs[kOfRoundSum] != 0) {}

  /// The stored sum: two stored values, added exactly or in FP64, which has more than twice their digits, then rounded
  /// once.
  void stored(int64_t row, int64_t first, std::span<double> to) const {
    add(row, first, to);
    const DTypeInfo& type = info(args_.in(0).dtype);
    static thread_local std::vector<std::byte> bytes;
    bytes.resize(to.size() * type.bytes);
    type.encode(to.data(), bytes.data(), to.size());
    type.decode(bytes.data(), to.data(), to.size());
  }
  /// The sum as it is normalised. Where it is not rounded to the stored dtype, fp32 rounds it.
  void normalised(int64_t row, int64_t first, const Erring& to) const {
    if (rounds_) return stored(row, first, to.value);
    add(row, first, to.value);
    for (size_t h = 0; h < to.value.size(); ++h) to.error[h] = std::abs(to.value[h]);
  }

 private:
  void add(int64_t row, int64_t first, std::span<double> to) const {
    static thread_local std::vector<double> residual;
    residual.resize(to.size());
    decode_columns(args_.in(0), hidden_, row, first, to);
    decode_columns(args_.in(1), hidden_, row, first, residual);
    for (size_t h = 0; h < to.size(); ++h) to[h] += residual[h];
  }

  const GoldArgs& args_;
  const int64_t hidden_;
  const bool rounds_;
};

/// Gold of add_rms_norm.
///   in:  x, residual [batch, seq, hidden], weight[hidden]     out: y, residual_out [batch, seq, hidden]
///   residual_out = x + residual, rounded to nearest;  y = s r (weight + weight_offset),  r = (mean_h s^2 + eps)^-1/2
///   s = residual_out, or x + residual before it is rounded if round_sum is 0
/// Source: as rms_norm; the fused kernels of vLLM (csrc/layernorm_kernels.cu) and FlashInfer (norm.cuh).
void forward(const GoldArgs& args) {
  const NormWeight weight = read_weight(args.in(2), args.attrs[kOfWeightOffset]);
  const auto hidden = std::ssize(weight.value);
  const Sums sums(args);
  const bool rounds = args.recipes.has(recipe::kNormalisedRow);
  args.parallel_for(args.in(0).count() / hidden, [&](int64_t row) {
    NormScratch& s = norm_scratch(hidden);
    sums.normalised(row, 0, s.row());
    const Root r = root_of(s.row(), args.attrs[kOfEps]);
    for (size_t h = 0; h < s.x.size(); ++h) {
      const GoldElement n = rounded_if(rounds, args, 0, normalised(s.x[h], s.x_error[h], r));
      s.set(h, weighted(n, weight.value[h], weight.units));
    }
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
    sums.stored(row, 0, s.value);
    for (auto* array : {&s.magnitude, &s.rounding}) std::fill(array->begin(), array->end(), 0.0);
    args.sink({1, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// dx is the gradient of the sum x + residual: the gradient of the normalisation plus grad_residual_out, an addition
/// that rounds once. The rounding of the sum passes gradients through unchanged.
void emit_dx(const GoldArgs& args, const Sums& sums, const NormWeight& weight, std::vector<Root>& roots) {
  const auto hidden = std::ssize(weight.value);
  const bool rounds = args.recipes.has(recipe::kWeightedGradient), rounds_row = args.recipes.has(recipe::kRowGradient);
  args.parallel_for(std::ssize(roots), [&](int64_t row) {
    NormScratch& s = norm_scratch(hidden);
    static thread_local std::vector<double> upstream;
    upstream.resize(s.x.size());
    sums.normalised(row, 0, s.row());
    decode_row(args.in(3), row, s.g);
    decode_row(args.in(4), row, upstream);
    const Root r = roots[static_cast<size_t>(row)] = root_of(s.row(), args.attrs[kOfEps]);
    weigh(args, 0, rounds, weight, 0, s.gradient());
    gradient_of_row(s.row(), s.gradient(), r, [&](size_t h, GoldElement e) {
      e = rounded_if(rounds_row, args, 0, e);
      e.value += upstream[h], e.rounding += std::abs(e.value);
      s.set(h, e);
    });
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Gold of add_rms_norm's gradients.
///   in:  x, residual [batch, seq, hidden], weight[hidden], grad_y, grad_residual_out [batch, seq, hidden]
///   out: dx[batch, seq, hidden] = grad_residual_out + r g w - s r^3 mean_h(g w s),  w = weight + weight_offset
///        dweight[hidden] = sum over rows of g s r
/// The gradient of residual is dx, too.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const NormWeight weight = read_weight(args.in(2), args.attrs[kOfWeightOffset]);
  const auto hidden = std::ssize(weight.value);
  std::vector<Root> roots(static_cast<size_t>(args.in(0).count() / hidden));
  const Sums sums(args);
  emit_dx(args, sums, weight, roots);
  const auto read = [&](int64_t row, int64_t first, const Erring& s, const Erring& g) {
    sums.normalised(row, first, s);
    decode_columns(args.in(3), hidden, row, first, g.value);
    return true;
  };
  emit_weight_gradient(args, 1, hidden, std::ssize(roots), read,
                       [&](int64_t row, int64_t) -> const Root& { return roots[static_cast<size_t>(row)]; });
}

void validate(const CaseSizes& sizes) {
  validate_eps(sizes, kOfEps), validate_weight_offset(sizes, kOfWeightOffset);
  if (const double rounds = sizes.attrs[kOfRoundSum]; rounds != 0 && rounds != 1)
    throw InputError("--round-sum", fmt::format("expected 0 or 1, got {}", rounds),
                     std::string(kAttrs[kOfRoundSum].meaning));
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kAddRmsNormForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kAddRmsNormBackward, nullptr,
         kBackwardRecipes}};

}  // namespace
}  // namespace add_rms_norm

extern const Operator kAddRmsNorm;
constexpr Operator kAddRmsNorm{
    "add_rms_norm",
    "reduction",
    "residual_out = x + residual, y = s (weight + weight_offset) / sqrt(mean_h s^2 + eps), s "
    "= residual_out, or before it is rounded if round_sum is 0",
    add_rms_norm::kRow,
    add_rms_norm::kAttrs,
    add_rms_norm::kPasses,
    add_rms_norm::validate};

}  // namespace checkop
