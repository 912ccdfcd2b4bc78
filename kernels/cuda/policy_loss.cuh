// SPDX-License-Identifier: Apache-2.0
// The losses of PPO and its variants over tokens, in fp32, and their derivatives; policy_loss / native has the
// formulas. Nothing of a masked token is read. Every sum has an order that depends on the number of its terms alone.
#pragma once

#include "cpu/policy_loss.hpp"
#include "cuda/common.cuh"

namespace checkop::kernels::policy {

using native::LossToken;

constexpr int kTokenThreads = 256;  // of a sequence, or a block of tokens
constexpr int kSumThreads = 1024;   // one block sums all tokens: no second stage, and a chain of tokens/1024

/// A batch of `sequences` x `seq` tokens; pointers to the device.
struct PolicyBatch {
  native::PolicySettings set;
  native::PolicyInputs in;
  int64_t sequences, seq;

  int64_t tokens() const { return sequences * seq; }
};

/// Sums over the active tokens of a sequence: their number; the mean of logps - old_logps if the sequence has one
/// ratio; the sum of old_logps - rollout_logps if it has one weight.
struct Sequence {
  float n, mean_log_ratio, mismatch;
};

/// Derivatives of grad_loss * loss.
struct Coefficients {
  float by_logp, by_entropy;
};

static __global__ __launch_bounds__(kTokenThreads) void sum_sequences(PolicyBatch b, Sequence* __restrict__ to) {
  __shared__ float shared[3][kWarp];
  const int64_t first = int64_t{blockIdx.x} * b.seq;
  const bool weighs = b.in.rollout_logps != nullptr && (b.set.is_mode == 2 || b.set.is_mode == 4);
  float n = 0.0f, log_ratio = 0.0f, mismatch = 0.0f;
  for (int64_t i = first + threadIdx.x; i < first + b.seq; i += kTokenThreads) {
    if (b.in.mask[i] == 0) continue;
    n += 1.0f;
    if (b.set.of_sequence) log_ratio += b.in.logps[i] - b.in.old_logps[i];
    if (weighs) mismatch += b.in.old_logps[i] - b.in.rollout_logps[i];
  }
  n = block_sum(n, shared[0]);
  log_ratio = block_sum(log_ratio, shared[1]);
  mismatch = block_sum(mismatch, shared[2]);
  if (threadIdx.x == 0) to[blockIdx.x] = {n, n == 0.0f ? 0.0f : log_ratio / n, mismatch};
}

/// What the mean divides by: the input denom if there is one; otherwise a count of the batch, at least 1.
static __global__ __launch_bounds__(kSumThreads) void find_denom(PolicyBatch b, const Sequence* __restrict__ sequences,
                                                                 float* __restrict__ denom) {
  __shared__ float shared[kWarp];
  float mine = 0.0f;
  for (int64_t i = threadIdx.x; i < b.sequences; i += kSumThreads) {
    const float n = sequences[i].n;
    mine += b.set.aggregation == 0 ? n : b.set.aggregation == 3 ? static_cast<float>(b.seq) : n > 0.0f ? 1.0f : 0.0f;
  }
  const float own = block_sum(mine, shared);
  if (threadIdx.x == 0) *denom = b.in.denom != nullptr ? *b.in.denom : fmaxf(own, 1.0f);
}

/// Puts x back into [low, high]. Not fminf(fmaxf()), which would turn a NaN into a number.
__device__ inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/// Puts x back into [-limit, limit]; 0 is no limit. Returns the derivative: 0 if x was outside.
__device__ inline float hold(float& x, float limit) {
  if (limit == 0.0f || (x <= limit && x >= -limit)) return 1.0f;
  x = x > 0.0f ? limit : -limit;
  return 0.0f;
}

__device__ inline float mismatch_weight(const native::PolicySettings& set, const Sequence& of, float own) {
  if (set.is_mode == 1) return clamped(own, set.is_low, set.is_high);
  if (set.is_mode == 2) return clamped(expf(of.mismatch), set.is_low, set.is_high);
  const float judged = set.is_mode == 3 ? own : expf(of.mismatch / of.n);
  return judged >= set.is_low && judged <= set.is_high ? own : 0.0f;
}

__device__ inline void set_kl(const native::PolicySettings& set, float x, float ratio, float slope, LossToken& t) {
  const float is_free = hold(x, set.kl_clamp_in), decay = expm1f(-x);
  t.kl = set.kl_estimator == 1 ? x : set.kl_estimator == 2 ? 0.5f * x * x : decay + x;
  t.dkl = (set.kl_estimator == 1 ? 1.0f : set.kl_estimator == 2 ? x : -decay) * is_free;
  t.dkl *= hold(t.kl, set.kl_clamp_out);
  if (set.kl_gradient == 1) t.dkl = x * is_free;
  if (set.kl_gradient == 2) t.dkl = slope * t.kl + ratio * t.dkl, t.kl *= ratio;
}

/// Loss and KL estimate of an active token without its weight in the mean, and their derivatives by its logp.
__device__ inline LossToken token_of(const PolicyBatch& b, const Sequence& of, int64_t i) {
  const native::PolicySettings& set = b.set;
  LossToken t;
  const float logp = b.in.logps[i], old = b.in.old_logps[i], a = b.in.advantages[i];
  float log_ratio = set.of_sequence ? of.mean_log_ratio : logp - old;
  const float is_free = hold(log_ratio, set.ratio_clamp), ratio = expf(log_ratio), slope = is_free * ratio;
  const float inside = clamped(ratio, set.low, set.high);
  if (set.cispo) {
    t.dloss = -inside * a, t.loss = t.dloss * logp, t.clipped = inside != ratio ? 1.0f : 0.0f;
  } else {
    const bool limited = set.delta > 0.0f && ratio > set.delta;
    const float plain = -a * (limited ? set.delta : ratio), other = -a * inside;
    t.clipped = other > plain ? 1.0f : 0.0f;
    t.loss = other > plain ? other : plain;
    t.dloss = other > plain || limited ? 0.0f : -a * slope;
    const float most = -a * set.dual_clip;
    if (a < 0.0f && set.dual_clip > 0.0f && t.loss > most) t.loss = most, t.dloss = 0.0f;
  }
  if (b.in.rollout_logps != nullptr && set.is_mode != 0) {
    const float weight = mismatch_weight(set, of, expf(old - b.in.rollout_logps[i]));
    t.loss *= weight, t.dloss *= weight;
  }
  if (b.in.ref_logps != nullptr) set_kl(set, logp - b.in.ref_logps[i], ratio, slope, t);
  return t;
}

/// A token's weight in the mean.
__device__ inline float weight_of(const PolicyBatch& b, const Sequence& of, float denom) {
  return b.set.aggregation == 2 ? 1.0f / (of.n * denom) : 1.0f / denom;
}

/// to[token]: 0 for masked ones.
static __global__ __launch_bounds__(kTokenThreads) void token_coefficients(PolicyBatch b,
                                                                           const Sequence* __restrict__ sequences,
                                                                           const float* __restrict__ denom,
                                                                           const float* __restrict__ grad_loss,
                                                                           Coefficients* __restrict__ to) {
  const int64_t i = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (i >= b.sequences * b.seq) return;
  to[i] = {};
  if (b.in.mask[i] == 0) return;
  const Sequence of = sequences[i / b.seq];
  const LossToken t = token_of(b, of, i);
  const float a = *grad_loss * weight_of(b, of, *denom);
  to[i] = {a * (t.dloss + b.set.kl_coef * t.dkl), -a * b.set.entropy_coef};
}

/// to[token]: its part of the loss; 0 for masked ones.
static __global__ __launch_bounds__(kTokenThreads) void token_terms(PolicyBatch b,
                                                                    const Sequence* __restrict__ sequences,
                                                                    const float* __restrict__ denom,
                                                                    float* __restrict__ to) {
  const int64_t i = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (i >= b.sequences * b.seq) return;
  to[i] = 0.0f;
  if (b.in.mask[i] == 0) return;
  const Sequence of = sequences[i / b.seq];
  const LossToken t = token_of(b, of, i);
  const float entropy = b.in.entropy == nullptr ? 0.0f : b.in.entropy[i];
  to[i] = weight_of(b, of, *denom) * (t.loss + b.set.kl_coef * t.kl - b.set.entropy_coef * entropy);
}

static __global__ __launch_bounds__(kSumThreads) void sum_terms(const float* __restrict__ terms, int64_t count,
                                                                float* __restrict__ loss) {
  __shared__ float shared[kWarp];
  float mine = 0.0f;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) mine += terms[i];
  const float total = block_sum(mine, shared);
  if (threadIdx.x == 0) *loss = total;
}

/// Byte offsets into the workspace of a call, from `begin` on; each a multiple of 256.
struct PolicyLayout {
  size_t sequences, denom, terms, coefficients, end;

  PolicyLayout(size_t begin, int64_t n_sequences, int64_t tokens) : end(begin) {
    const auto reserve = [this](int64_t bytes) {
      const size_t start = end;
      end += static_cast<size_t>(round_up(bytes, 256));
      return start;
    };
    sequences = reserve(n_sequences * static_cast<int64_t>(sizeof(Sequence)));
    denom = reserve(sizeof(float));
    terms = coefficients = reserve(tokens * static_cast<int64_t>(sizeof(Coefficients)));  // a call needs one of them
  }
};

inline unsigned token_blocks(int64_t tokens) { return static_cast<unsigned>(ceil_div(tokens, kTokenThreads)); }

/// Enqueues what both passes begin with. A batch has at least one token.
inline void launch_statistics(const PolicyBatch& b, const PolicyLayout& layout, std::byte* workspace,
                              cudaStream_t stream) {
  auto* sequences = reinterpret_cast<Sequence*>(workspace + layout.sequences);
  sum_sequences<<<static_cast<unsigned>(b.sequences), kTokenThreads, 0, stream>>>(b, sequences);
  find_denom<<<1, kSumThreads, 0, stream>>>(b, sequences, reinterpret_cast<float*>(workspace + layout.denom));
}

inline void launch_loss(const PolicyBatch& b, const PolicyLayout& layout, std::byte* workspace, float* loss,
                        cudaStream_t stream) {
  launch_statistics(b, layout, workspace, stream);
  auto* terms = reinterpret_cast<float*>(workspace + layout.terms);
  token_terms<<<token_blocks(b.tokens()), kTokenThreads, 0, stream>>>(
      b, reinterpret_cast<const Sequence*>(workspace + layout.sequences),
      reinterpret_cast<const float*>(workspace + layout.denom), terms);
  sum_terms<<<1, kSumThreads, 0, stream>>>(terms, b.tokens(), loss);
}

/// Returns the coefficients of all tokens, in the workspace.
inline const Coefficients* launch_coefficients(const PolicyBatch& b, const PolicyLayout& layout, std::byte* workspace,
                                               const float* grad_loss, cudaStream_t stream) {
  launch_statistics(b, layout, workspace, stream);
  auto* to = reinterpret_cast<Coefficients*>(workspace + layout.coefficients);
  token_coefficients<<<token_blocks(b.tokens()), kTokenThreads, 0, stream>>>(
      b, reinterpret_cast<const Sequence*>(workspace + layout.sequences),
      reinterpret_cast<const float*>(workspace + layout.denom), grad_loss, to);
  return to;
}

}  // namespace checkop::kernels::policy
