// SPDX-License-Identifier: Apache-2.0
// wgmma: d[64, n] += a[64, 16] * b[n, 16] by the four warps of a warpgroup, b in shared memory, a there or in
// registers. Facts: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions": register fragments, matrix
// descriptor, strides by majorness, wgmma.mma_async, wgmma.fence, wgmma.commit_group, wgmma.wait_group.
#pragma once

#include <type_traits>

#include "cuda/common.cuh"

namespace checkop::kernels::sm90 {

/// Layout of an operand tile [row, k] in shared memory, with `rows` rows and block_k along k. Lines have kLine bytes
/// and are swizzled at that width: 16-byte chunk c of line l is stored at chunk c ^ (l % 8), or c ^ (l / 2 % 4) for
/// 64-byte lines.
///   along k:    a line is 64 k of a row; the lines of all rows, then those of the next 64 k
///   along rows: a line is kWide rows at one k; the lines of all k, then those of the next kWide rows
template <bool along_k, int rows, int block_k>
struct SmemLayout {
  static constexpr int kWide = along_k || rows % 64 == 0 ? 64 : 32;  // elements of a line
  static constexpr int kLine = kWide * 2, kLines = along_k ? rows : block_k;
  static constexpr int kSlab = kLine * kLines;  // bytes until the next 64 k, or the next kWide rows
  static constexpr int kSlabs = (along_k ? block_k : rows) / kWide, kBytes = kSlab * kSlabs;
  static_assert(block_k % 64 == 0 && rows % (along_k ? 8 : kWide) == 0);

  /// Bytes from one block of 16 k to the q-th after it. Within a line along k, adding the offset does not disturb the
  /// swizzle, which the hardware applies to the address bits after the addition.
  static __device__ constexpr int k_offset(int q) { return along_k ? q / 4 * kSlab + q % 4 * 32 : q * 16 * kLine; }

  /// Descriptor of the part that begins at `address`, a multiple of 8 lines.
  static __device__ uint64_t descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle = kLine == 128 ? 1 : 2;  // 128 or 64 bytes
    // Stride byte offset: from 8 lines to the next 8. Leading byte offset: along rows from kWide rows to the next
    // kWide, along k unused.
    constexpr uint64_t kStrideOffset = 8 * kLine / 16, kLeadingOffset = along_k ? 1 : kSlab / 16;
    return (address & 0x3ffff) / 16 | kLeadingOffset << 16 | kStrideOffset << 32 | kSwizzle << 62;
  }
};

/// Call before the first wgmma() of a group: orders earlier accesses to the accumulators.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Keeps the compiler from moving accesses to these registers across this point, such as past a wgmma_wait_group(): the
/// compiler does not know that wgmma is asynchronous.
template <int count>
__device__ __forceinline__ void pin_registers(float (&values)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int count>
__device__ __forceinline__ void pin_registers(uint32_t (&words)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

/// Waits until all but the latest `pending` groups are done; their operands may then be overwritten.
template <int pending>
__device__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Operand lists for inline PTX: CHECKOP_P names 16 operands, and CHECKOP_H the first 8 of these. CHECKOP_D and
// CHECKOP_D8 bind as many accumulators.
#define CHECKOP_P0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CHECKOP_P1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CHECKOP_H2 "%32,%33,%34,%35,%36,%37,%38,%39"
#define CHECKOP_P2 CHECKOP_H2 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define CHECKOP_H3 "%48,%49,%50,%51,%52,%53,%54,%55"
#define CHECKOP_P3 CHECKOP_H3 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define CHECKOP_H4 "%64,%65,%66,%67,%68,%69,%70,%71"
#define CHECKOP_P4 CHECKOP_H4 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define CHECKOP_P5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define CHECKOP_P6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define CHECKOP_P7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define CHECKOP_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CHECKOP_D8(i) CHECKOP_D4(i), CHECKOP_D4(i + 4)
#define CHECKOP_D(i) CHECKOP_D8(i), CHECKOP_D8(i + 8)
#define CHECKOP_WGMMA_OF(type, n, list, a, b, add, ta, tb, ...)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                                                  \
               ", 0;\n"                                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, " a ", " b \
               ", p, 1, 1, " ta ", " tb ";\n}"                                                          \
               : __VA_ARGS__                                                                            \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(add_to), "n"(a_along_k ? 0 : 1), "n"(b_along_k ? 0 : 1))
#define CHECKOP_WGMMA(...)                   \
  do {                                       \
    if constexpr (std::is_same_v<T, __half>) \
      CHECKOP_WGMMA_OF("f16", __VA_ARGS__);  \
    else                                     \
      CHECKOP_WGMMA_OF("bf16", __VA_ARGS__); \
  } while (false)

/// d = a * b, plus d when add_to is not 0; asynchronous. Operands are given by SmemLayout::descriptor(). Thread 32w + l
/// of the warpgroup holds in d[4j .. 4j + 3] columns 8j + l % 4 * 2 and the next, of row 16w + l / 4 and of the row 8
/// below.
template <typename T, bool a_along_k, bool b_along_k, int n, int count>
__device__ __forceinline__ void wgmma(float (&d)[count], uint64_t a_descriptor, uint64_t b_descriptor, int add_to) {
  static_assert(count >= n / 2);  // those beyond n / 2 stay
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (n == 32) {
    CHECKOP_WGMMA(32, CHECKOP_P0, "%16", "%17", "%18", "%19", "%20", CHECKOP_D(0));
  } else if constexpr (n == 64) {
    CHECKOP_WGMMA(64, CHECKOP_P0 "," CHECKOP_P1, "%32", "%33", "%34", "%35", "%36", CHECKOP_D(0), CHECKOP_D(16));
  } else if constexpr (n == 96) {
    CHECKOP_WGMMA(96, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2, "%48", "%49", "%50", "%51", "%52", CHECKOP_D(0),
                  CHECKOP_D(16), CHECKOP_D(32));
  } else if constexpr (n == 128) {
    CHECKOP_WGMMA(128, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3, "%64", "%65", "%66", "%67", "%68",
                  CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48));
  } else if constexpr (n == 160) {
    CHECKOP_WGMMA(160, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3 "," CHECKOP_P4, "%80", "%81", "%82",
                  "%83", "%84", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48), CHECKOP_D(64));
  } else if constexpr (n == 192) {
    CHECKOP_WGMMA(192, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3 "," CHECKOP_P4 "," CHECKOP_P5, "%96",
                  "%97", "%98", "%99", "%100", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48), CHECKOP_D(64),
                  CHECKOP_D(80));
  } else if constexpr (n == 224) {
    CHECKOP_WGMMA(224,
                  CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3 "," CHECKOP_P4 "," CHECKOP_P5 "," CHECKOP_P6,
                  "%112", "%113", "%114", "%115", "%116", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48),
                  CHECKOP_D(64), CHECKOP_D(80), CHECKOP_D(96));
  } else if constexpr (n == 256) {
    CHECKOP_WGMMA(256,
                  CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3 "," CHECKOP_P4 "," CHECKOP_P5 "," CHECKOP_P6
                             "," CHECKOP_P7,
                  "%128", "%129", "%130", "%131", "%132", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48),
                  CHECKOP_D(64), CHECKOP_D(80), CHECKOP_D(96), CHECKOP_D(112));
  } else if constexpr (n == 80) {
    CHECKOP_WGMMA(80, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_H2, "%40", "%41", "%42", "%43", "%44", CHECKOP_D(0),
                  CHECKOP_D(16), CHECKOP_D8(32));
  } else if constexpr (n == 112) {
    CHECKOP_WGMMA(112, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_H3, "%56", "%57", "%58", "%59", "%60",
                  CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D8(48));
  } else if constexpr (n == 144) {
    CHECKOP_WGMMA(144, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3 "," CHECKOP_H4, "%72", "%73", "%74",
                  "%75", "%76", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48), CHECKOP_D8(64));
  } else {
    static_assert(n == 0, "not a width of wgmma used here");
  }
}

#undef CHECKOP_WGMMA_OF
#define CHECKOP_WGMMA_OF(type, n, list, a, b, add, tb, ...)                                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                                                               \
               ", 0;\n"                                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list "}, {" a "}, " b            \
               ", p, 1, 1, " tb ";\n}"                                                                               \
               : __VA_ARGS__                                                                                         \
               : "r"(a_words[0]), "r"(a_words[1]), "r"(a_words[2]), "r"(a_words[3]), "l"(b_descriptor), "r"(add_to), \
                 "n"(b_along_k ? 0 : 1))

/// The same with `a` in registers, four words of two elements each: thread 32w + l of the warpgroup holds in words 0
/// and 2 columns l % 4 * 2 and 8 + l % 4 * 2, and the next of each, of row 16w + l / 4, and in words 1 and 3 those of
/// the row 8 below. Accumulators of 16 columns, rounded and packed (pack_sums()), are such an operand. The words must
/// not change before the product is done.
template <typename T, bool b_along_k, int n>
__device__ __forceinline__ void wgmma(float (&d)[n / 2], const uint32_t* a_words, uint64_t b_descriptor, int add_to) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (n == 64) {
    CHECKOP_WGMMA(64, CHECKOP_P0 "," CHECKOP_P1, "%32, %33, %34, %35", "%36", "%37", "%38", CHECKOP_D(0),
                  CHECKOP_D(16));
  } else if constexpr (n == 128) {
    CHECKOP_WGMMA(128, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3, "%64, %65, %66, %67", "%68", "%69",
                  "%70", CHECKOP_D(0), CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48));
  } else {
    static_assert(n == 0, "not a width of wgmma used here");
  }
}

#undef CHECKOP_WGMMA_OF
#undef CHECKOP_WGMMA
#define CHECKOP_WGMMA(n, list, a, b, add, ...)                                                                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add                                                          \
               ", 0;\n"                                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" list "}, " a ", " b ", p, 1, 1;\n}" \
               : __VA_ARGS__                                                                                    \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(add_to))

/// d[64, n] = a[64, 32] * b[n, 32] of e4m3 codes, plus d when add_to is not 0. Both operands lie along k. A block of 32
/// codes has the bytes of one of 16 numbers of 16 bits, so SmemLayout describes it: a line of 64 such numbers is one of
/// 128 codes. d is as above.
template <int n>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[n / 2], uint64_t a_descriptor, uint64_t b_descriptor,
                                           int add_to) {
  if constexpr (n == 32) {
    CHECKOP_WGMMA(32, CHECKOP_P0, "%16", "%17", "%18", CHECKOP_D(0));
  } else if constexpr (n == 64) {
    CHECKOP_WGMMA(64, CHECKOP_P0 "," CHECKOP_P1, "%32", "%33", "%34", CHECKOP_D(0), CHECKOP_D(16));
  } else if constexpr (n == 128) {
    CHECKOP_WGMMA(128, CHECKOP_P0 "," CHECKOP_P1 "," CHECKOP_P2 "," CHECKOP_P3, "%64", "%65", "%66", CHECKOP_D(0),
                  CHECKOP_D(16), CHECKOP_D(32), CHECKOP_D(48));
  } else {
    static_assert(n == 0, "not a width of wgmma used here");
  }
}

#undef CHECKOP_WGMMA
#undef CHECKOP_D
#undef CHECKOP_D8
#undef CHECKOP_D4
#undef CHECKOP_P0
#undef CHECKOP_P1
#undef CHECKOP_P2
#undef CHECKOP_H2
#undef CHECKOP_P3
#undef CHECKOP_H3
#undef CHECKOP_P4
#undef CHECKOP_H4
#undef CHECKOP_P5
#undef CHECKOP_P6
#undef CHECKOP_P7

}  // namespace checkop::kernels::sm90
