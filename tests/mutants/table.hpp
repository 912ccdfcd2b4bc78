// SPDX-License-Identifier: Apache-2.0
// The mutants: what is wrong with each, where that can be seen, and what the verdict must say. Plugin and test read it.
#pragma once

#include <array>
#include <set>
#include <string>
#include <string_view>

#include "operator.hpp"

namespace checkop::test {

enum class Fault : uint8_t {
  none,
  // Arithmetic: model.cpp computes the operator with one thing wrong.
  dropped_last_tile,
  last_k_dropped,
  last_token_lost,
  wrong_label,
  softmax_term_dropped,
  softmax_sign_flipped,
  bf16_accumulator,
  mask_ignored,
  ignored_row_counted,
  ignored_gradient_kept,
  ignored_as_id_zero,
  ignored_row_multiplied,
  ignored_row_reaches_weight,
  mask_values_added,
  ones_alone_kept,
  counted_with_own_row,
  counted_per_sequence,
  causal_offset_ignored,
  own_key_unseen,
  new_keys_first,
  new_keys_skipped,
  weight_plus_one,
  mean_subtracted,
  projection_dropped,
  exponent_sign,
  sigmoid_alone,
  derivative_short,
  gate_and_up_swapped,
  neighbours_id,
  duplicates_overwrite,
  misaligned_rows,
  sample_variance,
  mean_over_all_tokens,
  kl_reversed,
  bias_left_out,
  masked_keys_multiplied,
  exp_rounded_to_bf16,
  tf32_factors,
  // Results: faults.cpp spoils the gold.
  gradient_scaled,
  stale_row,
  nan,
  tail_not_computed,
  zeros,
  constant_output,
  wrong_base,
  shifted_positions,
  turned_the_other_way,
  causal_mask_ignored,
  scale_ignored,
  last_key_dropped,
  next_group_read,
  one_element_doubled,
  transposed_block,
  truncation,
  // Behaviour: faults.cpp writes where it must not, or not the same twice.
  unwritten_row,
  unwritten_zeros,
  out_of_bounds_write,
  input_overwritten,
  input_toggled,
  nondeterministic,
  batch_dependent,
};

struct Mutant {
  Fault fault;
  std::string_view name;
  std::string_view kind;         ///< Judgment::kind that it must get; "" for the control, which must pass
  std::string_view passes = "";  ///< "op/pass ..." where the fault exists; "" for all, those of new operators too
  std::string_view dtypes = "";  ///< where the fault can be seen; "" for all
  std::string_view needs = "";   ///< an optional input that must be there, "-mask" for one that must not
};

inline constexpr std::string_view kSoftmaxPasses =
    "logp/forward logp/backward linear_logp/forward linear_logp/backward ratio_kl/forward ratio_kl/backward "
    "grpo_loss/forward grpo_loss/backward";
inline constexpr std::string_view kWithIds =
    "logp/forward logp/backward linear_logp/forward linear_logp/backward embedding/forward embedding/backward "
    "ratio_kl/forward ratio_kl/backward grpo_loss/forward grpo_loss/backward";
inline constexpr std::string_view kExponentialPasses =
    "logp/forward logp/backward linear_logp/forward linear_logp/backward attention/forward attention/backward "
    "kv_cache_attention/forward kv_cache_attention/backward "
    "ratio_kl/forward ratio_kl/backward grpo_loss/forward grpo_loss/backward silu/forward silu/backward swiglu/forward "
    "swiglu/backward";
inline constexpr std::string_view kSoftmaxGradients =
    "logp/backward linear_logp/backward attention/backward kv_cache_attention/backward ratio_kl/backward "
    "grpo_loss/backward";
inline constexpr std::string_view kContractions =
    "linear_logp/forward linear_logp/backward matmul/forward matmul/backward lm_head/forward lm_head/backward "
    "det_gemm/forward det_gemm/backward attention/forward attention/backward kv_cache_attention/forward "
    "kv_cache_attention/backward";
inline constexpr std::string_view kModelled =
    "logp/forward logp/backward linear_logp/forward linear_logp/backward matmul/forward matmul/backward "
    "lm_head/forward lm_head/backward det_gemm/forward det_gemm/backward attention/forward attention/backward "
    "kv_cache_attention/forward kv_cache_attention/backward "
    "ratio_kl/forward ratio_kl/backward grpo_loss/forward grpo_loss/backward";
/// Results that are far from zero and rounded to the case's dtype, over 8 rows and 8 columns or more.
inline constexpr std::string_view kMatrices =
    "logp/backward linear_logp/backward matmul/forward matmul/backward lm_head/forward lm_head/backward "
    "det_gemm/forward det_gemm/backward rms_norm/forward rms_norm/backward "
    "silu/forward silu/backward swiglu/forward swiglu/backward embedding/forward embedding/backward "
    "ratio_kl/backward grpo_loss/backward pack/forward pack/backward";
/// Results rounded to the case's dtype, in rows of several columns.
inline constexpr std::string_view kRounded =
    "logp/backward linear_logp/backward matmul/forward matmul/backward lm_head/forward lm_head/backward "
    "det_gemm/forward det_gemm/backward rms_norm/forward rms_norm/backward silu/forward silu/backward swiglu/forward "
    "swiglu/backward embedding/forward embedding/backward rope/forward rope/backward attention/forward "
    "attention/backward kv_cache_attention/backward ratio_kl/backward grpo_loss/backward";
inline constexpr std::string_view kControlled =
    "logp/forward logp/backward linear_logp/forward linear_logp/backward matmul/forward matmul/backward "
    "lm_head/forward lm_head/backward det_gemm/forward det_gemm/backward embedding/forward embedding/backward "
    "attention/forward attention/backward kv_cache_attention/forward kv_cache_attention/backward ratio_kl/forward "
    "ratio_kl/backward grpo_loss/forward grpo_loss/backward "
    "pack/forward pack/backward rms_norm/forward rms_norm/backward silu/forward silu/backward swiglu/forward "
    "swiglu/backward";
inline constexpr std::string_view kGradients =
    "logp/backward linear_logp/backward matmul/backward lm_head/backward det_gemm/backward rms_norm/backward "
    "silu/backward swiglu/backward embedding/backward rope/backward attention/backward kv_cache_attention/backward "
    "ratio_kl/backward "
    "grpo_loss/backward pack/backward";
inline constexpr std::string_view kRmsNorm = "rms_norm/forward rms_norm/backward";
inline constexpr std::string_view kSigmoids = "silu/forward silu/backward swiglu/forward swiglu/backward";
inline constexpr std::string_view kRope = "rope/forward rope/backward";
inline constexpr std::string_view kIgnoring = "logp/forward logp/backward linear_logp/forward linear_logp/backward";
inline constexpr std::string_view kAttention =
    "attention/forward attention/backward kv_cache_attention/forward kv_cache_attention/backward";
inline constexpr std::string_view kKvCache = "kv_cache_attention/forward kv_cache_attention/backward";
inline constexpr std::string_view kPack = "pack/forward pack/backward";
inline constexpr std::string_view kMasked =
    "ratio_kl/forward ratio_kl/backward grpo_loss/forward grpo_loss/backward pack/forward";

inline constexpr auto kMutants = std::to_array<Mutant>({
    // The model without a fault: were it wrong, the mutants made from it would be found for the wrong reason.
    {Fault::none, "none", "", kControlled},
    {Fault::dropped_last_tile, "dropped_last_tile", "accuracy", kModelled},
    {Fault::dropped_last_tile, "dropped_columns", "accuracy", kRmsNorm},
    {Fault::last_token_lost, "last_token_lost", "accuracy", "embedding/backward"},
    // A sum over the vocabulary that is short by one errs by one probability, about 1/vocab: within half an ulp of a
    // 16-bit gradient. Only sums over a contracted dimension are cut.
    {Fault::last_k_dropped, "last_k_dropped", "accuracy", kContractions},
    {Fault::wrong_label, "wrong_label", "accuracy", kWithIds},
    {Fault::softmax_term_dropped, "softmax_term_dropped", "accuracy", kSoftmaxGradients},
    {Fault::softmax_sign_flipped, "softmax_sign_flipped", "accuracy", kSoftmaxGradients},
    {Fault::bf16_accumulator, "bf16_accumulator", "accuracy", kModelled},
    // What is left out holds NaN in some rows: reading it shows as such.
    {Fault::mask_ignored, "mask_ignored", "nonfinite", kMasked},
    {Fault::mask_ignored, "mask_ignored", "accuracy", "pack/backward"},
    {Fault::mask_ignored, "row_mask_ignored", "accuracy", "rms_norm/backward", "", "mask"},
    {Fault::masked_keys_multiplied, "masked_keys_multiplied", "nonfinite", kAttention, "", "key_padding_mask"},
    {Fault::ignored_row_counted, "ignored_row_counted", "nonfinite", "logp/forward linear_logp/forward"},
    {Fault::ignored_gradient_kept, "ignored_gradient_kept", "nonfinite", "logp/backward linear_logp/backward"},
    {Fault::ignored_as_id_zero, "ignored_as_id_zero", "nonfinite", kIgnoring},
    {Fault::ignored_row_multiplied, "ignored_row_multiplied", "nonfinite", kIgnoring},
    {Fault::ignored_row_reaches_weight, "ignored_row_reaches_weight", "nonfinite", "linear_logp/backward"},
    // A 2 in the mask counts as two rows.
    {Fault::mask_values_added, "mask_values_added", "accuracy", kPack},
    {Fault::ones_alone_kept, "ones_alone_kept", "accuracy", kPack},
    // An inclusive sum where an exclusive one belongs: everything is one row late.
    {Fault::counted_with_own_row, "counted_with_own_row", "accuracy", kPack},
    // The carry from one sequence to the next is lost.
    {Fault::counted_per_sequence, "counted_per_sequence", "accuracy", kPack},
    // Right where there are as many keys as queries.
    {Fault::causal_offset_ignored, "causal_offset_ignored", "accuracy", kAttention},
    {Fault::own_key_unseen, "own_key_unseen", "accuracy", kAttention},
    {Fault::new_keys_first, "new_keys_first", "accuracy", kKvCache, "", "-key_padding_mask"},
    // The mask no longer fits the keys, so that what it drops is read.
    {Fault::new_keys_first, "masked_new_keys_first", "nonfinite", kKvCache, "", "key_padding_mask"},
    {Fault::new_keys_skipped, "new_keys_skipped", "accuracy", kKvCache},
    {Fault::bias_left_out, "bias_left_out", "accuracy", "lm_head/forward linear_logp/forward linear_logp/backward", "",
     "bias"},
    {Fault::weight_plus_one, "weight_plus_one", "accuracy", kRmsNorm},
    {Fault::mean_subtracted, "mean_subtracted", "accuracy", kRmsNorm},
    {Fault::projection_dropped, "projection_dropped", "accuracy", "rms_norm/backward"},
    {Fault::exponent_sign, "exponent_sign", "accuracy", kSigmoids},
    {Fault::sigmoid_alone, "sigmoid_alone", "accuracy", "silu/forward"},
    {Fault::derivative_short, "derivative_short", "accuracy", "silu/backward swiglu/backward"},
    {Fault::gate_and_up_swapped, "gate_and_up_swapped", "accuracy", "swiglu/forward swiglu/backward"},
    {Fault::neighbours_id, "neighbours_id", "accuracy", "embedding/forward embedding/backward"},
    {Fault::misaligned_rows, "misaligned_rows", "accuracy", "embedding/forward embedding/backward"},
    {Fault::duplicates_overwrite, "duplicates_overwrite", "accuracy", "embedding/backward"},
    {Fault::sample_variance, "sample_variance", "accuracy", "grpo_loss/forward grpo_loss/backward"},
    {Fault::mean_over_all_tokens, "mean_over_all_tokens", "accuracy", "grpo_loss/forward grpo_loss/backward"},
    {Fault::kl_reversed, "kl_reversed", "accuracy", "ratio_kl/forward ratio_kl/backward grpo_loss/forward"},
    // Forward, the roundings average out: the error is a few times logp's bound, and below that of linear_logp once the
    // inner dimension is in the thousands.
    {Fault::exp_rounded_to_bf16, "exp_rounded_to_bf16", "accuracy", kExponentialPasses},
    // Factors rounded to 11 bits, as matrix units do with fp32 data unless told otherwise; 16-bit factors have no more.
    {Fault::tf32_factors, "tf32_factors", "accuracy",
     "matmul/forward matmul/backward linear_logp/forward lm_head/forward lm_head/backward det_gemm/forward "
     "det_gemm/backward",
     "fp32"},
    {Fault::gradient_scaled, "gradient_scaled", "accuracy", kGradients},
    {Fault::stale_row, "stale_row", "accuracy"},
    {Fault::nan, "nan", "nonfinite"},
    {Fault::tail_not_computed, "tail_not_computed", "accuracy", kRounded},
    {Fault::zeros, "zeros", "accuracy"},
    {Fault::constant_output, "constant_output", "accuracy"},
    {Fault::wrong_base, "wrong_base", "accuracy", kRope},
    {Fault::shifted_positions, "shifted_positions", "accuracy", kRope},
    {Fault::turned_the_other_way, "turned_the_other_way", "accuracy", kRope},
    {Fault::causal_mask_ignored, "causal_mask_ignored", "accuracy", kAttention},
    {Fault::scale_ignored, "scale_ignored", "accuracy", kAttention},
    {Fault::last_key_dropped, "last_key_dropped", "accuracy", kAttention},
    {Fault::next_group_read, "next_group_read", "accuracy", kAttention},
    {Fault::one_element_doubled, "one_element_doubled", "accuracy"},
    // Needs an output with 8 rows and 8 columns that are told apart: not log-probabilities, one a row.
    {Fault::transposed_block, "transposed_block", "accuracy", kMatrices},
    // Not fp32 outputs, which logp has for every dtype: there the last rounding is one of many that the bound allows.
    {Fault::truncation, "truncation", "accuracy", kRounded, "bf16 fp16"},
    {Fault::unwritten_row, "unwritten_row", "unwritten"},
    // Rows that hold nothing are taken to be zero already.
    {Fault::unwritten_zeros, "unwritten_zeros", "unwritten", kPack},
    {Fault::out_of_bounds_write, "out_of_bounds_write", "guard"},
    {Fault::input_overwritten, "input_overwritten", "input"},
    {Fault::input_toggled, "input_toggled", "input"},
    {Fault::nondeterministic, "nondeterministic", "determinism"},
    {Fault::batch_dependent, "batch_dependent", "invariance"},
});

/// "mutant-zeros"; "control-none" for the control.
inline std::string candidate_name(const Mutant& mutant) {
  return (mutant.kind.empty() ? "control-" : "mutant-") + std::string(mutant.name);
}

inline bool contains_word(std::string_view list, std::string_view word) {
  for (std::string_view entry : split_dims(list))
    if (entry == word) return true;
  return false;
}

/// Mutants of a row need rows: an output of one number has no other row to take, and no mean that is not itself.
inline bool applies(const Mutant& mutant, const Operator& op, const Pass& pass) {
  // What has no rows of its own cannot depend on the batch in them, and a copy has nothing to truncate.
  const OutputSpec& first = pass.outputs[0];
  if (mutant.fault == Fault::batch_dependent && !is_per_row(op, first.tensor)) return false;
  if (mutant.fault == Fault::truncation && first.numerics == Numerics::exact) return false;
  const bool needs_rows = mutant.fault == Fault::stale_row || mutant.fault == Fault::constant_output;
  if (needs_rows && pass.outputs[0].tensor.dims.empty()) return false;
  return mutant.passes.empty() || contains_word(mutant.passes, std::string(op.name) + "/" + std::string(pass.name));
}

inline bool shows_with(const Mutant& mutant, const std::set<std::string, std::less<>>& optionals) {
  if (mutant.needs.starts_with('-')) return !optionals.contains(mutant.needs.substr(1));
  return mutant.needs.empty() || optionals.contains(mutant.needs);
}

inline bool shows_in(const Mutant& mutant, DType dtype) {
  return mutant.dtypes.empty() || contains_word(mutant.dtypes, info(dtype).name);
}

}  // namespace checkop::test
