// SPDX-License-Identifier: Apache-2.0
// lm_head / native: CPU, fp32 products and sums.
//   logits[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]
//   dhidden[r,h] = sum_v g[r,v] W[v,h]     dW[v,h] = sum_r g[r,v] hidden[r,h]     dbias[v] = sum_r g[r,v]
//   hidden, dhidden: [..., hidden]   W, dW: [vocab, hidden]   bias, dbias: [vocab], optional
//   logits, grad_logits: [..., vocab]   fp32|bf16|fp16, one dtype for all
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/product.hpp"

namespace {

using native::Extent;

/// Checks the inputs common to both passes.
void check_inputs(const checkop_call& c, Extent& rows, Extent& hidden, Extent& vocab) {
  const int32_t dtype = c.inputs[0].dtype;
  native::check_computed_dtype(dtype);
  native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
  native::check_matrix(c.inputs[1], "weight", dtype, vocab, hidden);
  if (c.inputs[2].data != nullptr) native::check_list(c.inputs[2], "bias", dtype, vocab);
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 3, 1);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    native::check_matrix(c.outputs[0], "logits", c.inputs[0].dtype, rows, vocab);
    const std::vector<float> hidden32 = native::load_all(c.inputs[0], rows.value * hidden.value);
    std::vector<float> bias32;
    if (c.inputs[2].data != nullptr) bias32 = native::load_all(c.inputs[2], vocab.value);
    native::multiply_by_transposed(hidden32, c.inputs[1], bias32, c.outputs[0], rows.value, hidden.value, vocab.value);
  });
}

/// dbias[v] = sum_r g[r * vocab + v]
void sum_rows(const std::vector<float>& g, const checkop_tensor& dbias, int64_t rows, int64_t vocab) {
  native::parallel_for(vocab, rows * vocab, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      const float total = native::blocked_sum(rows, [&](int64_t r) { return g[native::size(r * vocab + v)]; });
      native::store(dbias, v, 1, &total);
    }
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 4, 3);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    const int32_t dtype = c.inputs[0].dtype;
    const checkop_tensor &weight = c.inputs[1], &grad = c.inputs[3], &dbias = c.outputs[2];
    native::check_matrix(grad, "grad_logits", dtype, rows, vocab);
    native::check_matrix(c.outputs[0], "dhidden", dtype, rows, hidden);
    native::check_matrix(c.outputs[1], "dweight", dtype, vocab, hidden);
    if (dbias.data != nullptr) native::check_list(dbias, "dbias", dtype, vocab);
    const std::vector<float> hidden32 = native::load_all(c.inputs[0], rows.value * hidden.value);
    const std::vector<float> g32 = native::load_all(grad, rows.value * vocab.value);
    native::multiply(g32, weight, c.outputs[0], rows.value, vocab.value, hidden.value);
    native::multiply_transposed(g32, hidden32, c.outputs[1], rows.value, vocab.value, hidden.value);
    if (dbias.data != nullptr) sum_rows(g32, dbias, rows.value, vocab.value);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "lm_head", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "lm_head", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
