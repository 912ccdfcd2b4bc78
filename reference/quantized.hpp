// SPDX-License-Identifier: Apache-2.0
// Shared by the golds of quantisation: rows of fp32 numbers, the amax of a block, and data that show faults.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// `value` after it was stored in `dtype`.
double stored_in(DType dtype, double value);

/// The largest |x|, of all x that are numbers; 0 of none.
float largest_size(std::span<const float> block);

/// Calls quantize(row of x in fp32, its codes, its scales) for each row of x that the gold computes, and emits codes as
/// output 0 and scales as output 1. Their elements have no error: each is right or wrong.
using QuantizeRow = std::function<void(std::span<const float>, std::span<double> codes, std::span<double> scales)>;
void quantize_rows(const GoldArgs& args, const Tensor& x, const QuantizeRow& quantize);

/// What plant_blocks() has to know of a quantisation.
struct BlockData {
  int64_t block;        ///< columns of a block; the last one of a row may have fewer
  bool is_e2m1;         ///< codes are e2m1, not e4m3
  bool takes_infinity;  ///< infinite elements have defined codes
  bool stays_away;      ///< no quotient lies near the middle of two codes, and neither does a scale that is rounded
  /// The number that is rounded to the code of x, in a block with this amax.
  std::function<float(float x, float amax)> quotient = {};
  /// The number that is rounded to the scale, in e4m3; none where scales are not rounded.
  std::function<float(float amax)> scale = {};
  int64_t rows = 1;               ///< rows of a block; the last one of a column may have fewer
  bool has_least_scales = false;  ///< scales go down to the least power of two of fp32, and so do the data
};
/// In mode `random`, changes blocks of the first rows to what random numbers would hardly show: zeros, ties between
/// codes, infinities, NaN where codes have it, an amax that is a power of two or its neighbour, or that is tiny.
void plant_blocks(const FillArgs& args, Tensor& x, const BlockData& data);
/// Where data.stays_away, makes numbers near the middle of two codes a little smaller.
void move_from_middles(Tensor& x, const BlockData& data);

}  // namespace checkop
