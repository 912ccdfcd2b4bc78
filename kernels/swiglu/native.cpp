// SPDX-License-Identifier: Apache-2.0
// swiglu / native: CPU, element by element in fp32.
//   y = g * s * u,  s = 1 / (1 + exp(-g)),  g = gate, u = up     dup = grad_y * g * s
//   dgate = grad_y * u * s * (1 + g * (1 - s))
//   gate, up, y, grad_y, dgate, dup: [..., hidden] fp32|bf16|fp16, all the same
//   Limits: contiguous.   Expected error: a few roundings of fp32, then one to the stored dtype.
#include "cpu/native.hpp"

namespace {

using native::Extent;

constexpr int64_t kBlock = 1024;  // elements converted at a time: buffers stay in the L1 cache

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// Calls body(first, n) over blocks of the elements; returns after all threads.
template <class Body>
void for_blocks(int64_t count, Body body) {
  native::parallel_for((count + kBlock - 1) / kBlock, 16 * count, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * kBlock, std::min(kBlock, count - b * kBlock));
  });
}

using Buffer = std::array<float, kBlock>;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &gate = c.inputs[0], &up = c.inputs[1], &y = c.outputs[0];
    Extent rows{"rows"}, hidden{"hidden"};
    native::check_computed_dtype(gate.dtype);
    native::check_matrix(gate, "gate", gate.dtype, rows, hidden);
    native::check_matrix(up, "up", gate.dtype, rows, hidden);
    native::check_matrix(y, "y", gate.dtype, rows, hidden);
    for_blocks(rows.value * hidden.value, [&](int64_t first, int64_t n) {
      Buffer g, u;
      native::load(gate, first, n, g.data());
      native::load(up, first, n, u.data());
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) u[i] *= g[i] * sigmoid(g[i]);
      native::store(y, first, n, u.data());
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 2);
    const checkop_tensor &gate = c.inputs[0], &up = c.inputs[1], &grad = c.inputs[2];
    Extent rows{"rows"}, hidden{"hidden"};
    native::check_computed_dtype(gate.dtype);
    native::check_matrix(gate, "gate", gate.dtype, rows, hidden);
    native::check_matrix(up, "up", gate.dtype, rows, hidden);
    native::check_matrix(grad, "grad_y", gate.dtype, rows, hidden);
    native::check_matrix(c.outputs[0], "dgate", gate.dtype, rows, hidden);
    native::check_matrix(c.outputs[1], "dup", gate.dtype, rows, hidden);
    for_blocks(rows.value * hidden.value, [&](int64_t first, int64_t n) {
      Buffer g, u, d;
      native::load(gate, first, n, g.data());
      native::load(up, first, n, u.data());
      native::load(grad, first, n, d.data());
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const float s = sigmoid(g[i]);
        u[i] = d[i] * u[i] * (s * (1.0f + g[i] * (1.0f - s)));
        d[i] *= g[i] * s;
      }
      native::store(c.outputs[0], first, n, u.data());
      native::store(c.outputs[1], first, n, d.data());
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "swiglu", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "swiglu", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
