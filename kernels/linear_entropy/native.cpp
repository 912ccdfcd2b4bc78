// SPDX-License-Identifier: Apache-2.0
// linear_entropy / native: CPU, fp32, by chunks of the vocabulary; no [rows, vocab] array is ever stored.
//   x[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]
//   z = softcap tanh(x / softcap) / temperature, or x / temperature if softcap is 0
//   entropy[r] = log(s) + M,  s = sum_v exp(-b_v),  M = sum_v exp(-b_v) b_v / s,  b_v = max_w z[r,w] - z[r,v]
//   dx[r,v] = g[r] exp(-b_v) / s (b_v - M) dz/dx    dhidden = dx W    dW = dx^T hidden    dbias = sum_r dx
//   hidden: [..., hidden]  W: [vocab, hidden]  bias: [vocab] or none, fp32|bf16|fp16
//   mask: [...] uint8 or none    entropy, grad_entropy: [...] fp32
//   Where the mask is 0: entropy is 0 and the row adds nothing to any gradient, whatever hidden[r] holds.
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/entropy.hpp"
#include "cpu/linear_logits.hpp"

namespace {

using namespace native::linear;
using native::EntropySums;
using native::Extent;

struct Call {
  Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
  native::LogitTransform transform;
  const uint8_t* mask;
  LinearParams p;

  explicit Call(const checkop_call& c)
      : transform(c), mask(static_cast<const uint8_t*>(c.inputs[3].data)), p(load(c)) {}

  bool left_out(int64_t r) const { return mask != nullptr && mask[r] == 0; }

  std::vector<EntropySums> sums(float* x) const { return native::linear::entropy_sums(p, transform, x); }

 private:
  LinearParams load(const checkop_call& c) {
    const int32_t dtype = c.inputs[0].dtype;
    native::check_computed_dtype(dtype);
    native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
    native::check_matrix(c.inputs[1], "lm_head_weight", dtype, vocab, hidden);
    if (c.inputs[2].data != nullptr) native::check_list(c.inputs[2], "bias", dtype, vocab);
    if (mask != nullptr) native::check_list(c.inputs[3], "mask", CHECKOP_U8, rows);
    return load_linear(c.inputs[0], c.inputs[1], c.inputs[2], rows.value, hidden.value, vocab.value,
                       [this](int64_t r) { return left_out(r); });
  }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 1);
    Call in(c);
    native::check_list(c.outputs[0], "entropy", CHECKOP_F32, in.rows);
    std::vector<float> x(size(in.p.rows * in.p.stride()));
    const std::vector<EntropySums> sums = in.sums(x.data());
    auto* entropy = static_cast<float*>(c.outputs[0].data);
    for (int64_t r = 0; r < in.p.rows; ++r) entropy[r] = in.left_out(r) ? 0.0f : sums[size(r)].entropy();
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 3);
    Call in(c);
    const int32_t dtype = c.inputs[0].dtype;
    native::check_list(c.inputs[4], "grad_entropy", CHECKOP_F32, in.rows);
    native::check_matrix(c.outputs[0], "dhidden", dtype, in.rows, in.hidden);
    native::check_matrix(c.outputs[1], "dlm_head_weight", dtype, in.vocab, in.hidden);
    if (!in.p.bias32.empty()) native::check_list(c.outputs[2], "dbias", dtype, in.vocab);
    const auto* g = static_cast<const float*>(c.inputs[4].data);
    std::vector<float> x(size(in.p.rows * in.p.stride()));
    const std::vector<EntropySums> sums = in.sums(x.data());
    store_gradients(in.p, x.data(), c, [&](int64_t r, int64_t, float logit) {
      if (in.left_out(r)) return 0.0f;
      return g[r] * sums[size(r)].gradient(in.transform(logit)) * in.transform.slope(logit);
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "linear_entropy", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "linear_entropy", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
