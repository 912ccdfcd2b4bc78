// SPDX-License-Identifier: Apache-2.0
// CUDA candidates of matmul/forward with one defect each: the runner must see what goes wrong on a GPU.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "check_operator.h"

namespace {

constexpr int kThreads = 256;

int64_t count(const checkop_tensor& t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t.rank; ++i) n *= t.shape[i];
  return n;
}

cudaStream_t stream_of(const checkop_call* call) { return static_cast<cudaStream_t>(call->stream); }

/// c[i, j] = sum_l a[i, l] b[l, j] for the flat elements [begin, end) of c, float; one thread per element.
__global__ void multiply(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64_t k,
                         int64_t n, int64_t begin, int64_t end) {
  const int64_t at = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= end) return;
  float sum = 0;
  for (int64_t l = 0; l < k; ++l) sum = fmaf(a[at / n * k + l], b[l * n + at % n], sum);
  c[at] = sum;
}

checkop_status multiply_range(const checkop_call* call, int64_t begin, int64_t end, cudaStream_t stream) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  const auto blocks = static_cast<unsigned>((end - begin + kThreads - 1) / kThreads);
  multiply<<<blocks, kThreads, 0, stream>>>(static_cast<const float*>(a.data), static_cast<const float*>(b.data),
                                            static_cast<float*>(c.data), b.shape[0], b.shape[1], begin, end);
  return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

checkop_status honest(const checkop_call* call) {
  return multiply_range(call, 0, count(call->outputs[0]), stream_of(call));
}

checkop_status leaves_unwritten(const checkop_call* call) {
  return multiply_range(call, 0, count(call->outputs[0]) - 1, stream_of(call));
}

__global__ void store(float* place, float value) { *place = value; }

checkop_status writes_behind(const checkop_call* call) {
  store<<<1, 1, 0, stream_of(call)>>>(static_cast<float*>(call->outputs[0].data) + count(call->outputs[0]) + 2, 1.0f);
  return honest(call);
}

checkop_status changes_input(const checkop_call* call) {
  const checkop_status status = honest(call);
  store<<<1, 1, 0, stream_of(call)>>>(static_cast<float*>(call->inputs[1].data), 7.0f);
  return status;
}

/// The write misses every allocation: the error comes after the launch, and the context is lost.
checkop_status illegal_address(const checkop_call* call) {
  store<<<1, 1, 0, stream_of(call)>>>(reinterpret_cast<float*>(uintptr_t{16}), 1.0f);
  return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

/// Uses more threads than a block may have and ignores the status: the runner must still see the error.
checkop_status launch_error(const checkop_call* call) {
  store<<<1, 4096, 0, stream_of(call)>>>(static_cast<float*>(call->outputs[0].data), 1.0f);
  return CHECKOP_OK;
}

/// Waits for a value that the workspace never holds, whatever it was filled with before.
__global__ void spin(volatile const int* never) {
  while (*never != 12345) {
  }
}

checkop_status endless(const checkop_call* call) {
  spin<<<1, 1, 0, stream_of(call)>>>(static_cast<const int*>(call->workspace));
  return CHECKOP_OK;
}
size_t endless_workspace(const checkop_call*) { return 256; }

/// Correct, but on its own stream and without waiting: the host must wait for the whole device.
checkop_status side_stream(const checkop_call* call) {
  static cudaStream_t own = [] {
    cudaStream_t s = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
  }();
  return multiply_range(call, 0, count(call->outputs[0]), own);
}

/// Correct, but allocates all remaining device memory.
checkop_status out_of_memory(const checkop_call* call) {
  for (size_t step = size_t{1} << 32; step >= size_t{1} << 20; step /= 2) {
    for (void* memory = nullptr; cudaMalloc(&memory, step) == cudaSuccess;) {
    }
  }
  (void)cudaGetLastError();
  return honest(call);
}

/// The same, but reports it.
checkop_status says_out_of_memory(const checkop_call* call) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, size_t{1} << 46);
  if (status == cudaSuccess) return CHECKOP_OK;
  (void)std::snprintf(call->message, call->message_bytes, "%s", cudaGetErrorName(status));
  return CHECKOP_FAILED;
}

constexpr checkop_kernel kernel(const char* name, checkop_status (*launch)(const checkop_call*),
                                size_t (*workspace)(const checkop_call*) = nullptr) {
  return {sizeof(checkop_kernel), name, "matmul", "forward", CHECKOP_CUDA, 0, 0, workspace, launch};
}

constexpr checkop_kernel kKernels[] = {
    kernel("honest", honest),
    kernel("leaves_unwritten", leaves_unwritten),
    kernel("writes_behind", writes_behind),
    kernel("changes_input", changes_input),
    kernel("illegal_address", illegal_address),
    kernel("launch_error", launch_error),
    kernel("endless", endless, endless_workspace),
    kernel("side_stream", side_stream),
    kernel("out_of_memory", out_of_memory),
    kernel("says_out_of_memory", says_out_of_memory),
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, sizeof(kKernels) / sizeof(kKernels[0]), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
