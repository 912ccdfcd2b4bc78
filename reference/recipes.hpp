// SPDX-License-Identifier: Apache-2.0
// Names of the recipes, which a gold and the emulation of its pass share. 16 bit: the dtype of the case, bf16 or fp16.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

namespace checkop::recipe {

// rms_norm, and the operators that contain it
inline constexpr std::string_view kNormalisedRow = "normalised_row_in_16_bit",
                                  kWeightTerms = "weight_gradient_terms_in_16_bit",
                                  kWeightedGradient = "weighted_gradient_in_16_bit";
// add_rms_norm
inline constexpr std::string_view kRowGradient = "row_gradient_in_16_bit";
// gated_rms_norm; the first one qk_norm_rope, too
inline constexpr std::string_view kWeightedRow = "weighted_row_in_16_bit", kGatedGradient = "gated_gradient_in_16_bit";
// qk_norm_rope
inline constexpr std::string_view kRotatedGradient = "rotated_gradient_in_16_bit";
// swiglu
inline constexpr std::string_view kActivation = "activation_in_16_bit",
                                  kActivationGradient = "activation_gradient_in_16_bit";
// rope; products_in_16_bit moe_combine, too
inline constexpr std::string_view kTable = "table_in_16_bit", kProducts = "products_in_16_bit";
// attention, kv_cache_attention, varlen_attention and paged_attention
inline constexpr std::string_view kP = "p_in_16_bit", kDs = "ds_in_16_bit", kO = "o_in_16_bit",
                                  kScores = "scores_in_16_bit", kGroup = "group_gradients_in_16_bit";
// logp, linear_logp, tp_linear_logp, and ratio_kl and grpo_loss, whose coefficient c is an upstream gradient
inline constexpr std::string_view kLogits = "logits_in_16_bit", kLogp = "logp_in_16_bit", kDz = "dz_in_16_bit",
                                  kUpstream = "upstream_gradient_in_16_bit";
// logp, linear_logp, entropy, linear_entropy, kl_full and linear_policy_loss
inline constexpr std::string_view kTransform = "transform_in_16_bit";
// linear_logp and linear_policy_loss
inline constexpr std::string_view kSumsByChunk = "sums_by_chunk_in_16_bit";
// linear_logp, tp_linear_logp, linear_entropy, linear_policy_loss and lm_head
inline constexpr std::string_view kProduct = "product_in_16_bit";
// ratio_kl and grpo_loss
inline constexpr std::string_view kKl = "kl_in_16_bit";
// entropy
inline constexpr std::string_view kTerms = "terms_in_16_bit", kEntropy = "entropy_in_16_bit";
// moe_route and moe_combine
inline constexpr std::string_view kWeights = "weights_in_16_bit", kSumsBySlot = "sums_by_slot_in_16_bit",
                                  kSumsByRow = "sums_by_row_in_16_bit";
// embedding
inline constexpr std::string_view kSumsByToken = "sums_by_token_in_16_bit",
                                  kSumsBy32Tokens = "sums_by_32_tokens_in_16_bit";
// all_reduce, reduce_scatter and all_gather
inline constexpr std::string_view kSumsByRank = "sums_by_rank_in_16_bit";

/// Rows whose part of the weight's gradient is one product: of Liger's fused linear cross entropy, whose logits of a
/// chunk take about as much memory as all hidden states.
inline int64_t rows_of_chunk(int64_t rows, int64_t hidden, int64_t vocab) {
  const int64_t chunks = (vocab + hidden - 1) / hidden;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((rows + chunks - 1) / chunks)));
}
/// The same of a policy's loss: verl takes 512 tokens; Liger a sequence, so this is Liger's up to 512 tokens.
inline int64_t rows_of_chunk(int64_t seq) { return std::min<int64_t>(seq, 512); }

}  // namespace checkop::recipe
