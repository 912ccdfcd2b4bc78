// SPDX-License-Identifier: Apache-2.0
// kv_cache_attention / native: CPU, as described in cpu/attention.hpp, with the cache's keys first and the new keys
// after them. The bits are those of attention over both joined in one tensor.
//   inputs: q, k_cache, v_cache, k_new, v_new, key_padding_mask     backward: then grad_o
//   outputs: o     backward: dq, dk_cache, dv_cache, dk_new, dv_new
#include "cpu/attention.hpp"

namespace {

constexpr int kParts = 2;

checkop_status forward(const checkop_call* call) { return native::attention::forward(call, kParts); }
checkop_status backward(const checkop_call* call) { return native::attention::backward(call, kParts); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "kv_cache_attention", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "kv_cache_attention", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
