// SPDX-License-Identifier: Apache-2.0
// Positive control on a GPU: a correct product of fp32 matrices that splits its sums by the number of rows, as
// libraries do. A check of batch invariance that does not catch it proves nothing.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "check_operator.h"

namespace {

constexpr int kThreads = 128;

/// One thread per element of c; the sum over k is split into `parts` parts of equal length.
__global__ void product(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64_t m,
                        int64_t k, int64_t n, int64_t parts) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= m * n) return;
  const int64_t i = at / n, j = at % n;
  float total = 0;
  for (int64_t part = 0; part < parts; ++part) {
    float sum = 0;
    for (int64_t l = part * k / parts; l < (part + 1) * k / parts; ++l) sum += a[i * k + l] * b[l * n + j];
    total += sum;
  }
  c[at] = total;
}

checkop_status split_k_by_rows(const checkop_call* call) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  const int64_t m = c.shape[0] * c.shape[1], k = b.shape[0], n = b.shape[1], blocks = (m * n + kThreads - 1) / kThreads;
  if (c.dtype != CHECKOP_F32 || !checkop_all_contiguous(call) || blocks > INT32_MAX) {
    std::snprintf(call->message, call->message_bytes, "only contiguous fp32 tensors are supported");
    return CHECKOP_UNSUPPORTED;
  }
  if (m * n == 0) return CHECKOP_OK;
  const int64_t parts = m <= 16 ? 4 : m <= 48 ? 2 : 1;
  product<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const float*>(a.data), static_cast<const float*>(b.data), static_cast<float*>(c.data), m, k, n,
      parts);
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return CHECKOP_OK;
  std::snprintf(call->message, call->message_bytes, "%s", cudaGetErrorString(status));
  return CHECKOP_FAILED;
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "split_k_by_rows", "matmul", "forward", CHECKOP_CUDA, 0, 0, nullptr, split_k_by_rows}};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
