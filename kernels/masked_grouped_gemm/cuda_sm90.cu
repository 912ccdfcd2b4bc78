// SPDX-License-Identifier: Apache-2.0
// masked_grouped_gemm / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, one persistent kernel for all experts;
// fp32 on CUDA cores.
//   c[e, i] = a[e, i] b[e]^T, da[e, i] = grad_c[e, i] b[e] for i < counts[e], zero from there on
//   db[e] = the sum over i < counts[e] of grad_c[e, i]^T a[e, i], zero for an expert without rows
//   a, da: [experts, capacity, k_dim]   c, grad_c: [experts, capacity, n_dim]   b, db: [experts, n_dim, k_dim]
//   f32|f16|bf16, one dtype for all     counts: [experts] i32     all contiguous
//   Limits: sm_90 only; experts * capacity < 2^31. Counts outside [0, capacity] are CHECKOP_FAILED. A call that is
//   recorded into a graph can't refuse them: the replay makes c and da NaN, and db zero. As in the candidate cuda are
//   computed: fp32, empty sums, and what TMA can't read, see grouped_gemm's candidate cuda-sm90. The configuration is
//   chosen as if every expert were full.
//   Workspace: as for the candidate cuda.
//   Expected error: contraction class, as for the candidate cuda, and on Hopper the same bits: a chain of n/16 blocks
//   for n terms, then one rounding. The bits of a row are those of a product of this row alone with its expert's
//   matrix; those of db[e] are those of a product of the expert's rows alone. So they depend neither on the other
//   experts nor on the capacity.
#include "grouped_gemm/hopper_groups.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::masked;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "masked_grouped_gemm", "forward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_forward<grouped_gemm::HopperGroups, kLayout>},
    {sizeof(checkop_kernel), "cuda-sm90", "masked_grouped_gemm", "backward", CHECKOP_CUDA, 90, 90,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_backward<grouped_gemm::HopperGroups, kLayout>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
