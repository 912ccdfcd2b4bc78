// SPDX-License-Identifier: Apache-2.0
// Models a pass as tensor cores compute it, bit for bit, in the orders in which they add products.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "operator/operator.hpp"

namespace checkop {

/// The order in which an element's products are added. Blocks of products are added to one fp32 accumulator that starts
/// from +0, or to one accumulator for each of `parts` runs of blocks; the runs' sums are then added in order. All runs
/// have the same number of blocks, except that the last ones may have fewer. Every kScaledCodes products of codes have
/// an accumulator of their own; times their scales they are added to the sum of the run by a fused multiply-add.
struct ModelOrder {
  /// Products that a block adds at once, in ascending k: of 16-bit operands 16 on sm_90, 8 on sm_80; of e4m3 codes 32
  /// on sm_90. 1: fp32 fused multiply-adds.
  int64_t width = 16;
  int64_t parts = 1;
  bool narrow = false;  ///< partial sums of 16-bit operands are rounded to their dtype before they are added

  bool operator==(const ModelOrder&) const = default;
};
std::string to_string(const ModelOrder& order);  ///< "ascending 16", "split_k 2", "split_k 4 narrow", "serial fma"
/// The orders that kernels use where sm_90 adds `block` products at once. Of 16: ascending blocks of 16 and of 8, a
/// serial chain, and split k in 2, 4 and 8 parts, with fp32 or rounded (narrow) partial sums. Of 32: ascending blocks,
/// a serial chain, and split k with fp32 partial sums.
std::span<const ModelOrder> all_orders(int64_t block);

/// Codes of a row that share a scale.
inline constexpr int64_t kScaledCodes = 128;

/// Whether the operands of the products of `pass` are e4m3 codes with scales.
inline bool multiplies_codes(const Pass& pass) { return pass.inputs.front().dtype == DType::e4m3; }

/// An architecture with a known bit-exact model.
struct ModelledArch {
  std::string_view key;  ///< "sm90"
  int64_t block;         ///< products of fp16 or bf16 that one block adds at once
  int64_t code_block;    ///< products of e4m3 codes

  int64_t block_of(const Pass& pass) const { return multiplies_codes(pass) ? code_block : block; }
};
inline constexpr std::array kModelledArchs{ModelledArch{"sm90", 16, 32}};

/// Arguments of a model: the stored inputs, and the rows of each output to compute.
struct ModelArgs {
  std::span<const Tensor* const> inputs;  ///< in the order of the pass; operands in fp16, bf16 or e4m3; nullptr: absent
  std::span<const RowSet> row_sets;       ///< in the order of the pass
  ModelOrder order = {};
  unsigned threads = 1;  ///< results do not depend on it
  /// Takes a row of an output in fp32, before the final rounding to the output's dtype. Never called concurrently.
  std::function<void(int output, int64_t row, const float* values)> sink;

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  const RowSet& rows(int output) const { return row_sets[static_cast<size_t>(output)]; }
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// Whether `pass` has a model of `output` in `dtype`. Only matrix products of 16-bit operands, whose dtype is that of
/// the output, and of e4m3 codes have one.
inline bool has_model(const Pass& pass, const OutputSpec& output, DType dtype) {
  return pass.model != nullptr && output.numerics == Numerics::contraction &&
         (dtype == DType::f16 || dtype == DType::bf16 || (dtype == DType::f32 && multiplies_codes(pass)));
}

}  // namespace checkop
