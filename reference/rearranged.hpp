// SPDX-License-Identifier: Apache-2.0
// Shared by operators that say how their inputs may be rearranged: tensors made of parts of others, packed sequences
// among other ones, and batches cut into smaller ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "operator/operator.hpp"
#include "sequences.hpp"

namespace checkop {

std::vector<int64_t> integers_of(const Tensor& tensor);

/// A tensor with the name and the type of `from`, that holds `values`.
Tensor of_integers(const Tensor& from, Shape shape, const std::vector<int64_t>& values);

/// A tensor of blocks of `bytes`: block i is block `from[i]` of `tensor`.
Tensor with_blocks(const Tensor& tensor, Shape shape, const std::vector<int64_t>& from, size_t bytes);

/// The same along the first dimension.
Tensor with_rows(const Tensor& tensor, const std::vector<int64_t>& from);

/// What becomes of the packed sequences: all in reverse order; or every second one is left out, holds its tokens in
/// reverse, or holds them twice.
enum class Documents : uint8_t { reversed, removed, replaced, longer };

/// The tokens of rearranged sequences.
struct Packing {
  SequenceBounds bounds = SequenceBounds(1);
  std::vector<int64_t> from;  ///< of each token, the one that it copies
  std::vector<int64_t> rows;  ///< the same for tokens of sequences that are as they were, -1 for those of others
};

/// Which sequences change: 1, those with odd numbers, or 0, those with even ones, if the odd ones have all tokens.
int64_t others_of(const SequenceBounds& bounds);

/// The packing after `change`. Tokens behind the last sequence stay behind it. `others` comes from others_of().
Packing repack(const SequenceBounds& bounds, int64_t tokens, Documents change, int64_t others);

/// Whether that changes anything.
bool is_changed(const Packing& packing, const SequenceBounds& bounds);

/// Entries [first, first + n) of a batch whose loss is divided by the input denom, in a launch of their own. nullopt
/// without that input, since the batch itself then decides what is divided by.
std::optional<Rearranged> as_micro_batch(const RearrangeArgs& args, int64_t first, int64_t n);

/// Rearrangements of operators whose outputs begin with the batch; see as_micro_batch().
extern const std::array<Rearrangement, 3> kMicroBatches;

}  // namespace checkop
