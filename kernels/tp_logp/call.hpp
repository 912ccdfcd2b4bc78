// SPDX-License-Identifier: Apache-2.0
// tp_logp: what a rank can check of a call before it knows of the others.
#pragma once

#include "cpu/ranks.hpp"

namespace tp_logp {

/// Of one rank's part: `columns` of the whole vocabulary.
struct TpLogpShape {
  int64_t rows, columns;
};

/// Refuses a call whose own shapes do not fit together; otherwise fills in `own`, except the hash of the ids.
inline TpLogpShape check_own(const checkop_call& c, bool gradient, native::RankInfo& own) {
  native::check_counts(c, gradient ? 3 : 2, 1);
  const checkop_tensor& logits = c.inputs[0];
  native::Extent rows{"rows"}, columns{"the rank's part of vocab", c.shard_end - c.shard_begin};
  native::check_computed_dtype(logits.dtype);
  native::check_matrix(logits, "logits", logits.dtype, rows, columns);
  native::check_list(c.inputs[1], "token_ids", CHECKOP_I64, rows);
  if (gradient) {
    native::check_list(c.inputs[2], "grad_logp", CHECKOP_F32, rows);
    native::check_matrix(c.outputs[0], "dlogits", logits.dtype, rows, columns);
  } else {
    native::check_list(c.outputs[0], "logp", CHECKOP_F32, rows);
  }
  own.rows = rows.value, own.dtype = logits.dtype;
  return {rows.value, columns.value};
}

}  // namespace tp_logp
