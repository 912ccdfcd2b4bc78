// SPDX-License-Identifier: Apache-2.0
// Code shared by rms_norm and the operators that contain it: roots of rows, normalised elements, gradients, and their
// errors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

inline constexpr AttrSpec kEps{"eps", 1e-6, "added to the mean of squares"};
inline constexpr AttrSpec kWeightOffset{"weight_offset", 0, "added to the weight in fp32: 1 in Gemma's models"};
/// Throws InputError unless attribute `index` is a finite number above 0.
void validate_eps(const CaseSizes& sizes, size_t index);
void validate_weight_offset(const CaseSizes& sizes, size_t index);  ///< throws InputError unless it is finite

// Rounding points of a normalised row.
inline constexpr Recipe kRowOfY{recipe::kNormalisedRow,
                                "y",
                                k16Bit,
                                /*exact=*/true,
                                "y = round(x r) w",
                                "Hugging Face LlamaRMSNorm and its kin, Liger (casting_mode llama), unsloth"};
inline constexpr Recipe kRowOfWeight{recipe::kNormalisedRow,
                                     "dweight",
                                     k16Bit,
                                     /*exact=*/true,
                                     "dweight = sum_rows g round(x r)",
                                     "autograd of Hugging Face's LlamaRMSNorm, Liger (casting_mode llama)"};
inline constexpr Recipe kTermsOfWeight{
    recipe::kWeightTerms,
    "dweight",
    k16Bit,
    /*exact=*/true,
    "dweight = sum_rows round(g x r)",
    "autograd of Hugging Face's LlamaRMSNorm: the product is a 16-bit tensor before its sum"};
inline constexpr Recipe kGradientOfRow{recipe::kWeightedGradient,
                                       "dx",
                                       k16Bit,
                                       /*exact=*/true,
                                       "dx = r round(g w) - x r^3 mean_h(round(g w) x)",
                                       "autograd of Hugging Face's LlamaRMSNorm, Liger, unsloth"};

// Error of r = (mean x^2 + eps)^-1/2 in units of u, without its sum. The root's argument has at most 5: squares round
// once, the mean twice if 1/n is stored, the addition of eps once, eps itself once in its share. The root halves them
// and adds 4, two ulps of CUDA's rsqrtf.
inline constexpr double kRootUnits = 2.5 + 4;

/// Part of a row: values, and what each errs by in units of u; 0 for stored values.
struct Erring {
  std::span<double> value, error;

  Erring part(size_t first, size_t n) const { return {value.subspan(first, n), error.subspan(first, n)}; }
};

/// r = (mean x^2 + eps)^-1/2, and its relative error in units of u, without that of its sum.
struct Root {
  double value, units;
};
/// An error e of x moves the mean of squares by 2 x e/n.
Root root_of(const Erring& x, double eps);

/// x r, the element of a normalised row: the errors of r and of x, half of the sum's, and one rounding.
inline GoldElement normalised(double x, double error, const Root& r) {
  const double size = std::abs(x * r.value);
  return {x * r.value, 0.5 * size, (r.units + 1) * size + r.value * error};
}

/// A weight, plus an offset that is added in fp32.
struct NormWeight {
  std::vector<double> value;
  double units;  ///< relative error in units of u
};
NormWeight read_weight(const Tensor& tensor, double offset);

/// n w
inline GoldElement weighted(const GoldElement& n, double w, double w_units) {
  const double value = n.value * w, size = std::abs(w);
  return {value, n.magnitude * size, n.rounding * size + (1 + w_units) * std::abs(value)};
}

/// Arrays of a thread, reused from row to row; norm_scratch() sets the errors to 0.
struct NormScratch {
  std::vector<double> x, x_error, g, g_error, value, magnitude, rounding;

  Erring row() { return {x, x_error}; }
  Erring gradient() { return {g, g_error}; }
  void set(size_t h, const GoldElement& e) { value[h] = e.value, magnitude[h] = e.magnitude, rounding[h] = e.rounding; }
};
NormScratch& norm_scratch(int64_t hidden);

/// The gradient of a normalised row with respect to its elements: a - b, a = r gw, b = x r^3 m, m = mean(gw x). gw is
/// the gradient of the weighted row times the weights: a product that rounds once; `error` is its other error. Element
/// h is passed to take(h, e). The relative error of r enters a once and b three times. The error of m is that of its
/// sum, relative to the mean of |gw x|, with three roundings per term and two of the mean. Products and the difference
/// round; a kernel that scales the difference by r rounds twice.
template <class Take>
void gradient_of_row(const Erring& x, const Erring& gw, const Root& root, const Take& take) {
  const double r = root.value;
  double mean = 0, mean_size = 0, mean_error = 0;
  for (size_t h = 0; h < x.value.size(); ++h) {
    const double term = gw.value[h] * x.value[h];
    mean += term, mean_size += std::abs(term);
    mean_error += std::abs(gw.value[h]) * x.error[h] + std::abs(x.value[h]) * gw.error[h];
  }
  const auto n = static_cast<double>(x.value.size());
  mean /= n, mean_size /= n, mean_error /= n;
  for (size_t h = 0; h < x.value.size(); ++h) {
    const double a = r * gw.value[h], scale = x.value[h] * r * r * r, b = scale * mean, value = a - b;
    const double of_terms = r * gw.error[h] + std::abs(scale) * mean_error + r * r * r * std::abs(mean) * x.error[h];
    take(h, GoldElement{value, 0.5 * std::abs(a) + 1.5 * std::abs(b) + std::abs(scale) * mean_size,
                        (root.units + 2) * std::abs(a) + (3 * root.units + 4) * std::abs(b) +
                            5 * std::abs(scale) * mean_size + 2 * std::abs(value) + of_terms});
  }
}

/// The product gw of a gradient g and a weight, for gradient_of_row(). If `rounds`, it is rounded to the dtype of the
/// case, which is the same in every kernel if both factors are stored.
inline void weigh(const GoldArgs& args, int output, bool rounds, const NormWeight& weight, size_t first, Erring g) {
  for (size_t h = 0; h < g.value.size(); ++h) {
    const double w = weight.value[first + h], value = g.value[h] * w;
    const double error = g.error[h] * std::abs(w) + weight.units * std::abs(value);
    // fp32 holds a product of two stored values of 16 bits.
    const GoldElement e = rounded_if(rounds, args, output, {value, 0, error == 0 ? 0 : error + std::abs(value)});
    g.value[h] = e.value, g.error[h] = rounds ? e.rounding : error;
  }
}

/// Columns of a weight's gradient per task: 128 bytes of 16-bit elements per row.
inline constexpr int64_t kColumnBlock = 64;

/// Emits the weight's gradient as output `output`: the sum of g x r over rows, first to last. Each term has the errors
/// of g, of x and of r, and two roundings.
///   read(row, first, x, g)  fills both with columns first, first + 1, ...; false: the row is left out
///   root_at(row, column)    r, the same for all columns of a kind
template <class Read, class RootAt>
void emit_weight_gradient(const GoldArgs& args, int output, int64_t hidden, int64_t rows, const Read& read,
                          const RootAt& root_at) {
  const bool rounds_row = args.recipes.has(recipe::kNormalisedRow);
  const bool rounds_terms = args.recipes.has(recipe::kWeightTerms);
  const bool exact = rounds_row && rounds_terms;  // fp32 holds a product of two 16-bit values
  args.parallel_for((hidden + kColumnBlock - 1) / kColumnBlock, [&](int64_t block) {
    const int64_t first = block * kColumnBlock, n = std::min(kColumnBlock, hidden - first);
    const auto width = static_cast<size_t>(n);
    std::array<double, kColumnBlock> xs, x_errors{}, gs, g_errors{}, value{}, magnitude{}, rounding{};
    const Erring x = Erring{xs, x_errors}.part(0, width), g = Erring{gs, g_errors}.part(0, width);
    for (int64_t row = 0; row < rows; ++row) {
      if (!read(row, first, x, g)) continue;
      for (size_t h = 0; h < width; ++h) {
        const Root& root = root_at(row, first + static_cast<int64_t>(h));
        const GoldElement e = rounded_if(rounds_row, args, output, normalised(xs[h], x_errors[h], root));
        const double size = std::abs(gs[h]), product = gs[h] * e.value;
        const GoldElement term =
            rounded_if(rounds_terms, args, output,
                       {product, size * e.magnitude,
                        size * e.rounding + (exact ? 0 : std::abs(product)) + std::abs(e.value) * g_errors[h]});
        value[h] += term.value;
        magnitude[h] += std::abs(term.value) + term.magnitude;
        rounding[h] += term.rounding;
      }
    }
    args.sink({output, first, n, 1, value.data(), magnitude.data(), rounding.data()});
  });
}

/// Columns [first, first + to.size()) of row `row` of a tensor with `hidden` columns.
inline void decode_columns(const Tensor& tensor, int64_t hidden, int64_t row, int64_t first, std::span<double> to) {
  const DTypeInfo& type = info(tensor.dtype);
  type.decode(tensor.bytes.data() + static_cast<size_t>(row * hidden + first) * type.bytes, to.data(), to.size());
}

}  // namespace checkop
