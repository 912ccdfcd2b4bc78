// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / cuda: portable CUDA, one launch for all experts; fp16 and bf16 on tensor cores, fp32 on CUDA cores.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   f32|f16|bf16, one dtype for all
//   offsets: [experts + 1] i32     all contiguous
//   Limits: rows < 2^31. Offsets that do not start with 0, decrease or leave the rows are CHECKOP_FAILED. A call that
//   is recorded into a graph can't refuse them: the replay makes c and da NaN, and db zero.
//   Workspace: 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are rows / 64 + experts at most.
//   Expected error: contraction class; fp16 and bf16: a chain of n/16 blocks for n terms, fp32: chains of 512 + n/512,
//   then one rounding. The bits of a row are those of a product of this row alone with its expert's matrix, those of
//   db[e] of a product of the expert's rows alone: see gemm/mma.cuh and gemm/tile.cuh.
#include "grouped_gemm/passes.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::successive;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "grouped_gemm", "forward", CHECKOP_CUDA, 80, 0,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_forward<grouped_gemm::PortableGroups, kLayout>},
    {sizeof(checkop_kernel), "cuda", "grouped_gemm", "backward", CHECKOP_CUDA, 80, 0,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_backward<grouped_gemm::PortableGroups, kLayout>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
