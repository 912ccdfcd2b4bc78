// SPDX-License-Identifier: Apache-2.0
// Prepares and enqueues one plan of gemm.cuh. No -lcuda: see tensor_map.cuh.
#pragma once

#include <algorithm>
#include <atomic>

#include "sm90/gemm.cuh"

namespace checkop::kernels::sm90 {

template <typename T, bool along_k>
Matrix matrix_of(const Factor<T, along_k>& f, int64_t k_extent) {
  return {f.data, along_k ? k_extent : f.extent, along_k ? f.extent : k_extent, f.ld};
}

/// How many clusters of `kernel` the current device holds at once; 0 on an error, which the launch will tell.
template <typename P>
int resident_clusters(const void* function) {
  constexpr int kMaxDevices = 64;                   // more than one host has
  static std::atomic<int> known[kMaxDevices] = {};  // order-free: on the host, each slot only ever gets one value
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMaxDevices) return 0;
  if (const int clusters = known[device].load(std::memory_order_relaxed); clusters > 0) return clusters;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {P::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = P::kCluster, config.blockDim = P::kThreads, config.dynamicSmemBytes = P::kDynamicBytes;
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, function, &config) != cudaSuccess) return 0;
  known[device].store(clusters, std::memory_order_relaxed);
  return clusters;
}

/// Enqueues; with Loads::copy_engine both factors must have tensor maps. k_extent, a.extent and b.extent are positive.
template <typename P, typename T, typename Epilogue, bool a_along_k, bool b_along_k>
cudaError_t launch_into(const Epilogue& out, const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b,
                        int64_t k_extent, cudaStream_t stream) {
  using SlotsA = Layout<a_along_k, P::kM, P::kBlockK>;
  using SlotsB = Layout<b_along_k, P::kN, P::kBlockK>;
  constexpr auto function = kernel<P, T, Epilogue, a_along_k, b_along_k>;
  // Height of a band of tiles: with the columns that a wave of blocks then takes, about a square.
  constexpr int kBandRows = 2048;

  Problem<T, Epilogue, a_along_k, b_along_k> p{};
  p.out = out, p.a = a, p.b = b, p.k = k_extent;
  p.tiles_m = static_cast<uint32_t>(ceil_div(a.extent, P::kM * P::kClusterM));
  p.tiles_n = static_cast<uint32_t>(ceil_div(b.extent, P::kN * P::kClusterN));
  p.band = kBandRows / (P::kM * P::kClusterM);
  if constexpr (P::kLoads == Loads::copy_engine) {
    using BoxA = Box<SlotsA, a_along_k, P::kClusterN>;
    using BoxB = Box<SlotsB, b_along_k, P::kClusterM>;
    // A product of few rows waits for memory. Its blocks, side by side, ask for all of a line soon enough; to fetch it
    // ahead of them was up to a third slower. Nor does it load rows that are not there: zeros take time, too.
    const bool few_rows = a_along_k && p.tiles_m == 1;
    const auto ahead = few_rows ? Ahead::nothing : Ahead::line;
    p.a_lines = BoxA::kLines;
    if (few_rows && P::kClusterM == 1) {
      p.a_lines = static_cast<int>(std::min<int64_t>(p.a_lines, round_up(ceil_div(a.extent, P::kClusterN), 8)));
    }
    if (!make_tensor_map<T>(p.a_map, matrix_of(a, k_extent), BoxA::kLength, p.a_lines, ahead) ||
        !make_tensor_map<T>(p.b_map, matrix_of(b, k_extent), BoxB::kLength, BoxB::kLines, ahead)) {
      return cudaErrorInvalidValue;
    }
  }
  if (const auto error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, P::kDynamicBytes))
    return error;
  const int64_t tiles = int64_t{p.tiles_m} * p.tiles_n;
  const int resident = resident_clusters<P>(reinterpret_cast<const void*>(function));
  if (resident == 0) return cudaErrorInvalidConfiguration;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {P::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(P::kCluster * (tiles < resident ? tiles : resident));
  config.blockDim = P::kThreads, config.dynamicSmemBytes = P::kDynamicBytes, config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, function, p);
}

/// Lets `out` store c, [lines, length] with lines `ld` apart, through shared memory if plan and matrix allow it. False
/// when the driver refuses.
template <typename P, typename Epilogue, typename Out>
bool stage_tiles(Epilogue& out, const Out* c, int64_t length, int64_t lines, int64_t ld) {
  out.staged = false;
  if constexpr (Epilogue::template kMayStage<P>) {
    const Matrix matrix{c, length, lines, ld};
    out.staged = has_tensor_map<Out>(matrix);
    return !out.staged || make_tensor_map<Out>(out.c_map, matrix, 64, 16, Ahead::nothing);
  }
  return true;
}

/// c = a * b + bias. As launch_into().
template <typename P, typename T, typename Out, bool a_along_k, bool b_along_k>
cudaError_t launch(const Factor<T, a_along_k>& a, const Factor<T, b_along_k>& b, int64_t k_extent, const T* bias,
                   Out* c, cudaStream_t stream) {
  StoreTiles<T, Out> out{};
  out.bias = bias, out.c = c;
  if (!stage_tiles<P>(out, c, b.extent, a.extent, b.extent)) return cudaErrorInvalidValue;
  return launch_into<P>(out, a, b, k_extent, stream);
}

}  // namespace checkop::kernels::sm90
