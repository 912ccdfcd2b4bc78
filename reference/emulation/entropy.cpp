// SPDX-License-Identifier: Apache-2.0
// Emulates entropy as kernels compute it.
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kMeanLeftOut{"mean_left_out", "the mean distance from the maximum is not added"};
constexpr FaultSpec kInBits{"in_bits", "logarithms are to base 2"};
constexpr FaultSpec kMeanOfLogits{"mean_of_logits",
                                  "the mean is that of all logits alike, without their probabilities"};
constexpr FaultSpec kLogSumForMean{"log_sum_for_mean", "the gradient has the log-sum-exp in place of the mean"};
constexpr FaultSpec kTemperatureLeftOut{"temperature_left_out", "logits are not divided by the temperature"};
constexpr FaultSpec kTemperatureMultiplied{"temperature_multiplied", "logits are multiplied by the temperature"};
constexpr FaultSpec kTemperatureBeforeCap{"temperature_before_cap", "the temperature divides logits before the cap"};
constexpr FaultSpec kCapLeftOut{"cap_left_out", "logits are not capped"};
constexpr FaultSpec kSlopeOfTemperature{"slope_of_temperature", "the gradient is not divided by the temperature"};
constexpr FaultSpec kSlopeOfCap{"slope_of_cap", "the gradient lacks the derivative of the cap"};
constexpr FaultSpec kMaskIgnored{"mask_ignored", "masked rows count like the others", "nonfinite", "", "mask"};
constexpr FaultSpec kMaskedMultiplied{"masked_multiplied", "a masked row is computed, then multiplied by 0",
                                      "nonfinite", "", "mask"};

/// A row of transformed logits and the derivative of each.
struct Row {
  std::vector<float> z, slope;

  Row(const EmulationArgs& args, const float* x, int64_t n) {
    const Arithmetic& a = args.arithmetic;
    const auto t = static_cast<float>(args.attrs[0]);
    const float divisor = a.has(kTemperatureLeftOut.name) ? 1 : a.has(kTemperatureMultiplied.name) ? 1 / t : t;
    const float cap = a.has(kCapLeftOut.name) ? 0 : static_cast<float>(args.attrs[1]);
    const bool before = a.has(kTemperatureBeforeCap.name), uncapped = a.has(kSlopeOfCap.name);
    const float of_gradient = a.has(kSlopeOfTemperature.name) ? 1 : divisor;
    for (int64_t v = 0; v < n; ++v) {
      const float logit = before ? x[v] / divisor : x[v];
      const float tanh = cap == 0 ? 0 : std::tanh(logit / cap), capped = cap == 0 ? logit : cap * tanh;
      z.push_back(before ? capped : capped / divisor);
      slope.push_back((uncapped ? 1 : 1 - tanh * tanh) / of_gradient);
    }
  }
};

/// body(row, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const Body& body) {
  const Matrix x = matrix(args, 0);
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> mask = args.has(1) ? args.integers(1) : std::vector<int64_t>();
  args.parallel_for(x.rows(), [&](int64_t r) {
    const bool masked = !mask.empty() && mask[static_cast<size_t>(r)] == 0;
    if (masked && !a.has(kMaskIgnored.name) && !a.has(kMaskedMultiplied.name)) return;
    body(r, Row(args, x.row(r), x.columns), masked && a.has(kMaskedMultiplied.name) ? 0.0F : 1.0F);
  });
}

/// exp(-below) * below of a logit that is `below` the maximum; 0 for one of -inf.
float weighted(const Arithmetic& a, float below) {
  const float weight = a.exponential(-below);
  return weight == 0 ? 0 : weight * below;
}

/// sum_v p_v (max - z_v)
float mean_of(const Arithmetic& a, const SoftmaxRow& softmax, const std::vector<float>& z) {
  const auto n = std::ssize(z);
  const auto below = [&](int64_t v) { return softmax.max - z[static_cast<size_t>(v)]; };
  if (a.has(kMeanOfLogits.name)) return a.sum(n, below) / static_cast<float>(n);
  return a.sum(n, [&](int64_t v) { return weighted(a, below(v)); }) / softmax.sum;
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  for_each_row(args, [&](int64_t r, const Row& row, float scale) {
    const SoftmaxRow softmax = softmax_row(a, row.z.data(), std::ssize(row.z));
    const float mean = a.has(kMeanLeftOut.name) ? 0 : mean_of(a, softmax, row.z);
    float entropy = std::log(softmax.sum) + mean;
    if (a.has(kInBits.name)) entropy *= 1.44269504F;
    args.out(0)[static_cast<size_t>(r)] = scale * entropy;
  });
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](int64_t r, const Row& row, float scale) {
    const SoftmaxRow softmax = softmax_row(a, row.z.data(), std::ssize(row.z));
    float mean = a.has(kLogSumForMean.name) ? -std::log(softmax.sum) : mean_of(a, softmax, row.z);
    if (a.has(kMeanLeftOut.name)) mean = 0;
    const float upstream = scale * g[static_cast<size_t>(r)];
    double* to = &args.out(0)[static_cast<size_t>(r) * row.z.size()];
    for (size_t v = 0; v < row.z.size(); ++v) {
      const float below = softmax.max - row.z[v], p = a.exponential(-below) / softmax.sum;
      to[v] = p == 0 ? 0 : upstream * p * (below - mean) * row.slope[v];
    }
  });
}

constexpr std::array kForwardFaults{faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    kPaddedColumnCounted,
                                    kSumNotRescaled,
                                    kMaximumNotSubtracted,
                                    kMaximumOfFirstTile,
                                    kTileOfInfinities,
                                    kMeanLeftOut,
                                    kInBits,
                                    kMeanOfLogits,
                                    kTemperatureLeftOut,
                                    kTemperatureMultiplied,
                                    kTemperatureBeforeCap,
                                    kCapLeftOut,
                                    kMaskIgnored,
                                    kMaskedMultiplied};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kBf16Exponential,
                                     kPaddedColumnCounted,
                                     kSumNotRescaled,
                                     kMaximumNotSubtracted,
                                     kMaximumOfFirstTile,
                                     kTileOfInfinities,
                                     kMeanLeftOut,
                                     kMeanOfLogits,
                                     kLogSumForMean,
                                     kTemperatureLeftOut,
                                     kTemperatureMultiplied,
                                     kTemperatureBeforeCap,
                                     kCapLeftOut,
                                     kSlopeOfTemperature,
                                     kSlopeOfCap,
                                     kMaskIgnored,
                                     kMaskedMultiplied};

}  // namespace

extern const Emulation kEntropyForward, kEntropyBackward;
const Emulation kEntropyForward{forward, kForwardFaults};
const Emulation kEntropyBackward{backward, kBackwardFaults};

}  // namespace checkop
