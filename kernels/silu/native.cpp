// SPDX-License-Identifier: Apache-2.0
// silu / native: CPU, element by element in fp32.
//   y = x * s,  s = 1 / (1 + exp(-x))     dx = grad_y * s * (1 + x * (1 - s))
//   x, y, grad_y, dx: [..., hidden] fp32|bf16|fp16, all the same
//   Limits: contiguous.   Expected error: a few roundings of fp32, then one to the stored dtype.
#include "cpu/native.hpp"

namespace {

using native::Extent;

constexpr int64_t kBlock = 1024;  // elements converted at a time: buffers stay in the L1 cache

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// Reads x and, in the backward pass, g by blocks; stores result(x, g).
template <class Result>
void compute(const checkop_call& c, bool backward, const char* name, Result result) {
  native::check_counts(c, backward ? 2 : 1, 1);
  const checkop_tensor &x = c.inputs[0], &out = c.outputs[0];
  Extent rows{"rows"}, hidden{"hidden"};
  native::check_computed_dtype(x.dtype);
  native::check_matrix(x, "x", x.dtype, rows, hidden);
  if (backward) native::check_matrix(c.inputs[1], "grad_y", x.dtype, rows, hidden);
  native::check_matrix(out, name, x.dtype, rows, hidden);
  const int64_t count = rows.value * hidden.value;
  native::parallel_for((count + kBlock - 1) / kBlock, 16 * count, [&](int64_t begin, int64_t end) {
    std::array<float, kBlock> values, grads{};
    for (int64_t first = begin * kBlock; first < std::min(end * kBlock, count); first += kBlock) {
      const int64_t n = std::min(kBlock, count - first);
      native::load(x, first, n, values.data());
      if (backward) native::load(c.inputs[1], first, n, grads.data());
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) values[i] = result(values[i], grads[i]);
      native::store(out, first, n, values.data());
    }
  });
}

checkop_status forward(const checkop_call* call) {
  return native::run(
      call, [](const checkop_call& c) { compute(c, false, "y", [](float x, float) { return x * sigmoid(x); }); });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    compute(c, true, "dx", [](float x, float g) {
      const float s = sigmoid(x);
      return g * (s * (1.0f + x * (1.0f - s)));
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "silu", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "silu", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
