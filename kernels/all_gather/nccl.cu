// SPDX-License-Identifier: Apache-2.0
// all_gather / nccl: ncclAllGather and ncclReduceScatter, as they are, with a GPU for each rank.
//   forward   y = the parts of x of all ranks, one behind the other, on every rank
//   backward  dx[i] = sum over the ranks r of grad_y[r,i], for the elements i of the rank's part
//   x, dx: [numel / ranks] f32|f16|bf16, contiguous    y: [numel]    grad_y: [1, numel], of the same dtype
//   NCCL chooses algorithm, protocol and channels by the length of the message and the number of ranks, and with them
//   the order of addition; in 16 bits it rounds after every addition (recipe sums_by_rank_in_16_bit).
//   Limits: parts of equal length; backward one leaf a rank and order -1.
//   Expected error: a sum of as many terms as ranks; in 16 bits ranks - 2 further roundings of partial sums.
#include "cuda/collective.cuh"

namespace checkop::kernels {
namespace {

checkop_status forward(const checkop_call* call) { return collective::nccl_all_gather(call, "x", "y"); }
checkop_status backward(const checkop_call* call) { return collective::nccl_reduce_scatter(call, "grad_y", "dx"); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl", "all_gather", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
    {sizeof(checkop_kernel), "nccl", "all_gather", "backward", CHECKOP_CUDA, 80, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
