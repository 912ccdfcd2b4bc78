// SPDX-License-Identifier: Apache-2.0
// attention_merge_state / cuda: a warp for each head of each token, fp32, portable CUDA.
//   lse = m + log s,  m = max_p lse_p,  s = sum_p exp(lse_p - m)     o = sum_p w_p o_p,  w_p = exp(lse_p - m) / s
//   dpart_o = w_p do     dpart_lse = w_p (do o_p - do o + dlse)
//   part_o, dpart_o: [tokens, parts, heads, head_dim]   o, do: [tokens, heads, head_dim] f32|f16|bf16
//   part_lse, dpart_lse: [tokens, parts, heads]   lse, dlse: [tokens, heads] f32; these two may be absent
//   A part whose lse is -inf is not read; its gradients are 0. Without any part o is 0, lse -inf.
//   Limits: contiguous. Workspace: none. Expected error: chains of `parts` and of head_dim / 32 additions, then a tree
//   over 32 lanes; expf within 2 ulp.
//
// A head's bits depend on its own parts alone: lane l has the parts l, l + 32, ... of the sum of exponentials and the
// columns l, l + 32, ...; parts are added to o in ascending order.
#include <algorithm>

#include "cuda/common.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kColumns = 8;  // of a lane, at a time: head_dim up to 256 reads every part once

struct MergeShape {
  int64_t tokens, parts, heads, head_dim;

  __host__ __device__ int64_t rows() const { return tokens * heads; }
};

/// The parts of head `row % heads` of token `row / heads`, and their weights.
template <typename T>
struct Head {
  const T* __restrict__ o;        // of part 0
  const float* __restrict__ lse;  // of part 0
  int64_t stride, o_stride;       // from one part to the next
  int64_t parts, head_dim;
  float max = -INFINITY, sum = 0.0f;

  __device__ Head(const MergeShape& s, const T* __restrict__ part_o, const float* __restrict__ part_lse, int64_t row)
      : stride(s.heads), o_stride(s.heads * s.head_dim), parts(s.parts), head_dim(s.head_dim) {
    const int64_t first = row / s.heads * s.parts * s.heads + row % s.heads;
    o = part_o + first * s.head_dim, lse = part_lse + first;
    for (int64_t p = threadIdx.x % kWarp; p < parts; p += kWarp) max = fmaxf(max, lse[p * stride]);
    max = warp_max(max);
    for (int64_t p = threadIdx.x % kWarp; p < parts; p += kWarp) {
      if (has_keys(p)) sum += expf(lse[p * stride] - max);
    }
    sum = warp_sum(sum);
  }
  __device__ bool has_keys(int64_t p) const { return lse[p * stride] != -INFINITY; }
  __device__ float weight(int64_t p) const { return expf(lse[p * stride] - max) / sum; }
  __device__ float merged_lse() const { return max == -INFINITY ? -INFINITY : max + logf(sum); }

  /// The merged output in columns first + lane + 32 i.
  __device__ void merge(int64_t first, float (&out)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i] = 0.0f;
    for (int64_t p = 0; p < parts; ++p) {
      if (!has_keys(p)) continue;
      const float w = weight(p);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int64_t d = first + threadIdx.x % kWarp + kWarp * i;
        if (d < head_dim) out[i] += w * to_float(o[p * o_stride + d]);
      }
    }
  }
};

template <typename T>
__global__ __launch_bounds__(kThreads) void merge_forward(MergeShape s, const T* __restrict__ part_o,
                                                          const float* __restrict__ part_lse, T* __restrict__ o,
                                                          float* __restrict__ lse) {
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < s.rows();
       row += int64_t{gridDim.x} * kWarps) {
    const Head<T> head(s, part_o, part_lse, row);
    for (int64_t first = 0; first < s.head_dim; first += kWarp * kColumns) {
      float out[kColumns];
      head.merge(first, out);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int64_t d = first + threadIdx.x % kWarp + kWarp * i;
        if (d < s.head_dim) o[row * s.head_dim + d] = from_float<T>(out[i]);
      }
    }
    if (lse != nullptr && threadIdx.x % kWarp == 0) lse[row] = head.merged_lse();
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void merge_backward(MergeShape s, const T* __restrict__ part_o,
                                                           const float* __restrict__ part_lse,
                                                           const T* __restrict__ grad_o,
                                                           const float* __restrict__ grad_lse, T* __restrict__ dpart_o,
                                                           float* __restrict__ dpart_lse) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < s.rows();
       row += int64_t{gridDim.x} * kWarps) {
    const Head<T> head(s, part_o, part_lse, row);
    const T* __restrict__ grad = grad_o + row * s.head_dim;
    float mean = 0.0f;
    for (int64_t first = 0; first < s.head_dim; first += kWarp * kColumns) {
      float out[kColumns];
      head.merge(first, out);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int64_t d = first + lane + kWarp * i;
        if (d < s.head_dim) mean += to_float(grad[d]) * out[i];
      }
    }
    mean = warp_sum(mean) - (grad_lse == nullptr ? 0.0f : grad_lse[row]);
    for (int64_t p = 0; p < s.parts; ++p) {
      const int64_t at = (row / s.heads * s.parts + p) * s.heads + row % s.heads;
      const bool has_keys = head.has_keys(p);
      const float w = has_keys ? head.weight(p) : 0.0f;
      float sum = 0.0f;
      for (int64_t d = lane; d < s.head_dim; d += kWarp) {
        const float g = to_float(grad[d]);
        if (has_keys) sum += g * to_float(part_o[at * s.head_dim + d]);
        dpart_o[at * s.head_dim + d] = from_float<T>(has_keys ? w * g : 0.0f);
      }
      sum = warp_sum(sum);
      if (lane == 0) dpart_lse[at] = has_keys ? w * (sum - mean) : 0.0f;
    }
  }
}

checkop_status check_call(const checkop_call* call, bool backward, MergeShape& s) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 2, 2).failed()) return check.status();
  const checkop_tensor &o = call->inputs[0], &lse = call->inputs[1];
  if (check.rank_at_least(o, "part_o", 4).failed()) return check.status();
  if (o.rank != 4) return say(call, CHECKOP_FAILED, "tensor 'part_o': rank %d, expected 4", o.rank);
  s = {o.shape[0], o.shape[1], o.shape[2], o.shape[3]};
  const auto check_rows = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, o.dtype).shape(t, name, o, 1, {s.heads, s.head_dim}).contiguous(t, name);
  };
  const auto check_numbers = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, CHECKOP_F32).shape(t, name, o, 1, {s.heads}).contiguous(t, name);
  };
  check.float_dtype(o, "part_o").contiguous(o, "part_o");
  check.dtype(lse, "part_lse", CHECKOP_F32).shape(lse, "part_lse", o, 3, {}).contiguous(lse, "part_lse");
  if (!backward) {
    check_rows(call->outputs[0], "o"), check_numbers(call->outputs[1], "lse");
    return check.status();
  }
  const checkop_tensor &dpart_o = call->outputs[0], &dpart_lse = call->outputs[1];
  check_rows(call->inputs[2], "grad_o"), check_numbers(call->inputs[3], "grad_lse");
  check.dtype(dpart_o, "dpart_o", o.dtype).shape(dpart_o, "dpart_o", o, 4, {}).contiguous(dpart_o, "dpart_o");
  check.dtype(dpart_lse, "dpart_lse", CHECKOP_F32).shape(dpart_lse, "dpart_lse", o, 3, {});
  return check.contiguous(dpart_lse, "dpart_lse").status();
}

unsigned blocks_of(const MergeShape& s) {
  constexpr int64_t kMost = 1 << 20;  // the kernels stride over the rest
  return static_cast<unsigned>(std::min(ceil_div(s.rows(), kWarps), kMost));
}

checkop_status launch_forward(const checkop_call* call) {
  MergeShape s{};
  if (auto status = check_call(call, false, s)) return status;
  if (s.rows() == 0) return CHECKOP_OK;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    merge_forward<T><<<blocks_of(s), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
        s, static_cast<const T*>(call->inputs[0].data), static_cast<const float*>(call->inputs[1].data),
        static_cast<T*>(call->outputs[0].data), static_cast<float*>(call->outputs[1].data));
    return launch_status(call, "launch attention_merge_state forward");
  });
}

checkop_status launch_backward(const checkop_call* call) {
  MergeShape s{};
  if (auto status = check_call(call, true, s)) return status;
  if (s.rows() == 0) return CHECKOP_OK;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    merge_backward<T><<<blocks_of(s), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
        s, static_cast<const T*>(call->inputs[0].data), static_cast<const float*>(call->inputs[1].data),
        static_cast<const T*>(call->inputs[2].data), static_cast<const float*>(call->inputs[3].data),
        static_cast<T*>(call->outputs[0].data), static_cast<float*>(call->outputs[1].data));
    return launch_status(call, "launch attention_merge_state backward");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "attention_merge_state", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "attention_merge_state", "backward", CHECKOP_CUDA, 80, 0, nullptr,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
