// SPDX-License-Identifier: Apache-2.0
// The checks of a call that the candidates cuda and cuda-sm90 of fp8_block_gemm share.
#pragma once

#include "cuda/fp8_product.cuh"

namespace checkop::kernels::fp8_block_gemm {

struct Shape {
  int64_t rows, k_dim, n_dim;
};

inline checkop_status check_call(const checkop_call* call, Shape& shape) {
  using fp8::kBlock;
  CallCheck check(call);
  if (check.counts(4, 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &scale_a = call->inputs[1], &b = call->inputs[2],
                       &scale_b = call->inputs[3], &d = call->outputs[0];
  check.dtype(a, "a", CHECKOP_E4M3).rank_at_least(a, "a", 1).contiguous(a, "a");
  check.dtype(b, "b", CHECKOP_E4M3).rank_at_least(b, "b", 2).contiguous(b, "b").float_dtype(d, "d");
  if (check.failed()) return check.status();
  shape = {leading_count(a), last_extent(a), b.shape[0]};
  const int64_t blocks = ceil_div(shape.k_dim, kBlock);
  const int32_t leading = a.rank - 1;
  check.shape(b, "b", b, 1, {shape.k_dim});
  check.dtype(scale_a, "scale_a", CHECKOP_F32).shape(scale_a, "scale_a", a, leading, {blocks});
  check.contiguous(scale_a, "scale_a").dtype(scale_b, "scale_b", CHECKOP_F32);
  check.shape(scale_b, "scale_b", scale_b, 0, {ceil_div(shape.n_dim, kBlock), blocks}).contiguous(scale_b, "scale_b");
  check.shape(d, "d", a, leading, {shape.n_dim}).contiguous(d, "d");
  return check.status();
}

}  // namespace checkop::kernels::fp8_block_gemm
