// SPDX-License-Identifier: Apache-2.0
// gae / native: CPU; one scan in fp32 from the last unmasked token of a sequence to the first.
//   A = r + gamma * V' - V + gamma * lambda * A', with A' and V' of the next unmasked token; after the last one 0 and
//   last_values, or 0;  returns = A + V;  masked tokens: 0
//   rewards, values, advantages, returns: [batch, seq] fp32   mask: [batch, seq] uint8
//   last_values: [batch] fp32, optional
//   Limits: contiguous.   Expected error: a chain of two additions per unmasked token.
#include "cpu/native.hpp"

namespace {

using native::Extent;
using native::Refusal;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 2);
    Extent batch{"batch"}, seq{"seq"};
    for (const auto& [tensor, name] : {std::pair{&c.inputs[0], "rewards"}, std::pair{&c.inputs[1], "values"},
                                       std::pair{&c.outputs[0], "advantages"}, std::pair{&c.outputs[1], "returns"}})
      native::check_matrix(*tensor, name, CHECKOP_F32, batch, seq);
    native::check_matrix(c.inputs[2], "mask", CHECKOP_U8, batch, seq);
    const bool has_last = c.inputs[3].data != nullptr;
    if (has_last) native::check_list(c.inputs[3], "last_values", CHECKOP_F32, batch);
    const auto *rewards = static_cast<const float*>(c.inputs[0].data),
               *values = static_cast<const float*>(c.inputs[1].data),
               *last = static_cast<const float*>(c.inputs[3].data);
    const auto* mask = static_cast<const uint8_t*>(c.inputs[2].data);
    auto *advantages = static_cast<float*>(c.outputs[0].data), *returns = static_cast<float*>(c.outputs[1].data);
    const float gamma = native::attribute(c, "gamma"), decay = gamma * native::attribute(c, "lambda");
    native::parallel_for(batch.value, batch.value * seq.value * 4, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float later = 0, value = has_last ? last[b] : 0;
        for (int64_t i = (b + 1) * seq.value; i-- > b * seq.value;) {
          advantages[i] = returns[i] = 0;
          if (mask[i] == 0) continue;
          later = (rewards[i] + gamma * value - values[i]) + decay * later;
          value = values[i];
          advantages[i] = later;
          returns[i] = later + value;
        }
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "gae", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
