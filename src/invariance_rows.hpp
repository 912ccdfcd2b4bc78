// SPDX-License-Identifier: Apache-2.0
// Rows of a case as a context has them: gathered on the way in, told apart on the way out.
#pragma once

#include <cstddef>
#include <vector>

#include "runner.hpp"

namespace checkop {

/// Input `from` of `c` as the context's launch gets it, `padding` elements behind each run of its last dimension; in
/// `storage` where that is not the host's memory as it lies.
const std::byte* gather(const Case& c, const Context& context, const Tensor& from, const TensorSpec& spec,
                        int64_t padding, std::vector<std::byte>& storage);

/// Collects the differences of one per-row output in one context.
class RowsCompared {
 public:
  /// `reference` has `columns` elements a row and begins at row `first_row` of the full batch.
  RowsCompared(const Context& context, const Tensor& reference, int64_t columns, int64_t first_row, ContextBits& found)
      : context_(context), reference_(reference), columns_(columns), first_row_(first_row), found_(found) {}

  /// Elements [first, first + n) of the launch's output.
  void add(const std::byte* block, int64_t first, int64_t n);

 private:
  void take(int64_t row, int64_t at, const BitDifference& part);

  const Context& context_;
  const Tensor& reference_;
  int64_t columns_, first_row_;
  ContextBits& found_;
};

}  // namespace checkop
