// SPDX-License-Identifier: Apache-2.0
// TMA: moves boxes of a row-major matrix, or of a stack of them, to and from shared memory, in the swizzled layout that
// wgmma reads.
// Facts: PTX ISA 9.0, "cp.async.bulk.tensor", "cp.async.bulk"; CUDA driver API 13.0, cuTensorMapEncodeTiled.
#pragma once

#include <cudaTypedefs.h>

#include "sm90/barrier.cuh"

namespace checkop::kernels::sm90 {

/// A matrix as TMA sees it: `lines` lines of `length` contiguous elements, `ld` elements apart.
struct Matrix {
  const void* data;
  int64_t length, lines, ld;
};

// TMA needs a 16-byte aligned base and stride, strides below 2^40 bytes, and signed 32-bit coordinates.
template <typename T>
bool has_tensor_map(const Matrix& matrix) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30, kMaxStride = int64_t{1} << 39;
  const int64_t stride = matrix.ld * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && stride % 16 == 0 && stride < kMaxStride &&
         matrix.length > 0 && matrix.lines > 0 && matrix.length <= kMaxExtent && matrix.lines <= kMaxExtent;
}

template <typename T>
constexpr CUtensorMapDataType tensor_map_type() {
  if constexpr (std::is_same_v<T, __half>) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if constexpr (std::is_same_v<T, uint8_t>) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

/// The driver's encoder, looked up at run time: a plugin linked against libcuda would not load on a host without a
/// driver.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) entry = nullptr;
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return encoder;
}

/// The unit that a miss of TMA in L2 is widened to; none: only the requested bytes are fetched.
enum class L2Promotion { none = CU_TENSOR_MAP_L2_PROMOTION_NONE, bytes_256 = CU_TENSOR_MAP_L2_PROMOTION_L2_256B };

/// Makes a map for boxes of `box_lines` lines by `box_length` elements. A line has 64 or 128 bytes and is swizzled at
/// that width. Elements outside the matrix read as zeros. Returns false when the driver refuses.
template <typename T>
bool make_tensor_map(CUtensorMap& map, const Matrix& matrix, int box_length, int box_lines, L2Promotion promotion) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(matrix.length), static_cast<cuuint64_t>(matrix.lines)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.ld) * sizeof(T)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_length), static_cast<cuuint32_t>(box_lines)};
  const cuuint32_t steps[] = {1, 1};
  const auto swizzle = box_length * sizeof(T) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  return encode(&map, tensor_map_type<T>(), 2, const_cast<void*>(matrix.data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, static_cast<CUtensorMapL2promotion>(promotion),
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// `planes` matrices of `lines` lines by `length` elements: by default contiguous ones, one after the other. Boxes end
/// where a plane does.
struct Planes {
  const void* data;
  int64_t length, lines, planes;
  int64_t ld = length, plane_ld = lines * ld;  ///< elements from a line, or a plane, to the next
};

template <typename T>
bool has_tensor_map(const Planes& stack) {
  constexpr int64_t kMaxExtent = int64_t{1} << 30, kMaxStride = int64_t{1} << 39;
  const int64_t plane_stride = stack.plane_ld * static_cast<int64_t>(sizeof(T));
  return has_tensor_map<T>(Matrix{stack.data, stack.length, stack.lines, stack.ld}) && stack.planes > 0 &&
         stack.planes <= kMaxExtent && plane_stride % 16 == 0 && plane_stride < kMaxStride;
}

/// Makes a map for boxes of `box_planes` planes by `box_lines` lines by 128 bytes, swizzled. Elements outside the
/// stack, and lines past the end of a plane, read as zeros. Returns false when the driver refuses.
template <typename T>
bool make_tensor_map(CUtensorMap& map, const Planes& stack, int box_lines, int box_planes, L2Promotion promotion) {
  const auto encode = tensor_map_encoder();
  if (encode == nullptr) return false;
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(stack.length), static_cast<cuuint64_t>(stack.lines),
                                static_cast<cuuint64_t>(stack.planes)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stack.ld) * sizeof(T),
                                static_cast<cuuint64_t>(stack.plane_ld) * sizeof(T)};
  const cuuint32_t box[] = {128 / sizeof(T), static_cast<cuuint32_t>(box_lines), static_cast<cuuint32_t>(box_planes)};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(&map, tensor_map_type<T>(), 3, const_cast<void*>(stack.data), extents, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                static_cast<CUtensorMapL2promotion>(promotion), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

__device__ inline void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Loads the box that begins at (line, along) to `to`; its bytes are counted at `barrier`.
__device__ inline void tma_load(const CUtensorMap& map, uint32_t to, uint32_t barrier, int along, int line) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :
               : "r"(to), "l"(&map), "r"(along), "r"(line), "r"(barrier)
               : "memory");
}
/// Loads the box to the same address in every block of the cluster whose bit is set in `blocks`; each of these blocks
/// counts the bytes at its own barrier.
__device__ inline void tma_load(const CUtensorMap& map, uint32_t to, uint32_t barrier, int along, int line,
                                uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      :
      : "r"(to), "l"(&map), "r"(along), "r"(line), "r"(barrier), "h"(blocks)
      : "memory");
}

/// Loads the box of a stack that begins at (plane, line, along).
__device__ inline void tma_load_planes(const CUtensorMap& map, uint32_t to, uint32_t barrier, int along, int line,
                                       int plane) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(to), "l"(&map), "r"(along), "r"(line), "r"(plane), "r"(barrier)
      : "memory");
}

/// Loads `bytes` contiguous bytes, a multiple of 16, without a tensor map.
__device__ inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Stores a box, clipped to the matrix. Call tma_store_commit() afterwards, and tma_store_wait() before writing `from`
/// again.
__device__ inline void tma_store(const CUtensorMap& map, uint32_t from, int along, int line) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               :
               : "l"(&map), "r"(along), "r"(line), "r"(from)
               : "memory");
}
/// The same for a stack; clipped to the lines of a plane.
__device__ inline void tma_store_planes(const CUtensorMap& map, uint32_t from, int along, int line, int plane) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :
               : "l"(&map), "r"(along), "r"(line), "r"(plane), "r"(from)
               : "memory");
}
/// The same for `bytes` contiguous bytes, a multiple of 16.
__device__ inline void bulk_store(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all but this thread's latest `pending` groups of stores have read their shared memory.
template <int pending>
__device__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

}  // namespace checkop::kernels::sm90
