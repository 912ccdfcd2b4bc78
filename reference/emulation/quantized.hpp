// SPDX-License-Identifier: Apache-2.0
// Emulation of quantisations: the amax of blocks, e4m3 codes, and the faults that they share.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "emulation/common.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kAmaxWithoutSign{"amax_without_sign", "amax is the largest x, not the largest |x|"};
inline constexpr FaultSpec kAmaxOfRow{"amax_of_row", "every block of a row has the amax of the row"};
inline constexpr FaultSpec kAmaxOfTwoRows{"amax_of_two_rows", "the amax of a block counts the row before, too"};
inline constexpr FaultSpec kTailInBlockBefore{"tail_in_block_before",
                                              "the columns after the last whole block count in the block before"};
inline constexpr FaultSpec kTailOfWholeBlock{"tail_of_whole_block",
                                             "the last block is the last columns, as many as any"};
inline constexpr FaultSpec kLastElementSkipped{"last_element_skipped", "amax leaves out the last element of a block"};
inline constexpr FaultSpec kScalesTransposed{"scales_transposed", "scales are stored by block, then by row"};
inline constexpr FaultSpec kNeighbourScale{"neighbour_scale", "codes are those of the scale of the block before"};
inline constexpr FaultSpec kReciprocalStored{"reciprocal_stored", "what is stored is the reciprocal of the scale"};
inline constexpr FaultSpec kQuotientIn16Bit{"quotient_in_16_bit",
                                            "quotients are rounded to bf16 before they are coded"};
inline constexpr FaultSpec kCodesTruncated{"codes_truncated", "codes are rounded toward zero"};
inline constexpr FaultSpec kTiesAwayFromZero{"ties_away_from_zero", "a tie between two codes goes to the larger one"};
inline constexpr FaultSpec kTiesTowardZero{"ties_toward_zero", "a tie between two codes goes to the smaller one"};
inline constexpr FaultSpec kNanSaturated{"nan_saturated", "NaN becomes the largest code"};
inline constexpr FaultSpec kAmaxIsNan{"amax_is_nan", "the amax of a block with NaN is NaN",
                                      "accuracy nonfinite"};  // by the type of the scale
inline constexpr FaultSpec kSubnormalCodesFlushed{"subnormal_codes_flushed", "codes below the normal numbers become 0"};

/// Faults of every quantisation.
inline constexpr std::array kBlockFaults{kAmaxWithoutSign,    kAmaxOfRow,        kAmaxOfTwoRows,    kTailInBlockBefore,
                                         kTailOfWholeBlock,   kScalesTransposed, kNeighbourScale,   kQuotientIn16Bit,
                                         kLastElementSkipped, kCodesTruncated,   kTiesAwayFromZero, kTiesTowardZero};

inline Matrix transposed(const Matrix& m) {
  Matrix to = Matrix::zeros(m.columns, m.rows());
  for (int64_t r = 0; r < m.rows(); ++r)
    for (int64_t c = 0; c < m.columns; ++c) to.row(c)[r] = m.row(r)[c];
  return to;
}

/// The matrix of numbers that is quantised, and its blocks of `width` columns.
struct Blocks {
  Blocks(const EmulationArgs& args, int64_t block) : Blocks(args.arithmetic, matrix(args, 0), block) {}
  Blocks(const Arithmetic& arithmetic, Matrix matrix, int64_t block)
      : a(arithmetic), x(std::move(matrix)), width(block), of_row((x.columns + block - 1) / block) {}

  int64_t begin(int64_t block) const { return block * width; }
  int64_t end(int64_t block) const { return std::min(x.columns, begin(block + 1)); }

  float amax(int64_t row, int64_t block) const {
    if (a.has(kAmaxOfRow.name)) return amax_of(row, 0, x.columns);
    int64_t first = begin(block), last = end(block);
    const bool before_tail = block + 2 == of_row && x.columns % width != 0;
    if (a.has(kTailInBlockBefore.name) && before_tail) last = x.columns;
    if (a.has(kTailOfWholeBlock.name)) first = std::max<int64_t>(0, last - width);
    if (a.has(kLastElementSkipped.name) && last > first + 1) --last;
    const float own = amax_of(row, first, last);
    return a.has(kAmaxOfTwoRows.name) && row > 0 ? std::max(own, amax_of(row - 1, first, last)) : own;
  }

  /// Where the scale of a block is stored.
  size_t place(int64_t row, int64_t block) const {
    return static_cast<size_t>(a.has(kScalesTransposed.name) ? block * x.rows() + row : row * of_row + block);
  }
  /// The block whose scale the elements of `block` get.
  int64_t scaled_as(int64_t block) const { return a.has(kNeighbourScale.name) && block > 0 ? block - 1 : block; }

  float amax_of(int64_t row, int64_t first, int64_t last) const {
    float largest = 0;
    for (int64_t i = first; i < last; ++i) {
      const float value = x.row(row)[i], size = a.has(kAmaxWithoutSign.name) ? value : std::abs(value);
      if (size > largest) largest = size;
      if (std::isnan(size) && a.has(kAmaxIsNan.name)) return size;
    }
    return largest;
  }

  const Arithmetic& a;
  Matrix x;
  int64_t width, of_row;
};

/// The quotient x factor, as it is before it becomes a code.
inline float quotient(const Arithmetic& a, float x, float factor) {
  const float q = x * factor;
  return a.has(kQuotientIn16Bit.name) ? Arithmetic::to_bf16(q) : q;
}

/// |q| as a code: `nearest`, or by a fault of rounding one of `lower` and `upper`, the codes on both sides of |q|.
inline float rounded_between(const Arithmetic& a, float q, float lower, float upper, float nearest) {
  const float size = std::abs(q), middle = (lower + upper) / 2;
  if (a.has(kCodesTruncated.name)) nearest = lower;
  if (a.has(kTiesAwayFromZero.name) && size == middle) nearest = upper;
  if (a.has(kTiesTowardZero.name) && size == middle) nearest = lower;
  return nearest;
}

/// q as e4m3, before it is stored.
inline float e4m3(const Arithmetic& a, float q) {
  constexpr DType kCode = DType::e4m3;
  const float largest = 448, nearest = stored_as(kCode, std::abs(q));
  if (std::isnan(q) && a.has(kNanSaturated.name)) return largest;
  if (!(std::abs(q) < largest)) return q;
  const auto step_below = static_cast<float>(2 * half_ulp(kCode, std::nextafter(nearest, 0.0F)));
  const auto step_above = static_cast<float>(2 * half_ulp(kCode, nearest));
  const float lower = nearest <= std::abs(q) ? nearest : nearest - step_below;
  float code = rounded_between(a, q, lower, nearest <= std::abs(q) ? nearest + step_above : nearest, nearest);
  if (a.has(kSubnormalCodesFlushed.name) && code < 0x1p-6F) code = 0;
  return std::copysign(code, q);
}

}  // namespace checkop::emulation
