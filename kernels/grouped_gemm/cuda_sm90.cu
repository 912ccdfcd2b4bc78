// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, one persistent kernel for all experts; fp32 on
// CUDA cores.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   f32|f16|bf16, one dtype for all
//   offsets: [experts + 1] i32     all contiguous
//   Limits: sm_90 only; rows < 2^31. Offsets that do not start with 0, decrease or leave the rows are CHECKOP_FAILED. A
//   call that is recorded into a graph can't refuse them: the replay makes c and da NaN, and db zero. As in the
//   candidate cuda are computed: fp32, empty sums, and what TMA can't read, which is a matrix whose rows are not a
//   multiple of 8 elements long, a tensor that does not begin at a 16-byte boundary, and more than 2^30 rows or columns
//   (of b: the rows of all experts).
//   Workspace: as for the candidate cuda, 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are
//   rows / 64 + experts at most.
//   Expected error: contraction class, as for the candidate cuda, and on Hopper the same bits: a chain of n/16 blocks
//   for n terms, then one rounding. The bits of a row are those of a product of this row alone with its expert's
//   matrix; those of db[e] are those of a product of the expert's rows alone, whose blocks of 16 begin with the first
//   of these rows. So they depend neither on the other experts nor on where the rows lie, nor on the configuration that
//   is chosen for the sizes: see sm90/config.cuh and sm90/grouped.cuh.
#include "grouped_gemm/hopper_groups.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::successive;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "grouped_gemm", "forward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_forward<grouped_gemm::HopperGroups, kLayout>},
    {sizeof(checkop_kernel), "cuda-sm90", "grouped_gemm", "backward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_backward<grouped_gemm::HopperGroups, kLayout>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
