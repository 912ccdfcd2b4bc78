// SPDX-License-Identifier: Apache-2.0
// group_norm / native: CPU; mean and deviation of each group in two passes, relative to its first reward.
//   advantages = (r - mean) / (std + eps), mean and std of the group's rewards, or with leave_one_out of the group's
//   other rewards;
//   r - mean if scale is 0 or all those rewards are bit-equal; a group of one: 0, or r with singleton
//   rewards, advantages: [batch] fp32   group_boundaries: [group_bounds] int64, may be absent   Limits: contiguous.
//   Expected error: sums are chains of 68 + log2(terms / 1024) additions.
#include "cpu/groups.hpp"

namespace {

using native::attribute;
using native::Extent;

struct Settings {
  bool scale, unbiased, leave_one_out, singleton;
  float eps;
};

float advantage(const Settings& settings, const std::vector<float>& set, float r) {
  const auto n = static_cast<int64_t>(set.size());
  const auto count = static_cast<float>(n);
  const auto off = [&](int64_t i) { return set[static_cast<size_t>(i)] - set[0]; };
  const float mean = native::blocked_sum(n, off) / count, away = (r - set[0]) - mean;
  const float squares = native::blocked_sum(n, [&](int64_t i) { return (off(i) - mean) * (off(i) - mean); });
  if (!settings.scale || squares == 0) return away;
  return away / (std::sqrt(squares / (settings.unbiased ? std::max(count - 1, 1.0f) : count)) + settings.eps);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    Extent batch{"batch"};
    native::check_list(c.inputs[0], "rewards", CHECKOP_F32, batch);
    native::check_list(c.outputs[0], "advantages", CHECKOP_F32, batch);
    const std::vector<int64_t> bounds = native::group_bounds(c, c.inputs[1], batch.value);
    const Settings settings{attribute(c, "scale") != 0, attribute(c, "unbiased") != 0,
                            attribute(c, "leave_one_out") != 0, attribute(c, "singleton") != 0, attribute(c, "eps")};
    const auto* rewards = static_cast<const float*>(c.inputs[0].data);
    auto* advantages = static_cast<float*>(c.outputs[0].data);
    for (size_t g = 0; g + 1 < bounds.size(); ++g) {
      const std::vector<float> group(rewards + bounds[g], rewards + bounds[g + 1]);
      for (size_t i = 0; i < group.size(); ++i) {
        float& to = advantages[bounds[g] + static_cast<int64_t>(i)];
        to = settings.singleton ? group[i] : 0;
        if (group.size() < 2) continue;
        std::vector<float> set = group;
        if (settings.leave_one_out) set.erase(set.begin() + static_cast<std::ptrdiff_t>(i));
        to = advantage(settings, set, group[i]);
      }
    }
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "group_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
