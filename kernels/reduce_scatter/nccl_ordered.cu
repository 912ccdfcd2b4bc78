// SPDX-License-Identifier: Apache-2.0
// reduce_scatter / nccl-ordered: sums in the order that is asked for, whatever the message and the number of ranks; a
// GPU for each rank.
//   forward   y[i] = sum over the leaves l of all ranks of x[l,i], for the elements i of the rank's part
//   backward  dx = the parts of grad_y of all ranks, one behind the other: the same for every leaf
//   x: [leaves of the rank, numel] f32|f16|bf16, contiguous    y, grad_y: [the rank's part of numel]    dx: [numel], of
//   the same dtype. Parts are nearly even, longer ones first, and may be empty.
//   One exchange of NCCL's sends: every rank gets its part of all leaves, adds it up in fp32 and rounds once; or all
//   parts are gathered. What is sent are copies, so NCCL's choices change no bit.
//   Limits: 64 leaves.   Workspace: forward the other ranks' leaves of the rank's part.
//   Expected error: none for orders 0 and 1, which give every bit; any order is order 0.
#include "cuda/collective.cuh"

namespace checkop::kernels {
namespace {

size_t workspace_bytes(const checkop_call* call) { return collective::received_bytes(*call); }

checkop_status forward(const checkop_call* call) {
  return collective::run(
      call, "x", native::Holds::leaves, "y", native::Holds::part, workspace_bytes(call),
      [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
        using T = typename decltype(tag)::type;
        collective::reduce_parts<T>(c, ranks, message, static_cast<T*>(c.outputs[0].data));
      });
}

checkop_status backward(const checkop_call* call) {
  return collective::run(
      call, "grad_y", native::Holds::part, "dx", native::Holds::all, 0,
      [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
        using T = typename decltype(tag)::type;
        auto* to = static_cast<T*>(c.outputs[0].data);
        const auto bytes = static_cast<size_t>(message.end - message.begin) * sizeof(T);
        if (bytes > 0) collective::copy(c, to + message.begin, c.inputs[0].data, bytes);
        collective::gather_parts<T>(c, ranks, message, to);
      });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl-ordered", "reduce_scatter", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes,
     forward},
    {sizeof(checkop_kernel), "nccl-ordered", "reduce_scatter", "backward", CHECKOP_CUDA, 80, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
