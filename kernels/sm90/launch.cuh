// SPDX-License-Identifier: Apache-2.0
// Prepares and enqueues the kernel of gemm.cuh in one configuration. Needs no -lcuda: see tensor_map.cuh.
#pragma once

#include <algorithm>
#include <atomic>

#include "sm90/gemm.cuh"

namespace checkop::kernels::sm90 {

template <typename T, bool along_k>
Matrix matrix_of(const Operand<T, along_k>& operand, int64_t k_extent) {
  return {operand.data, along_k ? k_extent : operand.extent, along_k ? operand.extent : k_extent, operand.ld};
}

/// Number of clusters of `function` that the current device runs at once; 0 on an error, which the launch will report.
template <typename Config>
int resident_clusters(const void* function) {
  constexpr int kMaxDevices = 64;                   // more than one host has
  static std::atomic<int> known[kMaxDevices] = {};  // order-free: on the host, each slot only ever gets one value
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMaxDevices) return 0;
  if (const int clusters = known[device].load(std::memory_order_relaxed); clusters > 0) return clusters;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {Config::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = Config::kCluster, config.blockDim = Config::kThreads,
  config.dynamicSmemBytes = Config::kDynamicSmemBytes;
  config.attrs = &attribute, config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, function, &config) != cudaSuccess) return 0;
  known[device].store(clusters, std::memory_order_relaxed);
  return clusters;
}

/// Lets `function` use the shared memory of Config, and finds out how many of its clusters run at once.
template <typename Config>
cudaError_t prepare(const void* function, int& resident) {
  if (const auto error =
          cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kDynamicSmemBytes))
    return error;
  resident = resident_clusters<Config>(function);
  return resident == 0 ? cudaErrorInvalidConfiguration : cudaSuccess;
}

/// Enqueues one cluster per item, but no more than run at once. The kernel may start beside the one before it: all its
/// threads must call wait_for_kernel_before().
template <typename Config, typename Params>
cudaError_t enqueue(void (*function)(Params), const Params& p, int64_t items, int resident, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {Config::kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(Config::kCluster * std::min<int64_t>(items, resident));
  config.blockDim = Config::kThreads, config.dynamicSmemBytes = Config::kDynamicSmemBytes, config.stream = stream;
  config.attrs = attributes, config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, function, p);
}

/// Rows of a band of tiles. With it, a wave of blocks covers about a square.
constexpr int kBandRows = 2048;

/// Enqueues. With Loads::tma both operands must have tensor maps. k_extent, a.extent and b.extent are positive.
template <typename Config, typename T, typename Epilogue, bool a_along_k, bool b_along_k>
cudaError_t launch_with_epilogue(const Epilogue& out, const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b,
                                 int64_t k_extent, cudaStream_t stream) {
  using LayoutA = SmemLayout<a_along_k, Config::kM, Config::kBlockK>;
  constexpr auto function = wgmma_kernel<Config, T, Epilogue, a_along_k, b_along_k>;
  GemmParams<T, Epilogue, a_along_k, b_along_k> p{};
  p.out = out, p.a = a, p.b = b, p.k = k_extent;
  p.tiles_m = static_cast<uint32_t>(ceil_div(a.extent, Config::kM * Config::kClusterM));
  p.tiles_n = static_cast<uint32_t>(ceil_div(b.extent, Config::kN * Config::kClusterN));
  p.band = kBandRows / (Config::kM * Config::kClusterM);
  if constexpr (Config::kLoads == Loads::tma) {
    using BoxA = Box<LayoutA, a_along_k, Config::kClusterN>;
    using BoxB = Box<SmemLayout<b_along_k, Config::kTailN, Config::kBlockK>, b_along_k, Config::kClusterM>;
    // Rows that don't exist are not loaded if all lie in one tile: filling in zeros takes time.
    p.a_lines = BoxA::kLines;
    if (a_along_k && !Config::kTransposes && p.tiles_m == 1 && Config::kClusterM == 1) {
      p.a_lines = static_cast<int>(std::min<int64_t>(p.a_lines, round_up(ceil_div(a.extent, Config::kClusterN), 8)));
    }
    // L2 need not fetch more than a box needs: neighbouring blocks request the rest soon enough. Promotion to 256 bytes
    // made products of few rows up to a third slower, and most others up to 5 %.
    if (!make_tensor_map<T>(p.a_map, matrix_of(a, k_extent), BoxA::kLength, p.a_lines, L2Promotion::none) ||
        !make_tensor_map<T>(p.b_map, matrix_of(b, k_extent), BoxB::kLength, BoxB::kLines, L2Promotion::none)) {
      return cudaErrorInvalidValue;
    }
  }
  int resident = 0;
  if (const auto error = prepare<Config>(reinterpret_cast<const void*>(function), resident)) return error;
  const int64_t tiles = int64_t{p.tiles_m} * p.tiles_n;
  p.whole = static_cast<uint32_t>(tiles);
  if constexpr (Config::kParts > 1) {
    if (out.staged) p.whole -= static_cast<uint32_t>(divided_tiles<Config>(tiles, resident));
  }
  p.starts_next = 2 * tiles <= resident;
  return enqueue<Config>(function, p, p.whole + (tiles - p.whole) * Config::kParts, resident, stream);
}

/// Lets `out` store c, [lines, length] with lines `ld` elements apart, through shared memory if configuration and
/// matrix allow it. Returns false when the driver refuses the tensor map.
template <typename Config, typename Epilogue, typename Out>
bool stage_tiles(Epilogue& out, const Out* c, int64_t length, int64_t lines, int64_t ld) {
  out.staged = false;
  if constexpr (Epilogue::template kMayStage<Config>) {
    const Matrix matrix{c, length, lines, ld};
    out.staged = has_tensor_map<Out>(matrix);
    return !out.staged || make_tensor_map<Out>(out.c_map, matrix, Config::kBoxColumns, 16, L2Promotion::none);
  }
  return true;
}

/// c = a * b + bias; requirements as for launch_with_epilogue(). With Stores::transposed, `a` must be along k and c
/// must have a tensor map; then the kernel multiplies b by a.
template <typename Config, typename T, typename Out, bool a_along_k, bool b_along_k>
cudaError_t launch(const Operand<T, a_along_k>& a, const Operand<T, b_along_k>& b, int64_t k_extent, const T* bias,
                   Out* c, cudaStream_t stream) {
  if constexpr (Config::kTransposes) {
    static_assert(a_along_k && std::is_same_v<T, Out>);
    StoreTransposedTiles<T> out{};
    out.bias = bias;
    const Matrix matrix{c, b.extent, a.extent, b.extent};
    if (!make_tensor_map<T>(out.c_map, matrix, 64, Config::kBoxColumns, L2Promotion::none))
      return cudaErrorInvalidValue;
    return launch_with_epilogue<Config>(out, b, a, k_extent, stream);
  } else {
    StoreTiles<T, Out> out{};
    out.bias = bias, out.c = c;
    if (!stage_tiles<Config>(out, c, b.extent, a.extent, b.extent)) return cudaErrorInvalidValue;
    return launch_with_epilogue<Config>(out, a, b, k_extent, stream);
  }
}

}  // namespace checkop::kernels::sm90
