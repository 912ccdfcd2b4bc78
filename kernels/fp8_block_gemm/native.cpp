// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm / native: CPU, fp32 products and sums of decoded codes; each block of 128 columns, then over blocks.
//   d = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
//   a: [..., k_dim] e4m3   scale_a: [..., k_dim/128 rounded up] fp32   b: [n_dim, k_dim] e4m3
//   scale_b: [n_dim/128, k_dim/128, both rounded up] fp32   d: [..., n_dim] fp32|bf16|fp16
//   Limits: contiguous.   Expected error: chains of 12 additions within a block, then a tree over blocks.
#include "cpu/fp8_product.hpp"

namespace {

using native::blocks_of;
using native::decoded;
using native::Extent;
using native::kFp8Block;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    const checkop_tensor &a = c.inputs[0], &scale_a = c.inputs[1], &b = c.inputs[2], &scale_b = c.inputs[3];
    const checkop_tensor& d = c.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(d.dtype);
    native::check_matrix(a, "a", CHECKOP_E4M3, rows, k_dim);
    native::check_matrix(b, "b", CHECKOP_E4M3, n_dim, k_dim);
    Extent blocks{"blocks of k_dim", blocks_of(k_dim.value)}, blocks_of_n{"blocks of n_dim", blocks_of(n_dim.value)};
    native::check_matrix(scale_a, "scale_a", CHECKOP_F32, rows, blocks);
    native::check_matrix(scale_b, "scale_b", CHECKOP_F32, blocks_of_n, blocks);
    native::check_matrix(d, "d", d.dtype, rows, n_dim);
    native::check_bound_attributes(c);
    const std::vector<float> of_a = decoded(a, rows.value * k_dim.value), of_b = decoded(b, n_dim.value * k_dim.value);
    const auto* const factors_a = static_cast<const float*>(scale_a.data);
    const auto* const factors_b = static_cast<const float*>(scale_b.data);
    native::parallel_for(rows.value, rows.value * n_dim.value * k_dim.value, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(n_dim.value));
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t n = 0; n < n_dim.value; ++n)
          row[static_cast<size_t>(n)] =
              native::scaled_dot(of_a.data() + r * k_dim.value, factors_a + r * blocks.value,
                                 of_b.data() + n * k_dim.value, factors_b + n / kFp8Block * blocks.value, k_dim.value);
        native::store(d, r * n_dim.value, n_dim.value, row.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "fp8_block_gemm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
