// SPDX-License-Identifier: Apache-2.0
// Prefix sums of integers over the threads of a warp or of a block.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// Sum over the lanes of a warp up to this one.
template <typename I>
__device__ I warp_sum_up_to(I x) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const I below = __shfl_up_sync(kAllLanes, x, offset);
    if (lane >= offset) x += below;
  }
  return x;
}

constexpr int kScanThreads = kWarp * kWarp;  // a warp adds up the sums of all warps

/// Exclusive prefix sum over the threads of a block of kScanThreads; `total` becomes the sum over all threads. All
/// threads must call, with a barrier between two calls that share `of_warp`.
template <typename I>
__device__ I block_sum_before(I own, I (&of_warp)[kWarp], I& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const I up_to = warp_sum_up_to(own);
  if (lane == kWarp - 1) of_warp[warp] = up_to;
  __syncthreads();
  const I warps_up_to = warp_sum_up_to(of_warp[lane]);
  total = __shfl_sync(kAllLanes, warps_up_to, kWarp - 1);
  return __shfl_sync(kAllLanes, warps_up_to, warp) - of_warp[warp] + up_to - own;
}

}  // namespace checkop::kernels
