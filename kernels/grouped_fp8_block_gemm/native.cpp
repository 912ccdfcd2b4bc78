// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm / native: CPU, fp32 products and sums of decoded codes; each block of 128 columns, then over
// blocks.
//   d[r] = sum_k (a[r] scale_a[r, k/128]) (b[e] scale_b[e, n/128, k/128]) for offsets[e] <= r < offsets[e + 1]
//   d[r] = 0 from row offsets[experts] on
//   a: [rows, k_dim] e4m3              scale_a: [rows, k_dim/128 rounded up] fp32
//   b: [experts, n_dim, k_dim] e4m3    scale_b: [experts, n_dim/128, k_dim/128, both rounded up] fp32
//   offsets: [experts + 1] int32       d: [rows, n_dim] fp32|bf16|fp16
//   Limits: contiguous. Offsets that decrease or leave the rows are CHECKOP_FAILED.
//   Expected error: chains of 12 additions within a block, then a tree over blocks.
#include "cpu/fp8_product.hpp"
#include "cpu/rows.hpp"

namespace {

using native::blocks_of;
using native::decoded;
using native::Extent;
using native::kFp8Block;
using native::Refusal;

/// Checks `t` as a tensor of rank 3 with `groups` matrices.
void check_matrices(const checkop_tensor& t, const char* name, int32_t dtype, int64_t groups, Extent& rows,
                    Extent& columns) {
  if (t.rank != 3) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 3");
  Extent of_all{"rows of all experts", groups * t.shape[1]};
  rows.bind(t.shape[1], name);
  native::check_matrix(t, name, dtype, of_all, columns);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 1);
    const checkop_tensor &a = c.inputs[0], &scale_a = c.inputs[1], &b = c.inputs[2], &scale_b = c.inputs[3];
    const checkop_tensor& d = c.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(d.dtype);
    native::check_matrix(a, "a", CHECKOP_E4M3, rows, k_dim);
    const int64_t experts = b.shape[0];
    check_matrices(b, "b", CHECKOP_E4M3, experts, n_dim, k_dim);
    Extent blocks{"blocks of k_dim", blocks_of(k_dim.value)}, blocks_of_n{"blocks of n_dim", blocks_of(n_dim.value)};
    native::check_matrix(scale_a, "scale_a", CHECKOP_F32, rows, blocks);
    check_matrices(scale_b, "scale_b", CHECKOP_F32, experts, blocks_of_n, blocks);
    Extent bounds{"experts + 1", experts + 1};
    native::check_vector(c.inputs[4], "offsets", CHECKOP_I32, bounds);
    native::check_matrix(d, "d", d.dtype, rows, n_dim);
    native::check_bound_attributes(c);
    const auto* const offsets = static_cast<const int32_t*>(c.inputs[4].data);
    native::check_offsets(offsets, experts, rows.value, 1);
    const std::vector<float> of_a = decoded(a, offsets[experts] * k_dim.value),
                             of_b = decoded(b, experts * n_dim.value * k_dim.value);
    const auto* const factors_a = static_cast<const float*>(scale_a.data);
    const auto* const factors_b = static_cast<const float*>(scale_b.data);
    std::vector<int64_t> expert_of(static_cast<size_t>(rows.value), native::kNoRow);
    for (int64_t e = 0; e < experts; ++e) std::fill(&expert_of[0] + offsets[e], &expert_of[0] + offsets[e + 1], e);
    native::parallel_for(rows.value, rows.value * n_dim.value * k_dim.value, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(n_dim.value));
      for (int64_t r = begin; r < end; ++r) {
        const int64_t e = expert_of[static_cast<size_t>(r)];
        for (int64_t n = 0; n < n_dim.value; ++n)
          row[static_cast<size_t>(n)] =
              e == native::kNoRow
                  ? 0
                  : native::scaled_dot(of_a.data() + r * k_dim.value, factors_a + r * blocks.value,
                                       of_b.data() + (e * n_dim.value + n) * k_dim.value,
                                       factors_b + (e * blocks_of_n.value + n / kFp8Block) * blocks.value, k_dim.value);
        native::store(d, r * n_dim.value, n_dim.value, row.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "grouped_fp8_block_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
