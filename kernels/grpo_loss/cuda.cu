// SPDX-License-Identifier: Apache-2.0
// grpo_loss / cuda: one block per token, then fixed sums in one block; portable CUDA, no floating-point atomics.
//   A = (r - mu)/sqrt(max(var, eps^2)) over each group of completions;  L = -min(ratio*A, clamp(ratio, 1-c, 1+c)*A)
//   forward   policy_loss = sum of L/n over the n active tokens, kl likewise, loss = policy_loss + beta*kl; 0 if n = 0
//   backward  dpolicy_logits[r,v] = c*((v == t) - softmax(policy[r])[v])
//             c = g/n*(-A*ratio*[unclipped] - beta*expm1(d))
//   A token is active if attention_mask and completion_mask are not 0; nothing of other tokens counts.
//   policy_logits, ref_logits, dpolicy_logits: [batch, seq, vocab] f32|f16|bf16, contiguous
//   action_ids: i64   masks: u8   old_logps, rewards[batch], grad_loss, loss, policy_loss, kl: f32
//   group_boundaries: i64, may be absent
//   Limits: batch*seq < 2^31, vocab 1 to 2^30. Active ids outside [0, vocab) and boundaries that do not cut the batch
//   are CHECKOP_FAILED.
//   Workspace: 512 bytes, two floats per token and a float per completion, each array rounded up to 256.
//   Backward, from sm_90 on: the blocks of a cluster hold a row of each in shared memory, one after the other, and read
//   them once (held_row.cuh).
//   Expected error: that of ratio_kl per token, then a chain of tokens/1024 + 10 fp32 additions.
//   Bits depend only on the shape and the values; the gradient of a token only on its own row, A and n.
#include "cuda/group_boundaries.cuh"
#include "cuda/policy.cuh"

namespace checkop::kernels {
namespace {

constexpr int64_t kAlign = 256;
constexpr int kSumThreads = 1024;  // one block sums all tokens: no second stage, and a chain of tokens/1024

enum Attr : int { kSamplesPerPrompt, kClipEps, kBeta, kEps, kAttrs };
enum Input : int { kRewards = 5, kCompletionMask, kGroupBoundaries, kGradLoss };

struct GrpoParams {
  float clip, beta;
  int64_t seq;
};

/// Layout of the workspace; the checks use the first 256 bytes.
struct WorkspaceLayout {
  int64_t advantages, losses, kls, divisor, bytes;

  WorkspaceLayout(int64_t rows, int64_t batch) {
    advantages = static_cast<int64_t>(kIdCheckBytes);
    losses = advantages + round_up(4 * batch, kAlign);
    kls = losses + round_up(4 * rows, kAlign);
    divisor = kls + round_up(4 * rows, kAlign);
    bytes = divisor + kAlign;
  }
};

/// Computes what all tokens need. Reads nothing that the kernel before it, the search for bad ids, writes. The first
/// block: divisor = number of active tokens, at least 1, since without active tokens every sum is 0. The others:
/// advantages of one group per warp, relative to the first reward, so that equal rewards give exactly 0, although their
/// computed mean could be an ulp off.
__global__ __launch_bounds__(kSumThreads) void prepare(const uint8_t* __restrict__ attention,
                                                       const uint8_t* __restrict__ completion, int64_t rows,
                                                       const float* __restrict__ rewards,
                                                       const int64_t* __restrict__ bounds, int64_t samples,
                                                       int64_t groups, float eps, float* __restrict__ advantages,
                                                       float* __restrict__ divisor) {
  start_dependent_kernel();
  if (blockIdx.x == 0) {
    __shared__ int in_warp[kSumThreads / kWarp];
    constexpr int64_t kMasks = sizeof(uint4);
    const int64_t whole = is_aligned(attention) && is_aligned(completion) ? rows / kMasks : 0;
    int mine = 0;
    for (int64_t i = threadIdx.x; i < whole; i += kSumThreads) {
      const auto a = bit_cast<Pack<uint8_t, kMasks>>(reinterpret_cast<const uint4*>(attention)[i]);
      const auto c = bit_cast<Pack<uint8_t, kMasks>>(reinterpret_cast<const uint4*>(completion)[i]);
#pragma unroll
      for (int k = 0; k < kMasks; ++k) mine += a.at[k] != 0 && c.at[k] != 0 ? 1 : 0;
    }
    for (int64_t row = whole * kMasks + threadIdx.x; row < rows; row += kSumThreads) {
      mine += attention[row] != 0 && completion[row] != 0 ? 1 : 0;
    }
    mine = __reduce_add_sync(kAllLanes, mine);
    if (threadIdx.x % kWarp == 0) in_warp[threadIdx.x / kWarp] = mine;
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    const int count = __reduce_add_sync(kAllLanes, in_warp[threadIdx.x]);
    if (threadIdx.x == 0) *divisor = fmaxf(static_cast<float>(count), 1.0f);
    return;
  }
  const int64_t group = (int64_t{blockIdx.x - 1} * blockDim.x + threadIdx.x) / kWarp;
  if (group >= groups) return;  // a whole warp
  const int64_t begin = bounds != nullptr ? bounds[group] : group * samples;
  const int64_t end = bounds != nullptr ? bounds[group + 1] : begin + samples;
  const float first = rewards[begin], count = static_cast<float>(end - begin);
  const int64_t lane = threadIdx.x % kWarp;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = begin + lane; i < end; i += kWarp) sum += rewards[i] - first;
  const float mean = warp_sum(sum) / count;
  for (int64_t i = begin + lane; i < end; i += kWarp) {
    const float away = (rewards[i] - first) - mean;
    squares += away * away;
  }
  const float deviation = sqrtf(fmaxf(warp_sum(squares) / count, eps * eps));
  for (int64_t i = begin + lane; i < end; i += kWarp) advantages[i] = ((rewards[i] - first) - mean) / deviation;
}

/// L and kl of one token per block; 0 if the token is not active.
template <typename T>
__global__ __launch_bounds__(kMaxThreads, kBlocksPerSM) void token_losses(PolicyInputs<T> in, GrpoParams params,
                                                                          const float* __restrict__ advantages,
                                                                          float* __restrict__ losses,
                                                                          float* __restrict__ kls, int slots) {
  const int64_t row = blockIdx.x;
  if (!in.is_active(row)) {  // the same for the whole block
    wait_for_kernel_before();
    if (threadIdx.x == 0) losses[row] = 0.0f, kls[row] = 0.0f;
    return;
  }
  StepRing ring(slots);
  read_token(ring, in, row, [&](const Token& token, const auto&) {
    wait_for_kernel_before();
    if (threadIdx.x != 0) return;
    const float a = advantages[row / params.seq], ratio = expf(token.delta);
    // Not fminf(fmaxf()), which would turn a NaN into a finite loss.
    const float clamped = ratio < 1.0f - params.clip   ? 1.0f - params.clip
                          : ratio > 1.0f + params.clip ? 1.0f + params.clip
                                                       : ratio;
    const float plain = ratio * a, clipped = clamped * a;
    losses[row] = -(clipped < plain ? clipped : plain);
    kls[row] = k3(token.d);
  });
}

/// Means over all tokens, in an order that depends only on their number.
__global__ __launch_bounds__(kSumThreads) void average(const float* __restrict__ losses, const float* __restrict__ kls,
                                                       int64_t rows, const float* __restrict__ divisor, float beta,
                                                       float* __restrict__ loss, float* __restrict__ policy_loss,
                                                       float* __restrict__ kl) {
  __shared__ float shared_loss[kWarp], shared_kl[kWarp];
  wait_for_kernel_before();
  float my_loss = 0.0f, my_kl = 0.0f;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) my_loss += losses[row], my_kl += kls[row];
  const float total_loss = block_sum(my_loss, shared_loss), total_kl = block_sum(my_kl, shared_kl);
  if (threadIdx.x != 0) return;
  const float mean_loss = total_loss / *divisor, mean_kl = total_kl / *divisor;
  *policy_loss = mean_loss, *kl = mean_kl;
  *loss = beta == 0.0f ? mean_loss : mean_loss + beta * mean_kl;
}

/// The factor of a token's gradient, without that of the loss's mean.
__device__ float factor_of_gradient(const Token& token, float advantage, const GrpoParams& params) {
  const float ratio = expf(token.delta);
  const bool unclipped = advantage < 0.0f ? !(ratio < 1.0f - params.clip) : !(ratio > 1.0f + params.clip);
  const float of_loss = unclipped ? -advantage * ratio : 0.0f;
  const float of_kl = params.beta == 0.0f ? 0.0f : params.beta * expm1f(token.d);
  return of_loss - of_kl;
}

/// dpolicy_logits of one token per block.
template <typename T>
__global__ __launch_bounds__(kMaxBackwardThreads) void grpo_backward(PolicyInputs<T> in, GrpoParams params,
                                                                     const float* __restrict__ advantages,
                                                                     const float* __restrict__ divisor,
                                                                     const float* __restrict__ grad_loss,
                                                                     T* __restrict__ dpolicy, int slots) {
  const int64_t row = blockIdx.x;
  T* __restrict__ dz = dpolicy + row * in.vocab;
  if (!in.is_active(row)) {
    wait_for_kernel_before();  // what comes after this kernel may be given the workspace that prepare() writes
    return write_zeros(dz, in.vocab);
  }
  StepRing ring(slots);
  read_token(ring, in, row, [&](const Token& token, const auto& policy) {
    wait_for_kernel_before();
    const float c = *grad_loss / *divisor * factor_of_gradient(token, advantages[row / params.seq], params);
    write_gradient(ring, policy, token.policy, c, token.target, dz);
  });
}

/// The same, one token per cluster, whose blocks hold `groups` groups each. From sm_90 on.
template <typename T>
__global__ __launch_bounds__(kHeldThreads, kHeldBlocksPerSM) void grpo_backward_held(
    PolicyInputs<T> in, GrpoParams params, const float* __restrict__ advantages, const float* __restrict__ divisor,
    const float* __restrict__ grad_loss, T* __restrict__ dpolicy, int groups) {
#if __CUDA_ARCH__ >= 900
  const int64_t row = HeldRow<T>::number();
  T* __restrict__ dz = dpolicy + row * in.vocab;
  if (!in.is_active(row)) {    // the same for the whole cluster
    wait_for_kernel_before();  // see above
    return write_zeros(dz, in.vocab, HeldRow<T>::rank(), groups);
  }
  read_held_token(in, row, groups, [&](const Token& token, const auto& held) {
    wait_for_kernel_before();
    const float c = *grad_loss / *divisor * factor_of_gradient(token, advantages[row / params.seq], params);
    held.write(token.policy, c, token.target, dz, NoTransform{});
  });
#endif
}

bool has_boundaries(const checkop_call* call) {
  return call->inputs[kGroupBoundaries].data != nullptr || call->inputs[kGroupBoundaries].rank != 0;
}

checkop_status check_call(const checkop_call* call, bool backward, PolicyShape& shape) {
  CallCheck check(call);
  if (check.counts(backward ? 9 : 8, backward ? 1 : 3).failed()) return check.status();
  if (call->n_attrs != kAttrs) {
    return say(call, CHECKOP_FAILED, "got %d attributes, expected %d", call->n_attrs, static_cast<int>(kAttrs));
  }
  shape = check_policy_inputs(check, call);
  const checkop_tensor &policy = call->inputs[0], &bounds = call->inputs[kGroupBoundaries];
  if (check.rank_at_least(policy, "policy_logits", 2).failed()) return check.status();
  const int32_t n_leading = policy.rank - 1;
  const auto expect = [&](const checkop_tensor& t, const char* name, int32_t dtype, int32_t like_policy) {
    check.dtype(t, name, dtype).shape(t, name, policy, like_policy, {}).contiguous(t, name);
  };
  expect(call->inputs[kRewards], "rewards", CHECKOP_F32, 1);
  expect(call->inputs[kCompletionMask], "completion_mask", CHECKOP_U8, n_leading);
  if (backward) {
    expect(call->inputs[kGradLoss], "grad_loss", CHECKOP_F32, 0);
    expect(call->outputs[0], "dpolicy_logits", policy.dtype, policy.rank);
  } else {
    expect(call->outputs[0], "loss", CHECKOP_F32, 0);
    expect(call->outputs[1], "policy_loss", CHECKOP_F32, 0);
    expect(call->outputs[2], "kl", CHECKOP_F32, 0);
  }
  if (has_boundaries(call)) check.dtype(bounds, "group_boundaries", CHECKOP_I64).contiguous(bounds, "group_boundaries");
  if (check.failed()) return check.status();
  if (has_boundaries(call) && (bounds.rank != 1 || bounds.shape[0] < 2)) {
    return say(call, CHECKOP_FAILED, "tensor 'group_boundaries': expected rank 1 and at least 2 elements");
  }
  const double samples = call->attrs[kSamplesPerPrompt].value;
  if (!has_boundaries(call) && (!(samples >= 2) || policy.shape[0] % static_cast<int64_t>(samples) != 0)) {
    return say(call, CHECKOP_FAILED,
               "samples_per_prompt is %g, expected a divisor of the batch %lld that is at least 2", samples,
               static_cast<long long>(policy.shape[0]));
  }
  if (auto status = check_rows(call, "policy_logits", shape.rows, shape.vocab)) return status;
  return check.workspace(static_cast<size_t>(WorkspaceLayout(shape.rows, policy.shape[0]).bytes)).status();
}

size_t workspace_bytes(const checkop_call* call) {
  if (call->n_inputs < 1 || call->inputs[0].rank < 2) return kIdCheckBytes;  // launch() refuses such a call
  return static_cast<size_t>(WorkspaceLayout(leading_count(call->inputs[0]), call->inputs[0].shape[0]).bytes);
}

checkop_status launch(const checkop_call* call, bool backward) {
  PolicyShape shape;
  if (auto status = check_call(call, backward, shape)) return status;
  if (shape.rows == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const int64_t batch = call->inputs[0].shape[0];
  const WorkspaceLayout layout(shape.rows, batch);
  auto* workspace = static_cast<char*>(call->workspace);
  auto* advantages = reinterpret_cast<float*>(workspace + layout.advantages);
  auto* losses = reinterpret_cast<float*>(workspace + layout.losses);
  auto* kls = reinterpret_cast<float*>(workspace + layout.kls);
  auto* divisor = reinterpret_cast<float*>(workspace + layout.divisor);

  const int64_t* bounds = nullptr;
  const auto samples = static_cast<int64_t>(call->attrs[kSamplesPerPrompt].value);
  int64_t groups = has_boundaries(call) ? call->inputs[kGroupBoundaries].shape[0] - 1 : batch / samples;
  if (has_boundaries(call)) {
    bounds = static_cast<const int64_t*>(call->inputs[kGroupBoundaries].data);
    if (auto status = check_boundaries(call, bounds, groups + 1, batch, call->workspace, stream)) return status;
  }
  const auto *attention = static_cast<const uint8_t*>(call->inputs[3].data),
             *completion = static_cast<const uint8_t*>(call->inputs[kCompletionMask].data);
  const auto* ids = static_cast<const int64_t*>(call->inputs[2].data);
  IdCheck id_check(call, ids, shape.rows, shape.vocab, "action_ids", call->workspace, stream);
  if (auto status = id_check.begin({.mask = attention, .other_mask = completion})) return status;
  const dim3 prepare_blocks(static_cast<unsigned>(1 + ceil_div(groups * kWarp, kSumThreads)));
  const auto prepared =
      launch_dependent(prepare, prepare_blocks, dim3(kSumThreads), stream, attention, completion, shape.rows,
                       static_cast<const float*>(call->inputs[kRewards].data), bounds, samples, groups,
                       static_cast<float>(call->attrs[kEps].value), advantages, divisor);
  if (auto status = cuda_status(call, prepared, "launch grpo_loss group statistics")) return status;

  const GrpoParams params{static_cast<float>(call->attrs[kClipEps].value), static_cast<float>(call->attrs[kBeta].value),
                          shape.rows / batch};
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const PolicyInputs<T> in = policy_inputs<T>(call, completion, shape.vocab);
    if (backward) {
      const auto error = launch_gradient<T>(
          grpo_backward_held<T>, grpo_backward<T>, shape.rows, shape.vocab, stream, in, params, advantages, divisor,
          static_cast<const float*>(call->inputs[kGradLoss].data), static_cast<T*>(call->outputs[0].data));
      if (auto s = cuda_status(call, error, "launch grpo_loss backward")) return s;
    } else {
      auto error = launch_rows<T, true>(token_losses<T>, shape.rows, threads_for(shape.vocab), shape.vocab, stream, in,
                                        params, advantages, losses, kls);
      if (auto s = cuda_status(call, error, "launch grpo_loss forward")) return s;
      error = launch_dependent(average, dim3(1), dim3(kSumThreads), stream, losses, kls, shape.rows, divisor,
                               params.beta, static_cast<float*>(call->outputs[0].data),
                               static_cast<float*>(call->outputs[1].data), static_cast<float*>(call->outputs[2].data));
      if (auto s = cuda_status(call, error, "launch grpo_loss averages")) return s;
    }
    return id_check.finish();
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "grpo_loss", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "grpo_loss", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
