// SPDX-License-Identifier: Apache-2.0
// all_gather / native: CPU, ranks that are threads or processes.
//   forward   y = the parts of x of all ranks, one behind the other, on every rank
//   backward  dx[i] = sum over the leaves l of all ranks of grad_y[l,i], for the elements i of the rank's part
//   x, dx: [the rank's part of numel] fp32|bf16|fp16    y: [numel]    grad_y: [leaves of the rank, numel], of the same
//   dtype. Parts are nearly even, longer ones first, and may be empty.
//   One exchange, all-gathered: the parts of every rank, or their leaves. Leaves are added in the order that is asked
//   for, 0 if any will do, and rounded once; so bits do not depend on the number of ranks.
//   Limits: contiguous.   Expected error: none for orders 0 and 1, which give every bit.
#include "cpu/collective.hpp"

namespace {

checkop_status forward(const checkop_call* call) { return native::all_gather(call, "x", "y"); }
checkop_status backward(const checkop_call* call) { return native::reduce_scatter(call, "grad_y", "dx"); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "all_gather", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "all_gather", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
