// SPDX-License-Identifier: Apache-2.0
// Compares what the configurations of linear_logp / cuda-sm90 leave of the logits, bit by bit: sums and exponents of
// segments, logits of targets. Sizes that no tile divides, logits that are not finite. Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "linear_logp/sm90.cuh"
#include "on_sm90.hpp"
#include "sm90_memory.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = linear_logp::hopper;

struct Shape {
  int64_t rows, hidden, vocab;
  bool with_bias, with_nonfinite = false, masks = false;
};

template <typename T>
__global__ void fill(T* to, int64_t count, uint64_t seed, bool with_nonfinite) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t u = mixed(i + (seed << 40));
    float x = (static_cast<float>(u >> 8) * 0x1p-24f - 0.5f) * 4;
    if (with_nonfinite && u % 128 == 0) x = u % 3 == 0 ? NAN : copysignf(INFINITY, x);
    to[i] = from_float<T>(x);
  }
}
/// -inf in the columns of the first segment.
template <typename T>
__global__ void fill_masking_bias(T* to, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    to[i] = from_float<T>(i < sm90::kSegmentColumns ? -INFINITY : 0.5f);
}
__global__ void fill_targets(int64_t* to, int64_t count, int64_t vocab) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = i % 5 == 4 ? -100 : mixed(i) % vocab;
}

/// What Config leaves, one after the other.
template <typename Config, typename Sum, typename T>
std::vector<uint8_t> left_by(const Shape& at) {
  const int64_t segments = ceil_div(at.vocab, sm90::kSegmentColumns);
  Buffer<T> hidden(at.rows * at.hidden), weight(at.vocab * at.hidden), bias(at.vocab);
  Buffer<int64_t> targets(at.rows);
  Buffer<Sum> sums(segments * at.rows);
  Buffer<float> target_logits(at.rows), exponents(segments * at.rows);
  fill<<<128, 256>>>(hidden.data(), hidden.count(), 1, at.with_nonfinite);
  fill<<<128, 256>>>(weight.data(), weight.count(), 2, false);
  if (at.masks) {
    fill_masking_bias<<<1, 256>>>(bias.data(), bias.count());
  } else {
    fill<<<128, 256>>>(bias.data(), bias.count(), 3, false);
  }
  fill_targets<<<1, 256>>>(targets.data(), at.rows, at.vocab);
  const auto of_rows = make_operand<true>(hidden.data(), at.hidden, at.rows);
  const auto of_columns = make_operand<true>(weight.data(), at.hidden, at.vocab);
  const auto launch = [&](auto out) {
    out.bias = at.with_bias ? bias.data() : nullptr, out.target_ids = targets.data(), out.sums = sums.data();
    out.target_logit = target_logits.data(), out.exponents = exponents.data(), out.ld_exponents = at.rows;
    out.log2_scale = sm90::kLog2E;
    if constexpr (hopper::swaps_operands<Config>) {
      return sm90::launch_with_epilogue<Config>(out, of_columns, of_rows, at.hidden, nullptr);
    } else {
      return sm90::launch_with_epilogue<Config>(out, of_rows, of_columns, at.hidden, nullptr);
    }
  };
  cudaError_t error;
  if constexpr (hopper::swaps_operands<Config>) {
    error = launch(sm90::SumSegmentsOfTranspose<T, Sum>{});
  } else {
    error = launch(sm90::SumSegments<T, Sum>{});
  }
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<uint8_t> all = sums.read();
  for (const auto& more : {target_logits.read(), exponents.read()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

template <typename Sum, typename T, typename... Configs>
void expect_same_bits(const Shape& at, Configs...) {
  const auto expected = left_by<hopper::Tile64x128, Sum, T>(at);
  const auto expect = [&]<typename Config>(Config) {
    EXPECT_TRUE((left_by<Config, Sum, T>(at) == expected))
        << Config::kVariant << ": rows " << at.rows << " hidden " << at.hidden << " vocab " << at.vocab << " bias "
        << at.with_bias << " nonfinite " << at.with_nonfinite << " masks " << at.masks;
  };
  (expect(Configs{}), ...);
}

using Sm90 = OnSm90;

template <typename Sum, typename T>
void expect_same_bits_of_all() {
  for (const Shape& at : {Shape{1, 64, 129, false},
                          {33, 520, 1000, true},
                          {72, 72, 4104, true},
                          {257, 200, 392, false},
                          {300, 64, 2056, true},
                          {40, 128, 40, true},
                          {96, 64, 1032, false, true},
                          {65, 64, 300, true, false, true},
                          // Many tiles per block: a tile is summed while the next one is already loaded.
                          {520, 16, 40008, true}}) {
    expect_same_bits<Sum, T>(at, hopper::Unaligned{}, hopper::Tile128x128Rows{}, hopper::Tile192x128Rows{},
                             hopper::Tile192x128Columns{}, hopper::Tile256x128Rows{}, hopper::Tile128x256Rows{},
                             hopper::Swapped96{}, hopper::Swapped160{}, hopper::Swapped224{}, hopper::Swapped256{});
  }
}

TEST_F(Sm90, LogitsLeaveTheSameBitsInAllTiles) {
  expect_same_bits_of_all<sm90::PowerSum, __nv_bfloat16>();
  expect_same_bits_of_all<sm90::PowerSum, __half>();
}

TEST_F(Sm90, LogitsLeaveTheSameBitsInAllTilesWithTheirEntropy) {
  expect_same_bits_of_all<sm90::WeightedPowerSum, __nv_bfloat16>();
}

}  // namespace
}  // namespace checkop::kernels
