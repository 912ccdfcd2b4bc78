// SPDX-License-Identifier: Apache-2.0
// masked_grouped_fp8_block_gemm / cuda: tiles of 64 x 64 in fp32 units, one launch for all experts; portable CUDA.
//   d[e, i] = sum_k (a[e, i] scale_a[e, i, k/128]) (b[e] scale_b[e, n/128, k/128]) for i < counts[e], then zeros
//   a: [experts, capacity, k_dim] e4m3
//   scale_a: [experts, capacity, k_dim/128 rounded up] f32
//   b: [experts, n_dim, k_dim] e4m3
//   scale_b: [experts, n_dim/128, k_dim/128, both rounded up] f32
//   counts: [experts] i32
//   d: [experts, capacity, n_dim] f32|bf16|f16
//   Limits: all contiguous; experts * capacity < 2^31, fewer than 2^22 columns of d. Counts outside [0, capacity] are
//   CHECKOP_FAILED. A call that is recorded into a graph can't refuse them: the replay makes d NaN.
//   Workspace: 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are experts * capacity / 64 +
//   experts at most.
//   Expected error: a chain of 128 additions for each block of columns of a, and of one addition for each block. The
//   bits of a row are those of fp8_block_gemm of this row alone with its expert's codes.
#include "grouped_fp8_block_gemm/pass.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::masked;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "masked_grouped_fp8_block_gemm", "forward", CHECKOP_CUDA, 80, 0,
     grouped_fp8::workspace_bytes<kLayout>, grouped_fp8::forward<kLayout>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
