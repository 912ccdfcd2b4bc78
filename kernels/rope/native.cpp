// SPDX-License-Identifier: Apache-2.0
// rope / native: CPU, fp32, from a table of sines and cosines.
//   y[i] = x[i] cos(a) - x[i+D/2] sin(a),  y[i+D/2] = x[i+D/2] cos(a) + x[i] sin(a),  a = positions[s] / theta^(2i/D)
//   backward: the same with -a
//   x, y, grad_y, dx: [batch, heads, seq, D] fp32|bf16|fp16    positions: [seq] int64
//   Limits: contiguous, D even, positions >= 0.   Expected error: that of an fp32 angle, then two products and a sum.
#include "cpu/native.hpp"

namespace {

using native::Extent;
using native::Refusal;

struct Table {
  std::vector<float> cosine, sine;  // [seq, D/2]
};

Table make_table(const int64_t* positions, int64_t seq, int64_t half, float theta, float direction) {
  Table table;
  for (int64_t s = 0; s < seq; ++s) {
    if (positions[s] < 0)
      throw Refusal(CHECKOP_FAILED,
                    "positions[" + std::to_string(s) + "] = " + std::to_string(positions[s]) + " is below 0");
    for (int64_t i = 0; i < half; ++i) {
      const float frequency = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(2 * half));
      const float angle = static_cast<float>(positions[s]) * frequency;
      table.cosine.push_back(std::cos(angle));
      table.sine.push_back(direction * std::sin(angle));
    }
  }
  return table;
}

void rotate(const checkop_call& call, const checkop_tensor& x, const char* x_name, const checkop_tensor& positions,
            const checkop_tensor& y, const char* y_name, float direction) {
  if (call.n_attrs != 1) throw Refusal(CHECKOP_FAILED, "expected 1 attribute: theta");
  if (x.rank != 4) throw Refusal(CHECKOP_FAILED, std::string(x_name) + ": expected rank 4");
  native::check_computed_dtype(x.dtype);
  Extent rows{"rows"}, width{"head_dim"}, seq{"seq", x.shape[2]};
  native::check_matrix(x, x_name, x.dtype, rows, width);
  native::check_list(positions, "positions", CHECKOP_I64, seq);
  native::check_matrix(y, y_name, x.dtype, rows, width);
  if (width.value % 2 != 0) throw Refusal(CHECKOP_FAILED, std::string(x_name) + ": head_dim is odd");
  if (rows.value == 0) return;

  const int64_t half = width.value / 2;
  const Table table = make_table(static_cast<const int64_t*>(positions.data), seq.value, half,
                                 static_cast<float>(call.attrs[0].value), direction);
  native::parallel_for(rows.value, 8 * rows.value * width.value, [&](int64_t begin, int64_t end) {
    std::vector<float> from(static_cast<size_t>(width.value)), to(from.size());
    for (int64_t r = begin; r < end; ++r) {
      native::load(x, r * width.value, width.value, from.data());
      const float* __restrict__ c = table.cosine.data() + r % seq.value * half;
      const float* __restrict__ s = table.sine.data() + r % seq.value * half;
      const float *low = from.data(), *high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        to[static_cast<size_t>(i)] = low[i] * c[i] - high[i] * s[i];
        to[static_cast<size_t>(half + i)] = high[i] * c[i] + low[i] * s[i];
      }
      native::store(y, r * width.value, width.value, to.data());
    }
  });
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    rotate(c, c.inputs[0], "x", c.inputs[1], c.outputs[0], "y", 1.0f);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    rotate(c, c.inputs[1], "grad_y", c.inputs[0], c.outputs[0], "dx", -1.0f);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "rope", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "rope", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
