// SPDX-License-Identifier: Apache-2.0
// ratio_kl / cuda: one block per row, log-sum-exp in fp32 in one pass over each row of logits, portable CUDA.
//   forward   ratio[r] = exp(lp - old[r]),  kl[r] = exp(d) - d - 1,  d = lr - lp;  lp, lr: logp of action_ids[r]
//   backward  dpolicy_logits[r,v] = c * ((v == t) - softmax(policy[r])[v]),  c = grad_ratio*ratio - grad_kl*expm1(d)
//   If attention_mask[r] = 0: ratio is 1, kl and gradient are 0, and nothing else of the row is read.
//   policy_logits, ref_logits, dpolicy_logits: [rows, vocab] f32|f16|bf16, contiguous     action_ids: [rows] i64
//   attention_mask: [rows] u8     old_logps, grad_ratio, grad_kl, ratio, kl: [rows] f32
//   Limits: rows < 2^31, vocab 1 to 2^30. Active ids outside [0, vocab) are CHECKOP_FAILED.   Workspace: 256 bytes.
//   Backward, from sm_90 on: the blocks of a cluster hold a row of each in shared memory, one after the other, and read
//   them once (held_row.cuh).
//   Expected error: that of logp in lp and lr, expf within 2 ulp of their difference; kl is right to fp32 near 0.
//   A row's bits depend only on its own values: see cuda/softmax.cuh.
#include "cuda/policy.cuh"

namespace checkop::kernels {
namespace {

/// ratio and kl of one row per block.
template <typename T>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void ratio_kl_forward(PolicyInputs<T> in,
                                                                              float* __restrict__ ratio,
                                                                              float* __restrict__ kl, int slots) {
  const int64_t row = blockIdx.x;
  if (!in.is_active(row)) {  // the same for the whole block
    if (threadIdx.x == 0) ratio[row] = 1.0f, kl[row] = 0.0f;
    return;
  }
  StepRing ring(slots);
  read_token(ring, in, row, [&](const Token& token, const auto&) {
    if (threadIdx.x == 0) ratio[row] = expf(token.delta), kl[row] = k3(token.d);
  });
}

/// c of the head of the file.
__device__ float factor_of_gradient(const Token& token, float grad_ratio, float grad_kl) {
  return grad_ratio * expf(token.delta) - grad_kl * expm1f(token.d);
}

/// dpolicy_logits of one row per block.
template <typename T>
__global__ __launch_bounds__(kMaxBackwardThreads) void ratio_kl_backward(PolicyInputs<T> in,
                                                                         const float* __restrict__ grad_ratio,
                                                                         const float* __restrict__ grad_kl,
                                                                         T* __restrict__ dpolicy, int slots) {
  const int64_t row = blockIdx.x;
  T* __restrict__ dz = dpolicy + row * in.vocab;
  if (!in.is_active(row)) return write_zeros(dz, in.vocab);
  StepRing ring(slots);
  read_token(ring, in, row, [&](const Token& token, const auto& policy) {
    const float c = factor_of_gradient(token, grad_ratio[row], grad_kl[row]);
    write_gradient(ring, policy, token.policy, c, token.target, dz);
  });
}

/// The same, one row per cluster, whose blocks hold `groups` groups each. From sm_90 on.
template <typename T>
__global__ __launch_bounds__(kHeldThreads,
                             kHeldBlocksPerSM) void ratio_kl_backward_held(PolicyInputs<T> in,
                                                                           const float* __restrict__ grad_ratio,
                                                                           const float* __restrict__ grad_kl,
                                                                           T* __restrict__ dpolicy, int groups) {
#if __CUDA_ARCH__ >= 900
  const int64_t row = HeldRow<T>::number();
  T* __restrict__ dz = dpolicy + row * in.vocab;
  if (!in.is_active(row)) return write_zeros(dz, in.vocab, HeldRow<T>::rank(), groups);  // the whole cluster
  const float of_ratio = grad_ratio[row], of_kl = grad_kl[row];
  read_held_token(in, row, groups, [&](const Token& token, const auto& held) {
    const float c = factor_of_gradient(token, of_ratio, of_kl);
    held.write(token.policy, c, token.target, dz, NoTransform{});
  });
#endif
}

checkop_status check_call(const checkop_call* call, bool backward, PolicyShape& shape) {
  CallCheck check(call);
  if (check.counts(backward ? 7 : 5, backward ? 1 : 2).failed()) return check.status();
  shape = check_policy_inputs(check, call);
  if (check.failed()) return check.status();
  const checkop_tensor& policy = call->inputs[0];
  const int32_t n_leading = policy.rank - 1;
  const auto check_per_row = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, CHECKOP_F32).shape(t, name, policy, n_leading, {}).contiguous(t, name);
  };
  if (backward) {
    const checkop_tensor& dpolicy = call->outputs[0];
    check_per_row(call->inputs[5], "grad_ratio");
    check_per_row(call->inputs[6], "grad_kl");
    check.dtype(dpolicy, "dpolicy_logits", policy.dtype).shape(dpolicy, "dpolicy_logits", policy, policy.rank, {});
    check.contiguous(dpolicy, "dpolicy_logits");
  } else {
    check_per_row(call->outputs[0], "ratio");
    check_per_row(call->outputs[1], "kl");
  }
  if (check.failed()) return check.status();
  if (auto status = check_rows(call, "policy_logits", shape.rows, shape.vocab)) return status;
  return check.workspace(kIdCheckBytes).status();
}

size_t workspace_bytes(const checkop_call*) { return kIdCheckBytes; }

checkop_status launch(const checkop_call* call, bool backward) {
  PolicyShape shape;
  if (auto status = check_call(call, backward, shape)) return status;
  if (shape.rows == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int64_t*>(call->inputs[2].data);
  const auto* active = static_cast<const uint8_t*>(call->inputs[3].data);
  IdCheck id_check(call, ids, shape.rows, shape.vocab, "action_ids", call->workspace, stream);
  if (auto status = id_check.begin({.mask = active})) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const PolicyInputs<T> in = policy_inputs<T>(call, nullptr, shape.vocab);
    const auto error =
        backward ? launch_gradient<T>(ratio_kl_backward_held<T>, ratio_kl_backward<T>, shape.rows, shape.vocab, stream,
                                      in, static_cast<const float*>(call->inputs[5].data),
                                      static_cast<const float*>(call->inputs[6].data),
                                      static_cast<T*>(call->outputs[0].data))
                 : launch_rows<T, true>(ratio_kl_forward<T>, shape.rows, threads_for(shape.vocab), shape.vocab, stream,
                                        in, static_cast<float*>(call->outputs[0].data),
                                        static_cast<float*>(call->outputs[1].data));
    const auto doing = backward ? "launch ratio_kl backward" : "launch ratio_kl forward";
    if (auto s = cuda_status(call, error, doing)) return s;
    return id_check.finish();
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "ratio_kl", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "ratio_kl", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
