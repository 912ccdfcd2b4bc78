// SPDX-License-Identifier: Apache-2.0
// Groups of elements that fit one 16-byte load, for memory-bound kernels. Rows that do not start at 16-byte boundaries
// are summed in the same groups, so that sums have the same bits. Such groups are put together from two vectors, or
// read element by element.
#pragma once

#include <type_traits>

#include "cuda/common.cuh"

namespace checkop::kernels {

template <typename T>
constexpr int kGroupColumns = 16 / static_cast<int>(sizeof(T));

/// Stays packed until it is used: unpacked early, each element would occupy a register of its own.
template <typename T>
struct Group {
  static constexpr int kColumns = kGroupColumns<T>;
  uint4 bits;

  __device__ void unpack(float (&values)[kColumns]) const {
    // One instruction per element; the library's conversion takes two
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const auto words = bit_cast<Pack<uint32_t, 4>>(bits);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] = __uint_as_float(i % 2 == 0 ? words.at[i / 2] << 16 : words.at[i / 2] & 0xffff0000u);
      }
    } else {
      const auto pack = bit_cast<Pack<T, kColumns>>(bits);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] = to_float(pack.at[i]);
    }
  }
  /// Packs two elements at a time: one instruction rounds both.
  __device__ static Group packed(const float (&values)[kColumns]) {
    Pack<uint32_t, 4> words;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        words.at[i] = bit_cast<uint32_t>(__floats2bfloat162_rn(values[2 * i], values[2 * i + 1]));
      } else if constexpr (std::is_same_v<T, __half>) {
        words.at[i] = bit_cast<uint32_t>(__floats2half2_rn(values[2 * i], values[2 * i + 1]));
      } else {
        words.at[i] = __float_as_uint(values[i]);
      }
    }
    return {make_uint4(words.at[0], words.at[1], words.at[2], words.at[3])};
  }
};

/// How many elements `row` lies behind the last 16-byte boundary.
template <typename T>
__device__ int skew_of(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) % sizeof(uint4) / sizeof(T));
}

template <int words, typename T, int n>
__device__ void shift_groups(const uint4 (&low)[n], const uint4 (&high)[n], unsigned bits, Group<T> (&groups)[n]) {
#pragma unroll
  for (int g = 0; g < n; ++g) {
    const uint32_t w[8] = {low[g].x, low[g].y, low[g].z, low[g].w, high[g].x, high[g].y, high[g].z, high[g].w};
    groups[g].bits = {__funnelshift_r(w[words], w[words + 1], bits), __funnelshift_r(w[words + 1], w[words + 2], bits),
                      __funnelshift_r(w[words + 2], w[words + 3], bits),
                      __funnelshift_r(w[words + 3], w[words + 4], bits)};
  }
}
/// Groups that begin `skew` elements behind the begin of a vector `low`, which `high` follows in memory.
template <typename T, int n>
__device__ void shift_groups(const uint4 (&low)[n], const uint4 (&high)[n], int skew, Group<T> (&groups)[n]) {
  const int bytes = skew * static_cast<int>(sizeof(T));
  const unsigned bits = static_cast<unsigned>(bytes % 4) * 8;
  switch (bytes / 4) {  // decided once for all groups
    case 0:
      return shift_groups<0>(low, high, bits, groups);
    case 1:
      return shift_groups<1>(low, high, bits, groups);
    case 2:
      return shift_groups<2>(low, high, bits, groups);
    default:
      return shift_groups<3>(low, high, bits, groups);
  }
}

/// The largest element of 16-bit groups, without NaN unless all are; one instruction compares two pairs.
template <typename T, int n>
__device__ float max_of_pairs(const Group<T> (&groups)[n]) {
  using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  Two most = bit_cast<Two>(groups[0].bits.x);
#pragma unroll
  for (int g = 0; g < n; ++g) {
    const auto pairs = bit_cast<Pack<Two, 4>>(groups[g].bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) most = __hmax2(most, pairs.at[i]);
  }
  return fmaxf(to_float(most.x), to_float(most.y));
}

/// Loads elements [first, first + kGroupColumns) of `from`, with zeros from `end` on. `aligned`: `from` lies at a
/// 16-byte boundary and `end` is a multiple of kGroupColumns.
template <typename T>
__device__ Group<T> load_group(const T* __restrict__ from, int64_t first, int64_t end, bool aligned) {
  constexpr int kColumns = kGroupColumns<T>;
  if (first >= end) return {make_uint4(0, 0, 0, 0)};
  if (aligned) return {*reinterpret_cast<const uint4*>(from + first)};
  Pack<T, kColumns> pack;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) pack.at[i] = first + i < end ? from[first + i] : from_float<T>(0.0f);
  return {bit_cast<uint4>(pack)};
}

/// Stores the same elements to `to`, each rounded once; writes nothing from `end` on.
template <typename T>
__device__ void store_group(T* __restrict__ to, int64_t first, int64_t end, bool aligned,
                            const float (&values)[kGroupColumns<T>]) {
  if (first >= end) return;
  if (aligned) {
    *reinterpret_cast<uint4*>(to + first) = Group<T>::packed(values).bits;
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroupColumns<T>; ++i) {
    if (first + i < end) to[first + i] = from_float<T>(values[i]);
  }
}

/// The same by an explicit vector store, for places where the compiler would split an assignment into four stores, as
/// it does between branches. Elsewhere avoid it: the compiler moves nothing across it, which costs registers.
template <typename T>
__device__ void store_group_at_once(T* __restrict__ to, int64_t first, int64_t end, bool aligned,
                                    const float (&values)[kGroupColumns<T>]) {
  if (aligned && first < end) {
    __stwb(reinterpret_cast<uint4*>(to + first), Group<T>::packed(values).bits);
  } else {
    store_group(to, first, end, false, values);
  }
}

__host__ __device__ inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/// Whether every row of all `tensors` starts and ends at a 16-byte boundary; a row has `columns` elements of T.
template <typename T>
bool rows_are_aligned(std::initializer_list<const void*> tensors, int64_t columns) {
  for (const void* p : tensors) {
    if (!is_aligned(p)) return false;
  }
  return columns % kGroupColumns<T> == 0;
}

constexpr int kQuadColumns = 4;

/// Four elements that lie side by side: 16 bytes of fp32, 8 of 16 bits. For kernels whose tensors differ in dtype.
template <typename T>
struct alignas(kQuadColumns * sizeof(T)) Quad {
  T at[kQuadColumns];
};

template <typename T>
bool is_quad_aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(Quad<T>) == 0;
}

/// Loads the first `left` of four elements, or all, with zeros after them. `aligned`: `from` is a place of a Quad.
template <typename T>
__device__ void load_quad(const T* from, int64_t left, bool aligned, float (&values)[kQuadColumns]) {
  Quad<T> quad;
  if (left >= kQuadColumns && aligned) {
    quad = *reinterpret_cast<const Quad<T>*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kQuadColumns; ++i) quad.at[i] = i < left ? from[i] : from_float<T>(0.0f);
  }
#pragma unroll
  for (int i = 0; i < kQuadColumns; ++i) values[i] = to_float(quad.at[i]);
}

/// Stores the first `left` of four elements, or all, each rounded once.
template <typename T>
__device__ void store_quad(T* to, int64_t left, bool aligned, const float (&values)[kQuadColumns]) {
  Quad<T> quad;
#pragma unroll
  for (int i = 0; i < kQuadColumns; ++i) quad.at[i] = from_float<T>(values[i]);
  if (left >= kQuadColumns && aligned) {
    *reinterpret_cast<Quad<T>*>(to) = quad;
    return;
  }
#pragma unroll
  for (int i = 0; i < kQuadColumns; ++i) {
    if (i < left) to[i] = quad.at[i];
  }
}

}  // namespace checkop::kernels
