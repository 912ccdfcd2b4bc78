// SPDX-License-Identifier: Apache-2.0
// The pass of the candidates native of grouped_fp8_block_gemm and masked_grouped_fp8_block_gemm.
#pragma once

#include "cpu/expert_rows.hpp"
#include "cpu/fp8_product.hpp"

namespace native {

/// Checks `t` as a tensor of rank 3 with `groups` matrices.
inline void check_matrices(const checkop_tensor& t, const char* name, int32_t dtype, int64_t groups, Extent& rows,
                           Extent& columns) {
  if (t.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
  Extent of_all{"rows of all experts", groups * t.shape[1]};
  rows.bind(t.shape[1], name);
  check_matrix(t, name, dtype, of_all, columns);
}

template <RowLayout layout>
checkop_status grouped_fp8_forward(const checkop_call* call) {
  return run(call, [](const checkop_call& c) {
    check_counts(c, 5, 1);
    const checkop_tensor &a = c.inputs[0], &scale_a = c.inputs[1], &b = c.inputs[2], &scale_b = c.inputs[3];
    const checkop_tensor& d = c.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    check_computed_dtype(d.dtype);
    check_matrix(a, "a", CHECKOP_E4M3, rows, k_dim);
    const int64_t experts = b.shape[0];
    check_matrices(b, "b", CHECKOP_E4M3, experts, n_dim, k_dim);
    Extent blocks{"blocks of k_dim", blocks_of(k_dim.value)}, blocks_of_n{"blocks of n_dim", blocks_of(n_dim.value)};
    check_matrix(scale_a, "scale_a", CHECKOP_F32, rows, blocks);
    check_matrices(scale_b, "scale_b", CHECKOP_F32, experts, blocks_of_n, blocks);
    const ExpertRows of_experts(a, c.inputs[4], layout, experts, rows.value);
    check_matrix(d, "d", d.dtype, rows, n_dim);
    check_bound_attributes(c);
    const std::vector<float> of_a = decoded(a, rows.value * k_dim.value),
                             of_b = decoded(b, experts * n_dim.value * k_dim.value);
    const auto* const factors_a = static_cast<const float*>(scale_a.data);
    const auto* const factors_b = static_cast<const float*>(scale_b.data);
    std::vector<int64_t> expert_of(static_cast<size_t>(rows.value), kNoRow);
    for (int64_t e = 0; e < experts; ++e) std::fill_n(expert_of.begin() + of_experts.first(e), of_experts.count(e), e);
    parallel_for(rows.value, rows.value * n_dim.value * k_dim.value, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(n_dim.value));
      for (int64_t r = begin; r < end; ++r) {
        const int64_t e = expert_of[static_cast<size_t>(r)];
        for (int64_t n = 0; n < n_dim.value; ++n)
          row[static_cast<size_t>(n)] =
              e == kNoRow ? 0
                          : scaled_dot(of_a.data() + r * k_dim.value, factors_a + r * blocks.value,
                                       of_b.data() + (e * n_dim.value + n) * k_dim.value,
                                       factors_b + (e * blocks_of_n.value + n / kFp8Block) * blocks.value, k_dim.value);
        store(d, r * n_dim.value, n_dim.value, row.data());
      }
    });
  });
}

}  // namespace native
