// SPDX-License-Identifier: Apache-2.0
// Shared by the CUDA candidates that standardise rewards: the check of where groups of completions begin.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

// order-free: the smallest bad index is an integer minimum, independent of the order of the threads.
template <typename Index>
__global__ void find_bad_boundary(const Index* __restrict__ bounds, int64_t count, int64_t batch,
                                  unsigned long long* __restrict__ first_bad) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const bool starts = i > 0 || bounds[0] == 0, ends = i + 1 < count || bounds[i] == batch;
    const bool increases = i == 0 || bounds[i] > bounds[i - 1];
    if (!(starts && ends && increases)) atomicMin(first_bad, static_cast<unsigned long long>(i));
  }
}

/// CHECKOP_FAILED when the boundaries do not start at 0, increase, and end at the batch. Waits for the stream, because
/// the groups must be valid before they are used. `flag`: 8 bytes of workspace.
template <typename Index>
checkop_status check_boundaries(const checkop_call* call, const Index* bounds, int64_t count, int64_t batch, void* flag,
                                cudaStream_t stream) {
  constexpr int kThreads = 1024;  // any size: each boundary is read twice
  const auto doing = "check group boundaries";
  auto* first_bad = static_cast<unsigned long long*>(flag);
  constexpr auto kNone = std::numeric_limits<unsigned long long>::max();
  unsigned long long bad = kNone;
  if (auto s = cuda_status(call, cudaMemsetAsync(first_bad, 0xff, sizeof(bad), stream), doing)) return s;
  find_bad_boundary<<<1, kThreads, 0, stream>>>(bounds, count, batch, first_bad);
  if (auto s = launch_status(call, doing)) return s;
  if (auto s =
          cuda_status(call, cudaMemcpyAsync(&bad, first_bad, sizeof(bad), cudaMemcpyDeviceToHost, stream), doing)) {
    return s;
  }
  if (auto s = cuda_status(call, cudaStreamSynchronize(stream), doing)) return s;
  if (bad == kNone) return CHECKOP_OK;
  return say(
      call, CHECKOP_FAILED,
      "input 'group_boundaries': element %llu is wrong: they must start with 0, increase, and end with the batch %lld",
      bad, static_cast<long long>(batch));
}

}  // namespace checkop::kernels
