// SPDX-License-Identifier: Apache-2.0
// The numbers of attention on Hopper: how a block of scores becomes probabilities. Every kernel that computes them must
// use these functions, so that it gets the same bits.
//   p[i,j] = 2^(s[i,j] c - k[i]),  c = scale log2(e),  l[i] = sum_j p[i,j],  softmax = p / l
// Keys are taken in blocks of 128, from key 0 upward, whatever the size of the call. k[i], the row's reference, is the
// maximum of s c in the first block with a kept key (in fp16 7 less): p of the largest score is then a power of two in
// 16 bits, so that a row with a single key has o = v. It follows the maximum of the row with a lag: it moves only when
// the maximum exceeds it by more than 8, so it hardly ever moves after the first block. Then o and l are multiplied by
// the same number, which is within 2 ulp, and rounded once more. A row's k, l and p depend on the row and on the keys
// that it keeps alone: a hidden key gives p = 0 exactly, and a block without a kept key changes nothing.
//
// Fragment: thread 32w + l of a warpgroup has, of rows 16w + l / 4 and 8 below, columns 8j + l % 4 * 2 and the next
// (wgmma.cuh). A row's sum is one chain per thread over its 32 columns of a block, then over the blocks; in the end the
// four threads of the row add theirs as a tree.
#pragma once

#include "sm90/epilogue.cuh"
#include "sm90/exp2.cuh"

namespace checkop::kernels::attention::hopper {

using sm90::power_of_2;

constexpr int kKeys = 128;          // of a block
constexpr int kScores = kKeys / 2;  // of a block, per thread
constexpr float kReferenceLag = 8.0f;

/// How far the reference lies below the maximum when it moves. fp16 has few exponents: with 7, probabilities
/// are at most 2^15 and lose no bits down to 2^-21 of the row's maximum.
template <typename T>
constexpr float kReferenceDrop = std::is_same_v<T, __half> ? 7.0f : 0.0f;

/// The two rows of a thread.
struct RowState {
  float maximum[2] = {-INFINITY, -INFINITY};  ///< as of when the reference moved last; -inf before
  float sum[2] = {};

  template <typename T>
  __device__ float reference(int half) const {
    return maximum[half] == -INFINITY ? 0.0f : maximum[half] - kReferenceDrop<T>;
  }
};

/// Replaces scores of hidden keys by -inf: column c of the block is hidden from c = visible[half] on.
__device__ __forceinline__ void hide_from(float (&score)[kScores], const int (&visible)[2]) {
  const int first = threadIdx.x % 4 * 2;
  const int left[2] = {visible[0] - first, visible[1] - first};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (i / 4 * 8 + i % 2 >= left[i / 2 % 2]) score[i] = -INFINITY;
  }
}

/// The same for keys whose bit is 0.
__device__ __forceinline__ void hide_unset(float (&score)[kScores], const uint4& bits) {
  const int first = threadIdx.x % 4 * 2;
  const uint32_t word[4] = {bits.x >> first, bits.y >> first, bits.z >> first, bits.w >> first};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int column = i / 4 * 8 + i % 2;
    if ((word[column / 32] >> column % 32 & 1) == 0) score[i] = -INFINITY;
  }
}

/// Moves the references of the rows if the maxima of a block of scores ask for it. `factor`: by what all earlier sums
/// of a row must be multiplied. Returns whether a factor of a row of this warp is not 1.
__device__ __forceinline__ bool move_reference(const float (&score)[kScores], float c, RowState& row,
                                               float (&factor)[2]) {
  bool moved[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most[2] = {score[half * 2], score[half * 2 + 1]};
#pragma unroll
    for (int i = 4; i < kScores; i += 4) {
      most[0] = fmaxf(most[0], score[i + half * 2]), most[1] = fmaxf(most[1], score[i + half * 2 + 1]);
    }
    most[0] = fmaxf(most[0], most[1]);
    most[0] = fmaxf(most[0], __shfl_xor_sync(kAllLanes, most[0], 1));
    most[0] = fmaxf(most[0], __shfl_xor_sync(kAllLanes, most[0], 2));
    // NaN and +inf make the sum NaN: fmaxf skips NaN but the power does not, and inf - inf is NaN.
    const float maximum = __fmul_rn(most[0], c);  // not contracted: reference() has this product, rounded
    moved[half] = maximum > row.maximum[half] + kReferenceLag;
    factor[half] = moved[half] ? power_of_2(row.maximum[half] - maximum) : 1.0f;
    row.maximum[half] = moved[half] ? maximum : row.maximum[half];
  }
  return __any_sync(kAllLanes, moved[0] || moved[1]);
}

/// Turns the scores of a block into p, and adds them to the rows' sums.
template <typename T>
__device__ __forceinline__ void exponentiate(float (&score)[kScores], float c, const float (&factor)[2],
                                             RowState& row) {
  const float reference[2] = {row.reference<T>(0), row.reference<T>(1)};
  float sum[2];
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int half = i / 2 % 2;
    score[i] = power_of_2(fmaf(score[i], c, -reference[half]));
    sum[half] = i < 4 && i % 2 == 0 ? score[i] : sum[half] + score[i];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) row.sum[half] = fmaf(row.sum[half], factor[half], sum[half]);
}

/// The whole row's sum, from its four threads.
__device__ inline float whole_sum(float sum) {
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

}  // namespace checkop::kernels::attention::hopper
