// SPDX-License-Identifier: Apache-2.0
// Compares what the configurations of linear_logp / cuda-sm90 leave of the logits, bit by bit: sums and exponents of
// segments, logits of targets. Sizes that no tile divides, logits that are not finite. And the sums of rows that are
// merged from segments. Needs a Hopper GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
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
  int64_t first_id = 0;
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
/// Ids of the columns. With a first_id: in turns the id before the first column, the first, the last, and the id behind
/// it. Every fifth is ignored.
__global__ void fill_targets(int64_t* to, int64_t count, int64_t first_id, int64_t vocab) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const int64_t id = first_id == 0 ? mixed(i) % vocab
                       : i % 4 < 2   ? first_id - 1 + i % 4
                                     : first_id + vocab - 3 + i % 4;
    to[i] = i % 5 == 4 ? -100 : id;
  }
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
  fill_targets<<<1, 256>>>(targets.data(), at.rows, at.first_id, at.vocab);
  const auto of_rows = make_operand<true>(hidden.data(), at.hidden, at.rows);
  const auto of_columns = make_operand<true>(weight.data(), at.hidden, at.vocab);
  sm90::SegmentSums<T, Sum> to{};
  to.bias = at.with_bias ? bias.data() : nullptr, to.target_ids = targets.data(), to.first_id = at.first_id;
  to.sums = sums.data(), to.target_logit = target_logits.data();
  to.exponents = exponents.data(), to.ld_exponents = at.rows, to.log2_scale = sm90::kLog2E;
  const cudaError_t error = hopper::launch_sums<Config>(to, of_rows, of_columns, at.hidden, nullptr);
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
        << at.with_bias << " nonfinite " << at.with_nonfinite << " masks " << at.masks << " first id " << at.first_id;
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
                          {65, 64, 300, true, false, false, 1000},
                          // Many tiles per block: a tile is summed while the next one is already loaded.
                          {520, 16, 40008, true}}) {
    expect_same_bits<Sum, T>(at, hopper::Unaligned{}, hopper::Tile128x128Rows{}, hopper::Tile192x128Rows{},
                             hopper::Tile192x128Columns{}, hopper::Tile256x128Rows{}, hopper::Tile128x256Rows{},
                             hopper::Swapped96{}, hopper::Swapped160{}, hopper::Swapped224{});
  }
}

TEST_F(Sm90, LogitsLeaveTheSameBitsInAllTiles) {
  expect_same_bits_of_all<sm90::PowerSum, __nv_bfloat16>();
  expect_same_bits_of_all<sm90::PowerSum, __half>();
}

TEST_F(Sm90, LogitsLeaveTheSameBitsInAllTilesWithTheirEntropy) {
  expect_same_bits_of_all<sm90::WeightedPowerSum, __nv_bfloat16>();
}

/// Columns 1000 to 1299 of a vocabulary; targets 999, 1000, 1299, 1300 in turns. The logit of a target among these
/// columns has the bits that it has in a product of the whole vocabulary; that of any other target is not written.
template <typename Config>
void expect_targets_of_the_part() {
  constexpr int64_t kRows = 65, kFirst = 1000, kVocab = 300;
  Buffer<__nv_bfloat16> hidden(kRows * 64), weight((kFirst + kVocab + 1) * 64);
  Buffer<int64_t> targets(kRows);
  fill<<<128, 256>>>(hidden.data(), hidden.count(), 1, false);
  fill<<<128, 256>>>(weight.data(), weight.count(), 2, false);
  fill_targets<<<1, 256>>>(targets.data(), kRows, kFirst, kVocab);
  const auto logits_of = [&](int64_t first_id, int64_t vocab) {
    Buffer<sm90::PowerSum> sums(ceil_div(vocab, sm90::kSegmentColumns) * kRows);
    Buffer<float> target_logits(kRows);
    sm90::SegmentSums<__nv_bfloat16> to{};
    to.target_ids = targets.data(), to.first_id = first_id, to.sums = sums.data();
    to.target_logit = target_logits.data(), to.log2_scale = sm90::kLog2E;
    EXPECT_EQ(hopper::launch_sums<Config>(to, make_operand<true>(hidden.data(), 64, kRows),
                                          make_operand<true>(weight.data() + first_id * 64, 64, vocab), 64, nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint32_t> logits(kRows);
    std::memcpy(logits.data(), target_logits.read().data(), kRows * sizeof(uint32_t));
    return logits;
  };
  const auto of_all = logits_of(0, kFirst + kVocab + 1), of_part = logits_of(kFirst, kVocab);
  constexpr uint32_t kUntouched = 0xeeeeeeee;
  for (int64_t row = 0; row < kRows; ++row) {
    const bool is_ignored = row % 5 == 4, is_inside = !is_ignored && (row % 4 == 1 || row % 4 == 2);
    EXPECT_EQ(of_all[row] == kUntouched, is_ignored) << Config::kVariant << " row " << row;
    EXPECT_EQ(of_part[row], is_inside ? of_all[row] : kUntouched) << Config::kVariant << " row " << row;
  }
}

TEST_F(Sm90, LogitsOfTargetsInOtherPartsAreNotWritten) {
  expect_targets_of_the_part<hopper::Tile64x128>();
  expect_targets_of_the_part<hopper::Tile128x256Rows>();
  expect_targets_of_the_part<hopper::Swapped96>();
}

/// Made-up sum of a segment, the same for any number of rows. Of four rows, the last has no logits but -inf, and the
/// third some such segments.
sm90::WeightedPowerSum segment_of(int64_t row, int64_t segment) {
  const auto u = static_cast<uint32_t>((row * 7919 + segment) * 2654435761u);
  if (row % 4 == 3 || (row % 4 == 2 && u % 3 == 0)) return {-INFINITY, 0.0f, 0.0f};
  const float sum = 1.0f + static_cast<float>(u >> 16) * 0x1p-10f;
  return {static_cast<float>(u % 41) - 20.0f, sum, sum * 0.75f};
}
struct KeepSum {
  sm90::WeightedPowerSum* to;
  __device__ void operator()(int64_t row, const sm90::WeightedPowerSum& sum) const { to[row] = sum; }
};
/// The sums of rows [first, first + rows), merged from their segments.
std::vector<sm90::WeightedPowerSum> merged_rows(int64_t first, int64_t rows, int64_t segments) {
  std::vector<sm90::WeightedPowerSum> host(segments * rows);
  for (int64_t segment = 0; segment < segments; ++segment) {
    for (int64_t row = 0; row < rows; ++row) host[segment * rows + row] = segment_of(first + row, segment);
  }
  Buffer<sm90::WeightedPowerSum> sums(segments * rows), of_rows(rows);
  EXPECT_EQ(cudaMemcpy(sums.data(), host.data(), host.size() * sizeof(host[0]), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(sm90::launch_merge(sums.data(), rows, segments, KeepSum{of_rows.data()}, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  host.resize(rows);
  std::memcpy(host.data(), of_rows.read().data(), rows * sizeof(host[0]));
  return host;
}

TEST_F(Sm90, SumsOfRowsAreThoseOfTheirSegments) {
  for (const int64_t segments : {1, 7, 8, 127, 128, 129, 1024, 1187, 3001}) {
    const auto many = merged_rows(0, 33, segments);
    for (int64_t row = 0; row < 33; ++row) {
      double sum = 0, weighted = 0;
      for (int64_t i = 0; i < segments; ++i) {
        const auto part = segment_of(row, i);
        if (part.sum == 0.0f) continue;
        const double scale = std::exp2(double{part.exponent});
        sum += scale * part.sum, weighted += scale * (part.weighted - double{part.exponent} * part.sum);
      }
      const auto& got = many[row];
      const bool is_empty = sum == 0;
      EXPECT_EQ(got.exponent == -INFINITY, is_empty) << segments << " segments, row " << row;
      if (is_empty) {
        EXPECT_EQ(got.sum, 0.0f);
        EXPECT_EQ(got.weighted, 0.0f);
        continue;
      }
      const double scale = std::exp2(double{got.exponent});
      EXPECT_NEAR(scale * got.sum / sum, 1, 0x1p-20) << segments << " segments, row " << row;
      const double back = scale * (got.weighted - double{got.exponent} * got.sum);
      // weighted is relative to the exponent, of up to 20 in magnitude: its error is one of exponent * sum, too.
      EXPECT_NEAR((back - weighted) / (std::abs(weighted) + 32 * sum), 0, 0x1p-20) << segments << ", row " << row;
    }
    struct Part {
      int64_t first, rows;
    };
    for (const Part part : {Part{0, 1}, Part{0, 8}, Part{0, 9}, Part{5, 9}}) {  // from row 5 on: by other lanes
      const auto few = merged_rows(part.first, part.rows, segments);
      EXPECT_EQ(std::memcmp(few.data(), many.data() + part.first, part.rows * sizeof(few[0])), 0)
          << segments << " segments, " << part.rows << " rows from " << part.first << " on";
    }
  }
}

}  // namespace
}  // namespace checkop::kernels
