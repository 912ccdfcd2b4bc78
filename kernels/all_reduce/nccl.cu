// SPDX-License-Identifier: Apache-2.0
// all_reduce / nccl: ncclAllReduce, as it is, with a GPU for each rank.
//   forward   y[i] = sum over the ranks r of x[r,i], on every rank     backward  dx[i] = sum over r of grad_y[r,i]
//   x, grad_y: [1, numel] f32|f16|bf16, contiguous    y, dx: [numel], of the same dtype
//   NCCL chooses algorithm, protocol and channels by the length of the message and the number of ranks, and with them
//   the order of addition; in 16 bits it rounds after every addition (recipe sums_by_rank_in_16_bit).
//   Limits: one leaf a rank, order -1.
//   Expected error: a sum of as many terms as ranks; in 16 bits ranks - 2 further roundings of partial sums.
#include "cuda/collective.cuh"

namespace checkop::kernels {
namespace {

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return collective::run(
      call, backward ? "grad_y" : "x", native::Holds::leaves, backward ? "dx" : "y", native::Holds::all, 0,
      [](const checkop_call& c, const native::Ranks& ranks, const native::Message& message, auto tag) {
        using T = typename decltype(tag)::type;
        collective::check_nccl_sum(c);
        const void* from = c.inputs[0].data;
        void* to = c.outputs[0].data;
        const auto numel = static_cast<size_t>(message.numel);
        if (ranks.size() == 1) return collective::copy(c, to, from, numel * sizeof(T));
        ranks::exchange(c, "all-reduce", [&](ncclComm_t comm) {
          return ncclAllReduce(from, to, numel, collective::nccl_type<T>(), ncclSum, comm,
                               static_cast<cudaStream_t>(c.stream));
        });
      });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl", "all_reduce", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch<false>},
    {sizeof(checkop_kernel), "nccl", "all_reduce", "backward", CHECKOP_CUDA, 80, 0, nullptr, launch<true>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
