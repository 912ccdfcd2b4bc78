// SPDX-License-Identifier: Apache-2.0
// A pass as tensor cores compute it, bit for bit, and the orders in which products are added up.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "operator/operator.hpp"

namespace checkop {

/// How an element's products are added up: one fp32 accumulator from +0, or one for each of `parts` runs of blocks,
/// whose sums are added in order. Runs have the same number of blocks; the last ones may have fewer.
struct ModelOrder {
  /// Products that a block adds at once, upward from k = 0: 16 as sm_90, 8 as sm_80; 1: fp32 fused multiply-adds.
  int64_t width = 16;
  int64_t parts = 1;
  bool narrow = false;  ///< the sums of the parts are rounded to the output's dtype before they are added

  bool operator==(const ModelOrder&) const = default;
};
std::string to_string(const ModelOrder& order);  ///< "ascending 16", "split_k 2", "split_k 4 narrow", "serial fma"
/// What kernels do: ascending blocks of 16 and 8, a serial chain, and splits of k in 2, 4 and 8 parts, wide and narrow.
std::span<const ModelOrder> all_orders();

/// An architecture whose bits are known.
struct ModelledArch {
  std::string_view key;  ///< "sm90"
  int64_t block;         ///< products that it adds at once
};
inline constexpr std::array kModelledArchs{ModelledArch{"sm90", 16}};

/// What a model looks at: the stored bytes of the inputs, and the rows of each output that are wanted.
struct ModelArgs {
  std::span<const Tensor* const> inputs;  ///< in the order of the pass, fp16 or bf16; nullptr: absent
  std::span<const RowSet> row_sets;       ///< in the order of the pass
  ModelOrder order = {};
  unsigned threads = 1;  ///< results do not depend on it
  /// Takes a row of an output in fp32: what is left is one rounding to the output's dtype. Never called at once.
  std::function<void(int output, int64_t row, const float* values)> sink;

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  const RowSet& rows(int output) const { return row_sets[static_cast<size_t>(output)]; }
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// Whether `pass` has a model of that output: of the products among its outputs, in 16 bits.
inline bool has_model(const Pass& pass, const OutputSpec& output, DType dtype) {
  return pass.model != nullptr && output.numerics == Numerics::contraction &&
         (dtype == DType::f16 || dtype == DType::bf16);
}

}  // namespace checkop
