// SPDX-License-Identifier: Apache-2.0
// Shared by the native candidates of ratio_kl and grpo_loss: one token's ratio and KL estimate in fp32.
// Nothing of a masked token is read: its id, its logits and its old log-probability may be anything.
#pragma once

#include "cpu/native.hpp"

namespace native {

inline float row_logp(const float* z, int64_t vocab, int64_t token) {
  const SumExp s = sum_exp(z, vocab);
  return (z[token] - s.shift()) - std::log(s.sum);
}

/// exp(d) - d - 1 without cancellation: a series up to |d| = 1, whose first omitted term is 2^-31 of the result.
inline float k3(float d) {
  if (!(std::abs(d) < 1.0f)) return std::expm1(d) - d;
  float series = 1.0f / 479001600.0f;
  for (const float factorial :
       {39916800.0f, 3628800.0f, 362880.0f, 40320.0f, 5040.0f, 720.0f, 120.0f, 24.0f, 6.0f, 2.0f})
    series = series * d + 1.0f / factorial;
  return series * d * d;
}

/// The first tensors of both operators: policy_logits, ref_logits, action_ids, attention_mask, old_logps.
struct PolicyCall {
  Extent rows{"rows"}, vocab{"vocab"};
  const checkop_tensor *policy, *ref;
  const int64_t* ids;
  const uint8_t* mask;
  const float* old;

  explicit PolicyCall(const checkop_call& c) : policy(&c.inputs[0]), ref(&c.inputs[1]) {
    check_computed_dtype(policy->dtype);
    check_matrix(*policy, "policy_logits", policy->dtype, rows, vocab);
    check_matrix(*ref, "ref_logits", policy->dtype, rows, vocab);
    check_list(c.inputs[2], "action_ids", CHECKOP_I64, rows);
    check_list(c.inputs[3], "attention_mask", CHECKOP_U8, rows);
    check_list(c.inputs[4], "old_logps", CHECKOP_F32, rows);
    ids = static_cast<const int64_t*>(c.inputs[2].data);
    mask = static_cast<const uint8_t*>(c.inputs[3].data);
    old = static_cast<const float*>(c.inputs[4].data);
  }

  /// Refuses ids outside the vocabulary in rows where active(row).
  template <class Active>
  void check_active_ids(Active active) const {
    for (int64_t r = 0; r < rows.value; ++r)
      if (active(r) && (ids[r] < 0 || ids[r] >= vocab.value))
        throw Refusal(CHECKOP_FAILED, "action_ids[" + std::to_string(r) + "] = " + std::to_string(ids[r]) +
                                          " is outside [0, " + std::to_string(vocab.value) + ") and not masked");
  }

  std::vector<float> row_buffer() const { return std::vector<float>(static_cast<size_t>(vocab.value)); }
};

/// delta = lp - old and d = lr - lp.
struct PolicyLogs {
  float delta, d;
};

/// The PolicyLogs of `row`; leaves the policy's logits in `z`.
inline PolicyLogs policy_logs(const PolicyCall& call, int64_t row, float* z) {
  const int64_t vocab = call.vocab.value;
  load(*call.ref, row * vocab, vocab, z);
  const float lr = row_logp(z, vocab, call.ids[row]);
  load(*call.policy, row * vocab, vocab, z);
  const float lp = row_logp(z, vocab, call.ids[row]);
  return {lp - call.old[row], lr - lp};
}

/// Replaces the logits in `z` by c*(onehot - softmax).
inline void row_gradient(float* z, int64_t vocab, int64_t token, float c) {
  const SumExp s = sum_exp(z, vocab);
  for (int64_t v = 0; v < vocab; ++v) {
    const float p = std::exp(z[v] - s.shift()) / s.sum;
    z[v] = v == token ? c * (1.0f - p) : -c * p;
  }
}

}  // namespace native
