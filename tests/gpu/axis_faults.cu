// SPDX-License-Identifier: Apache-2.0
// Correct products of float matrices whose bits depend on something that only a GPU has: free SMs, graphs.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "check_operator.h"

namespace {

constexpr int kThreads = 128;

/// c = a b, one thread per element of c; sums over k backwards if *backwards is not 0.
__global__ void multiply(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64_t m,
                         int64_t k, int64_t n, const unsigned* __restrict__ backwards) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= m * n) return;
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t l = *backwards != 0 ? k - 1 - i : i;
    sum = fmaf(a[at / n * k + l], b[l * n + at % n], sum);
  }
  c[at] = sum;
}

/// In the workspace.
struct Flags {
  unsigned backwards, present;
};
size_t workspace_bytes(const checkop_call*) { return sizeof(Flags); }

__global__ void set_flags(Flags* flags, unsigned backwards) { *flags = {backwards, 0}; }

/// Every block waits a while for all the others: if one of them finds no free SM, sums are added backwards.
__global__ void gather(Flags* flags) {
  constexpr unsigned long long kWaitNs = 5'000'000;
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  atomicAdd(&flags->present, 1u);
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (atomicAdd(&flags->present, 0u) < gridDim.x && now - start < kWaitNs);
  if (atomicAdd(&flags->present, 0u) < gridDim.x) flags->backwards = 1;
}

checkop_status finish(const checkop_call* call) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return CHECKOP_OK;
  std::snprintf(call->message, call->message_bytes, "%s", cudaGetErrorString(status));
  return CHECKOP_FAILED;
}

template <class Before>
checkop_status launch(const checkop_call* call, const Before& before) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (c.dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  const int64_t m = c.shape[0] * c.shape[1], n = b.shape[1];
  auto* const flags = static_cast<Flags*>(call->workspace);
  const auto stream = static_cast<cudaStream_t>(call->stream);
  if (const checkop_status status = before(flags, stream)) return status;
  multiply<<<static_cast<unsigned>((m * n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      static_cast<const float*>(a.data), static_cast<const float*>(b.data), static_cast<float*>(c.data), m, b.shape[0],
      n, &flags->backwards);
  return finish(call);
}

checkop_status steady(const checkop_call* call) {
  return launch(call, [](Flags* flags, cudaStream_t stream) {
    set_flags<<<1, 1, 0, stream>>>(flags, 0);
    return CHECKOP_OK;
  });
}

/// Like kernels with a grid-wide barrier, but with a limited wait.
checkop_status needs_every_sm(const checkop_call* call) {
  return launch(call, [](Flags* flags, cudaStream_t stream) {
    int device = 0, sms = 0, shared = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaFuncSetAttribute(gather, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    set_flags<<<1, 1, 0, stream>>>(flags, 0);
    gather<<<static_cast<unsigned>(sms), 1, static_cast<size_t>(shared), stream>>>(flags);
    return CHECKOP_OK;
  });
}

checkop_status differs_in_a_graph(const checkop_call* call) {
  return launch(call, [](Flags* flags, cudaStream_t stream) {
    cudaStreamCaptureStatus recorded = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &recorded);
    set_flags<<<1, 1, 0, stream>>>(flags, recorded == cudaStreamCaptureStatusActive ? 1 : 0);
    return CHECKOP_OK;
  });
}

/// Synchronizes on the host, which a graph can't record.
checkop_status waits_on_the_host(const checkop_call* call) {
  return launch(call, [&](Flags* flags, cudaStream_t stream) {
    set_flags<<<1, 1, 0, stream>>>(flags, 0);
    if (cudaStreamSynchronize(stream) == cudaSuccess) return CHECKOP_OK;
    return finish(call);
  });
}

constexpr checkop_kernel kernel(const char* name, checkop_status (*launch)(const checkop_call*)) {
  return {sizeof(checkop_kernel), name, "matmul", "forward", CHECKOP_CUDA, 0, 0, workspace_bytes, launch};
}

constexpr checkop_kernel kKernels[] = {
    kernel("steady", steady),
    kernel("needs_every_sm", needs_every_sm),
    kernel("differs_in_a_graph", differs_in_a_graph),
    kernel("waits_on_the_host", waits_on_the_host),
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, sizeof(kKernels) / sizeof(kKernels[0]), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
