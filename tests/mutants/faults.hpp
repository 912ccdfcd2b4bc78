// SPDX-License-Identifier: Apache-2.0
// What a mutant does to one call.
#pragma once

#include <optional>

#include "gold_call.hpp"
#include "table.hpp"

namespace checkop::test {

/// Answers `call` with `fault` in it. Throws InputError for what the gold refuses.
void answer_with_fault(Fault fault, const Operator& op, const Pass& pass, const checkop_call& call);

/// What becomes of rows that the operator leaves out.
enum class LeftOut : uint8_t {
  select,          ///< nothing of them is read, as it should be
  counted,         ///< the id matches no column: logp = 0 - lse, and the softmax term stays in the gradient
  as_id_zero,      ///< the id is clamped into the vocabulary
  multiplied,      ///< computed with a clamped id, then multiplied by 0
  reaches_weight,  ///< the logits' gradient is 0, and multiplied with what the row of hidden holds
};

/// A plain computation of some operators in FP64, and what can be wrong with it.
struct Model {
  int64_t skip_vocab = 0;         ///< last vocabulary columns, or keys, left out of the sum of exponentials
  int64_t skip_terms = 0;         ///< last terms left out of every contraction
  int64_t label_shift = 0;        ///< added to every id, modulo the vocabulary
  double softmax_scale = 1;       ///< of the softmax in the gradient
  bool bf16_accumulator = false;  ///< every addition is rounded to bf16
  bool ignore_mask = false;       ///< masked tokens count like the others
  LeftOut left_out = LeftOut::select;
  bool add_mask_values = false;       ///< a kept row counts as many as its mask says
  bool keep_ones_alone = false;       ///< a row is kept where its mask is 1
  int64_t place_shift = 0;            ///< added to the place of every packed row
  bool restart_count = false;         ///< every sequence is packed from row 0 on
  bool ignore_causal_offset = false;  ///< query i keeps keys up to i, whatever their number
  int64_t causal_shift = 0;           ///< added to the last key that a query keeps
  bool new_keys_first = false;        ///< the cache goes on where the new keys end
  bool skip_new_keys = false;         ///< only the cache is read
  bool bf16_exp = false;              ///< every exponential is rounded to bf16
  bool tf32_factors = false;          ///< the factors of products are rounded to the 11 bits of TF32
  Fault special = Fault::none;        ///< a misunderstanding that only some operators have

  Values evaluate(const Operator& op, const Pass& pass, const checkop_call& call) const;
};

Values pack_model(const Model& model, const std::vector<Tensor>& inputs, bool forward);
/// By the model of attention, over tensors that are joined here.
Values kv_cache_model(const Model& model, const Pass& pass, const checkop_call& call);
/// The part of evaluate() for rms_norm, silu, swiglu and embedding; nothing for other operators.
std::optional<Values> evaluate_rows(const Model& model, const Operator& op, const std::vector<Tensor>& in,
                                    const checkop_call& call, bool forward);

double round_to_bf16(double x);

}  // namespace checkop::test
