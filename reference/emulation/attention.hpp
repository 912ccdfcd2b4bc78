// SPDX-License-Identifier: Apache-2.0
// Emulated attention: the code shared by attention and kv_cache_attention.
#pragma once

#include <array>

#include "emulation/common.hpp"

namespace checkop::emulation {

/// Sizes, queries, keys and values; all keys are in one array.
struct AttentionProblem {
  int64_t batch, q_heads, kv_heads, q_seq, kv_seq, head_dim;
  bool causal;
  float scale;
  Matrix q;                           ///< [batch * q_heads * q_seq, head_dim]
  Matrix k, v;                        ///< [batch * kv_heads * kv_seq, head_dim]
  std::vector<char> keep;             ///< [batch * kv_seq], from key_padding_mask; 1 without one
  Matrix saved_o = {};                ///< [batch * q_heads * q_seq, head_dim] of a forward pass; empty if not given
  std::vector<float> saved_lse = {};  ///< [batch * q_heads * q_seq], likewise
  int64_t window_left = -1, window_right = -1;
  float softcap = 0;

  int64_t group() const { return q_heads / kv_heads; }
};

/// Builds the problem from given keys and values. Inputs: q first, key_padding_mask at index `mask`.
AttentionProblem attention_problem(const EmulationArgs& args, Matrix k, Matrix v, int mask);

/// Reads the attributes window_left, window_right and softcap, if the operator has them.
void read_window_and_cap(const EmulationArgs& args, AttentionProblem& problem);

struct AttentionOutput {
  Matrix o;                ///< shaped as q
  std::vector<float> lse;  ///< [batch * q_heads * q_seq]
};
AttentionOutput attention_output(const EmulationArgs& args, const AttentionProblem& problem);

struct AttentionGradients {
  Matrix dq, dk, dv;  ///< shaped as q, k and v
};
AttentionGradients attention_gradients(const EmulationArgs& args, const AttentionProblem& problem, const Matrix& grad);

// Faults in the choice of keys.
inline constexpr FaultSpec kCausalMaskIgnored{"causal_mask_ignored", "every query sees all keys"};
inline constexpr FaultSpec kCausalOffsetIgnored{"causal_offset_ignored",
                                                "query i sees keys up to i, not up to i + (kv_seq - q_seq)"};
inline constexpr FaultSpec kOwnKeyUnseen{"own_key_unseen", "a query sees the keys before its own alone"};
inline constexpr FaultSpec kWindowIgnored{"window_ignored", "every query sees all keys before its own"};
inline constexpr FaultSpec kWindowShort{"window_short", "window_left counts the query's own key"};
inline constexpr FaultSpec kWindowLong{"window_long", "a query sees window_left + 1 keys before its own"};
inline constexpr FaultSpec kWindowOffsetIgnored{"window_offset_ignored",
                                                "the window of query i begins before key i, not i + (kv_seq - q_seq)"};
inline constexpr FaultSpec kCausalMaskLate{
    "causal_mask_late", "keys behind the query count in the sum of exponentials and are left out afterwards"};
inline constexpr FaultSpec kLastKeyDropped{"last_key_dropped", "the last key that the mask keeps is not seen"};
inline constexpr FaultSpec kNextGroupRead{"next_group_read", "a group of query heads reads the next key head"};
inline constexpr FaultSpec kValuesShifted{"values_shifted", "a probability weighs the value of the next key"};
inline constexpr FaultSpec kPaddingMaskIgnored{"padding_mask_ignored", "key_padding_mask is not heeded", "nonfinite",
                                               "", "key_padding_mask"};
inline constexpr FaultSpec kMaskOfFirstEntry{"mask_of_first_entry", "every batch entry takes the mask of the first",
                                             "nonfinite", "", "key_padding_mask"};
inline constexpr FaultSpec kMaskedKeysMultiplied{"masked_keys_multiplied",
                                                 "a masked key is read, then multiplied by a probability of 0",
                                                 "nonfinite", "", "key_padding_mask"};
inline constexpr FaultSpec kOnesAloneKept{"ones_alone_kept", "a key is kept where the mask is 1, not where it is not 0",
                                          "accuracy", "", "key_padding_mask"};
inline constexpr FaultSpec kFirstTileMasked{"first_tile_masked",
                                            "a first tile of masked keys makes NaN of a row that keeps later keys",
                                            "nonfinite", "", "key_padding_mask"};
inline constexpr FaultSpec kEmptyRowNan{"empty_row_nan", "a row without keys is exp(-inf - -inf)", "nonfinite", "",
                                        "key_padding_mask"};
// Faults in what the forward pass saves, and in its use.
inline constexpr FaultSpec kLseBase2{"lse_base_2", "lse is a logarithm of base 2", "accuracy", "", "lse"};
inline constexpr FaultSpec kLseLessMaximum{"lse_less_maximum", "the maximum is not added to lse", "accuracy", "",
                                           "lse"};
inline constexpr FaultSpec kSavedOOfNextRow{"saved_o_of_next_row", "the row sum takes o from the next row", "accuracy",
                                            "", "o"};
inline constexpr FaultSpec kSavedLseOfFirstHead{
    "saved_lse_of_first_head", "every head of a group reads the first one's lse", "accuracy", "", "lse"};
// Faults in the arithmetic.
inline constexpr FaultSpec kScaleMissing{"scale_missing", "the scores are not scaled"};
inline constexpr FaultSpec kScaleTwice{"scale_twice", "the queries are scaled, and the scores once more"};
inline constexpr FaultSpec kScoreCapLeftOut{"cap_left_out", "scores are not capped"};
inline constexpr FaultSpec kScoreCapUndivided{"cap_undivided", "a score s becomes s tanh(s)"};
inline constexpr FaultSpec kScoreCapBeforeScale{"cap_before_scale", "products are capped, then scaled"};
inline constexpr FaultSpec kSlopeOfScoreCap{"slope_of_cap", "dq and dk lack the derivative of the cap"};
inline constexpr FaultSpec kProbabilitiesRounded{"probabilities_rounded",
                                                 "probabilities are rounded to bf16 as operands", "accuracy",
                                                 "fp32 fp16"};  // in bf16 it is a recipe
inline constexpr FaultSpec kRowSumDropped{"row_sum_dropped", "ds = p*dp, without the row sum of p*dp"};
inline constexpr FaultSpec kRowSumAdded{"row_sum_added", "the row sum of p*dp has the wrong sign"};
inline constexpr FaultSpec kGradientNotScaled{"gradient_not_scaled", "dq and dk lack the scale"};
inline constexpr FaultSpec kScoreGradientsRounded{"score_gradients_rounded", "ds is rounded to bf16 as an operand",
                                                  "accuracy", "fp32 fp16"};
// Not visible with one query head per group: no other head is overwritten.
inline constexpr FaultSpec kGroupOverwritten{"group_overwritten",
                                             "dk and dv hold the last head of a group, written over the others"};

/// Faults of attention and kv_cache_attention.
inline constexpr std::array kAttentionForwardFaults{faults::kLastKDropped,
                                                    faults::kLastKTileDropped,
                                                    faults::kLastTileSkipped,
                                                    faults::kBf16Accumulator,
                                                    faults::kBf16Partials,
                                                    faults::kPartialLost,
                                                    faults::kBf16Exponential,
                                                    faults::kTf32Factors,
                                                    kPaddedColumnCounted,
                                                    kSumNotRescaled,
                                                    kMaximumNotSubtracted,
                                                    kMaximumOfFirstTile,
                                                    kFirstTileMasked,
                                                    kCausalMaskIgnored,
                                                    kCausalOffsetIgnored,
                                                    kOwnKeyUnseen,
                                                    kCausalMaskLate,
                                                    kLastKeyDropped,
                                                    kNextGroupRead,
                                                    kValuesShifted,
                                                    kScaleMissing,
                                                    kScaleTwice,
                                                    kProbabilitiesRounded,
                                                    kPaddingMaskIgnored,
                                                    kMaskOfFirstEntry,
                                                    kMaskedKeysMultiplied,
                                                    kOnesAloneKept,
                                                    kEmptyRowNan};
/// Faults of attention and paged_attention, whose queries may have a window and whose scores a cap.
inline constexpr std::array kWindowFaults{kWindowIgnored, kWindowShort, kWindowLong, kWindowOffsetIgnored};
inline constexpr std::array kCapFaults{kScoreCapLeftOut, kScoreCapUndivided, kScoreCapBeforeScale};
inline constexpr std::array kCapGradientFaults{kSlopeOfScoreCap};
/// Faults of attention and paged_attention, whose forward pass may save lse.
inline constexpr std::array kLseFaults{kLseBase2, kLseLessMaximum};
inline constexpr std::array kSavedFaults{kLseBase2, kSavedOOfNextRow, kSavedLseOfFirstHead};
inline constexpr std::array kAttentionGradientFaults{kRowSumDropped, kRowSumAdded, kGradientNotScaled,
                                                     kScoreGradientsRounded, kGroupOverwritten};

}  // namespace checkop::emulation
