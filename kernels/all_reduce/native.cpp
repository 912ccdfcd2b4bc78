// SPDX-License-Identifier: Apache-2.0
// all_reduce / native: CPU, ranks that are threads or processes; fp32, one leaf at a time.
//   forward   y[i] = sum over the leaves l of all ranks of x[l,i], on every rank
//   backward  dx[i] = sum over l of grad_y[l,i], the same for every leaf
//   x, grad_y: [leaves of the rank, numel] fp32|bf16|fp16    y, dx: [numel], of the same dtype
//   One exchange: the leaves of every rank, all-gathered. They are added in the order that is asked for, 0 if any will
//   do, and rounded once; so bits do not depend on the number of ranks.
//   Limits: contiguous.   Expected error: none for orders 0 and 1, which give every bit.
#include "cpu/collective.hpp"

namespace {

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::Ranks ranks(c, native::kLeafWords);
    native::Message message;
    ranks.agree([&](native::RankInfo& own) {
      message = native::check_message(c, backward ? "grad_y" : "x", native::Holds::leaves, backward ? "dx" : "y",
                                      native::Holds::all, own);
      native::check_computed_dtype(c.inputs[0].dtype);
    });
    native::add_leaves(c, ranks, message.numel, 0, message.numel);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "all_reduce", "forward", CHECKOP_CPU, 0, 0, nullptr, launch<false>},
    {sizeof(checkop_kernel), "native", "all_reduce", "backward", CHECKOP_CPU, 0, 0, nullptr, launch<true>},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
