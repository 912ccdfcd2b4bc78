// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp: what a rank can check of a call before it knows of the others.
#pragma once

#include "cpu/linear_logp_carry.hpp"
#include "cpu/ranks.hpp"

namespace tp_linear_logp {

/// Of one rank's part: `vocab` columns of the whole vocabulary.
struct TpLinearLogpShape {
  int64_t rows, hidden, vocab;
};

/// Refuses a call whose own shapes do not fit together; otherwise fills in `own`, except the hash of the ids.
inline TpLinearLogpShape check_own(const checkop_call& c, bool gradient, native::RankInfo& own) {
  native::Extent rows{"rows"}, hidden{"hidden"}, vocab{"the rank's part of vocab", c.shard_end - c.shard_begin};
  namespace linear = native::linear;
  native::check_counts(c, gradient ? linear::kBackwardInputs : linear::kForwardInputs,
                       gradient ? linear::kBackwardOutputs : linear::kForwardOutputs);
  const int32_t dtype = c.inputs[0].dtype;
  native::check_computed_dtype(dtype);
  native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
  native::check_matrix(c.inputs[1], "lm_head_weight", dtype, vocab, hidden);
  native::check_list(c.inputs[2], "target_ids", CHECKOP_I64, rows);
  const bool bias = c.inputs[3].data != nullptr;
  if (bias) native::check_list(c.inputs[3], "bias", dtype, vocab);
  if (gradient) {
    native::check_list(c.inputs[4], "grad_logp", CHECKOP_F32, rows);
    native::check_matrix(c.outputs[0], "dhidden", dtype, rows, hidden);
    linear::check_weight_gradients(c, vocab, hidden);
  } else {
    native::check_list(c.outputs[0], "logp", CHECKOP_F32, rows);
  }
  own.rows = rows.value, own.hidden = hidden.value, own.dtype = dtype, own.bias = bias ? 1 : 0;
  return {rows.value, hidden.value, vocab.value};
}

}  // namespace tp_linear_logp
