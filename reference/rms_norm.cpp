// SPDX-License-Identifier: Apache-2.0
// rms_norm: rows divided by their root mean square, times a weight. A mask excludes rows from the weight's gradient
// only.
#include "rms_norm.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"

namespace checkop {

extern const Emulation kRmsNormForward, kRmsNormBackward;  // emulation/rms_norm.cpp

namespace rms_norm {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden";
constexpr TensorSpec kX{"x", kRowHidden, Fill::rows}, kWeight{"weight", "hidden"};
constexpr TensorSpec kGradY{"grad_y", kRowHidden, Fill::upstream};
constexpr TensorSpec kMask{"mask", kRow, Fill::mask, "", DType::u8, /*optional=*/true};

constexpr std::array kForwardIn{kX, kWeight};
constexpr std::array kForwardOut{OutputSpec{{"y", kRowHidden}, Numerics::reduction, "hidden"}};
// The mask is an input of the backward pass only: y and dx of masked rows are computed as usual.
constexpr std::array kBackwardIn{kX, kWeight, kGradY, kMask};
constexpr std::array kBackwardOut{
    OutputSpec{{"dx", kRowHidden}, Numerics::reduction, "hidden"},
    OutputSpec{{"dweight", "hidden"}, Numerics::reduction, "hidden batch*seq"},
};
constexpr std::array kForwardRecipes{kRowOfY};
constexpr std::array kBackwardRecipes{kGradientOfRow, kRowOfWeight, kTermsOfWeight};

constexpr std::array kAttrs{kEps};

/// Gold of rms_norm.
///   in:  x[batch, seq, hidden], weight[hidden]     out: y[batch, seq, hidden]
///   y = x r w,  r = (mean_h x^2 + eps)^-1/2
/// The sum in r has positive terms; the root halves its relative error. Two products follow.
/// Source: Zhang & Sennrich, "Root mean square layer normalization", 2019.
void forward(const GoldArgs& args) {
  const int64_t hidden = args.in(1).count(), rows = args.in(0).count() / hidden;
  const NormWeight weight = read_weight(args.in(1), 0);
  const bool rounds = args.recipes.has(recipe::kNormalisedRow);
  args.parallel_for(rows, [&](int64_t row) {
    NormScratch& s = norm_scratch(hidden);
    decode_row(args.in(0), row, s.x);
    const Root r = root_of(s.row(), args.attrs[0]);
    for (size_t h = 0; h < s.x.size(); ++h)
      s.set(h, weighted(rounded_if(rounds, args, 0, normalised(s.x[h], 0, r)), weight.value[h], weight.units));
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

void emit_dx(const GoldArgs& args, const NormWeight& weight, std::vector<Root>& roots) {
  const auto hidden = std::ssize(weight.value);
  const bool rounds = args.recipes.has(recipe::kWeightedGradient);
  args.parallel_for(std::ssize(roots), [&](int64_t row) {
    NormScratch& s = norm_scratch(hidden);
    decode_row(args.in(0), row, s.x);
    decode_row(args.in(2), row, s.g);
    const Root r = roots[static_cast<size_t>(row)] = root_of(s.row(), args.attrs[0]);
    weigh(args, 0, rounds, weight, 0, s.gradient());
    gradient_of_row(s.row(), s.gradient(), r, [&](size_t h, const GoldElement& e) { s.set(h, e); });
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Gold of rms_norm's gradients.
///   in:  x[batch, seq, hidden], weight[hidden], grad_y[batch, seq, hidden], optional mask[batch, seq]
///   out: dx[batch, seq, hidden] = r g w - x r^3 mean_h(g w x)
///        dweight[hidden] = sum over rows with mask != 0 of g x r
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const NormWeight weight = read_weight(args.in(1), 0);
  const auto hidden = std::ssize(weight.value);
  std::vector<Root> roots(static_cast<size_t>(args.in(0).count() / hidden));
  emit_dx(args, weight, roots);
  const auto read = [&](int64_t row, int64_t first, const Erring& x, const Erring& g) {
    if (args.has(3) && args.in(3).at(row) == 0) return false;  // skipped unread: it may hold NaN
    decode_columns(args.in(0), hidden, row, first, x.value);
    decode_columns(args.in(2), hidden, row, first, g.value);
    return true;
  };
  emit_weight_gradient(args, 1, hidden, std::ssize(roots), read,
                       [&](int64_t row, int64_t) -> const Root& { return roots[static_cast<size_t>(row)]; });
}

void validate(const CaseSizes& sizes) { validate_eps(sizes, 0); }

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kRmsNormForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kRmsNormBackward, nullptr,
         kBackwardRecipes}};

}  // namespace
}  // namespace rms_norm

void validate_eps(const CaseSizes& sizes, size_t index) {
  const double eps = sizes.attrs[index];
  if (!(eps > 0) || !std::isfinite(eps))
    throw InputError("--eps", fmt::format("expected a finite number > 0, got {}", eps),
                     "a row of zeros has no root mean square without it");
}

void validate_weight_offset(const CaseSizes& sizes, size_t index) {
  if (const double offset = sizes.attrs[index]; !std::isfinite(offset))
    throw InputError("--weight-offset", fmt::format("expected a finite number, got {}", offset), "0 or 1 is usual");
}

Root root_of(const Erring& x, double eps) {
  double squares = 0, errors = 0;
  for (size_t h = 0; h < x.value.size(); ++h) {
    squares += x.value[h] * x.value[h];
    errors += std::abs(x.value[h]) * x.error[h];
  }
  const auto n = static_cast<double>(x.value.size());
  const double r = 1 / std::sqrt(squares / n + eps);
  return {r, kRootUnits + r * r * errors / n};
}

NormWeight read_weight(const Tensor& tensor, double offset) {
  NormWeight weight{std::vector<double>(static_cast<size_t>(tensor.count())), offset == 0 ? 0.0 : 1.0};
  decode_row(tensor, 0, weight.value);
  for (double& w : weight.value) w += offset;
  return weight;
}

NormScratch& norm_scratch(int64_t hidden) {
  static thread_local NormScratch s;
  for (auto* array : {&s.x, &s.g, &s.value, &s.magnitude, &s.rounding}) array->resize(static_cast<size_t>(hidden));
  for (auto* array : {&s.x_error, &s.g_error}) array->assign(static_cast<size_t>(hidden), 0.0);
  return s;
}

extern const Operator kRmsNorm;
constexpr Operator kRmsNorm{"rms_norm",        "reduction",      "y = x * weight / sqrt(mean_h x^2 + eps)",
                            rms_norm::kRow,    rms_norm::kAttrs, rms_norm::kPasses,
                            rms_norm::validate};

}  // namespace checkop
