// SPDX-License-Identifier: Apache-2.0
// A product of matmul/forward on a GPU that takes a given time at least, for plugins that are timed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "check_operator.h"
#include "plugins/call.hpp"

namespace test_plugin {

constexpr int kThreads = 256;
constexpr uint64_t kWorkNs = 200'000, kShortNs = 10'000;

inline float* floats(const checkop_tensor& t) { return static_cast<float*>(t.data); }
inline cudaStream_t stream_of(const checkop_call* call) { return static_cast<cudaStream_t>(call->stream); }
inline checkop_status launched() { return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED; }

/// How many multiplications, each of which waits for the one before, take `ns` nanoseconds at the GPU's highest clock.
inline uint64_t multiplications_of(uint64_t ns) {
  constexpr uint64_t kLatency = 4;  // cycles, of sm_70 and later
  static const uint64_t khz = [] {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrClockRate, device);
    return static_cast<uint64_t>(most);
  }();
  return ns * khz / 1'000'000 / kLatency;
}

/// Elements [begin, end) of c = a * b, at the earliest `ns` nanoseconds after the begin of each block, and after at
/// least `multiplications` by `one` = 1: the timer goes on while another process has the GPU, so time alone is no work.
static __global__ void product(const float* a, const float* b, float* c, int64_t k, int64_t n, int64_t begin,
                               int64_t end, uint64_t ns, uint64_t multiplications, float one) {
  constexpr uint64_t kUnroll = 256;
  uint64_t start = 0, now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  const int64_t at = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int64_t l = 0; at < end && l < k; ++l) sum = fmaf(a[at / n * k + l], b[l * n + at % n], sum);
  for (uint64_t i = 0; i < multiplications; i += kUnroll) {
#pragma unroll
    for (uint64_t j = 0; j < kUnroll; ++j) sum *= one;
  }
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns);
  if (at < end) c[at] = sum;
}

/// The product of a call, which can be launched after the call has ended, too.
struct Product {
  const float *a, *b;
  float* c;
  int64_t k, n, count;

  explicit Product(const checkop_call* call)
      : a(floats(call->inputs[0])),
        b(floats(call->inputs[1])),
        c(floats(call->outputs[0])),
        k(call->inputs[1].shape[0]),
        n(call->inputs[1].shape[1]),
        count(test_plugin::count(call->outputs[0])) {}

  void launch(cudaStream_t stream, uint64_t ns, int64_t begin, int64_t end) const {
    const auto blocks = static_cast<unsigned>((end - begin + kThreads - 1) / kThreads);
    if (blocks > 0)
      product<<<blocks, kThreads, 0, stream>>>(a, b, c, k, n, begin, end, ns, multiplications_of(ns), 1.0F);
  }
  void launch(cudaStream_t stream, uint64_t ns) const { launch(stream, ns, 0, count); }
};

inline checkop_status multiply(const checkop_call* call, uint64_t ns) {
  if (call->outputs[0].dtype != CHECKOP_F32) return CHECKOP_UNSUPPORTED;
  Product(call).launch(stream_of(call), ns);
  return launched();
}

inline cudaStream_t own_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
  }();
  return stream;
}

}  // namespace test_plugin
