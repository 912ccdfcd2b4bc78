// SPDX-License-Identifier: Apache-2.0
// fp8_block_wgrad / native: CPU, fp32 products and sums of decoded codes; each block of 128 columns, then over blocks.
//   dw[e] = sum over offsets[e] <= r < offsets[e + 1] of (grad_t scale_grad_t[r/128]) (x_t scale_x_t[r/128])^T
//   grad_t: [n_dim, rows] e4m3   scale_grad_t: [n_dim, rows/128 rounded up] fp32   x_t: [k_dim, rows] e4m3
//   scale_x_t: [k_dim, rows/128 rounded up] fp32   offsets: [experts + 1] int32, multiples of 128
//   dw: [experts, n_dim, k_dim] fp32|bf16|fp16, zero for an expert without rows
//   Limits: contiguous. Offsets that decrease, leave the rows or are no multiples of 128 are CHECKOP_FAILED.
//   Expected error: chains of 12 additions within a block, then a tree over blocks.
#include "cpu/fp8_product.hpp"
#include "cpu/rows.hpp"

namespace {

using native::blocks_of;
using native::decoded;
using native::Extent;
using native::kFp8Block;
using native::Refusal;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 1);
    const checkop_tensor &g = c.inputs[0], &scale_g = c.inputs[1], &x = c.inputs[2], &scale_x = c.inputs[3];
    const checkop_tensor& dw = c.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(dw.dtype);
    native::check_matrix(g, "grad_t", CHECKOP_E4M3, n_dim, rows);
    native::check_matrix(x, "x_t", CHECKOP_E4M3, k_dim, rows);
    Extent blocks{"blocks of rows", blocks_of(rows.value)};
    native::check_matrix(scale_g, "scale_grad_t", CHECKOP_F32, n_dim, blocks);
    native::check_matrix(scale_x, "scale_x_t", CHECKOP_F32, k_dim, blocks);
    if (dw.rank != 3) throw Refusal(CHECKOP_FAILED, "dw: expected rank 3");
    const int64_t experts = dw.shape[0];
    Extent bounds{"experts + 1", experts + 1}, of_all{"experts * n_dim", experts * n_dim.value};
    native::check_vector(c.inputs[4], "offsets", CHECKOP_I32, bounds);
    native::check_matrix(dw, "dw", dw.dtype, of_all, k_dim);
    native::check_bound_attributes(c);
    const auto* const offsets = static_cast<const int32_t*>(c.inputs[4].data);
    native::check_offsets(offsets, experts, rows.value, kFp8Block);
    const std::vector<float> of_g = decoded(g, n_dim.value * rows.value), of_x = decoded(x, k_dim.value * rows.value);
    const auto* const factors_g = static_cast<const float*>(scale_g.data);
    const auto* const factors_x = static_cast<const float*>(scale_x.data);
    native::parallel_for(of_all.value, n_dim.value * k_dim.value * rows.value, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(k_dim.value));
      for (int64_t at = begin; at < end; ++at) {
        const int64_t e = at / n_dim.value, n = at % n_dim.value, first = offsets[e], count = offsets[e + 1] - first;
        const int64_t block = first / kFp8Block;
        for (int64_t k = 0; k < k_dim.value; ++k)
          row[static_cast<size_t>(k)] =
              native::scaled_dot(of_g.data() + n * rows.value + first, factors_g + n * blocks.value + block,
                                 of_x.data() + k * rows.value + first, factors_x + k * blocks.value + block, count);
        native::store(dw, at * k_dim.value, k_dim.value, row.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "fp8_block_wgrad", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
