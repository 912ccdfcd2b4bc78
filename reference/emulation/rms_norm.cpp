// SPDX-License-Identifier: Apache-2.0
// Emulates rms_norm as kernels compute it.
#include <array>

#include "emulation/common.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kMeanSubtracted{"mean_subtracted", "the mean is taken off each row, as layer norm does"};
constexpr FaultSpec kSumForMean{"sum_for_mean", "sums over a row are not divided by its length"};
constexpr FaultSpec kRootLeftOut{"root_left_out", "rows are divided by the mean square, not by its root"};
constexpr FaultSpec kEpsLeftOut{"eps_left_out", "nothing is added to the mean square"};
constexpr FaultSpec kEpsOutsideRoot{"eps_outside_root", "eps is added to the root of the mean square"};
constexpr FaultSpec kNeighboursRoot{"neighbours_root", "of every two rows each is divided by the other's root"};
constexpr FaultSpec kWeightPlusOne{"weight_plus_one", "the weight is taken as an offset from 1"};
constexpr FaultSpec kBf16BeforeWeight{"bf16_before_weight", "the normalised row is rounded to bf16 before the weight",
                                      "accuracy", "fp32 fp16"};  // in bf16 it is a recipe
constexpr FaultSpec kWeightLeftOut{"weight_left_out", "dx is that of a weight of 1"};
constexpr FaultSpec kProjectionDropped{"projection_dropped", "dx takes the root for a constant"};
constexpr FaultSpec kProjectionScaledOnce{"projection_scaled_once", "the second term of dx has the root, not its cube"};
constexpr FaultSpec kNotNormalised{"not_normalised", "dweight sums g x instead of g x r"};
constexpr FaultSpec kRowMaskIgnored{"row_mask_ignored", "masked rows count in dweight", "accuracy", "", "mask"};
// Visible because masks hold 2s, which keep a row as a 1 does.
constexpr FaultSpec kMaskMultiplied{"mask_multiplied", "rows of dweight are multiplied by their mask's value",
                                    "accuracy", "", "mask"};
constexpr FaultSpec kMaskedDxZero{"masked_dx_zero", "the mask takes rows out of dx too", "accuracy", "", "mask"};

/// Inputs of both passes, and r = (mean x^2 + eps)^-1/2 of every row.
struct Rows {
  Matrix x;
  std::vector<float> weight, roots;

  explicit Rows(const EmulationArgs& args)
      : x(matrix(args, 0)), weight(args.floats(1)), roots(static_cast<size_t>(x.rows())) {
    const Arithmetic& a = args.arithmetic;
    if (a.has(kMeanSubtracted.name)) subtract_means(a);
    if (a.has(kWeightPlusOne.name)) std::for_each(weight.begin(), weight.end(), [](float& w) { w += 1; });
    const float eps = a.has(kEpsLeftOut.name) ? 0 : static_cast<float>(args.attrs[0]), n = divisor(a);
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

 private:
  void subtract_means(const Arithmetic& a) {
    for (int64_t r = 0; r < x.rows(); ++r) {
      float* row = x.row(r);
      const float mean = a.sum(x.columns, [&](int64_t h) { return row[h]; }) / static_cast<float>(x.columns);
      std::for_each(row, row + x.columns, [mean](float& value) { value -= mean; });
    }
  }
};

void forward(const EmulationArgs& args) {
  const Rows in(args);
  const Arithmetic& a = args.arithmetic;
  const bool rounded = a.has(kBf16BeforeWeight.name), rounds = a.rounds(recipe::kNormalisedRow);
  for (int64_t r = 0; r < in.x.rows(); ++r) {
    double* y = &args.out(0)[static_cast<size_t>(r * in.x.columns)];
    for (int64_t h = 0; h < in.x.columns; ++h) {
      const float normalised = a.rounded_if(rounds, in.x.row(r)[h] * in.root(r));
      y[h] = (rounded ? Arithmetic::to_bf16(normalised) : normalised) * in.weight[static_cast<size_t>(h)];
    }
  }
}

/// dx = r (g w - x r^2 mean(g w x))
void store_dx(const EmulationArgs& args, const Rows& in, const Matrix& g) {
  const Arithmetic& a = args.arithmetic;
  const bool unweighted = a.has(kWeightLeftOut.name), constant = a.has(kProjectionDropped.name),
             once = a.has(kProjectionScaledOnce.name), rounds = a.rounds(recipe::kWeightedGradient);
  args.parallel_for(g.rows(), [&](int64_t r) {
    std::vector<float> gw(g.row(r), g.row(r) + g.columns);
    for (size_t h = 0; h < gw.size() && !unweighted; ++h) gw[h] = a.rounded_if(rounds, gw[h] * in.weight[h]);
    const float root = in.root(r);
    const float mean = constant ? 0 : a.dot(g.columns, gw.data(), 1, in.x.row(r), 1) / in.divisor(a);
    const float scale = once ? mean : mean * root * root;
    double* dx = &args.out(0)[static_cast<size_t>(r * g.columns)];
    for (int64_t h = 0; h < g.columns; ++h) dx[h] = root * (gw[static_cast<size_t>(h)] - in.x.row(r)[h] * scale);
  });
}

/// dweight = sum over the rows that the mask keeps of g x r
void store_dweight(const EmulationArgs& args, const Rows& in, const Matrix& g, const std::vector<int64_t>& mask) {
  const Arithmetic& a = args.arithmetic;
  std::vector<int64_t> kept;
  for (int64_t r = 0; r < g.rows(); ++r) {
    if (mask.empty() || mask[static_cast<size_t>(r)] != 0 || a.has(kRowMaskIgnored.name)) kept.push_back(r);
  }
  const bool plain = a.has(kNotNormalised.name), multiplied = a.has(kMaskMultiplied.name);
  const bool rounds_row = a.rounds(recipe::kNormalisedRow), rounds_terms = a.rounds(recipe::kWeightTerms);
  args.parallel_for(g.columns, [&](int64_t h) {
    args.out(1)[static_cast<size_t>(h)] = a.sum(std::ssize(kept), [&](int64_t i) {
      const int64_t r = kept[static_cast<size_t>(i)];
      const float x = in.x.row(r)[h], root = plain ? 1 : in.root(r);
      // Without roundings, from left to right: kernels take g x first.
      const float product = rounds_row ? g.row(r)[h] * a.rounded_if(true, x * root) : g.row(r)[h] * x * root;
      const float term = a.rounded_if(rounds_terms, product);
      return multiplied ? term * static_cast<float>(mask[static_cast<size_t>(r)]) : term;
    });
  });
}

void backward(const EmulationArgs& args) {
  const Rows in(args);
  const Matrix g = matrix(args, 2);
  const std::vector<int64_t> mask = args.has(3) ? args.integers(3) : std::vector<int64_t>{};
  store_dx(args, in, g);
  for (int64_t r = 0; r < g.rows() && args.arithmetic.has(kMaskedDxZero.name); ++r) {
    if (mask[static_cast<size_t>(r)] == 0) std::fill_n(args.out(0).begin() + r * g.columns, g.columns, 0.0);
  }
  store_dweight(args, in, g, mask);
}

constexpr std::array kForwardFaults{faults::kLastKDropped,
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
                                    kWeightPlusOne,
                                    kBf16BeforeWeight};
// A tile of dweight's sum is a set of rows, a tile of a dot product a set of columns.
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kLastKDropped,
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
                                     kWeightPlusOne,
                                     kWeightLeftOut,
                                     kProjectionDropped,
                                     kProjectionScaledOnce,
                                     kNotNormalised,
                                     kRowMaskIgnored,
                                     kMaskMultiplied,
                                     kMaskedDxZero};

}  // namespace

extern const Emulation kRmsNormForward, kRmsNormBackward;
const Emulation kRmsNormForward{forward, kForwardFaults};
const Emulation kRmsNormBackward{backward, kBackwardFaults};

}  // namespace checkop
