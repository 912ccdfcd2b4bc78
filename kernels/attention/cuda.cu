// SPDX-License-Identifier: Apache-2.0
// attention / cuda: as described in cuda/attention.cuh, with all keys in one array.
//   inputs: q, k, v, key_padding_mask, sinks     backward: then grad_o, o, lse, grad_lse
//   outputs: o, lse     backward: dq, dk, dv, dsinks
#include "cuda/attention.cuh"

namespace checkop::kernels {
namespace {

constexpr PartNames kParts[] = {{"k", "v", "dk", "dv"}};

checkop_status launch_forward(const checkop_call* call) { return launch_attention(call, false, kParts); }
checkop_status launch_backward(const checkop_call* call) { return launch_attention(call, true, kParts); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "attention", "backward", CHECKOP_CUDA, 80, 0, attention_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
