// SPDX-License-Identifier: Apache-2.0
// Checks of a call of matmul or det_gemm: its shape, and what all their CUDA candidates refuse.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

struct MatmulShape {
  int64_t rows = 0, k_dim = 0, n_dim = 0;
};

/// The shape as far as the tensors give it; zeros for tensors that check_matmul() will refuse.
inline MatmulShape matmul_shape(const checkop_call* call) {
  if (call->n_inputs < 2 || call->inputs[0].rank < 1 || call->inputs[1].rank != 2) return {};
  return {leading_count(call->inputs[0]), last_extent(call->inputs[0]), last_extent(call->inputs[1])};
}

/// Checks dtype, shape and strides of a, b and c, or in the backward pass of a, b, grad_c, da and db.
inline checkop_status check_matmul(const checkop_call* call, bool backward, size_t workspace_bytes) {
  CallCheck check(call);
  if (check.counts(backward ? 3 : 2, backward ? 2 : 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1];
  if (check.rank_at_least(a, "a", 1).rank_at_least(b, "b", 2).failed()) return check.status();
  const int64_t k_dim = last_extent(a), n_dim = last_extent(b);
  const int32_t n_leading = a.rank - 1;
  check.float_dtype(a, "a").contiguous(a, "a");
  check.dtype(b, "b", a.dtype).shape(b, "b", a, 0, {k_dim, n_dim}).contiguous(b, "b");
  const auto like_c = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, a.dtype).shape(t, name, a, n_leading, {n_dim}).contiguous(t, name);
  };
  if (backward) {
    const checkop_tensor &da = call->outputs[0], &db = call->outputs[1];
    like_c(call->inputs[2], "grad_c");
    check.dtype(da, "da", a.dtype).shape(da, "da", a, a.rank, {}).contiguous(da, "da");
    check.dtype(db, "db", a.dtype).shape(db, "db", b, 2, {}).contiguous(db, "db");
  } else {
    like_c(call->outputs[0], "c");
  }
  return check.workspace(workspace_bytes).status();
}

}  // namespace checkop::kernels
