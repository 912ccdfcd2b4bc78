// SPDX-License-Identifier: Apache-2.0
// attention / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16 with head_dim up to 128.
//   forward   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys that the masks keep of scale q[i] k[j]
//   backward  dq = scale ds k,  dk = scale ds^T q,  dv = p^T do,  ds = p * (do v^T - D),  D = rowsum(do * o)
//   q, o, do, dq: [batch, q_heads, q_seq, head_dim]     k, v, dk, dv: [batch, kv_heads, kv_seq, head_dim]
//   f32|f16|bf16, contiguous
//   key_padding_mask: [batch, kv_seq] u8, nonzero keeps a key; may be absent
//   lse: [batch, q_heads, q_seq] f32, optional output of the forward pass. If the backward pass is given o and lse of
//   a forward pass, it computes neither of them again.
//   causal keeps key j <= i + (kv_seq - q_seq). A row without keys is 0. Masked keys may hold NaN; but NaN and
//   infinities in the values of keys that `causal` hides from a row reach it if a row of its tile sees a key of their
//   block of 128.
//   A head_dim below 64 takes the time of 64, and one between 64 and 128 that of 128.
//   Limits: sm_90 only; no window_left, window_right, softcap, sinks or gradient of lse. fp32, a head_dim above 128 or
//   not a multiple of 8, a v_dim that is not head_dim, and a scale that is not positive are computed as in the
//   candidate cuda, with its limits. Otherwise 16-bit arrays that do not begin at a 16-byte boundary are
//   CHECKOP_UNSUPPORTED: TMA can't read them, and other code would give a row other bits. In fp16 ds loses bits below
//   2^-14, and overflows beyond 65504: upstream gradients should have a size of about 1.
//   Workspace: forward 256 bytes, with a mask also 24 bytes per 128 keys and 8 per batch entry. Backward: 8 bytes per
//   query of a head, o and 4 more unless o and lse are given, and ds in 16 bits of as many key heads as fit 1 GiB or
//   give 264 blocks of 128 keys.
//   Expected error: scores are chains of head_dim / 16 additions that truncate (sm90/config.cuh), o of kv_seq / 16; the
//   exponentials are within 2 ulp, their sums chains of kv_seq / 4 additions. p is rounded to the dtype of the case
//   before the product with v, the sum of p is not: recipe p_in_16_bit. Backward: o, p and ds are rounded to 16 bits
//   before they are multiplied: recipes o_in_16_bit, p_in_16_bit, ds_in_16_bit. The o of D has the rounding of p, too:
//   with two or three keys D errs by up to 2^-9 sum_d do o. dq is a chain of kv_seq / 16 additions, dk and dv of
//   group * q_seq / 16.
// The bits of a row of o depend on its query and on the keys that it keeps: not on the batch, the other rows, the
// length of either sequence, the mask's form or the number of SMs; see attention/sm90.cuh. Only the index of a key
// modulo 128 and the blocks of 128 keys count.
#include <algorithm>

#include "attention/sm90_backward.cuh"
#include "attention/sm90_limits.cuh"
#include "cuda/attention.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = attention::hopper;

constexpr PartNames kParts[] = {{"k", "v", "dk", "dv"}};
using In = BehindMask<1>;

bool is_empty(const AttentionParams& shape) { return shape.heads() == 0 || shape.q_seq == 0 || shape.kv_seq == 0; }

/// Workspace if the Hopper kernel might run. Called before the shapes have been checked.
size_t forward_workspace(const checkop_call* call) {
  if (call->n_inputs != In::kGrad || call->inputs[0].rank != 4 || call->inputs[1].rank != 4) return 0;
  AttentionParams shape{};
  shape.batch = call->inputs[0].shape[0], shape.kv_seq = call->inputs[1].shape[2];
  return hopper::forward_workspace_bytes(shape, call->inputs[3].rank > 0);
}

size_t backward_workspace(const checkop_call* call) {
  const size_t portable = attention_workspace(call);
  if (call->n_inputs != In::kGradLse + 1 || call->n_attrs != 5 || call->inputs[0].rank != 4 ||
      call->inputs[1].rank != 4) {
    return portable;
  }
  const int64_t *q = call->inputs[0].shape, *k = call->inputs[1].shape;
  AttentionParams shape{q[0], q[1], k[1], q[2], k[2], k[2], static_cast<int>(q[3]), call->attrs[0].value != 0, 1.0f};
  if (is_empty(shape) || shape.kv_heads == 0 || call->inputs[0].dtype == CHECKOP_F32 || !hopper::has_width(shape.width))
    return portable;
  return std::max(portable, hopper::BackwardLayout(shape, call->inputs[3].rank > 0, call->inputs[In::kO].rank > 0,
                                                   call->inputs[In::kLse].rank > 0)
                                .bytes);
}

checkop_status decline_options(const checkop_call* call, const AttentionParams& shape) {
  if (auto status = hopper::decline_options(call, shape, call->inputs[In::kSinks])) return status;
  if (call->n_inputs > In::kGradLse && call->inputs[In::kGradLse].data != nullptr)
    return say(call, CHECKOP_UNSUPPORTED, "grad_lse is not supported");
  return CHECKOP_OK;
}

checkop_status launch_forward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_call(call, false, kParts, shape)) return status;
  if (auto status = decline_options(call, shape)) return status;
  const auto portable = [&] { return launch_attention(call, false, kParts); };
  if (is_empty(shape)) return portable();
  const auto run = [&](auto tag, auto head_dim) {
    using T = typename decltype(tag)::type;
    using Config = hopper::ManyQueries<decltype(head_dim)::value>;
    const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
    hopper::ForwardCall<T> forward{};
    forward.shape = shape;
    forward.q = input(0), forward.k = input(1), forward.v = input(2);
    forward.keep = static_cast<const uint8_t*>(call->inputs[3].data);
    forward.o = static_cast<T*>(call->outputs[0].data), forward.lse = static_cast<float*>(call->outputs[1].data);
    forward.workspace = static_cast<std::byte*>(call->workspace);
    forward.stream = static_cast<cudaStream_t>(call->stream);
    if (!hopper::has_forward(forward)) return portable();
    CallCheck check(call);
    if (check.workspace(forward_workspace(call)).failed()) return check.status();
    const auto error = hopper::launch_forward<Config>(forward);
    if (auto status = cuda_status(call, error, "launch attention forward")) return status;
    return say(call, CHECKOP_OK, "wgmma, tile %dx128", Config::kRows);
  };
  return hopper::with_shape(call, shape, run, portable);
}

checkop_status launch_backward(const checkop_call* call) {
  AttentionParams shape;
  if (auto status = check_call(call, true, kParts, shape)) return status;
  if (auto status = decline_options(call, shape)) return status;
  const auto portable = [&] { return launch_attention(call, true, kParts); };
  if (is_empty(shape)) return portable();
  const auto run = [&](auto tag, auto head_dim) {
    using T = typename decltype(tag)::type;
    constexpr int kHeadDim = decltype(head_dim)::value;
    const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
    const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
    hopper::BackwardCall<T> backward{};
    backward.forward.shape = shape;
    backward.forward.q = input(0), backward.forward.k = input(1), backward.forward.v = input(2);
    backward.forward.keep = static_cast<const uint8_t*>(call->inputs[3].data);
    backward.forward.stream = static_cast<cudaStream_t>(call->stream);
    backward.grad = input(In::kGrad), backward.saved_o = input(In::kO);
    backward.saved_lse = static_cast<const float*>(call->inputs[In::kLse].data);
    backward.dq = output(0), backward.dk = output(1), backward.dv = output(2);
    backward.workspace = static_cast<std::byte*>(call->workspace);
    if (!hopper::has_backward(backward)) return portable();
    CallCheck check(call);
    if (check.workspace(backward_workspace(call)).failed()) return check.status();
    const auto error = hopper::launch_backward<kHeadDim>(backward);
    if (auto status = cuda_status(call, error, "launch attention backward")) return status;
    return say(call, CHECKOP_OK, "wgmma, 128 keys by %d queries", hopper::GradientConfig<kHeadDim>::kQueries);
  };
  return hopper::with_shape(call, shape, run, portable);
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "attention", "forward", CHECKOP_CUDA, 90, 90, forward_workspace,
     launch_forward, "p_in_16_bit"},
    {sizeof(checkop_kernel), "cuda-sm90", "attention", "backward", CHECKOP_CUDA, 90, 90, backward_workspace,
     launch_backward, "p_in_16_bit ds_in_16_bit o_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
