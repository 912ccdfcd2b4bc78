// SPDX-License-Identifier: Apache-2.0
// Sums of exponentials of a row of logits, in parts, for candidates that never hold a whole row. A Sum is {max, sum}:
// the sum of exp(z - exp_shift(max)).
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// a + b.
template <typename Sum>
__device__ Sum merged(const Sum& a, const Sum& b) {
  const float max = fmaxf(a.max, b.max), shift = exp_shift(max);
  return {max, a.sum * expf(a.max - shift) + b.sum * expf(b.max - shift)};
}

/// z - log(sum of exponentials). (z - max) first: the difference is small and nearly exact, but max + log(sum) may be
/// large.
template <typename Sum>
__device__ float log_probability(float z, const Sum& total) {
  return (z - total.max) - logf(total.sum);
}

// A reduction ends in finish(row, Sum); a combination of segments ends in finish(row, Sum, target's logit).

/// Adapts the second form to the first, for rows whose target's logit is in memory.
template <typename Finish>
struct WithTarget {
  const float* __restrict__ target_logit;
  Finish finish;

  template <typename Sum>
  __device__ void operator()(int64_t row, const Sum& total) const {
    finish(row, total, target_logit[row]);
  }
};

/// logp[row]; 0 where the target is `ignored`.
struct WriteLogp {
  const int64_t* __restrict__ target_ids;
  int64_t ignored;
  float* __restrict__ logp;

  template <typename Sum>
  __device__ void operator()(int64_t row, const Sum& total, float target_logit) const {
    logp[row] = target_ids[row] == ignored ? 0.0f : log_probability(target_logit, total);
  }
};

/// Stores the sum of every row.
template <typename Sum>
struct WriteSums {
  Sum* __restrict__ sums;

  __device__ void operator()(int64_t row, const Sum& total, float = 0.0f) const { sums[row] = total; }
};

}  // namespace checkop::kernels
