// SPDX-License-Identifier: Apache-2.0
// Kernels of pointwise operators: each element of `n_out` tensors is computed independently from `n_in` tensors of the
// same shape.
#pragma once

#include "cuda/group.cuh"

namespace checkop::kernels {

/// 1 / (1 + exp(-x)) within 3 ulp; 0 below about -88, where exp overflows.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

template <typename T, int n_in, int n_out>
struct PointwiseTensors {
  const T* in[n_in];
  T* out[n_out];
};

// As many loads as fit are issued before the first result: about four per thread, times 2048 threads, hide the memory
// latency on one SM.
template <int n_in>
constexpr int kPointwiseGroups = n_in == 1 ? 4 : 2;
constexpr int kPointwiseThreads = 256;

/// Op::apply(const float (&in)[n_in], float (&out)[n_out]) for each of `count` elements.
template <typename T, class Op, int n_in, int n_out>
__global__ __launch_bounds__(kPointwiseThreads) void pointwise(PointwiseTensors<T, n_in, n_out> t, int64_t count,
                                                               bool aligned) {
  constexpr int kColumns = kGroupColumns<T>, kGroups = kPointwiseGroups<n_in>;
  const int64_t first_group = int64_t{blockIdx.x} * (kPointwiseThreads * kGroups) + threadIdx.x;
  const int64_t whole = aligned ? count / kColumns * kColumns : 0;  // elements in full groups, which move as one word
  Group<T> in[kGroups][n_in];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t first = (first_group + g * kPointwiseThreads) * kColumns;
#pragma unroll
    for (int i = 0; i < n_in; ++i) in[g][i] = load_group(t.in[i], first, count, first < whole);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float x[n_in][kColumns], y[n_out][kColumns];
#pragma unroll
    for (int i = 0; i < n_in; ++i) in[g][i].unpack(x[i]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float arguments[n_in], results[n_out];
#pragma unroll
      for (int i = 0; i < n_in; ++i) arguments[i] = x[i][c];
      Op::apply(arguments, results);
#pragma unroll
      for (int o = 0; o < n_out; ++o) y[o][c] = results[o];
    }
    const int64_t first = (first_group + g * kPointwiseThreads) * kColumns;
#pragma unroll
    for (int o = 0; o < n_out; ++o) store_group(t.out[o], first, count, first < whole, y[o]);
  }
}

/// Checks and launches a pass whose tensors all have the shape and dtype of the first input. Names list the inputs,
/// then the outputs.
template <class Op, int n_in, int n_out>
checkop_status launch_pointwise(const checkop_call* call, const char* const (&names)[n_in + n_out], const char* doing) {
  CallCheck check(call);
  if (check.counts(n_in, n_out).failed()) return check.status();
  const checkop_tensor& like = call->inputs[0];
  check.float_dtype(like, names[0]).contiguous(like, names[0]);
  for (int i = 1; i < n_in + n_out; ++i) {
    const checkop_tensor& t = i < n_in ? call->inputs[i] : call->outputs[i - n_in];
    check.dtype(t, names[i], like.dtype).shape(t, names[i], like, like.rank, {}).contiguous(t, names[i]);
  }
  if (check.failed()) return check.status();
  int64_t count = 1;
  for (int32_t d = 0; d < like.rank; ++d) count *= like.shape[d];
  if (count == 0) return CHECKOP_OK;
  return with_float_type(like.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    constexpr int64_t kBlockElements = int64_t{kPointwiseThreads} * kPointwiseGroups<n_in> * kGroupColumns<T>;
    const int64_t blocks = ceil_div(count, kBlockElements);
    if (blocks > std::numeric_limits<int32_t>::max()) {
      return say(call, CHECKOP_UNSUPPORTED, "tensor '%s': %lld elements, at most %lld are supported", names[0],
                 static_cast<long long>(count),
                 static_cast<long long>(std::numeric_limits<int32_t>::max() * kBlockElements));
    }
    PointwiseTensors<T, n_in, n_out> t;
    bool aligned = true;
    for (int i = 0; i < n_in; ++i) {
      t.in[i] = static_cast<const T*>(call->inputs[i].data);
      aligned = aligned && is_aligned(t.in[i]);
    }
    for (int o = 0; o < n_out; ++o) {
      t.out[o] = static_cast<T*>(call->outputs[o].data);
      aligned = aligned && is_aligned(t.out[o]);
    }
    pointwise<T, Op><<<static_cast<unsigned>(blocks), kPointwiseThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
        t, count, aligned);
    return launch_status(call, doing);
  });
}

}  // namespace checkop::kernels
