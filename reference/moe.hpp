// SPDX-License-Identifier: Apache-2.0
// Code shared by the operators of a mixture of experts: the experts of each token, where their rows go, and generated
// ids. A slot is one of a token's experts; slot s of token t has number t*topk + s.
#pragma once

#include <vector>

#include "moved_rows.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// Stands for no expert in a slot, for example because the expert is on another rank.
inline constexpr int64_t kNoExpert = -1;

/// Throws InputError unless there are experts enough for the slots of a token.
void validate_topk(const CaseSizes& sizes);

/// The values of an integer input. Throws InputError that names the first one outside [0, end), unless it is -1.
std::vector<int64_t> read_slots(const Tensor& slots, int64_t end);

/// The order of the rows of moe_permute: by expert, then by slot. The rows of an expert begin at a multiple of `align`.
struct ExpertOrder {
  ExpertOrder(const std::vector<int64_t>& ids, int64_t experts, int64_t align, int64_t rows);

  std::vector<int64_t> slot_of_row;  ///< kNoRow: padding
  std::vector<int64_t> row_of_slot;  ///< kNoRow: the slot has no expert
  std::vector<int64_t> offsets;      ///< where each expert's rows begin; the last one is where they all end
};

/// Draws distinct experts for the topk slots of each token, independent of the number of tokens. The expert in the
/// middle gets about half of the tokens, and every fourth one none unless too few are left. In mode constant all tokens
/// have the same experts, topk successive ones from `first` on. If args.ignored_every is not 0, some slots, and
/// all slots of some tokens, have no expert.
std::vector<int64_t> draw_experts(const FillArgs& args, int64_t tokens, int64_t topk, int64_t experts, int64_t first);

/// Draws distinct rows out of [0, rows) for the slots of each token, independent of the number of tokens; kNoRow for
/// the slots to which draw_experts() gives no expert, and for those beyond the number of rows.
std::vector<int64_t> draw_rows(const FillArgs& args, int64_t tokens, int64_t topk, int64_t rows);

void store_integers(const std::vector<int64_t>& values, Tensor& to);

/// 1 for every one of `rows` rows that `rows_of_slots` has.
std::vector<char> rows_in_use(const std::vector<int64_t>& rows_of_slots, int64_t rows);

/// Fills the rows of `features` with used[row] == 0 with payloads that must not be read; see plant_payload().
void plant_unused_rows(const FillArgs& args, Tensor& features, const std::vector<char>& used);

}  // namespace checkop
