// SPDX-License-Identifier: Apache-2.0
// attention / cuda: tiles of 32 queries by 32 keys in fp32, softmax as the tiles go by, portable CUDA.
//   forward   o[i] = sum_j p[i,j] v[j],  p = softmax over the keys that the masks keep of scale q[i] k[j]
//   backward  dq = scale ds k,  dk = scale ds^T q,  dv = p^T do,  ds = p * (do v^T - D),  D = rowsum(p * do v^T)
//   q, o, do, dq: [batch, q_heads, q_seq, head_dim]     k, v, dk, dv: [batch, kv_heads, kv_seq, head_dim] f32|f16|bf16
//   key_padding_mask: [batch, kv_seq] u8, not 0 keeps; may be absent
//   Limits: contiguous, head_dim <= 256, q_heads a multiple of kv_heads.
//   Workspace: forward none; backward batch * q_heads * q_seq * 12 bytes (max, 1/sum and D of every query).
//   Expected error: chains of head_dim and of kv_seq fp32 additions, dk and dv of group * q_seq; expf within 2 ulp.
//
// A query's bits depend on its batch entry alone: tiles begin at multiples of 32 and are taken in ascending order. A
// block owns what it writes, a tile of queries (o, dq) or of keys (dk, dv, over the heads of the group in turn), so
// nothing is added atomically. No [q_seq, kv_seq] array exists: the backward computes the probabilities again.
#include "tile.cuh"

namespace checkop::kernels {
namespace {

/// The softmax of one query as its tiles go by; the same in the 8 threads of a row.
struct Online {
  float max = -INFINITY, sum = 0.0f;
  bool any = false;  // whether a key was kept: a row without one is 0, and not the 0/0 of a row of -inf

  /// Turns the scores of a tile into exp(score - max), kMasked where a key is not kept. Returns what to multiply
  /// everything that was summed before with.
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
};

/// One block: queries [32 * blockIdx.x, + 32) of head blockIdx.y. Error: see the head of the file.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void attention_forward(Problem p, const T* __restrict__ q,
                                                              const T* __restrict__ k, const T* __restrict__ v,
                                                              const uint8_t* __restrict__ keep, T* __restrict__ o) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *weights = tiles.square(2, 0);
  for (int64_t head = blockIdx.y; head < p.heads(); head += gridDim.y) {
    const int64_t first = int64_t{blockIdx.x} * kTile, row = first + threadIdx.x / kLanes;
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + head / p.q_heads * p.kv_seq;
    Online online;
    float sum[kChunks][4] = {};
    __syncthreads();  // the last head's readers are done
    load_tile<kChunks>(q + head * p.q_seq * p.width, first, p.q_seq, p.width, qs);
    for (int64_t key = 0; key < p.key_end(first + kTile - 1); key += kTile) {
      float score[kPerThread];
      bool kept[kPerThread];
      __syncthreads();
      load_tile<kChunks>(k + p.key_offset(head), key, p.kv_seq, p.width, keys);
      __syncthreads();
      products<kChunks>(qs, keys, score);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) {
        score[c] *= p.scale;
        kept[c] = p.keeps(mask, row, key + column(c));
      }
      const float before = online.add(score, kept);
      __syncthreads();
      load_tile<kChunks>(v + p.key_offset(head), key, p.kv_seq, p.width, keys);
#pragma unroll
      for (int c = 0; c < kPerThread; ++c) weights[threadIdx.x / kLanes * kSquareStride + column(c)] = score[c];
      __syncthreads();
      scale_all<kChunks>(sum, before);
      add_rows<kChunks>(weights, weights, keys, sum);
    }
    scale_all<kChunks>(sum, online.reciprocal());
    store_row<kChunks>(sum, row, p.q_seq, p.width, o + head * p.q_seq * p.width);
  }
}

/// dq of 32 queries, and what the keys' gradients need of them: max, 1/sum and D.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void attention_dq(Problem p, const T* __restrict__ q, const T* __restrict__ k,
                                                         const T* __restrict__ v, const uint8_t* __restrict__ keep,
                                                         const T* __restrict__ grad, Stats* __restrict__ stats,
                                                         T* __restrict__ dq) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *qs = tiles.tile(0), *keys = tiles.tile(1), *values = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *flags = tiles.square(4, 1);
  for (int64_t head = blockIdx.y; head < p.heads(); head += gridDim.y) {
    const int64_t first = int64_t{blockIdx.x} * kTile, row = first + threadIdx.x / kLanes;
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + head / p.q_heads * p.kv_seq;
    const int64_t end = p.key_end(first + kTile - 1);
    Online online;
    float mean = 0.0f;  // D, first times sum
    float sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(q + head * p.q_seq * p.width, first, p.q_seq, p.width, qs);
    load_tile<kChunks>(grad + head * p.q_seq * p.width, first, p.q_seq, p.width, grads);
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t key = 0; key < end; key += kTile) {
        float score[kPerThread], dp[kPerThread];
        bool kept[kPerThread];
        __syncthreads();
        load_tile<kChunks>(k + p.key_offset(head), key, p.kv_seq, p.width, keys);
        load_tile<kChunks>(v + p.key_offset(head), key, p.kv_seq, p.width, values);
        __syncthreads();
        products<kChunks>(qs, keys, score);
        products<kChunks>(grads, values, dp);
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          score[c] *= p.scale;
          kept[c] = p.keeps(mask, row, key + column(c));
        }
        if (pass == 0) {
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
          const float probability = expf(score[c] - exp_shift(online.max)) * online.reciprocal();
          const int at = threadIdx.x / kLanes * kSquareStride + column(c);
          weights[at] = kept[c] ? p.scale * (probability * (dp[c] - mean)) : 0.0f;
          flags[at] = kept[c] ? 1.0f : kMasked;
        }
        __syncthreads();
        add_rows<kChunks>(weights, flags, keys, sum);
      }
      if (pass == 0) mean *= online.reciprocal();
    }
    store_row<kChunks>(sum, row, p.q_seq, p.width, dq + head * p.q_seq * p.width);
    if (threadIdx.x % kLanes == 0 && row < p.q_seq) {
      stats[head * p.q_seq + row] = {exp_shift(online.max), online.reciprocal(), mean};
    }
  }
}

/// dk and dv of 32 keys of one key head, from the group's heads and all queries in ascending order.
template <typename T, int kChunks>
__global__ __launch_bounds__(kThreads) void attention_dkdv(Problem p, const T* __restrict__ q, const T* __restrict__ k,
                                                           const T* __restrict__ v, const uint8_t* __restrict__ keep,
                                                           const T* __restrict__ grad, const Stats* __restrict__ stats,
                                                           T* __restrict__ dk, T* __restrict__ dv) {
  extern __shared__ float4 shared[];
  Tiles<kChunks> tiles(shared);
  float *keys = tiles.tile(0), *values = tiles.tile(1), *qs = tiles.tile(2), *grads = tiles.tile(3);
  float *weights = tiles.square(4, 0), *ds = tiles.square(4, 1);
  for (int64_t kv_head = blockIdx.y; kv_head < p.batch * p.kv_heads; kv_head += gridDim.y) {
    const int64_t first = int64_t{blockIdx.x} * kTile, key = first + threadIdx.x / kLanes;
    const uint8_t* __restrict__ mask = keep == nullptr ? nullptr : keep + kv_head / p.kv_heads * p.kv_seq;
    float dk_sum[kChunks][4] = {}, dv_sum[kChunks][4] = {};
    __syncthreads();
    load_tile<kChunks>(k + kv_head * p.kv_seq * p.width, first, p.kv_seq, p.width, keys);
    load_tile<kChunks>(v + kv_head * p.kv_seq * p.width, first, p.kv_seq, p.width, values);
    for (int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
      for (int64_t query = p.query_begin(first); query < p.q_seq; query += kTile) {
        float score[kPerThread], dp[kPerThread];
        __syncthreads();
        load_tile<kChunks>(q + head * p.q_seq * p.width, query, p.q_seq, p.width, qs);
        load_tile<kChunks>(grad + head * p.q_seq * p.width, query, p.q_seq, p.width, grads);
        __syncthreads();
        products<kChunks>(keys, qs, score);
        products<kChunks>(values, grads, dp);
#pragma unroll
        for (int c = 0; c < kPerThread; ++c) {
          const int64_t row = query + column(c);
          const int at = threadIdx.x / kLanes * kSquareStride + column(c);
          float probability = kMasked, derivative = 0.0f;
          if (row < p.q_seq && p.keeps(mask, row, key)) {
            const Stats s = stats[head * p.q_seq + row];
            probability = expf(score[c] * p.scale - s.shift) * s.reciprocal;
            derivative = p.scale * (probability * (dp[c] - s.mean));
          }
          weights[at] = probability;
          ds[at] = derivative;
        }
        __syncthreads();
        add_rows<kChunks>(weights, weights, grads, dv_sum);
        add_rows<kChunks>(ds, weights, qs, dk_sum);
      }
    }
    store_row<kChunks>(dk_sum, key, p.kv_seq, p.width, dk + kv_head * p.kv_seq * p.width);
    store_row<kChunks>(dv_sum, key, p.kv_seq, p.width, dv + kv_head * p.kv_seq * p.width);
  }
}

// --- launch
// ----------------------------------------------------------------------------------------------------------

size_t stats_bytes(const checkop_tensor& q) { return static_cast<size_t>(leading_count(q)) * sizeof(Stats); }

checkop_status check_call(const checkop_call* call, bool backward, Problem& p) {
  CallCheck check(call);
  if (check.counts(backward ? 5 : 4, backward ? 3 : 1).failed()) return check.status();
  const checkop_tensor &q = call->inputs[0], &k = call->inputs[1], &v = call->inputs[2], &mask = call->inputs[3];
  if (check.rank_at_least(q, "q", 4).rank_at_least(k, "k", 4).failed()) return check.status();
  if (q.rank != 4 || k.rank != 4) return say(call, CHECKOP_FAILED, "tensors 'q' and 'k': expected 4 dimensions");
  if (call->n_attrs != 2) return say(call, CHECKOP_FAILED, "expected two attributes, causal and scale");
  const double scale = call->attrs[1].value;
  p = {q.shape[0],
       q.shape[1],
       k.shape[1],
       q.shape[2],
       k.shape[2],
       static_cast<int>(q.shape[3]),
       call->attrs[0].value != 0,
       scale < 0 ? 1.0f / sqrtf(static_cast<float>(q.shape[3])) : static_cast<float>(scale)};
  if (p.kv_heads == 0 || p.q_heads % p.kv_heads != 0) {
    return say(call, CHECKOP_FAILED, "%lld query heads on %lld key heads leave a group uneven",
               static_cast<long long>(p.q_heads), static_cast<long long>(p.kv_heads));
  }
  const std::initializer_list<int64_t> keys{p.batch, p.kv_heads, p.kv_seq, q.shape[3]};
  check.float_dtype(q, "q").contiguous(q, "q");
  check.dtype(k, "k", q.dtype).shape(k, "k", q, 0, keys).contiguous(k, "k");
  check.dtype(v, "v", q.dtype).shape(v, "v", q, 0, keys).contiguous(v, "v");
  if (mask.data != nullptr) {
    check.dtype(mask, "key_padding_mask", CHECKOP_U8).shape(mask, "key_padding_mask", q, 0, {p.batch, p.kv_seq});
    check.contiguous(mask, "key_padding_mask");
  }
  const checkop_tensor& out = call->outputs[0];
  const char* out_name = backward ? "dq" : "o";
  check.dtype(out, out_name, q.dtype).shape(out, out_name, q, 4, {}).contiguous(out, out_name);
  if (backward) {
    const checkop_tensor &grad = call->inputs[4], &dk = call->outputs[1], &dv = call->outputs[2];
    check.dtype(grad, "grad_o", q.dtype).shape(grad, "grad_o", q, 4, {}).contiguous(grad, "grad_o");
    check.dtype(dk, "dk", q.dtype).shape(dk, "dk", k, 4, {}).contiguous(dk, "dk");
    check.dtype(dv, "dv", q.dtype).shape(dv, "dv", k, 4, {}).contiguous(dv, "dv");
    check.workspace(stats_bytes(q));
  }
  if (check.failed()) return check.status();
  if (q.shape[3] > 256) {
    return say(call, CHECKOP_UNSUPPORTED, "head_dim %lld, at most 256 is supported",
               static_cast<long long>(q.shape[3]));
  }
  return CHECKOP_OK;
}

/// Blocks of a tile each in x, of a head each in y, over more heads than a grid has in steps.
dim3 grid_of(int64_t seq, int64_t heads) {
  constexpr int64_t kMaxHeads = 65535;
  return {static_cast<unsigned>(ceil_div(seq, kTile)), static_cast<unsigned>(heads < kMaxHeads ? heads : kMaxHeads), 1};
}

/// More dynamic shared memory than 48 KiB has to be asked for, kernel by kernel.
template <typename Kernel>
checkop_status allow_shared(const checkop_call* call, Kernel kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess) {
    return CHECKOP_OK;
  }
  cudaGetLastError();  // it was reported here
  return say(call, CHECKOP_UNSUPPORTED, "this head_dim needs %d bytes of shared memory, more than the device has",
             bytes);
}

template <typename T, int kChunks>
checkop_status launch_width(const checkop_call* call, bool backward, const Problem& p) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto input = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
  const auto output = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
  const auto* keep = static_cast<const uint8_t*>(call->inputs[3].data);
  const dim3 queries = grid_of(p.q_seq, p.heads()), keys = grid_of(p.kv_seq, p.batch * p.kv_heads);
  if (!backward) {
    constexpr int kBytes = Tiles<kChunks>::bytes(2, 1);
    if (auto s = allow_shared(call, attention_forward<T, kChunks>, kBytes)) return s;
    attention_forward<T, kChunks>
        <<<queries, kThreads, kBytes, stream>>>(p, input(0), input(1), input(2), keep, output(0));
    return launch_status(call, "launch attention forward");
  }
  constexpr int kBytes = Tiles<kChunks>::bytes(4, 2);
  auto* stats = static_cast<Stats*>(call->workspace);
  if (auto s = allow_shared(call, attention_dq<T, kChunks>, kBytes)) return s;
  if (auto s = allow_shared(call, attention_dkdv<T, kChunks>, kBytes)) return s;
  attention_dq<T, kChunks>
      <<<queries, kThreads, kBytes, stream>>>(p, input(0), input(1), input(2), keep, input(4), stats, output(0));
  if (auto s = launch_status(call, "launch attention dq")) return s;
  attention_dkdv<T, kChunks><<<keys, kThreads, kBytes, stream>>>(p, input(0), input(1), input(2), keep, input(4), stats,
                                                                 output(1), output(2));
  return launch_status(call, "launch attention dk and dv");
}

checkop_status launch(const checkop_call* call, bool backward) {
  Problem p;
  if (auto status = check_call(call, backward, p)) return status;
  if (p.batch == 0) return CHECKOP_OK;
  if (p.heads() == 0 || p.q_seq == 0 || p.kv_seq == 0 || p.width == 0) {
    return say(call, CHECKOP_UNSUPPORTED, "an extent is 0");
  }
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    if (p.width <= 64) return launch_width<T, 2>(call, backward, p);
    if (p.width <= 128) return launch_width<T, 4>(call, backward, p);
    return launch_width<T, 8>(call, backward, p);
  });
}

size_t backward_workspace(const checkop_call* call) { return call->n_inputs == 5 ? stats_bytes(call->inputs[0]) : 0; }
checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "attention", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "attention", "backward", CHECKOP_CUDA, 80, 0, backward_workspace, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
