// SPDX-License-Identifier: Apache-2.0
// add_rms_norm / native: CPU, one row at a time in fp32.
//   residual_out = x + residual     y[r,h] = s[r,h] * i[r] * w[h],  i[r] = 1 / sqrt(sum_h s^2 / hidden + eps)
//   dx = grad_residual_out + i (g w - s i^2 c),  c = sum_h(g w s) / hidden     dweight[h] = sum_r g s i
//   w = weight + weight_offset;  s = residual_out as stored, or the sum in fp32 if round_sum is 0
//   x, residual, y, residual_out, grad_y, grad_residual_out, dx: [..., hidden]  weight, dweight: [hidden],
//   fp32|bf16|fp16, all the same
//   Limits: contiguous.   Expected error: sums of a row are chains of 68 + log2(hidden / 1024) additions, those of
//   dweight of 64 + log2(rows / 64); one rounding to the stored dtype.
#include "cpu/rms_norm.hpp"

namespace {

using native::Extent;

/// The first three inputs of both passes.
struct Sums {
  const checkop_tensor &x, &residual;
  Extent rows{"rows"}, hidden{"hidden"};
  float eps;
  bool rounds;
  std::vector<float> weight;

  explicit Sums(const checkop_call& c)
      : x(c.inputs[0]),
        residual(c.inputs[1]),
        eps(native::attribute(c, "eps")),
        rounds(native::attribute(c, "round_sum") != 0) {
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, rows, hidden);
    native::check_matrix(residual, "residual", x.dtype, rows, hidden);
    native::check_list(c.inputs[2], "weight", x.dtype, hidden);
    weight = native::load_all(c.inputs[2], hidden.value);
    for (float& w : weight) w += native::attribute(c, "weight_offset");
  }

  /// Columns [begin, end) of row r, as they are normalised.
  void load(int64_t r, int64_t begin, int64_t end, float* to) const {
    thread_local std::vector<float> other;
    const int64_t n = end - begin, first = r * hidden.value + begin;
    other.resize(static_cast<size_t>(n));
    native::load(x, first, n, to);
    native::load(residual, first, n, other.data());
    for (int64_t h = 0; h < n; ++h) to[h] += other[static_cast<size_t>(h)];
    if (!rounds) return;
    if (x.dtype == CHECKOP_BF16)
      for (int64_t h = 0; h < n; ++h) to[h] = native::from_bf16(native::to_bf16(to[h]));
    if (x.dtype == CHECKOP_F16)
      for (int64_t h = 0; h < n; ++h) to[h] = native::from_fp16(native::to_fp16(to[h]));
  }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 2);
    Sums in(c);
    native::check_matrix(c.outputs[0], "y", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(c.outputs[1], "residual_out", in.x.dtype, in.rows, in.hidden);
    const int64_t n = in.hidden.value;
    native::parallel_for(in.rows.value, 6 * in.rows.value * n, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(n));
      for (int64_t r = begin; r < end; ++r) {
        in.load(r, 0, n, row.data());
        native::store(c.outputs[1], r * n, n, row.data());
        const float scale = native::inverse_rms(row.data(), n, in.eps);
        for (size_t h = 0; h < row.size(); ++h) row[h] = row[h] * scale * in.weight[h];
        native::store(c.outputs[0], r * n, n, row.data());
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 2);
    Sums in(c);
    const checkop_tensor &of_y = c.inputs[3], &of_sum = c.inputs[4], &dx = c.outputs[0], &dweight = c.outputs[1];
    native::check_matrix(of_y, "grad_y", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(of_sum, "grad_residual_out", in.x.dtype, in.rows, in.hidden);
    native::check_matrix(dx, "dx", in.x.dtype, in.rows, in.hidden);
    native::check_list(dweight, "dweight", in.x.dtype, in.hidden);
    const int64_t n = in.hidden.value;
    std::vector<float> scales(static_cast<size_t>(in.rows.value));
    native::parallel_for(in.rows.value, 10 * in.rows.value * n, [&](int64_t begin, int64_t end) {
      std::vector<float> s(static_cast<size_t>(n)), g(s.size()), upstream(s.size());
      for (int64_t r = begin; r < end; ++r) {
        in.load(r, 0, n, s.data());
        native::load(of_y, r * n, n, g.data());
        native::load(of_sum, r * n, n, upstream.data());
        const float scale = scales[static_cast<size_t>(r)] = native::inverse_rms(s.data(), n, in.eps);
        for (size_t h = 0; h < g.size(); ++h) g[h] *= in.weight[h];
        native::normalised_row_gradient(s.data(), scale, n, g.data());
        for (size_t h = 0; h < g.size(); ++h) g[h] += upstream[h];
        native::store(dx, r * n, n, g.data());
      }
    });
    native::store_row_sums(dweight, in.rows.value, n, [&](int64_t r, int64_t begin, int64_t end, auto& sum) {
      thread_local std::vector<float> s, g;
      s.resize(sum.size()), g.resize(sum.size());
      in.load(r, begin, end, s.data());
      native::load(of_y, r * n + begin, end - begin, g.data());
      for (size_t h = 0; h < sum.size(); ++h) sum[h] += g[h] * s[h] * scales[static_cast<size_t>(r)];
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "add_rms_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "add_rms_norm", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
