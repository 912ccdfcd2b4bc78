// SPDX-License-Identifier: Apache-2.0
// linear_logp / native: CPU, fp32, by chunks of the vocabulary; no [rows, vocab] array is ever stored.
//   x[r,v] = sum_h hidden[r,h] W[v,h] + bias[v]
//   z = softcap tanh(x / softcap) / temperature, or x / temperature if softcap is 0
//   logp[r] = (z[r,t] - m) - log(s),  m = max_v z[r,v],  s = sum_v exp(z[r,v] - m)
//   dx[r,v] = g[r] ([v = t] - exp(z[r,v] - m) / s) dz/dx  dhidden = dx W    dW = dx^T hidden    dbias = sum_r dx
//   hidden: [..., hidden]  W: [vocab, hidden]  bias: [vocab], fp32|bf16|fp16
//   target_ids: int64   logp, grad_logp: fp32
//   If target_ids[r] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[r] holds.
//   With dlm_head_weight_carry[vocab, hidden] and dbias_carry[vocab], fp32: dW and dbias are fp32, sums of the carry
//   and then of 16 rows each, in order. Bits do not depend on how rows are cut into calls at multiples of 16.
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms;
//   from a carry, chains of rows / 16.
#include "cpu/linear_logp.hpp"

namespace {

using namespace native::linear;
using native::Extent;
using native::SumExp;

/// Checks the inputs common to both passes.
void check_inputs(const checkop_call& c, Extent& rows, Extent& hidden, Extent& vocab) {
  const int32_t dtype = c.inputs[0].dtype;
  native::check_computed_dtype(dtype);
  native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
  native::check_matrix(c.inputs[1], "lm_head_weight", dtype, vocab, hidden);
  native::check_list(c.inputs[2], "target_ids", CHECKOP_I64, rows);
  if (c.inputs[3].data != nullptr) native::check_list(c.inputs[3], "bias", dtype, vocab);
}

/// Checks the ids and loads the inputs. Only valid once the shapes have been checked.
LinearLogpParams load_checked(const checkop_call& c, int64_t rows, int64_t hidden, int64_t vocab) {
  const int64_t ignored = native::ignore_index(c);
  native::check_ids(c.inputs[2], "target_ids", rows, vocab, ignored);
  LinearLogpParams p = load_params(c, rows, hidden, vocab, ignored);
  p.transform = native::LogitTransform(c);
  return p;
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, kForwardInputs, kForwardOutputs);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    native::check_list(c.outputs[0], "logp", CHECKOP_F32, rows);

    const LinearLogpParams p = load_checked(c, rows.value, hidden.value, vocab.value);
    std::vector<float> z(size(p.rows * p.stride()));
    const RowStates states = row_states(p, 0, p.vocab, z.data());
    auto* logp = static_cast<float*>(c.outputs[0].data);
    for (int64_t r = 0; r < p.rows; ++r) {
      const SumExp& s = states.sums[size(r)];
      logp[r] = p.left_out(r) ? 0.0f : (states.target_logits[size(r)] - s.shift()) - std::log(s.sum);
    }
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, kBackwardInputs, kBackwardOutputs);
    Extent rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
    check_inputs(c, rows, hidden, vocab);
    const int32_t dtype = c.inputs[0].dtype;
    native::check_list(c.inputs[4], "grad_logp", CHECKOP_F32, rows);
    native::check_matrix(c.outputs[0], "dhidden", dtype, rows, hidden);
    check_weight_gradients(c, vocab, hidden);

    const LinearLogpParams p = load_checked(c, rows.value, hidden.value, vocab.value);
    const auto* g = static_cast<const float*>(c.inputs[4].data);
    std::vector<float> z(size(p.rows * p.stride()));
    const RowStates states = row_states(p, 0, p.vocab, z.data());
    native::VectorTree dhidden;
    for (int64_t first = 0; first < p.vocab; first += kChunk) {
      const int64_t columns = std::min(kChunk, p.vocab - first);
      chunk_logits(p, first, columns, z.data());
      chunk_gradient(p, states.sums, g, first, columns, z.data());
      dhidden.add(chunk_dhidden(p, first, columns, z.data()));
      store_chunk_weight_gradient(p, first, columns, z.data(), c);
    }
    native::store(c.outputs[0], 0, p.rows * p.hidden, dhidden.finish().data());
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "linear_logp", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "linear_logp", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
