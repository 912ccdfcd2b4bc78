// SPDX-License-Identifier: Apache-2.0
// attention / native: CPU, as described in cpu/attention.hpp, with all keys in one tensor.
//   inputs: q, k, v, key_padding_mask, sinks     backward: then grad_o, o, lse, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
#include "cpu/attention.hpp"

namespace {

constexpr int kParts = 1;

checkop_status forward(const checkop_call* call) { return native::attention::forward(call, kParts); }
checkop_status backward(const checkop_call* call) { return native::attention::backward(call, kParts); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "attention", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "attention", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
