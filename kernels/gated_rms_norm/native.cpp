// SPDX-License-Identifier: Apache-2.0
// gated_rms_norm / native: CPU, one row at a time in fp32.
//   y = x i w a,  a = gate / (1 + exp(-gate)),  i = 1 / sqrt(mean x^2 + eps), the mean over groups of columns
//   dx = i (g w - x i^2 c),  g = grad_y a,  c = mean(g w x)     dgate = grad_y x i w a'     dweight = sum_r g x i
//   If norm_before_gate is 0, with s = x a in place of x:
//   y = s i w     ds = i (grad_y w - s i^2 c)     dx = ds a     dgate = ds x a'     dweight = sum_r grad_y s i
//   x, gate, y, grad_y, dx, dgate: [..., hidden]  weight, dweight: [hidden], fp32|bf16|fp16, all the same
//   Limits: contiguous; group_size divides hidden.   Expected error: sums of a row are chains of
//   68 + log2(hidden / 1024) additions, those of dweight of 64 + log2(rows / 64); one rounding to the stored dtype.
#include "cpu/rms_norm.hpp"

namespace {

using native::Extent;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

/// The first three inputs of both passes.
struct Gated {
  const checkop_tensor &x, &gate;
  Extent rows{"rows"}, hidden{"hidden"};
  float eps;
  bool gates_later;
  int64_t group = 0;
  std::vector<float> weight;

  explicit Gated(const checkop_call& c)
      : x(c.inputs[0]),
        gate(c.inputs[1]),
        eps(native::attribute(c, "eps")),
        gates_later(native::attribute(c, "norm_before_gate") != 0) {
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, rows, hidden);
    native::check_matrix(gate, "gate", x.dtype, rows, hidden);
    native::check_list(c.inputs[2], "weight", x.dtype, hidden);
    weight = native::load_all(c.inputs[2], hidden.value);
    group = static_cast<int64_t>(native::attribute(c, "group_size"));
    if (group == 0) group = hidden.value;
    if (group < 0 || hidden.value % group != 0)
      throw native::Refusal(CHECKOP_FAILED, "group_size " + std::to_string(group) + " does not divide hidden");
  }

  /// Columns [begin, end) of row r: x, gate, and `s`, what is normalised.
  void load(int64_t r, int64_t begin, int64_t end, float* raw, float* gates, float* s) const {
    const int64_t n = end - begin, first = r * hidden.value + begin;
    native::load(x, first, n, raw);
    native::load(gate, first, n, gates);
    for (int64_t h = 0; h < n; ++h) s[h] = gates_later ? raw[h] : raw[h] * (gates[h] * sigmoid(gates[h]));
  }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    Gated in(c);
    native::check_matrix(c.outputs[0], "y", in.x.dtype, in.rows, in.hidden);
    const int64_t n = in.hidden.value;
    native::parallel_for(in.rows.value, 16 * in.rows.value * n, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(n)), gate(x.size()), s(x.size());
      for (int64_t r = begin; r < end; ++r) {
        in.load(r, 0, n, x.data(), gate.data(), s.data());
        for (int64_t first = 0; first < n; first += in.group) {
          const float scale = native::inverse_rms(s.data() + first, in.group, in.eps);
          for (auto h = static_cast<size_t>(first); h < static_cast<size_t>(first + in.group); ++h) {
            s[h] = s[h] * scale * in.weight[h];
            if (in.gates_later) s[h] *= gate[h] * sigmoid(gate[h]);
          }
        }
        native::store(c.outputs[0], r * n, n, s.data());
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 3);
    Gated in(c);
    const checkop_tensor &grad = c.inputs[3], &dx = c.outputs[0], &dgate = c.outputs[1], &dweight = c.outputs[2];
    native::check_matrix(grad, "grad_y", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(dx, "dx", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(dgate, "dgate", in.x.dtype, in.rows, in.hidden);
    native::check_list(dweight, "dweight", in.x.dtype, in.hidden);
    const int64_t n = in.hidden.value, groups = n == 0 ? 0 : n / in.group;
    std::vector<float> scales(static_cast<size_t>(in.rows.value * groups));
    native::parallel_for(in.rows.value, 32 * in.rows.value * n, [&](int64_t begin, int64_t end) {
      std::vector<float> x(static_cast<size_t>(n)), gate(x.size()), s(x.size()), upstream(x.size()), g(x.size()),
          of_gate(x.size());
      for (int64_t r = begin; r < end; ++r) {
        in.load(r, 0, n, x.data(), gate.data(), s.data());
        native::load(grad, r * n, n, upstream.data());
        for (size_t h = 0; h < g.size(); ++h)
          g[h] = upstream[h] * (in.gates_later ? gate[h] * sigmoid(gate[h]) : 1.0f) * in.weight[h];
        for (int64_t i = 0; i < groups; ++i) {
          const int64_t first = i * in.group;
          const float scale = native::inverse_rms(s.data() + first, in.group, in.eps);
          scales[static_cast<size_t>(r * groups + i)] = scale;
          native::normalised_row_gradient(s.data() + first, scale, in.group, g.data() + first);
          for (auto h = static_cast<size_t>(first); h < static_cast<size_t>(first + in.group); ++h) {
            const float sigma = sigmoid(gate[h]), slope = sigma * (1.0f + gate[h] * (1.0f - sigma));
            of_gate[h] = (in.gates_later ? upstream[h] * (x[h] * scale * in.weight[h]) : g[h] * x[h]) * slope;
            if (!in.gates_later) g[h] *= gate[h] * sigma;
          }
        }
        native::store(dx, r * n, n, g.data());
        native::store(dgate, r * n, n, of_gate.data());
      }
    });
    native::store_row_sums(dweight, in.rows.value, n, [&](int64_t r, int64_t begin, int64_t end, auto& sum) {
      thread_local std::vector<float> x, gate, s, g;
      for (auto* array : {&x, &gate, &s, &g}) array->resize(sum.size());
      in.load(r, begin, end, x.data(), gate.data(), s.data());
      native::load(grad, r * n + begin, end - begin, g.data());
      for (size_t h = 0; h < sum.size(); ++h) {
        const int64_t i = (begin + static_cast<int64_t>(h)) / in.group;
        const float gated = in.gates_later ? g[h] * (gate[h] * sigmoid(gate[h])) : g[h];
        sum[h] += gated * s[h] * scales[static_cast<size_t>(r * groups + i)];
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "gated_rms_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "gated_rms_norm", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
