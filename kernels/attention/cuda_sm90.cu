// SPDX-License-Identifier: Apache-2.0
// attention / cuda-sm90: forward on Hopper's wgmma and TMA for fp16 and bf16 with head_dim 64 or 128.
//   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys that the masks keep of scale q[i] k[j]
//   q, o: [batch, q_heads, q_seq, head_dim]     k, v: [batch, kv_heads, kv_seq, head_dim]     f32|f16|bf16, contiguous
//   key_padding_mask: [batch, kv_seq] u8, nonzero keeps a key; may be absent
//   causal keeps key j <= i + (kv_seq - q_seq). A row without keys is 0. Masked keys may hold NaN; but NaN and
//   infinities in the values of keys that `causal` hides from a row reach it if they are in its last block of 128 keys.
//   Limits: sm_90 only. The backward pass, fp32, other head_dim, arrays that do not begin at a 16-byte boundary and a
//   scale that is not positive are computed as in the candidate cuda, with its limits.
//   Workspace: forward 256 bytes, with a mask also 24 bytes per 128 keys and 8 per batch entry.
//   Expected error: scores are chains of head_dim / 16 additions that truncate (sm90/config.cuh), o of kv_seq / 16; the
//   exponentials are within 2 ulp, their sums chains of kv_seq / 4 additions. p is rounded to the dtype of the case
//   before the product with v, the sum of p is not: recipe p_in_16_bit.
// The bits of a row of o depend on its query and on the keys that it keeps: not on the batch, the other rows, the
// length of either sequence, the mask's form or the number of multiprocessors; see attention/sm90.cuh. Only the index
// of a key modulo 128 and the blocks of 128 keys count.
#include "attention/sm90.cuh"
#include "cuda/attention.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = attention::hopper;

constexpr PartNames kParts[] = {{"k", "v", "dk", "dv"}};

/// Three warpgroups of queries where head_dim leaves them enough registers.
using Wide = hopper::AttentionConfig<128, 2, 2>;
using Narrow = hopper::AttentionConfig<64, 3, 4>;

/// Workspace if the Hopper kernel might run. Called before the shapes have been checked.
size_t forward_workspace(const checkop_call* call) {
  if (call->n_inputs != 4 || call->inputs[1].rank != 4) return 0;
  AttentionParams shape{};
  shape.batch = call->inputs[0].shape[0], shape.kv_seq = call->inputs[1].shape[2];
  return hopper::forward_workspace_bytes(shape, call->inputs[3].rank > 0);
}

template <typename T>
checkop_status run(const checkop_call* call, const AttentionParams& shape) {
  const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
  hopper::ForwardCall<T> forward{};
  forward.shape = shape;
  forward.q = input(0), forward.k = input(1), forward.v = input(2);
  forward.keep = static_cast<const uint8_t*>(call->inputs[3].data), forward.o = static_cast<T*>(call->outputs[0].data);
  forward.workspace = static_cast<std::byte*>(call->workspace);
  forward.stream = static_cast<cudaStream_t>(call->stream);
  if (!hopper::has_forward(forward)) return launch_attention(call, false, kParts);
  if (call->workspace_bytes < forward_workspace(call)) {
    return say(call, CHECKOP_FAILED, "workspace has %zu bytes, %zu are needed", call->workspace_bytes,
               forward_workspace(call));
  }
  const bool is_wide = shape.width == 128;
  const auto error = is_wide ? hopper::launch_forward<Wide>(forward) : hopper::launch_forward<Narrow>(forward);
  if (auto status = cuda_status(call, error, "launch attention forward")) return status;
  return say(call, CHECKOP_OK, is_wide ? "wgmma, tile 128x128" : "wgmma, tile 192x128");
}

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_call(call, false, kParts, shape)) return status;
  const bool is_empty = shape.heads() == 0 || shape.q_seq == 0 || shape.kv_seq == 0;
  const bool has_scale = shape.scale > 0 && shape.scale < 1e30f;
  if (!is_empty && has_scale && call->inputs[0].dtype == CHECKOP_F16) return run<__half>(call, shape);
  if (!is_empty && has_scale && call->inputs[0].dtype == CHECKOP_BF16) return run<__nv_bfloat16>(call, shape);
  return launch_attention(call, false, kParts);
}
checkop_status launch_backward(const checkop_call* call) { return launch_attention(call, true, kParts); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "attention", "forward", CHECKOP_CUDA, 90, 90, forward_workspace,
     launch_forward, "p_in_16_bit"},
    {sizeof(checkop_kernel), "cuda-sm90", "attention", "backward", CHECKOP_CUDA, 90, 90, attention_workspace,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
