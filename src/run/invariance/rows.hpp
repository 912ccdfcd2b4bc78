// SPDX-License-Identifier: Apache-2.0
// Gathers the rows of a context's inputs, and compares its output rows with those of the case.
#pragma once

#include <cstddef>
#include <vector>

#include "run/invariance/contexts.hpp"
#include "run/run_result.hpp"
#include "run/stage.hpp"

namespace checkop {

/// Input `from` of `c` as the context's launch gets it, with `padding` elements behind each run of its last dimension,
/// in the context's arrangement.
/// Points into `from`, or into `storage` if the data had to be copied.
const std::byte* gather(const Case& c, const Context& context, const Tensor& from, const TensorSpec& spec,
                        int64_t padding, std::vector<std::byte>& storage);

/// Source of the contexts' inputs: the inputs of a case, on the device if they fit, otherwise on the host.
class ContextInputs {
 public:
  /// `full`: the inputs of the full batch. Inputs shared by contexts stay on the device; per-row inputs stay only while
  /// they are small, since the largest cases fill the device.
  ContextInputs(Device& device, const Case& c, const std::vector<Tensor>& host, std::vector<BufferPtr> full);

  /// Adds the inputs of `stage`, which will launch `context`. If `carries[i]` is set, it becomes input i. Returns the
  /// inputs made for this stage, with nullptr for the others.
  std::vector<BufferPtr> add_to(Stage& stage, const Context& context, const std::vector<BufferPtr>& carries,
                                bool is_looked_at) const;
  /// The same for the inputs of a Rearranged.
  std::vector<BufferPtr> add_rearranged(Stage& stage, const std::vector<Tensor>& inputs, bool is_looked_at) const;
  /// Adds a sentence for each changed buffer of `own`, which add_rearranged() returned.
  void note_modified(const std::vector<BufferPtr>& own, const std::vector<Tensor>& inputs,
                     std::vector<std::string>& modified) const;
  /// Adds a sentence for each changed buffer of `own`, which add_to() returned.
  void note_modified(const Stage& stage, const Context& context, const std::vector<BufferPtr>& own,
                     std::vector<std::string>& modified) const;
  /// The same for the inputs that stayed on the device.
  void note_modified(std::vector<std::string>& modified) const;

 private:
  /// Input i of a Rearranged.
  const Tensor& rearranged(const std::vector<Tensor>& inputs, size_t i) const {
    return i < inputs.size() && !inputs[i].name.empty() ? inputs[i] : host_[i];
  }
  void fill(const Stage& stage, const Context& context, size_t i, GuardedBuffer& to) const;

  Device& device_;
  const Case& c_;
  const std::vector<Tensor>& host_;
  std::vector<BufferPtr> kept_;  ///< nullptr if absent, or only on the host
};

/// Collects the bit differences of one per-row output in one context.
class RowsCompared {
 public:
  /// `reference` has `columns` elements per row and begins at row `first_row` of the full batch.
  RowsCompared(const Context& context, const Tensor& reference, int64_t columns, int64_t first_row, ContextBits& found)
      : context_(context), reference_(reference), columns_(columns), first_row_(first_row), found_(found) {}

  /// Compares elements [first, first + n) of the launch's output.
  void add(const std::byte* block, int64_t first, int64_t n);

 private:
  void take(int64_t row, int64_t at, const BitDifference& part);

  const Context& context_;
  const Tensor& reference_;
  int64_t columns_, first_row_;
  ContextBits& found_;
};

}  // namespace checkop
