// SPDX-License-Identifier: Apache-2.0
// Emulates group_norm as kernels compute it.
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace group_norm {
namespace {

using namespace emulation;

constexpr FaultSpec kOtherVariance{"other_variance", "n and n - 1 change places in the variance"};
constexpr FaultSpec kVarianceForDeviation{"variance_for_deviation", "rewards are divided by the variance"};
constexpr FaultSpec kMeanNotSubtracted{"mean_not_subtracted", "advantages are rewards over their deviation"};
constexpr FaultSpec kOtherScale{"other_scale", "divides where it must not, and does not where it must"};
constexpr FaultSpec kEpsLeftOut{"eps_left_out", "eps is not added to the deviation"};
constexpr FaultSpec kEpsInRoot{"eps_in_root", "eps is added to the variance"};
constexpr FaultSpec kOnePass{"one_pass", "the variance is the mean of squares minus the square of the mean"};
constexpr FaultSpec kNotCentred{"not_centred", "the mean is a plain sum over n, which is off for equal rewards"};
constexpr FaultSpec kEqualDivided{"equal_divided", "what differs from equal others is divided by eps"};
constexpr FaultSpec kEqualByEnds{"equal_by_ends", "rewards count as equal if the first one equals the last one"};
constexpr FaultSpec kLeaveOneOutIgnored{"leave_one_out_ignored", "a reward counts in its own mean, or does not"};
constexpr FaultSpec kOtherSingleton{"other_singleton", "a group of one gets its reward where it must get 0"};
constexpr FaultSpec kNeighbourGroup{"neighbour_group", "rewards are taken by the statistics of the next group"};
constexpr FaultSpec kGroupsIgnored{"groups_ignored", "rewards are taken by the statistics of the whole batch"};
constexpr FaultSpec kGroupsLate{"groups_late", "groups begin one completion late"};

std::vector<int64_t> group_bounds(const EmulationArgs& args, int64_t batch) {
  const Arithmetic& a = args.arithmetic;
  std::vector<int64_t> bounds;
  for (int64_t i = 0; i <= batch && !args.has(1); i += static_cast<int64_t>(args.attrs[0])) bounds.push_back(i);
  if (args.has(1)) bounds = args.integers(1);
  if (a.has(kGroupsIgnored.name)) bounds = {0, batch};
  for (size_t i = 1; i + 1 < bounds.size() && a.has(kGroupsLate.name); ++i) bounds[i] = std::min(bounds[i] + 1, batch);
  return bounds;
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> rewards = args.floats(0);
  const std::vector<int64_t> bounds = group_bounds(args, std::ssize(rewards));
  const bool scale = (args.attrs[1] != 0) != a.has(kOtherScale.name);
  const bool unbiased = (args.attrs[2] != 0) != a.has(kOtherVariance.name);
  const bool leaves_out = (args.attrs[4] != 0) != a.has(kLeaveOneOutIgnored.name);
  const bool singleton = (args.attrs[5] != 0) != a.has(kOtherSingleton.name);
  const float eps = a.has(kEpsLeftOut.name) ? 0 : static_cast<float>(args.attrs[3]);
  const size_t groups = bounds.size() - 1;
  for (size_t g = 0; g < groups; ++g) {
    const size_t of = a.has(kNeighbourGroup.name) ? (g + 1) % groups : g;
    for (int64_t i = bounds[g]; i < bounds[g + 1]; ++i) {
      std::vector<float> set;
      for (int64_t j = bounds[of]; j < bounds[of + 1]; ++j)
        if (!leaves_out || j != i) set.push_back(rewards[static_cast<size_t>(j)]);
      const float x = rewards[static_cast<size_t>(i)];
      double& to = args.out(0)[static_cast<size_t>(i)];
      to = singleton ? x : 0;
      if (bounds[of + 1] - bounds[of] < 2 || set.empty()) continue;
      const auto n = std::ssize(set);
      const auto count = static_cast<float>(n);
      const float first = a.has(kNotCentred.name) ? 0 : set[0];
      const auto off = [&](int64_t j) { return set[static_cast<size_t>(j)] - first; };
      const float mean = a.sum(n, off) / count, divisor = unbiased ? std::max(count - 1, 1.0F) : count;
      const auto square = [&](int64_t j) { return (off(j) - mean) * (off(j) - mean); };
      float variance = a.sum(n, square) / divisor;
      if (a.has(kOnePass.name)) {
        const float squares =
            a.sum(n, [&](int64_t j) { return set[static_cast<size_t>(j)] * set[static_cast<size_t>(j)]; });
        const float plain = a.sum(n, [&](int64_t j) { return set[static_cast<size_t>(j)]; }) / count;
        variance = std::max(0.0F, squares / count - plain * plain) * count / divisor;
      }
      float s = a.has(kEpsInRoot.name) ? std::sqrt(variance + eps) : std::sqrt(variance) + eps;
      if (a.has(kVarianceForDeviation.name)) s = variance + eps;
      const float away = a.has(kMeanNotSubtracted.name) ? x : (x - first) - mean;
      const bool equal = a.has(kEqualByEnds.name) ? set.front() == set.back() : variance == 0;
      to = !scale || (equal && !a.has(kEqualDivided.name)) ? away : away / s;
    }
  }
}

constexpr std::array kFaults{faults::kLastTileSkipped,
                             faults::kBf16Accumulator,
                             faults::kBf16Partials,
                             faults::kPartialLost,
                             kOtherVariance,
                             kVarianceForDeviation,
                             kMeanNotSubtracted,
                             kOtherScale,
                             kEpsLeftOut,
                             kEpsInRoot,
                             kOnePass,
                             kNotCentred,
                             kEqualDivided,
                             kEqualByEnds,
                             kLeaveOneOutIgnored,
                             kOtherSingleton,
                             kNeighbourGroup,
                             kGroupsIgnored,
                             kGroupsLate};

}  // namespace
}  // namespace group_norm

extern const Emulation kGroupNormForward;
const Emulation kGroupNormForward{group_norm::forward, group_norm::kFaults};

}  // namespace checkop
