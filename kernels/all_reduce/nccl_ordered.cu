// SPDX-License-Identifier: Apache-2.0
// all_reduce / nccl-ordered: sums in the order that is asked for, whatever the message and the number of ranks; a GPU
// for each rank.
//   forward   y[i] = sum over the leaves l of all ranks of x[l,i], on every rank
//   backward  dx[i] = sum over l of grad_y[l,i], the same for every leaf
//   x, grad_y: [leaves of the rank, numel] f32|f16|bf16, contiguous    y, dx: [numel], of the same dtype
//   Two exchanges of NCCL's sends: every rank gets its part of all leaves, adds it up in fp32 and rounds once; then all
//   parts are gathered. What is sent are copies, so NCCL's choices change no bit.
//   Limits: 64 leaves.   Workspace: the other ranks' leaves of the rank's part.
//   Expected error: none for orders 0 and 1, which give every bit; any order is order 0.
#include "cuda/collective.cuh"

namespace checkop::kernels {
namespace {

size_t workspace_bytes(const checkop_call* call) { return collective::received_bytes(*call); }

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return collective::run(
      call, backward ? "grad_y" : "x", native::Holds::leaves, backward ? "dx" : "y", native::Holds::all,
      workspace_bytes(call),
      [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
        using T = typename decltype(tag)::type;
        auto* to = static_cast<T*>(c.outputs[0].data);
        collective::reduce_parts<T>(c, ranks, message, to + message.begin);
        collective::gather_parts<T>(c, ranks, message, to);
      });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl-ordered", "all_reduce", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes,
     launch<false>},
    {sizeof(checkop_kernel), "nccl-ordered", "all_reduce", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes,
     launch<true>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
