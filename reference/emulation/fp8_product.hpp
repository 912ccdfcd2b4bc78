// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 codes with scales for blocks of 128 terms: the sum of each block's products, then its scales, then
// the sum over blocks; and the faults in all of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr int64_t kBlock = 128, kInstruction = 32;

inline constexpr FaultSpec kScaleALeftOut{"scale_a_left_out", "sums are not multiplied by the scales of a"};
inline constexpr FaultSpec kScaleBLeftOut{"scale_b_left_out", "sums are not multiplied by the scales of b", "accuracy",
                                          "fp32 bf16"};
inline constexpr FaultSpec kNextScaleOfA{"next_scale_of_a",
                                         "a block has the scale of the one after it in its row of a"};
inline constexpr FaultSpec kFirstScaleOfA{"first_scale_of_a", "a row of a has the scale of its first block alone"};
inline constexpr FaultSpec kScaleOfOtherRow{"scale_of_other_row", "a row of a has the scales of the next one"};
inline constexpr FaultSpec kScaleBTransposed{"scale_b_transposed", "the scales of b are read in the other order"};
inline constexpr FaultSpec kScaleBOfNextColumns{"scale_b_of_next_columns",
                                                "128 columns of d have the scales of the next ones"};
inline constexpr FaultSpec kScalesAdded{"scales_added", "the two scales are added, not multiplied", "accuracy",
                                        "fp32 bf16"};
inline constexpr FaultSpec kScalesIn16Bit{"scales_in_16_bit", "scales are rounded to bf16"};
inline constexpr FaultSpec kScalesToPowers{"scales_to_powers",
                                           "scales are read as powers of two: their exponents alone"};
inline constexpr FaultSpec kTailScaleBefore{"tail_scale_before",
                                            "the block after the last whole one has the scale before it"};
inline constexpr FaultSpec kTailLost{"tail_lost", "the columns after the last whole block are left out"};
inline constexpr FaultSpec kLastBlockLost{"last_block_lost", "the last block of columns is left out"};
inline constexpr FaultSpec kBlockTwice{"block_twice", "the first block is added twice"};
inline constexpr FaultSpec kNotPromoted{"not_promoted",
                                        "the sum over all columns is that of a tensor core, of 14 bits"};
inline constexpr FaultSpec kE5m2Read{"e5m2_read", "codes of b are read as e5m2", "nonfinite"};
inline constexpr FaultSpec kFp8SubnormalsFlushed{"subnormals_flushed", "codes of subnormal numbers count as 0"};
inline constexpr FaultSpec kNanCodesAs480{
    "nan_codes_as_480", "codes of NaN are read as 480, the number that would follow 448", "nonfinite", "", "", "",
    "extreme"};
inline constexpr FaultSpec kNanCodesAs448{
    "nan_codes_as_448", "codes of NaN are read as the largest number", "nonfinite", "", "", "", "extreme"};
inline constexpr FaultSpec kNanScalesAs0{
    "nan_scales_as_0", "a scale of NaN counts as 0, as fmaxf(scale, 0) gives", "nonfinite", "", "", "", "extreme"};
inline constexpr FaultSpec kNextColumn{"next_column", "the columns of d are those of the next row of b"};

/// What an FP8 tensor core adds at once: n products times `scale`, to `total`. Every addend is truncated to 2^-13 of
/// the largest one.
inline float added_in_14_bits(float total, float scale, const float* x, const float* y, int64_t n) {
  float largest = std::abs(total);
  for (int64_t k = 0; k < n; ++k) largest = std::max(largest, std::abs(scale * x[k] * y[k]));
  if (largest == 0 || std::isnan(largest)) return largest;
  const int step = std::ilogb(largest) - 13;
  double sum = std::trunc(std::ldexp(static_cast<double>(total), -step));
  for (int64_t k = 0; k < n; ++k) sum += std::trunc(std::ldexp(static_cast<double>(scale * x[k] * y[k]), -step));
  return static_cast<float>(std::ldexp(sum, step));
}

inline Matrix codes_of(const EmulationArgs& args, int index, bool is_b) {
  const Arithmetic& a = args.arithmetic;
  Matrix codes = matrix(args, index);
  const Tensor& stored = args.in(index);
  for (size_t i = 0; i < codes.values.size(); ++i) {
    if (a.has(kE5m2Read.name) && is_b) {
      double value = 0;
      info(DType::e5m2).decode(stored.bytes.data() + i, &value, 1);
      codes.values[i] = static_cast<float>(value);
    }
    const float of_nan = a.has(kNanCodesAs480.name) ? 480 : a.has(kNanCodesAs448.name) ? 448 : 0;
    const bool is_negative = (std::to_integer<int>(stored.bytes.data()[i]) & 0x80) != 0;
    if (of_nan != 0 && std::isnan(codes.values[i])) codes.values[i] = is_negative ? -of_nan : of_nan;
    constexpr float kLeastNormal = 0x1p-6F;
    if (a.has(kFp8SubnormalsFlushed.name) && std::abs(codes.values[i]) < kLeastNormal) codes.values[i] = 0;
  }
  return codes;
}

inline Matrix scales_of(const EmulationArgs& args, int index) {
  Matrix scales = matrix(args, index);
  for (float& scale : scales.values) {
    if (args.arithmetic.has(kNanScalesAs0.name) && std::isnan(scale)) scale = 0;
    if (args.arithmetic.has(kScalesIn16Bit.name)) scale = Arithmetic::to_bf16(scale);
    if (args.arithmetic.has(kScalesToPowers.name) && scale != 0) scale = std::ldexp(1.0F, std::ilogb(scale));
  }
  return scales;
}

/// Scales and sums of one element of a b^T. `rows_of_scale`: of b; a has a scale for each of its rows.
class Element {
 public:
  Element(const EmulationArgs& args, const Matrix& a, const Matrix& scale_a, const Matrix& b, const Matrix& scale_b,
          int64_t rows_of_scale = kBlock)
      : f_(args.arithmetic), a_(a), b_(b), scale_a_(scale_a), scale_b_(scale_b), rows_of_scale_(rows_of_scale) {}

  float at(int64_t row, int64_t column) const {
    const int64_t blocks = scale_a_.columns, k_dim = a_.columns, whole = k_dim / kBlock;
    int64_t used = f_.has(kTailLost.name) ? std::max<int64_t>(whole, 1) : blocks;
    if (f_.has(kLastBlockLost.name)) used = std::max<int64_t>(1, blocks - 1);
    const float* const x = a_.row(row);
    const float* const y = b_.row(f_.has(kNextColumn.name) ? (column + 1) % b_.rows() : column);
    if (f_.has(kNotPromoted.name)) {
      float total = 0;
      for (int64_t k = 0; k < k_dim; k += kInstruction)
        total =
            added_in_14_bits(total, scale(row, column, k / kBlock), x + k, y + k, std::min(kInstruction, k_dim - k));
      return total;
    }
    const auto block = [&](int64_t kb) {
      return scale(row, column, kb) *
             f_.dot(std::min(kBlock, k_dim - kb * kBlock), x + kb * kBlock, 1, y + kb * kBlock, 1);
    };
    const float total = f_.sum(used, block);
    return f_.has(kBlockTwice.name) ? total + block(0) : total;
  }

 private:
  float scale(int64_t row, int64_t column, int64_t kb) const {
    const int64_t blocks = scale_a_.columns, n_blocks = scale_b_.rows();
    int64_t of_a = kb, own_row = row, of_n = column / rows_of_scale_, of_b = kb;
    if (f_.has(kNextScaleOfA.name)) of_a = (kb + 1) % blocks;
    if (f_.has(kFirstScaleOfA.name)) of_a = 0;
    if (f_.has(kTailScaleBefore.name) && kb > 0 && (kb + 1) * kBlock > a_.columns) of_a = of_b = kb - 1;
    if (f_.has(kScaleOfOtherRow.name)) own_row = (row + 1) % scale_a_.rows();
    if (f_.has(kScaleBOfNextColumns.name)) of_n = (of_n + 1) % n_blocks;
    const float b = f_.has(kScaleBTransposed.name) ? scale_b_.values[static_cast<size_t>(of_b * n_blocks + of_n)]
                                                   : scale_b_.row(of_n)[of_b];
    const float a = scale_a_.row(own_row)[of_a];
    if (f_.has(kScaleALeftOut.name)) return b;
    if (f_.has(kScaleBLeftOut.name)) return a;
    return f_.has(kScalesAdded.name) ? a + b : a * b;
  }

  const Arithmetic& f_;
  const Matrix &a_, &b_, &scale_a_, &scale_b_;
  const int64_t rows_of_scale_;
};

inline constexpr std::array kFp8ProductFaults{faults::kLastKDropped,
                                              faults::kBf16Accumulator,
                                              faults::kPartialLost,
                                              kScaleALeftOut,
                                              kScaleBLeftOut,
                                              kNextScaleOfA,
                                              kFirstScaleOfA,
                                              kScaleOfOtherRow,
                                              kScaleBTransposed,
                                              kScaleBOfNextColumns,
                                              kScalesAdded,
                                              kScalesIn16Bit,
                                              kScalesToPowers,
                                              kTailScaleBefore,
                                              kTailLost,
                                              kLastBlockLost,
                                              kBlockTwice,
                                              kNotPromoted,
                                              kE5m2Read,
                                              kFp8SubnormalsFlushed,
                                              kNextColumn,
                                              kNanCodesAs480,
                                              kNanCodesAs448,
                                              kNanScalesAs0};

}  // namespace checkop::emulation
