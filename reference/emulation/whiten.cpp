// SPDX-License-Identifier: Apache-2.0
// Emulates whiten as kernels compute it.
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace whiten {
namespace {

using namespace emulation;

constexpr FaultSpec kMaskIgnored{"mask_ignored", "masked elements count like the others", "nonfinite", "", "mask"};
constexpr FaultSpec kMaskedMultiplied{"masked_multiplied", "masked elements are multiplied by 0 and added", "nonfinite",
                                      "", "mask"};
constexpr FaultSpec kMeanOfAll{"mean_of_all", "sums are divided by the number of all elements", "accuracy", "", "mask"};
constexpr FaultSpec kMaskedNotZero{"masked_not_zero", "masked elements get minus the mean over the deviation",
                                   "accuracy", "", "mask"};
constexpr FaultSpec kOnePass{"one_pass", "the variance is the mean of squares minus the square of the mean"};
constexpr FaultSpec kOtherVariance{"other_variance", "n and n - 1 change places in the variance"};
constexpr FaultSpec kNotScaled{"not_scaled", "elements are not divided by the deviation"};
constexpr FaultSpec kVarianceForDeviation{"variance_for_deviation", "elements are divided by the variance"};
constexpr FaultSpec kEpsOutside{"eps_outside", "eps is added to the deviation, not to the variance"};
constexpr FaultSpec kOtherShift{"other_shift", "the mean is added where it must not be, and left out where it must"};
constexpr FaultSpec kRowByRow{"row_by_row", "each sequence has a mean and a variance of its own"};

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> x = args.floats(0);
  const std::vector<int64_t> mask = args.has(1) ? args.integers(1) : std::vector<int64_t>(x.size(), 1);
  const auto seq = static_cast<size_t>(args.in(0).shape.back()), set = a.has(kRowByRow.name) ? seq : x.size();
  const bool shift = (args.attrs[0] != 0) != a.has(kOtherShift.name);
  const bool unbiased = (args.attrs[1] != 0) != a.has(kOtherVariance.name);
  const auto eps = static_cast<float>(args.attrs[2]);
  for (size_t begin = 0; begin < x.size(); begin += set) {
    std::vector<float> kept;
    for (size_t i = begin; i < begin + set; ++i) {
      if (mask[i] != 0 || a.has(kMaskIgnored.name)) kept.push_back(x[i]);
      if (mask[i] == 0 && a.has(kMaskedMultiplied.name)) kept.push_back(x[i] * 0);
    }
    const auto n = std::ssize(kept);
    if (n < 2) continue;
    const auto at = [&](int64_t i) { return kept[static_cast<size_t>(i)]; };
    const auto count = static_cast<float>(a.has(kMeanOfAll.name) ? std::ssize(x) : n);
    const float mean = kept[0] + a.sum(n, [&](int64_t i) { return at(i) - kept[0]; }) / count;
    float variance = a.sum(n, [&](int64_t i) { return (at(i) - mean) * (at(i) - mean); }) / count;
    if (a.has(kOnePass.name)) variance = a.sum(n, [&](int64_t i) { return at(i) * at(i); }) / count - mean * mean;
    if (unbiased) variance *= count / (count - 1);
    float s = a.has(kEpsOutside.name) ? std::sqrt(variance) + eps : std::sqrt(variance + eps);
    if (a.has(kVarianceForDeviation.name)) s = variance + eps;
    if (a.has(kNotScaled.name)) s = 1;
    for (size_t i = begin; i < begin + set; ++i) {
      if (mask[i] != 0 || a.has(kMaskIgnored.name)) args.out(0)[i] = (x[i] - mean) / s + (shift ? 0 : mean);
      if (mask[i] == 0 && a.has(kMaskedNotZero.name)) args.out(0)[i] = -mean / s;
    }
  }
}

constexpr std::array kFaults{faults::kLastTileSkipped,
                             faults::kBf16Accumulator,
                             faults::kBf16Partials,
                             faults::kPartialLost,
                             kMaskIgnored,
                             kMaskedMultiplied,
                             kMeanOfAll,
                             kMaskedNotZero,
                             kOnePass,
                             kOtherVariance,
                             kNotScaled,
                             kVarianceForDeviation,
                             kEpsOutside,
                             kOtherShift,
                             kRowByRow};

}  // namespace
}  // namespace whiten

extern const Emulation kWhitenForward;
const Emulation kWhitenForward{whiten::forward, whiten::kFaults};

}  // namespace checkop
