// SPDX-License-Identifier: Apache-2.0
// Normalised rows and their gradients, with the faults that rms_norm and the operators that contain it can have.
#pragma once

#include <array>
#include <numeric>

#include "emulation/common.hpp"
#include "recipes.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kMeanSubtracted{"mean_subtracted", "the mean is taken off each row, as layer norm does"};
inline constexpr FaultSpec kSumForMean{"sum_for_mean", "sums over a row are not divided by its length"};
inline constexpr FaultSpec kRootLeftOut{"root_left_out", "rows are divided by the mean square, not by its root"};
inline constexpr FaultSpec kEpsLeftOut{"eps_left_out", "nothing is added to the mean square"};
inline constexpr FaultSpec kEpsOutsideRoot{"eps_outside_root", "eps is added to the root of the mean square"};
inline constexpr FaultSpec kNeighboursRoot{"neighbours_root", "of every two rows each is divided by the other's root"};
inline constexpr FaultSpec kWeightPlusOne{"weight_plus_one", "the weight is taken as an offset from 1"};
inline constexpr FaultSpec kBf16BeforeWeight{"bf16_before_weight",
                                             "the normalised row is rounded to bf16 before the weight", "accuracy",
                                             "fp32 fp16"};  // in bf16 it is a recipe
inline constexpr FaultSpec kWeightLeftOut{"weight_left_out", "dx is that of a weight of 1"};
inline constexpr FaultSpec kProjectionDropped{"projection_dropped", "dx takes the root for a constant"};
inline constexpr FaultSpec kProjectionScaledOnce{"projection_scaled_once",
                                                 "the second term of dx has the root, not its cube"};
inline constexpr FaultSpec kNotNormalised{"not_normalised", "dweight sums g x instead of g x r"};

/// Rows to normalise, the weight, and r = (mean x^2 + eps)^-1/2 of every row.
struct NormRows {
  Matrix x;
  std::vector<float> weight, roots;

  NormRows(const EmulationArgs& args, Matrix rows, std::vector<float> of_columns, double eps_attr)
      : x(std::move(rows)), weight(std::move(of_columns)), roots(static_cast<size_t>(x.rows())) {
    const Arithmetic& a = args.arithmetic;
    if (a.has(kMeanSubtracted.name)) subtract_means(a);
    if (a.has(kWeightPlusOne.name)) std::for_each(weight.begin(), weight.end(), [](float& w) { w += 1; });
    const float eps = a.has(kEpsLeftOut.name) ? 0 : static_cast<float>(eps_attr), n = divisor(a);
    const bool square = a.has(kRootLeftOut.name), outside = a.has(kEpsOutsideRoot.name);
    args.parallel_for(x.rows(), [&](int64_t r) {
      const float mean = a.dot(x.columns, x.row(r), 1, x.row(r), 1) / n;
      const float size = outside ? std::sqrt(mean) + eps : std::sqrt(mean + eps);
      roots[static_cast<size_t>(r)] = 1 / (square ? size * size : size);
    });
    for (size_t r = 1; a.has(kNeighboursRoot.name) && r < roots.size(); r += 2) std::swap(roots[r - 1], roots[r]);
  }

  float root(int64_t r) const { return roots[static_cast<size_t>(r)]; }
  /// Divisor that turns a sum over a row into a mean.
  float divisor(const Arithmetic& a) const { return a.has(kSumForMean.name) ? 1 : static_cast<float>(x.columns); }
  /// The weights of row r: rows may be groups of columns, with a part of the weight each.
  const float* weights(int64_t r) const { return &weight[static_cast<size_t>(r * x.columns) % weight.size()]; }

 private:
  void subtract_means(const Arithmetic& a) {
    for (int64_t r = 0; r < x.rows(); ++r) {
      float* row = x.row(r);
      const float mean = a.sum(x.columns, [&](int64_t h) { return row[h]; }) / static_cast<float>(x.columns);
      std::for_each(row, row + x.columns, [mean](float& value) { value -= mean; });
    }
  }
};

/// y = x r w
inline Matrix normalised_rows(const EmulationArgs& args, const NormRows& in) {
  const Arithmetic& a = args.arithmetic;
  const bool rounded = a.has(kBf16BeforeWeight.name), rounds = a.rounds(recipe::kNormalisedRow);
  Matrix y = Matrix::zeros(in.x.rows(), in.x.columns);
  for (int64_t r = 0; r < in.x.rows(); ++r) {
    for (int64_t h = 0; h < in.x.columns; ++h) {
      const float normalised = a.rounded_if(rounds, in.x.row(r)[h] * in.root(r));
      y.row(r)[h] = (rounded ? Arithmetic::to_bf16(normalised) : normalised) * in.weights(r)[h];
    }
  }
  return y;
}

/// dx = r (g w - x r^2 mean(g w x)),  g the gradient of normalised_rows()
inline Matrix row_gradients(const EmulationArgs& args, const NormRows& in, const Matrix& g) {
  const Arithmetic& a = args.arithmetic;
  const bool unweighted = a.has(kWeightLeftOut.name), constant = a.has(kProjectionDropped.name),
             once = a.has(kProjectionScaledOnce.name), rounds = a.rounds(recipe::kWeightedGradient);
  Matrix dx = Matrix::zeros(g.rows(), g.columns);
  args.parallel_for(g.rows(), [&](int64_t r) {
    std::vector<float> gw(g.row(r), g.row(r) + g.columns);
    for (size_t h = 0; h < gw.size() && !unweighted; ++h) gw[h] = a.rounded_if(rounds, gw[h] * in.weights(r)[h]);
    const float root = in.root(r);
    const float mean = constant ? 0 : a.dot(g.columns, gw.data(), 1, in.x.row(r), 1) / in.divisor(a);
    const float scale = once ? mean : mean * root * root;
    for (int64_t h = 0; h < g.columns; ++h) dx.row(r)[h] = root * (gw[static_cast<size_t>(h)] - in.x.row(r)[h] * scale);
  });
  return dx;
}

/// dweight = sum of factor(r) g x r over the rows r in `kept`
template <class Factor>
std::vector<double> weight_gradient(const EmulationArgs& args, const NormRows& in, const Matrix& g,
                                    const std::vector<int64_t>& kept, const Factor& factor) {
  const Arithmetic& a = args.arithmetic;
  const bool plain = a.has(kNotNormalised.name);
  const bool rounds_row = a.rounds(recipe::kNormalisedRow), rounds_terms = a.rounds(recipe::kWeightTerms);
  const int64_t columns = std::ssize(in.weight), groups = columns / g.columns;
  std::vector<double> dweight(in.weight.size());
  args.parallel_for(columns, [&](int64_t column) {
    const int64_t group = column / g.columns, h = column % g.columns;
    dweight[static_cast<size_t>(column)] = a.sum(std::ssize(kept), [&](int64_t i) {
      const int64_t r = kept[static_cast<size_t>(i)] * groups + group;
      const float x = in.x.row(r)[h], root = plain ? 1 : in.root(r);
      // Without roundings, from left to right: kernels take g x first.
      const float product = rounds_row ? g.row(r)[h] * a.rounded_if(true, x * root) : g.row(r)[h] * x * root;
      return a.rounded_if(rounds_terms, product) * factor(kept[static_cast<size_t>(i)]);
    });
  });
  return dweight;
}
inline std::vector<double> weight_gradient(const EmulationArgs& args, const NormRows& in, const Matrix& g) {
  std::vector<int64_t> all(static_cast<size_t>(g.rows() * g.columns) / in.weight.size());
  std::iota(all.begin(), all.end(), 0);
  return weight_gradient(args, in, g, all, [](int64_t) { return 1.0F; });
}

// A tile of dweight's sum is a set of rows, a tile of a dot product a set of columns.
inline constexpr std::array kNormRowFaults{faults::kLastKDropped,
                                           faults::kLastKTileDropped,
                                           faults::kBf16Accumulator,
                                           faults::kBf16Partials,
                                           faults::kPartialLost,
                                           kMeanSubtracted,
                                           kSumForMean,
                                           kRootLeftOut,
                                           kEpsLeftOut,
                                           kEpsOutsideRoot,
                                           kNeighboursRoot,
                                           kWeightPlusOne};
inline constexpr auto kNormForwardFaults = joined(kNormRowFaults, std::array{kBf16BeforeWeight});
inline constexpr auto kNormBackwardFaults = joined(
    kNormRowFaults,
    std::array{faults::kLastTileSkipped, kWeightLeftOut, kProjectionDropped, kProjectionScaledOnce, kNotNormalised});

}  // namespace checkop::emulation
