// SPDX-License-Identifier: Apache-2.0
// rms_norm / native: CPU, one row at a time in fp32.
//   y[r,h] = x[r,h] * s[r] * w[h],  s[r] = 1 / sqrt(sum_h x[r,h]^2 / hidden + eps)
//   dx[r,h] = s * (g w - x s^2 c),  c = sum_h(g w x) / hidden     dweight[h] = sum_r g x s over rows with mask[r] != 0
//   x, y, grad_y, dx: [..., hidden]  weight, dweight: [hidden], fp32|bf16|fp16, all the same
//   mask: [...] uint8 or none
//   Limits: contiguous.   Expected error: sums of a row are chains of 68 + log2(hidden / 1024) additions, those of
//   dweight of 64 + log2(rows / 64); one rounding to the stored dtype.
#include "cpu/rms_norm.hpp"

namespace {

using native::Extent;

float eps_of(const checkop_call& c) {
  if (c.n_attrs != 1) throw native::Refusal(CHECKOP_FAILED, "expected 1 attribute: eps");
  return static_cast<float>(c.attrs[0].value);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    const checkop_tensor &x = c.inputs[0], &weight = c.inputs[1], &y = c.outputs[0];
    Extent rows{"rows"}, hidden{"hidden"};
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, rows, hidden);
    native::check_list(weight, "weight", x.dtype, hidden);
    native::check_matrix(y, "y", x.dtype, rows, hidden);
    const float eps = eps_of(c);
    const int64_t n = hidden.value;
    const std::vector<float> w = native::load_all(weight, n);
    native::parallel_for(rows.value, 4 * rows.value * n, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(n));
      for (int64_t r = begin; r < end; ++r) {
        native::load(x, r * n, n, row.data());
        const float scale = native::inverse_rms(row.data(), n, eps);
        for (size_t h = 0; h < row.size(); ++h) row[h] = row[h] * scale * w[h];
        native::store(y, r * n, n, row.data());
      }
    });
  });
}

struct Backward {
  const checkop_tensor &x, &grad, &dx, &dweight;
  const uint8_t* mask;  // nullptr: every row counts
  int64_t rows, hidden;
  std::vector<float> weight, scale;
};

void store_dx(Backward& b, float eps) {
  native::parallel_for(b.rows, 8 * b.rows * b.hidden, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(b.hidden)), gw(x.size());
    for (int64_t r = begin; r < end; ++r) {
      native::load(b.x, r * b.hidden, b.hidden, x.data());
      native::load(b.grad, r * b.hidden, b.hidden, gw.data());
      for (size_t h = 0; h < gw.size(); ++h) gw[h] *= b.weight[h];
      const float s = native::inverse_rms(x.data(), b.hidden, eps);
      native::normalised_row_gradient(x.data(), s, b.hidden, gw.data());
      native::store(b.dx, r * b.hidden, b.hidden, gw.data());
      b.scale[static_cast<size_t>(r)] = s;
    }
  });
}

void store_dweight(const Backward& b) {
  native::store_row_sums(b.dweight, b.rows, b.hidden, [&](int64_t r, int64_t begin, int64_t end, auto& sum) {
    if (b.mask != nullptr && b.mask[r] == 0) return;
    thread_local std::vector<float> x, g;
    x.resize(sum.size()), g.resize(sum.size());
    native::load(b.x, r * b.hidden + begin, end - begin, x.data());
    native::load(b.grad, r * b.hidden + begin, end - begin, g.data());
    for (size_t h = 0; h < sum.size(); ++h) sum[h] += g[h] * x[h] * b.scale[static_cast<size_t>(r)];
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 2);
    const checkop_tensor &x = c.inputs[0], &weight = c.inputs[1], &grad = c.inputs[2], &mask = c.inputs[3];
    Extent rows{"rows"}, hidden{"hidden"};
    native::check_computed_dtype(x.dtype);
    native::check_matrix(x, "x", x.dtype, rows, hidden);
    native::check_list(weight, "weight", x.dtype, hidden);
    native::check_matrix(grad, "grad_y", x.dtype, rows, hidden);
    native::check_matrix(c.outputs[0], "dx", x.dtype, rows, hidden);
    native::check_list(c.outputs[1], "dweight", x.dtype, hidden);
    if (mask.data != nullptr) native::check_list(mask, "mask", CHECKOP_U8, rows);
    Backward b{x,  grad, c.outputs[0], c.outputs[1], static_cast<const uint8_t*>(mask.data), rows.value, hidden.value,
               {}, {}};
    b.weight = native::load_all(weight, b.hidden);
    b.scale.resize(static_cast<size_t>(b.rows));
    store_dx(b, eps_of(c));
    store_dweight(b);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "rms_norm", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "rms_norm", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
