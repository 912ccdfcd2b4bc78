// SPDX-License-Identifier: Apache-2.0
// The sums behind the entropy of a row whose logits exist a block of columns at a time.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels::linear_logp {

/// A Sum for segments.cuh that also holds weighted = sum of exp(-b) b with b = exp_shift(max) - z. A logit of -inf adds
/// nothing.
struct EntropyPartial {
  float max, sum = 0.0f, weighted = 0.0f;

  __device__ void add(float z, float shift) {
    const float below = shift - z, term = expf(-below);
    sum += term;
    weighted += term == 0.0f ? 0.0f : term * below;  // below may be infinite
  }
  __device__ void add(const EntropyPartial& part, float shift) {
    if (part.sum == 0.0f) return;  // only -inf
    const float up = shift - exp_shift(part.max), factor = expf(-up);
    sum += part.sum * factor;
    weighted += factor * fmaf(up, part.sum, part.weighted);
  }
  __device__ void add_lanes() { sum = warp_sum(sum), weighted = warp_sum(weighted); }
  __device__ float mean() const { return weighted / sum; }
  __device__ float entropy() const { return logf(sum) + mean(); }
};

}  // namespace checkop::kernels::linear_logp
