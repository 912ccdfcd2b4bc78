// SPDX-License-Identifier: Apache-2.0
// kv_cache_attention / cuda: as described in cuda/attention.cuh, with the cache's keys first and the new keys after
// them, both read in place. The bits are those of attention over both joined in one array.
//   inputs: q, k_cache, v_cache, k_new, v_new, key_padding_mask     backward: then grad_o
//   outputs: o     backward: dq, dk_cache, dv_cache, dk_new, dv_new
#include "cuda/attention.cuh"

namespace checkop::kernels {
namespace {

constexpr PartNames kParts[] = {{"k_cache", "v_cache", "dk_cache", "dv_cache"}, {"k_new", "v_new", "dk_new", "dv_new"}};

checkop_status launch_forward(const checkop_call* call) { return launch_attention(call, false, kParts); }
checkop_status launch_backward(const checkop_call* call) { return launch_attention(call, true, kParts); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "kv_cache_attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "kv_cache_attention", "backward", CHECKOP_CUDA, 80, 0, attention_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
