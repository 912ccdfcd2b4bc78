// SPDX-License-Identifier: Apache-2.0
// moe_combine / native: CPU; the weighted rows of a token are added in fp32 in the order of its slots.
//   y[t] = sum of weights[t, slot] * x_perm[positions[t, slot]] over the slots whose position is not -1
//   dx_perm[positions[t, slot]] = weights[t, slot] * grad_y[t], zero in rows that are no slot's position
//   dweights[t, slot] = sum over hidden of grad_y[t] * x_perm[positions[t, slot]], zero where the position is -1
//   x_perm, dx_perm: [rows, hidden]  y, grad_y: [..., hidden] fp32|bf16|fp16, all the same
//   positions: [..., topk] int32  weights, dweights: [..., topk] fp32
//   Limits: contiguous. Positions below -1 or beyond the rows are CHECKOP_FAILED.
//   Expected error: y a chain of topk additions, dweights chains of 68 and a tree over blocks of 1024; one rounding.
#include "cpu/native.hpp"
#include "cpu/rows.hpp"

namespace {

using native::Extent;

/// The tensors that both passes have, and their extents.
struct Call {
  explicit Call(const checkop_call& c)
      : x(c.inputs[0]),
        positions(static_cast<const int32_t*>(c.inputs[1].data)),
        weights(static_cast<const float*>(c.inputs[2].data)) {
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x_perm", x.dtype, rows, hidden);
    native::check_matrix(c.inputs[1], "positions", CHECKOP_I32, tokens, topk);
    native::check_matrix(c.inputs[2], "weights", CHECKOP_F32, tokens, topk);
    native::check_slots(c.inputs[1], "positions", tokens.value * topk.value, rows.value);
  }

  int64_t work() const { return tokens.value * topk.value * hidden.value; }

  const checkop_tensor& x;
  Extent rows{"rows"}, hidden{"hidden"}, tokens{"tokens"}, topk{"topk"};
  const int32_t* positions;
  const float* weights;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    Call in(c);
    const checkop_tensor& y = c.outputs[0];
    native::check_matrix(y, "y", in.x.dtype, in.tokens, in.hidden);
    const int64_t hidden = in.hidden.value, topk = in.topk.value;
    native::parallel_for(in.tokens.value, in.work(), [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(hidden)), row(sum.size());
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t s = t * topk; s < (t + 1) * topk; ++s) {
          if (in.positions[s] < 0) continue;
          native::load(in.x, in.positions[s] * hidden, hidden, row.data());
          for (size_t h = 0; h < sum.size(); ++h) sum[h] += in.weights[s] * row[h];
        }
        native::store(y, t * hidden, hidden, sum.data());
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 2);
    Call in(c);
    const checkop_tensor &grad = c.inputs[3], &dx = c.outputs[0], &dweights = c.outputs[1];
    native::check_matrix(grad, "grad_y", in.x.dtype, in.tokens, in.hidden);
    native::check_matrix(dx, "dx_perm", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(dweights, "dweights", CHECKOP_F32, in.tokens, in.topk);
    const int64_t hidden = in.hidden.value, topk = in.topk.value;
    native::copy_rows(dx, std::vector<int64_t>(static_cast<size_t>(in.rows.value), native::kNoRow), hidden, dx);
    native::parallel_for(in.tokens.value, in.work(), [&](int64_t begin, int64_t end) {
      std::vector<float> g(static_cast<size_t>(hidden)), row(g.size());
      for (int64_t t = begin; t < end; ++t) {
        native::load(grad, t * hidden, hidden, g.data());
        for (int64_t s = t * topk; s < (t + 1) * topk; ++s) {
          float& dweight = static_cast<float*>(dweights.data)[s] = 0;
          if (in.positions[s] < 0) continue;
          native::load(in.x, in.positions[s] * hidden, hidden, row.data());
          dweight = native::dot(g.data(), row.data(), hidden);
          for (size_t h = 0; h < g.size(); ++h) row[h] = in.weights[s] * g[h];
          native::store(dx, in.positions[s] * hidden, hidden, row.data());
        }
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "moe_combine", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "moe_combine", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
