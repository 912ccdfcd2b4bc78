// SPDX-License-Identifier: Apache-2.0
// Emulated attention: the code shared by attention, kv_cache_attention, varlen_attention and paged_attention.
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
  Matrix k, v;                        ///< [batch * kv_heads * kv_seq, head_dim], [..., v_dim]
  std::vector<char> keep;             ///< [batch * kv_seq], from key_padding_mask; 1 without one
  Matrix saved_o = {};                ///< [batch * q_heads * q_seq, v_dim] of a forward pass; empty if not given
  std::vector<float> saved_lse = {};  ///< [batch * q_heads * q_seq], likewise
  int64_t window_left = -1, window_right = -1;
  float softcap = 0;
  std::vector<float> sinks = {};     ///< [q_heads]; empty if not given
  std::vector<float> grad_lse = {};  ///< [batch * q_heads * q_seq], likewise

  int64_t group() const { return q_heads / kv_heads; }
  int64_t v_dim() const { return v.columns; }
};

/// Builds the problem from given keys and values. Inputs: q first, key_padding_mask at index `mask`.
AttentionProblem attention_problem(const EmulationArgs& args, Matrix k, Matrix v, int mask);

/// The factor of the scores where the attribute `scale` is `given`.
float scale_of(const Arithmetic& arithmetic, float given, int64_t head_dim, int64_t v_dim);

/// Reads the attributes window_left, window_right and softcap, if the operator has them.
void read_window_and_cap(const EmulationArgs& args, AttentionProblem& problem);

struct AttentionOutput {
  Matrix o;                ///< [batch * q_heads * q_seq, v_dim]
  std::vector<float> lse;  ///< [batch * q_heads * q_seq]
};
AttentionOutput attention_output(const EmulationArgs& args, const AttentionProblem& problem);

struct AttentionGradients {
  Matrix dq, dk, dv;         ///< shaped as q, k and v
  std::vector<float> sinks;  ///< what every query adds to the gradient of its head's sink: [batch * q_heads * q_seq]
};
AttentionGradients attention_gradients(const EmulationArgs& args, const AttentionProblem& problem, const Matrix& grad);

/// The gradients of the sinks: sums over `n` queries of each head of terms[head * head_step + query * query_step].
void store_sink_gradients(const EmulationArgs& args, const std::vector<float>& terms, int64_t n, int64_t head_step,
                          int64_t query_step, std::vector<double>& to);

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
/// Not visible where the scores are no further from 0 than exponentials reach: then another maximum cancels out.
inline constexpr FaultSpec kMaskedTileResetsMaximum{
    "masked_tile_resets_maximum",
    "a first tile of masked keys sets the maximum to 0: exponentials of scores far below vanish, and so does their sum",
    "nonfinite",
    "",
    "key_padding_mask",
    "",
    "extreme"};
/// Not visible where a score lies above the masks.
inline constexpr FaultSpec kFiniteMask{
    "finite_mask",      "masked scores are -50000, not -inf: they count in the sum of a row whose scores all lie below",
    "accuracy",         "",
    "key_padding_mask", "",
    "extreme"};
inline constexpr FaultSpec kSentinelOfEmptyRow{
    "sentinel_of_empty_row", "masked scores are -10000, not -inf, and lse of a row without keys is theirs", "nonfinite",
    "", "key_padding_mask lse"};
// Faults in what the forward pass saves, and in its use.
inline constexpr FaultSpec kLseBase2{"lse_base_2", "lse is a logarithm of base 2", "accuracy", "", "lse"};
inline constexpr FaultSpec kLseLessMaximum{"lse_less_maximum", "the maximum is not added to lse", "accuracy", "",
                                           "lse"};
inline constexpr FaultSpec kSavedOOfNextRow{"saved_o_of_next_row", "the row sum takes o from the next row", "accuracy",
                                            "", "o"};
inline constexpr FaultSpec kSavedLseOfFirstHead{
    "saved_lse_of_first_head", "every head of a group reads the first one's lse", "accuracy", "", "lse"};
// Faults in the size of values, not visible where v_dim is head_dim.
inline constexpr FaultSpec kValueStrideOfKeys{"value_stride_of_keys", "rows of values are taken to be head_dim apart",
                                              "accuracy", "", "-key_padding_mask"};
inline constexpr FaultSpec kValueColumnsLost{"value_columns_lost", "columns of values from head_dim on are not read"};
// Faults in the arithmetic.
inline constexpr FaultSpec kScaleMissing{"scale_missing", "the scores are not scaled"};
inline constexpr FaultSpec kScaleOfVDim{"scale_of_v_dim", "the scale is 1/sqrt(v_dim)"};
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

// Faults of sinks, and of the gradient of lse.
inline constexpr std::string_view kWithSinks = "sinks", kWithLseOfSinks = "sinks lse";
inline constexpr FaultSpec kSinkLeftOut{"sink_left_out", "the sink is not in the sum of exponentials", "accuracy", "",
                                        kWithSinks};
inline constexpr FaultSpec kSinkNotInMaximum{"sink_not_in_maximum",
                                             "the sink does not count in the maximum: its exponential overflows",
                                             "nonfinite",
                                             "",
                                             kWithLseOfSinks,
                                             "",
                                             "extreme"};
/// The same in the backward pass, where the probabilities of keys and sink become 0.
inline constexpr FaultSpec kSinkNotInMaximumOfGradients{
    kSinkNotInMaximum.name, kSinkNotInMaximum.meaning, "accuracy", "", "sinks", "", "extreme"};
inline constexpr FaultSpec kSinkAddedToOutput{"sink_added_to_output",
                                              "the sink's probability is added to the output, as if its value were 1",
                                              "accuracy", "", kWithSinks};
inline constexpr FaultSpec kSinkOfNextHead{"sink_of_next_head", "a query head reads the sink of the next one",
                                           "accuracy", "", kWithSinks};
inline constexpr FaultSpec kSinkOfKeyHead{"sink_of_key_head", "a query head reads the sink of its key head's number",
                                          "accuracy", "", kWithSinks};
inline constexpr FaultSpec kSinkScaled{"sink_scaled", "the sink is scaled, as scores are", "accuracy", "", kWithSinks};
inline constexpr FaultSpec kSinkCapped{"sink_capped", "the sink is capped, as scores are", "accuracy", "", kWithSinks};
inline constexpr FaultSpec kSinkOfEveryTile{"sink_of_every_tile", "every tile of keys adds the sink to the sum",
                                            "accuracy", "", kWithSinks};
inline constexpr FaultSpec kLseWithoutSink{"lse_without_sink", "lse is that of the keys alone", "accuracy", "",
                                           kWithLseOfSinks};
inline constexpr FaultSpec kSinkOfEmptyRowLost{"sink_of_empty_row_lost",
                                               "lse of a row without keys is -inf, where it is the sink", "nonfinite",
                                               "", kWithLseOfSinks};
inline constexpr FaultSpec kGradLseLeftOut{"grad_lse_left_out", "the gradient of lse is not heeded", "accuracy", "",
                                           "grad_lse"};
inline constexpr FaultSpec kGradLseSubtracted{"grad_lse_subtracted", "the gradient of lse has the wrong sign",
                                              "accuracy", "", "grad_lse"};
inline constexpr FaultSpec kSinkGradientNegated{"sink_gradient_negated", "dsinks has the wrong sign", "accuracy", "",
                                                kWithSinks};
inline constexpr FaultSpec kSinkGradientWithoutLse{"sink_gradient_without_lse", "dsinks lacks the gradient of lse",
                                                   "accuracy", "", "sinks grad_lse"};
inline constexpr FaultSpec kSinkGradientOverwritten{
    "sink_gradient_overwritten", "dsinks holds the last eighth of the queries, written over the others", "accuracy", "",
    kWithSinks};
inline constexpr FaultSpec kSinkGradientOfKeys{
    "sink_gradient_of_keys", "queries without keys are passed over in dsinks", "accuracy", "", "sinks grad_lse"};

/// Faults of attention, kv_cache_attention, varlen_attention and paged_attention.
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
                                                    kScaleOfVDim,
                                                    kScaleTwice,
                                                    kValueStrideOfKeys,
                                                    kValueColumnsLost,
                                                    kProbabilitiesRounded,
                                                    kPaddingMaskIgnored,
                                                    kMaskOfFirstEntry,
                                                    kMaskedKeysMultiplied,
                                                    kOnesAloneKept,
                                                    kEmptyRowNan};
/// Faults of operators whose queries may have a window and whose scores a cap.
inline constexpr std::array kWindowFaults{kWindowIgnored, kWindowShort, kWindowLong, kWindowOffsetIgnored};
inline constexpr std::array kCapFaults{kScoreCapLeftOut, kScoreCapUndivided, kScoreCapBeforeScale};
inline constexpr std::array kCapGradientFaults{kSlopeOfScoreCap};
/// Faults of operators whose forward pass may give lse.
inline constexpr std::array kLseFaults{kLseBase2, kLseLessMaximum};
/// Faults of operators with sinks: of both passes, of the forward and of the backward pass.
inline constexpr std::array kSinkFaults{kSinkLeftOut, kSinkOfNextHead, kSinkOfKeyHead,
                                        kSinkScaled,  kSinkCapped,     kSinkOfEveryTile};
inline constexpr std::array kSinkForwardFaults =
    joined(kSinkFaults, std::array{kSinkNotInMaximum, kSinkAddedToOutput, kLseWithoutSink, kSinkOfEmptyRowLost});
inline constexpr std::array kSinkBackwardFaults = joined(
    kSinkFaults, std::array{kSinkNotInMaximumOfGradients, kGradLseLeftOut, kGradLseSubtracted, kSinkGradientNegated,
                            kSinkGradientWithoutLse, kSinkGradientOverwritten, kSinkGradientOfKeys});
inline constexpr std::array kSavedFaults{kLseBase2, kSavedOOfNextRow, kSavedLseOfFirstHead};
inline constexpr std::array kAttentionGradientFaults{kRowSumDropped, kRowSumAdded, kGradientNotScaled,
                                                     kScoreGradientsRounded, kGroupOverwritten};

}  // namespace checkop::emulation
