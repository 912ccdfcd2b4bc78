// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates of ratio_kl and grpo_loss: one token's ratio and KL estimate, one block per token.
// Nothing of a masked token counts: its id, its logits and its old log-probability may be anything.
#pragma once

#include "cuda/held_row.cuh"
#include "cuda/ids.cuh"

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

/// What a token needs beside the sums of its rows: its id, the logits of it, and the old log-probability.
struct OfTarget {
  int64_t target;
  float policy, ref, old;
};

template <typename T>
__device__ OfTarget read_target(const PolicyInputs<T>& in, int64_t row) {
  int64_t target = in.ids[row];
  if (target < 0 || target >= in.vocab) target = 0;  // IdCheck refuses it
  const int64_t at = row * in.vocab + target;
  return {target, to_float(in.policy[at]), to_float(in.ref[at]), in.old_logps[row]};
}

__device__ inline Token token_of(const OfTarget& of, const Partial& of_policy, const Partial& of_ref) {
  // (z - max) first: the difference is small and nearly exact, but max + log(sum) may be large.
  const float lr = (of.ref - of_ref.max) - logf(of_ref.sum);
  const float lp = (of.policy - of_policy.max) - logf(of_policy.sum);
  return {lp - of.old, lr - lp, of_policy, of.target};
}

/// Computes the Token of `row` and calls f(token, policy), `policy` being the RowSteps of the row of policy logits,
/// whose last steps the ring has then. All threads must call.
template <typename T, typename F>
__device__ void read_token(StepRing& ring, const PolicyInputs<T>& in, int64_t row, F&& f) {
  const OfTarget of_target = read_target(in, row);  // early: after the sums, nothing would cover two loads in a chain
  const auto read = [&](const auto& policy, const auto& ref) {
    const Partial of_ref = reduce_row(ring, ref, NoTransform{}, false, &policy);
    __syncthreads();
    const Partial of_policy = reduce_row(ring, policy, NoTransform{}, true);
    f(token_of(of_target, of_policy, of_ref), policy);
  };
  with_steps(in.vocab, read, in.policy + row * in.vocab, in.ref + row * in.vocab);
}

#if __CUDA_ARCH__ >= 900
/// The same for the row of the cluster: f(token, held), `held` having the row of policy logits. `groups`: of a part.
template <typename T, typename F>
__device__ void read_held_token(const PolicyInputs<T>& in, int64_t row, int groups, F&& f) {
  HeldRow<T, 2> held(in.ref + row * in.vocab, in.vocab, groups);
  const OfTarget of_target = read_target(in, row);
  const auto sums = held.reduce(NoTransform{}, in.policy + row * in.vocab);
  f(token_of(of_target, sums.of[1], sums.of[0]), held);
}
#endif

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
