// SPDX-License-Identifier: Apache-2.0
// pack / native: CPU; rows are counted one after another, then copied bit by bit.
//   packed[i] = the i-th row of x with mask != 0, then zeros     cu_seqlens[b] = rows kept of the first b sequences
//   dx[r] = the row of grad_packed where row r went, zero where mask is 0
//   x, dx: [batch, seq, hidden]  packed, grad_packed: [batch * seq, hidden] fp32|bf16|fp16, all the same
//   mask: [batch, seq] uint8     cu_seqlens: [batch + 1] int64     Limits: contiguous.   Expected error: none.
#include "cpu/rows.hpp"

namespace {

using native::Extent;
using native::Refusal;

/// Checks `x`, `packed` (or their gradients) and the mask; sets the number of rows and their width.
void check(const checkop_tensor& x, const char* x_name, const checkop_tensor& packed, const char* packed_name,
           const checkop_tensor& mask, Extent& rows, Extent& hidden) {
  if (mask.rank != 2 || x.rank != 3) throw Refusal(CHECKOP_FAILED, "expected rank 2 for mask and rank 3 for x");
  if (x.shape[0] != mask.shape[0]) throw Refusal(CHECKOP_FAILED, "mask and x: the batches differ");
  native::check_computed_dtype(x.dtype);
  native::check_matrix(x, x_name, x.dtype, rows, hidden);
  native::check_matrix(packed, packed_name, x.dtype, rows, hidden);
  native::check_list(mask, "mask", CHECKOP_U8, rows);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 2);
    const checkop_tensor &x = c.inputs[0], &mask = c.inputs[1], &packed = c.outputs[0], &cu_seqlens = c.outputs[1];
    Extent rows{"rows"}, hidden{"hidden"};
    check(x, "x", packed, "packed", mask, rows, hidden);
    Extent bounds{"batch + 1", mask.shape[0] + 1};
    native::check_list(cu_seqlens, "cu_seqlens", CHECKOP_I64, bounds);
    const auto* keep = static_cast<const uint8_t*>(mask.data);
    auto* bound = static_cast<int64_t*>(cu_seqlens.data);
    std::vector<int64_t> from;
    *bound++ = 0;
    for (int64_t b = 0, r = 0; b < mask.shape[0]; ++b) {
      for (int64_t s = 0; s < mask.shape[1]; ++s, ++r)
        if (keep[r] != 0) from.push_back(r);
      *bound++ = static_cast<int64_t>(from.size());
    }
    from.resize(static_cast<size_t>(rows.value), native::kNoRow);
    native::copy_rows(x, from, hidden.value, packed);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &mask = c.inputs[0], &grad = c.inputs[1], &dx = c.outputs[0];
    Extent rows{"rows"}, hidden{"hidden"};
    check(dx, "dx", grad, "grad_packed", mask, rows, hidden);
    const auto* keep = static_cast<const uint8_t*>(mask.data);
    std::vector<int64_t> from(static_cast<size_t>(rows.value), native::kNoRow);
    int64_t kept = 0;
    for (size_t r = 0; r < from.size(); ++r)
      if (keep[r] != 0) from[r] = kept++;
    native::copy_rows(grad, from, hidden.value, dx);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "pack", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "pack", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
