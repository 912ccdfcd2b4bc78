// SPDX-License-Identifier: Apache-2.0
// Rows of a case as a context has them: gathered on the way in, told apart on the way out.
#pragma once

#include <cstddef>
#include <vector>

#include "run/invariance/invariance.hpp"
#include "run/run_result.hpp"
#include "run/stage.hpp"

namespace checkop {

/// Input `from` of `c` as the context's launch gets it, `padding` elements behind each run of its last dimension; in
/// `storage` where that is not the host's memory as it lies.
const std::byte* gather(const Case& c, const Context& context, const Tensor& from, const TensorSpec& spec,
                        int64_t padding, std::vector<std::byte>& storage);

/// The inputs of a case, of which contexts take theirs: on the device where there is room, otherwise on the host.
class ContextInputs {
 public:
  /// `full`: those of the full batch. What contexts share stays on the device, and what they take rows of if it is
  /// small: the largest cases fill the device.
  ContextInputs(Device& device, const Case& c, const std::vector<Tensor>& host, std::vector<BufferPtr> full);

  /// Adds the inputs of `stage`, which is to launch `context`. Input i is `carries[i]` where there is one. Returns
  /// those that the stage alone has, nullptr for others.
  std::vector<BufferPtr> add_to(Stage& stage, const Context& context, const std::vector<BufferPtr>& carries,
                                bool is_looked_at) const;
  /// A sentence for each of `own`, from add_to(), whose bytes are no longer those that it was given.
  void note_modified(const Stage& stage, const Context& context, const std::vector<BufferPtr>& own,
                     std::vector<std::string>& modified) const;
  /// Likewise of what stayed.
  void note_modified(std::vector<std::string>& modified) const;

 private:
  void fill(const Stage& stage, const Context& context, size_t i, GuardedBuffer& to) const;

  Device& device_;
  const Case& c_;
  const std::vector<Tensor>& host_;
  std::vector<BufferPtr> kept_;  ///< nullptr: absent, or on the host alone
};

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
