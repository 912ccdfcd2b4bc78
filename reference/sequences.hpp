// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths that lie one after the other in a tensor of tokens: where each begins, the lengths in
// generated inputs, and attention sequence by sequence. Rows behind the last sequence belong to none.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "attention.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// First token of every sequence, then the end of the last one.
using SequenceBounds = std::vector<int64_t>;

inline int64_t length_of(const SequenceBounds& bounds, int64_t sequence) {
  return bounds[static_cast<size_t>(sequence) + 1] - bounds[static_cast<size_t>(sequence)];
}

/// The bounds in an integer input. Throws InputError unless they start with 0, do not decrease, and end within `tokens`
/// tokens.
SequenceBounds read_bounds(const Tensor& cu_seqlens, int64_t tokens);

/// Draws the bounds of the queries' sequences and of the keys': among the sequences are long ones, empty ones, several
/// of these in a row, ones of one token, ones without queries, ones without keys, and ones with fewer keys than
/// queries. In mode constant all have the same length. With args.ignored_every some tokens at the end are no
/// sequence's, with 1 all of them. `keys` is nullptr if the keys have the bounds of the queries; `of_queries` and
/// `of_keys` name the tensors of tokens.
void draw_bounds(const FillArgs& args, Tensor& queries, Tensor* keys, std::string_view of_queries,
                 std::string_view of_keys);

/// Fills the tokens of a tensor [tokens, heads, head_dim] or [tokens, heads] from token `end` on with payloads that
/// must not be read.
void plant_rest(const FillArgs& args, Tensor& tokens, int64_t end);

/// Some sequences that have equally many queries, and equally many keys: what attention takes as a batch.
using SequenceBatch = std::vector<int64_t>;

/// The tokens of these sequences, whose bounds in a tensor [tokens, heads, head_dim] or [tokens, heads] are `bounds`,
/// as the batch of attention: [sequences, heads, n, head_dim], with a head_dim of 1 for the latter.
Tensor as_batch(const Tensor& tokens, const SequenceBounds& bounds, const SequenceBatch& sequences);

/// Emits a block with all elements of one sequence of a tensor [sequences, heads, n, head_dim] as the tokens of that
/// sequence.
void emit_sequence(const GoldArgs& args, const GoldRows& block, int64_t heads, const SequenceBounds& bounds,
                   const SequenceBatch& sequences);

/// What each sequence, or batch of some, adds to dsinks; the sums are taken in the order of the sequences.
class SinkGradients {
 public:
  explicit SinkGradients(int64_t sequences) : of_sequences_(static_cast<size_t>(sequences)) {}
  /// Keeps the block with the gradients of a batch, of which `sequence` is the first one.
  void take(int64_t sequence, const GoldRows& rows);
  void emit(const GoldArgs& args, int output, int64_t heads) const;

 private:
  struct OfSequence {
    std::vector<double> value, magnitude, rounding, spread, deviation;
  };
  std::vector<OfSequence> of_sequences_;
};

/// Runs body(sequences, threads) for batches of sequences, until each that has a query or a key had its turn: long ones
/// by themselves and with all threads, the others side by side.
void for_sequences(const GoldArgs& args, const SequenceBounds& queries, const SequenceBounds& keys,
                   const std::function<void(const SequenceBatch&, unsigned)>& body);

/// Pairs of a query and a key that the attributes keep: the operations of one product are 2 q_heads head_dim times as
/// many.
double kept_pairs(const SequenceBounds& queries, const SequenceBounds& keys, const AttentionAttrs& attrs);

/// Bytes of the tokens of a tensor from token `end` on.
double rest_bytes(const Tensor& tokens, int64_t end);

/// The recipes of attention, whose queries are here in one dimension.
template <size_t n>
std::array<Recipe, n> of_tokens(std::array<Recipe, n> recipes) {
  for (Recipe& recipe : recipes) recipe.independent = "tokens_q q_heads";
  return recipes;
}

/// The tokens of output `index` from token `end` on must be 0: see check_zero_rows().
void check_rest(const IdentityArgs& args, int index, int64_t end);

}  // namespace checkop
