// SPDX-License-Identifier: Apache-2.0
// moe_permute / native: CPU; slots are counted and placed one after another, rows copied bit by bit; their gradients
// are added in fp32 in the order of the slots.
//   x_perm[r] = x[src[r] / topk], rows in the order (expert, token, slot); zero where src is -1
//   offsets[e] = where the rows of expert e begin, a multiple of align     positions[src[r]] = r, -1 where ids is -1
//   dx[t] = sum of grad_x_perm[positions[t, slot]] over the slots whose position is not -1
//   x, dx: [..., hidden]  x_perm, grad_x_perm: [rows, hidden] fp32|bf16|fp16, all the same
//   ids, positions: [..., topk] int32  src: [rows] int32  offsets: [experts + 1] int32
//   Limits: contiguous. Ids and positions below -1 or beyond the end are CHECKOP_FAILED, as are too few rows.
//   Expected error: forward none; sums are chains of topk additions, one rounding to the stored dtype.
#include "cpu/native.hpp"
#include "cpu/rows.hpp"

namespace {

using native::Extent;
using native::Refusal;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 4);
    const checkop_tensor &x = c.inputs[0], &ids = c.inputs[1], &x_perm = c.outputs[0];
    Extent tokens{"tokens"}, hidden{"hidden"}, topk{"topk"}, rows{"rows"}, bounds{"experts + 1"};
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, tokens, hidden);
    native::check_matrix(ids, "ids", CHECKOP_I32, tokens, topk);
    native::check_matrix(x_perm, "x_perm", x.dtype, rows, hidden);
    native::check_vector(c.outputs[1], "src", CHECKOP_I32, rows);
    native::check_matrix(c.outputs[2], "positions", CHECKOP_I32, tokens, topk);
    native::check_vector(c.outputs[3], "offsets", CHECKOP_I32, bounds);
    const auto* expert_of = static_cast<const int32_t*>(ids.data);
    auto *src = static_cast<int32_t*>(c.outputs[1].data), *positions = static_cast<int32_t*>(c.outputs[2].data),
         *offsets = static_cast<int32_t*>(c.outputs[3].data);
    const int64_t slots = tokens.value * topk.value, experts = bounds.value - 1;
    const auto align = static_cast<int64_t>(native::attribute(c, "align"));
    if (align < 1) throw Refusal(CHECKOP_FAILED, "align is below 1");
    native::check_slots(ids, "ids", slots, experts);

    std::vector<int64_t> next(static_cast<size_t>(experts) + 1);
    for (int64_t s = 0; s < slots; ++s)
      if (expert_of[s] >= 0) ++next[static_cast<size_t>(expert_of[s]) + 1];
    for (size_t e = 1; e < next.size(); ++e) next[e] = next[e - 1] + (next[e] + align - 1) / align * align;
    if (next.back() > rows.value)
      throw Refusal(CHECKOP_FAILED, "x_perm: " + std::to_string(next.back()) + " rows are needed");
    for (size_t e = 0; e < next.size(); ++e) offsets[e] = static_cast<int32_t>(next[e]);
    std::fill_n(src, rows.value, -1);
    std::fill_n(positions, slots, -1);
    std::vector<int64_t> from(static_cast<size_t>(rows.value), native::kNoRow);
    for (int64_t s = 0; s < slots; ++s) {
      if (expert_of[s] < 0) continue;
      const int64_t row = next[static_cast<size_t>(expert_of[s])]++;
      src[row] = static_cast<int32_t>(s);
      positions[s] = static_cast<int32_t>(row);
      from[static_cast<size_t>(row)] = s / topk.value;
    }
    native::copy_rows(x, from, hidden.value, x_perm);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &positions = c.inputs[0], &grad = c.inputs[1], &dx = c.outputs[0];
    Extent tokens{"tokens"}, hidden{"hidden"}, topk{"topk"}, rows{"rows"};
    native::check_computed_dtype(grad.dtype);
    native::check_matrix(positions, "positions", CHECKOP_I32, tokens, topk);
    native::check_matrix(grad, "grad_x_perm", grad.dtype, rows, hidden);
    native::check_matrix(dx, "dx", grad.dtype, tokens, hidden);
    native::attribute(c, "align");  // which positions follow
    native::check_slots(positions, "positions", tokens.value * topk.value, rows.value);
    const auto* row_of = static_cast<const int32_t*>(positions.data);
    native::parallel_for(tokens.value, tokens.value * topk.value * hidden.value, [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(hidden.value)), row(sum.size());
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t s = t * topk.value; s < (t + 1) * topk.value; ++s) {
          if (row_of[s] < 0) continue;
          native::load(grad, row_of[s] * hidden.value, hidden.value, row.data());
          for (size_t h = 0; h < sum.size(); ++h) sum[h] += row[h];
        }
        native::store(dx, t * hidden.value, hidden.value, sum.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "moe_permute", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "moe_permute", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
