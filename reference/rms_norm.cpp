// SPDX-License-Identifier: Apache-2.0
// rms_norm: rows divided by their root mean square, times a weight. A mask excludes rows from the weight's gradient
// only.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kRmsNormForward, kRmsNormBackward;  // emulation/rms_norm.cpp

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
constexpr Recipe kRowOfY{recipe::kNormalisedRow,
                         "y",
                         k16Bit,
                         /*exact=*/true,
                         "y = round(x r) w",
                         "Hugging Face LlamaRMSNorm and its kin, Liger (casting_mode llama), unsloth"};
constexpr Recipe kRowOfWeight{recipe::kNormalisedRow,
                              "dweight",
                              k16Bit,
                              /*exact=*/true,
                              "dweight = sum_rows g round(x r)",
                              "autograd of Hugging Face's LlamaRMSNorm, Liger (casting_mode llama)"};
constexpr Recipe kTermsOfWeight{
    recipe::kWeightTerms,
    "dweight",
    k16Bit,
    /*exact=*/true,
    "dweight = sum_rows round(g x r)",
    "autograd of Hugging Face's LlamaRMSNorm: the product is a 16-bit tensor before its sum"};
constexpr Recipe kGradientOfRow{recipe::kWeightedGradient,
                                "dx",
                                k16Bit,
                                /*exact=*/true,
                                "dx = r round(g w) - x r^3 mean_h(round(g w) x)",
                                "autograd of Hugging Face's LlamaRMSNorm, Liger, unsloth"};
constexpr std::array kForwardRecipes{kRowOfY};
constexpr std::array kBackwardRecipes{kGradientOfRow, kRowOfWeight, kTermsOfWeight};

constexpr std::array kAttrs{AttrSpec{"eps", 1e-6, "added to the mean of squares"}};

/// Columns of dweight per task: 128 bytes of 16-bit elements per row.
constexpr int64_t kColumnBlock = 64;

// Error of r = (mean x^2 + eps)^-1/2 in units of u, without its sum. The root's argument has at most 5: squares round
// once, the mean twice if 1/n is stored, the addition of eps once, eps itself once in its share. The root halves them
// and adds 4, two ulps of CUDA's rsqrtf.
constexpr double kRootUlps = 2.5 + 4;

std::vector<double> read_all(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.count()));
  decode_row(tensor, 0, values);
  return values;
}

double reciprocal_root(const std::vector<double>& x, double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
}

/// x r, the element of a normalised row: the error of r, half of its sum's, and one rounding.
GoldElement normalised(double x, double r) {
  const double size = std::abs(x * r);
  return {x * r, 0.5 * size, (kRootUlps + 1) * size};
}

/// Arrays for one row, reused by a thread from row to row.
struct Scratch {
  std::vector<double> x, g, value, magnitude, rounding;
};

Scratch& scratch(int64_t hidden) {
  static thread_local Scratch s;
  for (auto* array : {&s.x, &s.g, &s.value, &s.magnitude, &s.rounding}) array->resize(static_cast<size_t>(hidden));
  return s;
}

/// Gold of rms_norm.
///   in:  x[batch, seq, hidden], weight[hidden]     out: y[batch, seq, hidden]
///   y = x r w,  r = (mean_h x^2 + eps)^-1/2
/// The sum in r has positive terms; the root halves its relative error. Two products follow.
/// Source: Zhang & Sennrich, "Root mean square layer normalization", 2019.
void forward(const GoldArgs& args) {
  const int64_t hidden = args.in(1).count(), rows = args.in(0).count() / hidden;
  const std::vector<double> weight = read_all(args.in(1));
  const bool rounds = args.recipes.has(recipe::kNormalisedRow);
  args.parallel_for(rows, [&](int64_t row) {
    Scratch& s = scratch(hidden);
    decode_row(args.in(0), row, s.x);
    const double r = reciprocal_root(s.x, args.attrs[0]);
    for (size_t h = 0; h < weight.size(); ++h) {
      const GoldElement n = rounded_if(rounds, args, 0, normalised(s.x[h], r));
      const double size = std::abs(weight[h]);
      s.value[h] = n.value * weight[h];
      s.magnitude[h] = n.magnitude * size;
      s.rounding[h] = n.rounding * size + std::abs(s.value[h]);
    }
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// dx = a - b,  a = r g w,  b = x r^3 m,  m = mean_h(g w x)
/// The relative error of r enters a once and b three times. The error of m is that of its sum, relative to the mean of
/// |g w x|, with three roundings per term and two of the mean. Products and the difference round; a kernel that scales
/// the difference by r rounds twice.
void emit_dx(const GoldArgs& args, const std::vector<double>& weight, std::vector<double>& roots) {
  const auto hidden = static_cast<int64_t>(weight.size());
  const bool rounds = args.recipes.has(recipe::kWeightedGradient);
  args.parallel_for(static_cast<int64_t>(roots.size()), [&](int64_t row) {
    Scratch& s = scratch(hidden);
    decode_row(args.in(0), row, s.x);
    decode_row(args.in(2), row, s.g);
    const double r = roots[static_cast<size_t>(row)] = reciprocal_root(s.x, args.attrs[0]);
    double mean = 0, mean_size = 0;
    for (size_t h = 0; h < weight.size(); ++h) {
      s.g[h] *= weight[h];
      if (rounds) s.g[h] = args.recipes.round(s.g[h]);
      const double term = s.g[h] * s.x[h];
      mean += term, mean_size += std::abs(term);
    }
    mean /= static_cast<double>(hidden), mean_size /= static_cast<double>(hidden);
    for (size_t h = 0; h < weight.size(); ++h) {
      const double a = r * s.g[h], scale = s.x[h] * r * r * r, b = scale * mean;
      s.value[h] = a - b;
      s.magnitude[h] = 0.5 * std::abs(a) + 1.5 * std::abs(b) + std::abs(scale) * mean_size;
      s.rounding[h] = (kRootUlps + 2) * std::abs(a) + (3 * kRootUlps + 4) * std::abs(b) +
                      5 * std::abs(scale) * mean_size + 2 * std::abs(s.value[h]);
    }
    args.sink({0, row, 1, hidden, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// dweight = sum of g x r over the rows that the mask keeps, first to last. Each term has r's error and two roundings.
void emit_dweight(const GoldArgs& args, int64_t hidden, const std::vector<double>& roots) {
  std::vector<char> kept(roots.size(), 1);
  for (size_t row = 0; args.has(3) && row < kept.size(); ++row)
    kept[row] = args.in(3).at(static_cast<int64_t>(row)) != 0;
  const Tensor &x = args.in(0), &g = args.in(2);
  const DTypeInfo& type = info(x.dtype);
  const bool rounds_row = args.recipes.has(recipe::kNormalisedRow);
  const bool rounds_terms = args.recipes.has(recipe::kWeightTerms);
  const bool exact = rounds_row && rounds_terms;  // fp32 holds a product of two 16-bit values
  args.parallel_for((hidden + kColumnBlock - 1) / kColumnBlock, [&](int64_t block) {
    const int64_t first = block * kColumnBlock, n = std::min(kColumnBlock, hidden - first);
    std::array<double, kColumnBlock> xs, gs, value{}, magnitude{}, rounding{};
    for (size_t row = 0; row < roots.size(); ++row) {
      if (kept[row] == 0) continue;  // skipped unread: it may hold NaN
      const size_t at = (row * static_cast<size_t>(hidden) + static_cast<size_t>(first)) * type.bytes;
      type.decode(x.bytes.data() + at, xs.data(), static_cast<size_t>(n));
      type.decode(g.bytes.data() + at, gs.data(), static_cast<size_t>(n));
      for (size_t h = 0; h < static_cast<size_t>(n); ++h) {
        const GoldElement e = rounded_if(rounds_row, args, 1, normalised(xs[h], roots[row]));
        const double size = std::abs(gs[h]), product = gs[h] * e.value;
        const GoldElement term = rounded_if(
            rounds_terms, args, 1, {product, size * e.magnitude, size * e.rounding + (exact ? 0 : std::abs(product))});
        value[h] += term.value;
        magnitude[h] += std::abs(term.value) + term.magnitude;
        rounding[h] += term.rounding;
      }
    }
    args.sink({1, first, n, 1, value.data(), magnitude.data(), rounding.data()});
  });
}

/// Gold of rms_norm's gradients.
///   in:  x[batch, seq, hidden], weight[hidden], grad_y[batch, seq, hidden], optional mask[batch, seq]
///   out: dx[batch, seq, hidden] = r g w - x r^3 mean_h(g w x)
///        dweight[hidden] = sum over rows with mask != 0 of g x r
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const std::vector<double> weight = read_all(args.in(1));
  std::vector<double> roots(static_cast<size_t>(args.in(0).count()) / weight.size());
  emit_dx(args, weight, roots);
  emit_dweight(args, static_cast<int64_t>(weight.size()), roots);
}

void validate(const CaseSizes& sizes) {
  const double eps = sizes.attrs[0];
  if (!(eps > 0) || !std::isfinite(eps))
    throw InputError("--eps", fmt::format("expected a finite number > 0, got {}", eps),
                     "a row of zeros has no root mean square without it");
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kRmsNormForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kRmsNormBackward, nullptr,
         kBackwardRecipes}};

}  // namespace

extern const Operator kRmsNorm;
constexpr Operator kRmsNorm{"rms_norm", "reduction", "y = x * weight / sqrt(mean_h x^2 + eps)", kRow, kAttrs,
                            kPasses,    validate};

}  // namespace checkop
