// SPDX-License-Identifier: Apache-2.0
// The passes of the "cuda" candidates of attention (keys in one array) and kv_cache_attention (keys in two): tiles of
// 32 queries by 32 keys in fp32, online softmax, portable CUDA.
//   forward   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys that the masks keep of s[i,j]
//             s[i,j] = cap(scale q[i] k[j]),  cap(x) = softcap tanhf(x / softcap), or x if softcap is 0
//   backward  dq = scale ds k,  dk = scale ds^T q,  dv = p^T do,  ds = p * (do v^T - D) * cap',
//             D = rowsum(p * do v^T) - dlse,  dsinks[h] = -sum_i exp(sinks[h] - lse[i]) D[i]
//   q, dq: [batch, q_heads, q_seq, head_dim]     k, dk: [batch, kv_heads, length of the part, head_dim]
//   o, do: [batch, q_heads, q_seq, v_dim]     v, dv: [batch, kv_heads, length of the part, v_dim]
//   f32|f16|bf16     key_padding_mask: [batch, kv_seq] u8, kv_seq the sum of the parts' lengths; nonzero keeps a key;
//   may be absent
//   Attributes causal and scale; window_left, window_right and softcap where the operator has them: query i sees the
//   keys from window_left before its own, i + (kv_seq - q_seq), to window_right after it, or to its own if causal.
//   With one part: lse[i] = log(sum_j exp(s[i,j]) + exp(sinks[h])), [batch, q_heads, q_seq] f32, optional output of the
//   forward pass; -inf for a row without keys and a sink. sinks: [q_heads], may be absent. dlse: as lse, may be absent.
//   The backward pass takes o and lse of the forward pass as optional inputs and then does not compute these sums
//   again: with both, dq needs one pass over the keys instead of two.
//   Limits: contiguous, head_dim and v_dim <= 256, q_heads a multiple of kv_heads.
//   Workspace: forward none; backward batch * q_heads * q_seq * 12 bytes (max, 1/sum and D of every query).
//   Expected error: chains of head_dim, v_dim and kv_seq fp32 additions, dk and dv of group * q_seq; expf within 2 ulp.
//
// A query's bits depend only on its batch entry, not on how its keys are cut into parts: tiles begin at multiples of 32
// and are taken in ascending order. A block owns what it writes, a tile of queries (o, dq) or of keys (dk, dv, for the
// heads of the group in turn), so there are no atomic additions. No [q_seq, kv_seq] array exists: the backward pass
// recomputes the probabilities.
#pragma once

#include "cuda/attention_tile.cuh"

namespace checkop::kernels {

/// Online softmax of one query; the same values in all 8 threads of a row.
struct OnlineSoftmax {
  float max = -INFINITY, sum = 0.0f;
  bool any = false;  // whether a key was kept: a row without one is 0, not the 0/0 of a row of -inf

  /// Turns the scores of a tile into exp(score - max), or kMasked where a key is not kept. Returns the factor by which
  /// all earlier sums must be multiplied.
  __device__ float add(float (&score)[kPerThread], const bool (&kept)[kPerThread]) {
    float top = max;
    bool found = false;
#pragma unroll
    for (int c = 0; c < kPerThread; ++c) {
      if (kept[c]) top = fmaxf(top, score[c]);
      found |= kept[c];
    }
    top = row_max(top);
    any |= row_max(found ? 1.0f : 0.0f) > 0.0f;
    const float shift = exp_shift(top), before = expf(max - shift);
    float added = 0.0f;
#pragma unroll
    for (int c = 0; c < kPerThread; ++c) {
      score[c] = kept[c] ? expf(score[c] - shift) : kMasked;
      if (kept[c]) added += score[c];
    }
    sum = sum * before + row_sum(added);
    max = top;
    return before;
  }
  __device__ float reciprocal() const { return any ? 1.0f / sum : 0.0f; }
  /// The state of a row whose log-sum-exp is known.
  __device__ void take(float log_sum) { max = log_sum, sum = 1.0f, any = log_sum != -INFINITY; }
  __device__ float log_sum() const { return any ? exp_shift(max) + logf(sum) : -INFINITY; }
};

/// The state before the first key: empty, or with the sink of a query head alone.
template <typename T>
__device__ OnlineSoftmax start_of(const T* __restrict__ sinks, int64_t head) {
  OnlineSoftmax online;
  const float sink = sinks == nullptr ? -INFINITY : to_float(sinks[head]);
  if (sink != -INFINITY) online.take(sink);
  return online;
}

/// A block computes queries [32 * blockIdx.x, + 32) of head blockIdx.y. Error: see the head of the file.
template <typename T, int kChunks, int kParts>
__global__ __launch_bounds__(kThreads) void attention_forward(AttentionParams p, const T* __restrict__ q,
                                                              const T* __restrict__ k, const T* __restrict__ v,
                                                              const T* __restrict__ k2, const T* __restrict__ v2,
                                                              const uint8_t* __restrict__ keep,
                                                              const T* __restrict__ sinks, T* __restrict__ o,
                                                              float* __restrict__ lse) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *weights = tiles.square(2, 0);
  for (int64_t head = blockIdx.y; head < p.heads(); head += gridDim.y) {
    const int64_t first = int64_t{blockIdx.x} * kTile, row = first + threadIdx.x / kLanes, kv_head = head / p.group();
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + head / p.q_heads * p.kv_seq;
    OnlineSoftmax online = start_of(sinks, head % p.q_heads);
    float sum[kChunks][4] = {};
    __syncthreads();  // the previous head's readers are done
    load_tile<kChunks>(p.queries(q, head), first, p.q_seq, qs);
    for (int64_t key = p.key_begin(first); key < p.key_end(first + kTile - 1); key += kTile) {
      float score[kPerThread];
      bool kept[kPerThread];
      __syncthreads();
      load_tile<kChunks>(p.keys<kParts>(k, k2, kv_head), key, p.kv_seq, keys);
      __syncthreads();
      products<kChunks>(qs, keys, score);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) {
        score[c] = p.cap.apply(score[c] * p.scale);
        kept[c] = p.keeps(mask, row, key + column(c));
      }
      const float before = online.add(score, kept);
      __syncthreads();
      load_tile<kChunks>(p.values<kParts>(v, v2, kv_head), key, p.kv_seq, keys);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) weights[threadIdx.x / kLanes * kSquareStride + column(c)] = score[c];
      __syncthreads();
      scale_all<kChunks>(sum, before);
      add_rows<kChunks>(weights, weights, keys, sum);
    }
    scale_all<kChunks>(sum, online.reciprocal());
    store_row<kChunks>(sum, row, p.q_seq, p.outputs(o, head));
    if (lse != nullptr && threadIdx.x % kLanes == 0 && row < p.q_seq) lse[head * p.q_seq + row] = online.log_sum();
  }
}

/// D of this thread's row from its o and the tile of gradients: each thread adds its columns, then the row's 8 threads
/// as a tree. For `Source` see load_tile().
template <int kChunks, typename Source>
__device__ float mean_of_output(const Source& o, int64_t row, int64_t n_rows, const float* grads) {
  float sum = 0.0f;
  const float* __restrict__ grad = grads + threadIdx.x / kLanes * Tiles<kChunks>::kStride;
  for (int at = threadIdx.x % kLanes; row < n_rows && at < o.width; at += kLanes)
    sum += grad[at] * to_float(o[row][at]);
  return row_sum(sum);
}

/// dq of a tile of queries of one head, from row `first` on, and their max, 1/sum and D for the keys' gradients. All
/// threads of the block call it. queries(x), outputs(x): the head's rows of a tensor shaped as q or o. of_keys,
/// of_values: rows of the key head. `mask`: of keys, or null. `online`: a softmax to begin with. lse_of(row): where lse
/// has a row. `stats`: of the head's first row.
template <int kChunks, typename T, typename Queries, typename Outputs, typename Keys, typename Values, typename LseOf>
__device__ void write_dq(Tiles<kChunks>& tiles, const AttentionParams& p, int64_t first, const Queries& queries,
                         const Outputs& outputs, const Keys& of_keys, const Values& of_values,
                         const uint8_t* __restrict__ mask, OnlineSoftmax online, const T* __restrict__ q,
                         const T* __restrict__ grad, const Saved<T>& saved, const LseOf& lse_of,
                         QueryStats* __restrict__ stats, T* __restrict__ dq) {
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *values = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *flags = tiles.square(4, 1);
  const int64_t row = first + threadIdx.x / kLanes, end = p.key_end(first + kTile - 1);
  const bool exists = row < p.q_seq, has_all = saved.o != nullptr && saved.lse != nullptr;
  float mean = 0.0f;  // D times sum at first, then D
  float sum[kChunks][4] = {};
  __syncthreads();
  load_tile<kChunks>(queries(q), first, p.q_seq, qs);
  load_tile<kChunks>(outputs(grad), first, p.q_seq, grads);
  for (int pass = has_all ? 1 : 0; pass < 2; ++pass) {
    if (pass == 1) {
      __syncthreads();
      if (saved.o != nullptr) mean = mean_of_output<kChunks>(outputs(saved.o), row, p.q_seq, grads);
      if (saved.lse != nullptr) online.take(exists ? saved.lse[lse_of(row)] : -INFINITY);
      if (saved.grad_lse != nullptr && exists) mean -= saved.grad_lse[lse_of(row)];
    }
    for (int64_t key = p.key_begin(first); key < end; key += kTile) {
      float score[kPerThread], dp[kPerThread];
      bool kept[kPerThread];
      __syncthreads();
      load_tile<kChunks>(of_keys, key, p.kv_seq, keys);
      load_tile<kChunks>(of_values, key, p.kv_seq, values);
      __syncthreads();
      products<kChunks>(qs, keys, score);
      products<kChunks>(grads, values, dp);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) {
        score[c] *= p.scale;
        kept[c] = p.keeps(mask, row, key + column(c));
      }
      if (pass == 0) {
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) score[c] = p.cap.apply(score[c]);
        const float before = online.add(score, kept);
        float added = 0.0f;
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          if (kept[c]) added += score[c] * dp[c];
        }
        mean = mean * before + row_sum(added);
        continue;
      }
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) {
        const float probability = expf(p.cap.apply(score[c]) - exp_shift(online.max)) * online.reciprocal();
        const int at = threadIdx.x / kLanes * kSquareStride + column(c);
        weights[at] = kept[c] ? p.scale * (probability * (dp[c] - mean) * p.cap.slope(score[c])) : 0.0f;
        flags[at] = kept[c] ? 1.0f : kMasked;
      }
      __syncthreads();
      add_rows<kChunks>(weights, flags, keys, sum);
    }
    if (pass == 0) mean *= online.reciprocal();
  }
  store_row<kChunks>(sum, row, p.q_seq, queries(dq));
  if (threadIdx.x % kLanes == 0 && exists) stats[row] = {exp_shift(online.max), online.reciprocal(), mean};
}

template <typename T, int kChunks, int kParts>
__global__ __launch_bounds__(kThreads) void attention_dq(AttentionParams p, const T* __restrict__ q,
                                                         const T* __restrict__ k, const T* __restrict__ v,
                                                         const T* __restrict__ k2, const T* __restrict__ v2,
                                                         const uint8_t* __restrict__ keep, const T* __restrict__ sinks,
                                                         const T* __restrict__ grad, Saved<T> saved,
                                                         QueryStats* __restrict__ stats, T* __restrict__ dq) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  for (int64_t head = blockIdx.y; head < p.heads(); head += gridDim.y) {
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + head / p.q_heads * p.kv_seq;
    const int64_t kv_head = head / p.group();
    write_dq<kChunks>(
        tiles, p, int64_t{blockIdx.x} * kTile, [&](auto* of) { return p.queries(of, head); },
        [&](auto* of) { return p.outputs(of, head); }, p.keys<kParts>(k, k2, kv_head), p.values<kParts>(v, v2, kv_head),
        mask, start_of(sinks, head % p.q_heads), q, grad, saved, [&](int64_t row) { return head * p.q_seq + row; },
        stats + head * p.q_seq, dq);
  }
}

/// dk and dv of 32 keys of one key head, over the heads of the group and all queries in ascending order.
template <typename T, int kChunks, int kParts>
__global__ __launch_bounds__(kThreads) void attention_dkdv(AttentionParams p, const T* __restrict__ q,
                                                           const T* __restrict__ k, const T* __restrict__ v,
                                                           const T* __restrict__ k2, const T* __restrict__ v2,
                                                           const uint8_t* __restrict__ keep, const T* __restrict__ grad,
                                                           const QueryStats* __restrict__ stats, T* __restrict__ dk,
                                                           T* __restrict__ dv, T* __restrict__ dk2,
                                                           T* __restrict__ dv2) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *keys = tiles.tile(0), *values = tiles.tile(1), *qs = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *ds = tiles.square(4, 1);
  for (int64_t kv_head = blockIdx.y; kv_head < p.batch * p.kv_heads; kv_head += gridDim.y) {
    const int64_t first = int64_t{blockIdx.x} * kTile, key = first + threadIdx.x / kLanes;
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + kv_head / p.kv_heads * p.kv_seq;
    float dk_sum[kChunks][4] = {}, dv_sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(p.keys<kParts>(k, k2, kv_head), first, p.kv_seq, keys);
    load_tile<kChunks>(p.values<kParts>(v, v2, kv_head), first, p.kv_seq, values);
    for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
      for (int64_t query = p.query_begin(first); query < p.query_end(first + kTile - 1); query += kTile) {
        float score[kPerThread], dp[kPerThread];
        __syncthreads();
        load_tile<kChunks>(p.queries(q, head), query, p.q_seq, qs);
        load_tile<kChunks>(p.outputs(grad, head), query, p.q_seq, grads);
        __syncthreads();
        products<kChunks>(keys, qs, score);
        products<kChunks>(values, grads, dp);
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          const int64_t row = query + column(c);
          const int at = threadIdx.x / kLanes * kSquareStride + column(c);
          float probability = kMasked, derivative = 0.0f;
          if (row < p.q_seq && p.keeps(mask, row, key)) {
            const QueryStats s = stats[head * p.q_seq + row];
            const float scaled = score[c] * p.scale;
            probability = expf(p.cap.apply(scaled) - s.shift) * s.reciprocal;
            derivative = p.scale * (probability * (dp[c] - s.mean) * p.cap.slope(scaled));
          }
          weights[at] = probability;
          ds[at] = derivative;
        }
        __syncthreads();
        add_rows<kChunks>(weights, weights, grads, dv_sum);
        add_rows<kChunks>(ds, weights, qs, dk_sum);
      }
    }
    store_row<kChunks>(dk_sum, key, p.kv_seq, p.keys<kParts>(dk, dk2, kv_head));
    store_row<kChunks>(dv_sum, key, p.kv_seq, p.values<kParts>(dv, dv2, kv_head));
  }
}

/// The gradient of the sink of head blockIdx.x, from the stats [batch, gridDim.x, stride] of the first `*end` queries
/// of each head, or of all if `end` is null: each thread adds its queries, then the block as a tree.
template <typename T>
__global__ __launch_bounds__(kThreads) void attention_dsinks(int64_t batch, int64_t stride,
                                                             const int32_t* __restrict__ end,
                                                             const T* __restrict__ sinks,
                                                             const QueryStats* __restrict__ stats,
                                                             T* __restrict__ dsinks) {
  __shared__ float sums[kThreads];
  const float sink = to_float(sinks[blockIdx.x]);
  const int64_t queries = end == nullptr ? stride : *end;
  float sum = 0.0f;
  for (int64_t b = 0; b < batch && sink != -INFINITY; ++b) {
    const QueryStats* __restrict__ of_head = stats + (b * gridDim.x + blockIdx.x) * stride;
    for (int64_t i = threadIdx.x; i < queries; i += kThreads)
      sum -= expf(sink - of_head[i].shift) * of_head[i].reciprocal * of_head[i].mean;
  }
  sums[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dsinks[blockIdx.x] = from_float<T>(sums[0]);
}

// --- launch ----------------------------------------------------------------------------------------------------------

inline size_t stats_bytes(const checkop_tensor& q) {
  return static_cast<size_t>(leading_count(q)) * sizeof(QueryStats);
}

/// Names of one part's tensors.
struct PartNames {
  const char *k, *v, *dk, *dv;
};

constexpr const char* kAttentionAttributes =
    "expected 2 attributes, causal and scale, or window_left, window_right and softcap too";

inline checkop_status read_window_and_cap(const checkop_call* call, AttentionParams& p) {
  double left = 0, right = 0, softcap = 0;
  if (auto status = read_attribute(call, "window_left", left)) return status;
  if (auto status = read_attribute(call, "window_right", right)) return status;
  if (auto status = read_attribute(call, "softcap", softcap)) return status;
  p.window_left = static_cast<int64_t>(left), p.window_right = static_cast<int64_t>(right);
  p.cap = {/*temperature=*/1, softcap};
  return CHECKOP_OK;
}

inline checkop_status check_widths(const checkop_call* call, int64_t head_dim, int64_t v_dim) {
  if (head_dim <= 256 && v_dim <= 256) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "%s %lld, at most 256 is supported", head_dim > 256 ? "head_dim" : "v_dim",
             static_cast<long long>(head_dim > 256 ? head_dim : v_dim));
}

/// Indices of the inputs after key_padding_mask. With two parts (kv_cache_attention) only grad_o exists.
template <int kParts>
struct BehindMask {
  static constexpr bool kOnePart = kParts == 1;
  static constexpr int kSinks = 2 + 2 * kParts, kGrad = kSinks + kOnePart, kO = kGrad + 1, kLse = kO + 1,
                       kGradLse = kLse + 1;
};

/// Inputs are q, k and v of each part, key_padding_mask; backward then grad_o. Outputs are o; backward dq, then dk and
/// dv of each part. With one part there are sinks after key_padding_mask; the forward pass has the output lse after o,
/// the backward pass the inputs o, lse and grad_lse after grad_o, and the output dsinks.
template <int kParts>
checkop_status check_call(const checkop_call* call, bool backward, const PartNames (&names)[kParts],
                          AttentionParams& p) {
  CallCheck check(call);
  using In = BehindMask<kParts>;
  constexpr int kMore = kParts == 1 ? 1 : 0;  // output
  const int n_inputs = backward ? (kParts == 1 ? In::kGradLse : In::kGrad) + 1 : In::kGrad;
  const int n_outputs = (backward ? 1 + 2 * kParts : 1) + kMore;
  if (check.counts(n_inputs, n_outputs).failed()) return check.status();
  const checkop_tensor &q = call->inputs[0], &mask = call->inputs[1 + 2 * kParts];
  if (check.rank_at_least(q, "q", 4).failed()) return check.status();
  if (q.rank != 4) return say(call, CHECKOP_FAILED, "tensor 'q': rank %d, expected 4", q.rank);
  if (call->n_attrs != 2 && call->n_attrs != 5) {
    return say(call, CHECKOP_FAILED, "%s", kAttentionAttributes);
  }
  int64_t kv_heads = 0, kv_seq = 0, first_seq = 0, v_dim = 0;
  check.float_dtype(q, "q").contiguous(q, "q");
  for (int part = 0; part < kParts; ++part) {
    const checkop_tensor &k = call->inputs[1 + 2 * part], &v = call->inputs[2 + 2 * part];
    if (check.rank_at_least(k, names[part].k, 4).failed()) return check.status();
    if (check.rank_at_least(v, names[part].v, 4).failed()) return check.status();
    if (part == 0) kv_heads = k.shape[1], first_seq = k.shape[2], v_dim = v.shape[3];
    kv_seq += k.shape[2];
    const std::initializer_list<int64_t> shape{q.shape[0], kv_heads, k.shape[2], q.shape[3]};
    const std::initializer_list<int64_t> of_v{q.shape[0], kv_heads, k.shape[2], v_dim};
    check.dtype(k, names[part].k, q.dtype).shape(k, names[part].k, q, 0, shape).contiguous(k, names[part].k);
    check.dtype(v, names[part].v, q.dtype).shape(v, names[part].v, q, 0, of_v).contiguous(v, names[part].v);
    if (!backward) continue;
    const checkop_tensor &dk = call->outputs[1 + 2 * part], &dv = call->outputs[2 + 2 * part];
    check.dtype(dk, names[part].dk, q.dtype).shape(dk, names[part].dk, q, 0, shape).contiguous(dk, names[part].dk);
    check.dtype(dv, names[part].dv, q.dtype).shape(dv, names[part].dv, q, 0, of_v).contiguous(dv, names[part].dv);
  }
  if (mask.data != nullptr) {
    check.dtype(mask, "key_padding_mask", CHECKOP_U8).shape(mask, "key_padding_mask", q, 0, {q.shape[0], kv_seq});
    check.contiguous(mask, "key_padding_mask");
  }
  const checkop_tensor& out = call->outputs[0];
  const auto check_output = [&](const checkop_tensor& t, const char* name, int64_t width) {
    check.dtype(t, name, q.dtype).shape(t, name, q, 3, {width}).contiguous(t, name);
  };
  check_output(out, backward ? "dq" : "o", backward ? q.shape[3] : v_dim);
  if (backward) {
    check_output(call->inputs[In::kGrad], "grad_o", v_dim);
    check.workspace(stats_bytes(q));
  }
  if constexpr (kParts == 1) {
    const auto check_rows = [&](const checkop_tensor& t, const char* name) {
      if (t.data != nullptr) check.dtype(t, name, CHECKOP_F32).shape(t, name, q, 3, {}).contiguous(t, name);
    };
    const auto check_of_heads = [&](const checkop_tensor& t, const char* name) {
      if (t.data != nullptr) check.dtype(t, name, q.dtype).shape(t, name, q, 0, {q.shape[1]}).contiguous(t, name);
    };
    check_rows(backward ? call->inputs[In::kLse] : call->outputs[1], "lse");
    check_of_heads(call->inputs[In::kSinks], "sinks");
    if (backward) check_rows(call->inputs[In::kGradLse], "grad_lse"), check_of_heads(call->outputs[3], "dsinks");
    if (backward && call->inputs[In::kO].data != nullptr) check_output(call->inputs[In::kO], "o", v_dim);
  }
  if (check.failed()) return check.status();
  if (kv_heads == 0 || q.shape[1] % kv_heads != 0) {
    return say(call, CHECKOP_FAILED, "%lld query heads: not a multiple of %lld key heads",
               static_cast<long long>(q.shape[1]), static_cast<long long>(kv_heads));
  }
  if (kParts > 1 && kv_seq - first_seq != q.shape[2]) {
    return say(call, CHECKOP_FAILED, "%lld new keys for %lld queries: the causal mask needs one new key per query",
               static_cast<long long>(kv_seq - first_seq), static_cast<long long>(q.shape[2]));
  }
  if (auto status = check_widths(call, q.shape[3], v_dim)) return status;
  const double scale = call->attrs[1].value;
  p = {q.shape[0],
       q.shape[1],
       kv_heads,
       q.shape[2],
       kv_seq,
       first_seq,
       static_cast<int>(q.shape[3]),
       call->attrs[0].value != 0,
       scale < 0 ? 1.0f / sqrtf(static_cast<float>(q.shape[3])) : static_cast<float>(scale)};
  p.v_width = static_cast<int>(v_dim);
  return call->n_attrs == 2 ? CHECKOP_OK : read_window_and_cap(call, p);
}

/// One block in x per tile and one in y per head; with more heads than a grid allows, blocks stride over them.
inline dim3 grid_of(int64_t seq, int64_t heads) {
  constexpr int64_t kMaxHeads = 65535;
  return {static_cast<unsigned>(ceil_div(seq, kTile)), static_cast<unsigned>(heads < kMaxHeads ? heads : kMaxHeads), 1};
}

/// More than 48 KiB of dynamic shared memory must be requested for each kernel.
template <typename Kernel>
checkop_status allow_shared(const checkop_call* call, Kernel kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess) {
    return CHECKOP_OK;
  }
  cudaGetLastError();  // the error is reported here
  return say(call, CHECKOP_UNSUPPORTED, "this head_dim needs %d bytes of shared memory, more than the device has",
             bytes);
}

template <typename T, int kChunks, int kParts>
checkop_status launch_width(const checkop_call* call, bool backward, const AttentionParams& p) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  // Distance from a tensor of the first part to that of the second, if there is one
  constexpr int kSecond = 2 * (kParts - 1);
  const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
  const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
  const T *q = input(0), *k = input(1), *v = input(2), *k2 = input(1 + kSecond), *v2 = input(2 + kSecond);
  const auto* keep = static_cast<const uint8_t*>(call->inputs[1 + 2 * kParts].data);
  using In = BehindMask<kParts>;
  const T* const sinks = kParts == 1 ? input(In::kSinks) : nullptr;
  const dim3 queries = grid_of(p.q_seq, p.heads()), keys = grid_of(p.kv_seq, p.batch * p.kv_heads);
  if (!backward) {
    constexpr int kBytes = Tiles<kChunks>::bytes(2, 1);
    if (auto s = allow_shared(call, attention_forward<T, kChunks, kParts>, kBytes)) return s;
    float* const lse = kParts == 1 ? static_cast<float*>(call->outputs[1].data) : nullptr;
    attention_forward<T, kChunks, kParts>
        <<<queries, kThreads, kBytes, stream>>>(p, q, k, v, k2, v2, keep, sinks, output(0), lse);
    return launch_status(call, "launch attention forward");
  }
  constexpr int kBytes = Tiles<kChunks>::bytes(4, 2);
  const T* grad = input(In::kGrad);
  Saved<T> saved{};
  if constexpr (kParts == 1) {
    saved = {input(In::kO), static_cast<const float*>(call->inputs[In::kLse].data),
             static_cast<const float*>(call->inputs[In::kGradLse].data)};
  }
  auto* stats = static_cast<QueryStats*>(call->workspace);
  if (auto s = allow_shared(call, attention_dq<T, kChunks, kParts>, kBytes)) return s;
  if (auto s = allow_shared(call, attention_dkdv<T, kChunks, kParts>, kBytes)) return s;
  attention_dq<T, kChunks, kParts>
      <<<queries, kThreads, kBytes, stream>>>(p, q, k, v, k2, v2, keep, sinks, grad, saved, stats, output(0));
  if (auto s = launch_status(call, "launch attention dq")) return s;
  attention_dkdv<T, kChunks, kParts><<<keys, kThreads, kBytes, stream>>>(
      p, q, k, v, k2, v2, keep, grad, stats, output(1), output(2), output(1 + kSecond), output(2 + kSecond));
  auto status = launch_status(call, "launch attention dk and dv");
  if (status != CHECKOP_OK || sinks == nullptr) return status;
  attention_dsinks<T>
      <<<static_cast<unsigned>(p.q_heads), kThreads, 0, stream>>>(p.batch, p.q_seq, nullptr, sinks, stats, output(3));
  return launch_status(call, "launch attention dsinks");
}

template <int kParts>
bool has_sinks(const checkop_call* call) {
  return kParts == 1 && call->inputs[BehindMask<kParts>::kSinks].data != nullptr;
}

template <int kParts>
checkop_status launch_attention(const checkop_call* call, bool backward, const PartNames (&names)[kParts]) {
  AttentionParams p;
  if (auto status = check_call(call, backward, names, p)) return status;
  if (p.batch == 0 && !(backward && has_sinks<kParts>(call))) return CHECKOP_OK;
  if (p.batch == 0 || p.heads() == 0 || p.q_seq == 0 || p.kv_seq == 0 || p.width == 0 || p.v_width == 0) {
    return say(call, CHECKOP_UNSUPPORTED, "empty tensors are not supported: a dimension is 0");
  }
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    if (p.most_width() <= 64) return launch_width<T, 2, kParts>(call, backward, p);
    if (p.most_width() <= 128) return launch_width<T, 4, kParts>(call, backward, p);
    return launch_width<T, 8, kParts>(call, backward, p);
  });
}

/// Workspace of the backward pass; the forward pass needs none.
inline size_t attention_workspace(const checkop_call* call) {
  return call->n_inputs > 0 ? stats_bytes(call->inputs[0]) : 0;
}

}  // namespace checkop::kernels
