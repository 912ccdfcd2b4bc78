// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates of ratio_kl and grpo_loss: one token's ratio and KL estimate, one block per token.
// Nothing of a masked token counts: its id, its logits and its old log-probability may be anything.
#pragma once

#include "cuda/ids.cuh"
#include "cuda/softmax.cuh"

namespace checkop::kernels {

/// exp(d) - d - 1 without cancellation: a series up to |d| = 1, whose first omitted term is 2^-31 of the result.
__device__ inline float k3(float d) {
  if (!(fabsf(d) < 1.0f)) return expm1f(d) - d;
  float series = 1.0f / 479001600.0f;
  series = fmaf(series, d, 1.0f / 39916800.0f);
  series = fmaf(series, d, 1.0f / 3628800.0f);
  series = fmaf(series, d, 1.0f / 362880.0f);
  series = fmaf(series, d, 1.0f / 40320.0f);
  series = fmaf(series, d, 1.0f / 5040.0f);
  series = fmaf(series, d, 1.0f / 720.0f);
  series = fmaf(series, d, 1.0f / 120.0f);
  series = fmaf(series, d, 1.0f / 24.0f);
  series = fmaf(series, d, 1.0f / 6.0f);
  series = fmaf(series, d, 0.5f);
  return series * d * d;
}

/// The first inputs of both operators.
template <typename T>
struct PolicyInputs {
  const T *policy, *ref;      ///< [rows, vocab]
  const int64_t* ids;         ///< [rows]
  const uint8_t* mask;        ///< [rows]
  const uint8_t* other_mask;  ///< [rows], or null
  const float* old_logps;     ///< [rows]
  int64_t vocab;

  /// Whether the row is read at all.
  __device__ bool is_active(int64_t row) const {
    return mask[row] != 0 && (other_mask == nullptr || other_mask[row] != 0);
  }
};

/// One active token, the same in every thread of its block: delta = lp - old, d = lr - lp, and inputs of the gradient.
struct Token {
  float delta, d;
  Partial policy;
  int64_t target;
};

template <typename T>
__device__ Token token_of(const PolicyInputs<T>& in, int64_t row, const Partial& of_policy, const Partial& of_ref) {
  int64_t target = in.ids[row];
  if (target < 0 || target >= in.vocab) target = 0;  // IdCheck refuses it
  // (z - max) first: the difference is small and nearly exact, but max + log(sum) may be large.
  const float lr = (to_float(in.ref[row * in.vocab + target]) - of_ref.max) - logf(of_ref.sum);
  const float lp = (to_float(in.policy[row * in.vocab + target]) - of_policy.max) - logf(of_policy.sum);
  return {lp - in.old_logps[row], lr - lp, of_policy, target};
}

/// Computes the Token of `row`; all threads must call. The policy is read last, so that the ring has its last steps.
template <typename T>
__device__ Token read_token(StepRing& ring, const PolicyInputs<T>& in, int64_t row) {
  const RowSteps<T> policy_steps(in.policy + row * in.vocab, in.vocab);
  const RowSteps<T> ref_steps(in.ref + row * in.vocab, in.vocab);
  const Partial of_ref = reduce_row(ring, ref_steps, NoTransform{}, false, &policy_steps);
  __syncthreads();
  const Partial of_policy = reduce_row(ring, policy_steps, NoTransform{}, true);
  return token_of(in, row, of_policy, of_ref);
}

struct PolicyShape {
  int64_t rows, vocab;
};

/// Checks the first inputs of both operators: policy_logits, ref_logits, action_ids, attention_mask, old_logps. A case
/// has at least one row of one logit; rows = 0 only when an extent is 0.
inline PolicyShape check_policy_inputs(CallCheck& check, const checkop_call* call) {
  const checkop_tensor &policy = call->inputs[0], &ref = call->inputs[1], &ids = call->inputs[2];
  const checkop_tensor &mask = call->inputs[3], &old = call->inputs[4];
  if (check.rank_at_least(policy, "policy_logits", 1).failed()) return {};
  const int32_t n_leading = policy.rank - 1;
  check.float_dtype(policy, "policy_logits").contiguous(policy, "policy_logits");
  check.dtype(ref, "ref_logits", policy.dtype).shape(ref, "ref_logits", policy, policy.rank, {});
  check.contiguous(ref, "ref_logits").dtype(ids, "action_ids", CHECKOP_I64);
  check.shape(ids, "action_ids", policy, n_leading, {}).contiguous(ids, "action_ids");
  check.dtype(mask, "attention_mask", CHECKOP_U8).shape(mask, "attention_mask", policy, n_leading, {});
  check.contiguous(mask, "attention_mask").dtype(old, "old_logps", CHECKOP_F32);
  check.shape(old, "old_logps", policy, n_leading, {}).contiguous(old, "old_logps");
  return {leading_count(policy), last_extent(policy)};
}

/// A row is a block, and a grid has at most 2^31 - 1 blocks.
inline checkop_status check_grid(const checkop_call* call, int64_t rows) {
  if (rows <= std::numeric_limits<int32_t>::max()) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "tensor 'policy_logits': %lld rows, at most 2147483647 are supported",
             static_cast<long long>(rows));
}

/// `other_mask`: null if only the attention mask counts.
template <typename T>
PolicyInputs<T> policy_inputs(const checkop_call* call, const uint8_t* other_mask, int64_t vocab) {
  return {static_cast<const T*>(call->inputs[0].data),
          static_cast<const T*>(call->inputs[1].data),
          static_cast<const int64_t*>(call->inputs[2].data),
          static_cast<const uint8_t*>(call->inputs[3].data),
          other_mask,
          static_cast<const float*>(call->inputs[4].data),
          vocab};
}

}  // namespace checkop::kernels
