// SPDX-License-Identifier: Apache-2.0
// masked_grouped_gemm / cuda: portable CUDA, one launch for all experts; fp16 and bf16 on tensor cores, fp32 on CUDA
// cores.
//   c[e, i] = a[e, i] b[e]^T, da[e, i] = grad_c[e, i] b[e] for i < counts[e], zero from there on
//   db[e] = the sum over i < counts[e] of grad_c[e, i]^T a[e, i], zero for an expert without rows
//   a, da: [experts, capacity, k_dim]   c, grad_c: [experts, capacity, n_dim]   b, db: [experts, n_dim, k_dim]
//   f32|f16|bf16, one dtype for all     counts: [experts] i32     all contiguous
//   Limits: experts * capacity < 2^31. Counts outside [0, capacity] are CHECKOP_FAILED. A call that is recorded into a
//   graph can't refuse them: the replay makes c and da NaN, and db zero.
//   Workspace: 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are experts * capacity / 64 +
//   experts at most.
//   Expected error: contraction class; fp16 and bf16: a chain of n/16 blocks for n terms, fp32: chains of 512 + n/512,
//   then one rounding. The bits are those of grouped_gemm's candidate cuda, so a row's are those of a product of this
//   row alone with its expert's matrix, and those of db[e] of a product of the expert's rows alone.
#include "grouped_gemm/passes.cuh"

namespace checkop::kernels {
namespace {

constexpr auto kLayout = grouped_gemm::RowLayout::masked;
constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "masked_grouped_gemm", "forward", CHECKOP_CUDA, 80, 0,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_forward<grouped_gemm::PortableGroups, kLayout>},
    {sizeof(checkop_kernel), "cuda", "masked_grouped_gemm", "backward", CHECKOP_CUDA, 80, 0,
     grouped_gemm::workspace_bytes<kLayout>, grouped_gemm::launch_backward<grouped_gemm::PortableGroups, kLayout>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
