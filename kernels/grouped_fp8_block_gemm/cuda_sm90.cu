// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm / cuda-sm90: Hopper's FP8 tensor cores and TMA, one persistent kernel for all experts; sums
// of 128 products are added up in fp32.
//   d[r] = sum_k (a[r] scale_a[r, k/128]) (b[e] scale_b[e, n/128, k/128]) for offsets[e] <= r < offsets[e + 1]
//   d[r] = 0 from row offsets[experts] on
//   a: [rows, k_dim] e4m3              scale_a: [rows, k_dim/128 rounded up] f32
//   b: [experts, n_dim, k_dim] e4m3    scale_b: [experts, n_dim/128, k_dim/128, both rounded up] f32
//   offsets: [experts + 1] i32         d: [rows, n_dim] f32|bf16|f16         all contiguous
//   Limits: sm_90 only; k_dim is a multiple of 16, a and b begin at 16-byte boundaries, and neither has more than 2^30
//   rows of codes; fewer than 2^22 columns of d; acc_bits at most 14 and acc_terms at least 32. Offsets that do not
//   start with 0, decrease or leave the rows are CHECKOP_FAILED. A call that is recorded into a graph can't refuse
//   them: the replay makes d NaN. Workspace: as for the candidate cuda. Expected error: that of fp8_block_gemm's
//   candidate cuda-sm90. The bits of a row are those of fp8_block_gemm of this row alone with its expert's codes.
#include "grouped_fp8_block_gemm/hopper_products.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::successive;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "grouped_fp8_block_gemm", "forward", CHECKOP_CUDA, 90, 90,
     grouped_fp8::workspace_bytes<kLayout>, grouped_fp8::forward<kLayout, grouped_fp8::HopperProducts>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
