// SPDX-License-Identifier: Apache-2.0
// linear_policy_loss / native: CPU, fp32, by chunks of the vocabulary; no [tokens, vocab] array is ever stored.
//   x[i,v] = sum_h hidden[i,h] W[v,h] + bias[v]
//   z = softcap tanh(x / softcap) / temperature, or x / temperature if softcap is 0
//   logps[i] = (z[i,t] - m) - log(s),  entropy[i] = log(s) + M,  s = sum_v exp(-b_v),  M = sum_v exp(-b_v) b_v / s,
//   b_v = m - z[i,v],  m = max_w z[i,w];  loss as in policy_loss / native, of these two
//   dx[i,v] = (c[i] ([v = t] - p_v) + e[i] p_v (b_v - M)) dz/dx,  p_v = exp(-b_v) / s,  c, e: g dloss by logps, entropy
//   dhidden = dx W    dW = dx^T hidden    dbias = sum_i dx
//   hidden: [batch, seq, hidden]  W: [vocab, hidden]  bias: [vocab] or none, fp32|bf16|fp16   target_ids: int64
//   old_logps, advantages, logps, entropy, ref_logps or none, rollout_logps or none: [batch, seq] fp32   mask: uint8
//   denom or none, loss, grad_loss: one fp32 element
//   Where the mask is 0 nothing is read, results are 0, and the token adds nothing to any gradient.
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "cpu/linear_logits.hpp"
#include "cpu/policy_loss.hpp"

namespace {

using namespace native::linear;
using native::EntropySums;
using native::Extent;

struct Call {
  Extent batch{"batch"}, seq{"seq"}, rows{"rows"}, hidden{"hidden"}, vocab{"vocab"};
  native::LogitTransform transform;
  const int64_t* ids;
  const uint8_t* mask;
  LinearParams p;
  std::vector<float> x;  // a chunk of logits
  std::vector<EntropySums> sums;
  std::vector<float> logps, entropy;
  native::PolicyBatch tokens;

  explicit Call(const checkop_call& c)
      : transform(c),
        ids(static_cast<const int64_t*>(c.inputs[2].data)),
        mask(static_cast<const uint8_t*>(c.inputs[5].data)),
        p(load(c)),
        x(size(p.rows * p.stride())),
        sums(native::linear::entropy_sums(p, transform, x.data())),
        tokens(c, inputs(c), batch.value, seq.value) {}

  bool left_out(int64_t r) const { return mask[r] == 0; }

 private:
  LinearParams load(const checkop_call& c) {
    const int32_t dtype = c.inputs[0].dtype;
    native::check_computed_dtype(dtype);
    native::check_matrix(c.inputs[0], "hidden", dtype, rows, hidden);
    native::check_matrix(c.inputs[1], "lm_head_weight", dtype, vocab, hidden);
    native::check_matrix(c.inputs[5], "mask", CHECKOP_U8, batch, seq);
    native::check_list(c.inputs[5], "mask", CHECKOP_U8, rows);
    native::check_list(c.inputs[2], "target_ids", CHECKOP_I64, rows);
    native::check_list(c.inputs[3], "old_logps", CHECKOP_F32, rows);
    native::check_list(c.inputs[4], "advantages", CHECKOP_F32, rows);
    if (c.inputs[6].data != nullptr) native::check_list(c.inputs[6], "bias", dtype, vocab);
    if (c.inputs[7].data != nullptr) native::check_list(c.inputs[7], "ref_logps", CHECKOP_F32, rows);
    if (c.inputs[8].data != nullptr) native::check_list(c.inputs[8], "rollout_logps", CHECKOP_F32, rows);
    for (int64_t r = 0; r < rows.value; ++r)
      if (!left_out(r) && (ids[r] < 0 || ids[r] >= vocab.value))
        throw native::Refusal(CHECKOP_FAILED, "target_ids[" + std::to_string(r) + "] = " + std::to_string(ids[r]) +
                                                  " is outside [0, " + std::to_string(vocab.value) +
                                                  ") and not masked");
    return load_linear(c.inputs[0], c.inputs[1], c.inputs[6], rows.value, hidden.value, vocab.value,
                       [this](int64_t r) { return left_out(r); });
  }

  /// The target's logit, computed again, with the bits that x[i,t] had in its chunk.
  float target(int64_t r) const {
    std::vector<float> w(size(p.hidden));
    native::load(p.weight, ids[r] * p.hidden, p.hidden, w.data());
    const float sum = native::dot(&p.hidden32[size(r * p.hidden)], w.data(), p.hidden);
    return transform(p.bias32.empty() ? sum : sum + p.bias32[size(ids[r])]);
  }

  native::PolicyInputs inputs(const checkop_call& c) {
    logps.resize(size(p.rows)), entropy.resize(size(p.rows));
    for (int64_t r = 0; r < p.rows; ++r) {
      if (left_out(r)) continue;
      const EntropySums& s = sums[size(r)];
      logps[size(r)] = (target(r) - s.max) - std::log(s.sum);
      entropy[size(r)] = s.entropy();
    }
    const auto floats = [&](int index) { return static_cast<const float*>(c.inputs[index].data); };
    return {logps.data(),   floats(3),
            floats(4),      mask,
            floats(7),      floats(8),
            entropy.data(), c.inputs[9].data == nullptr ? nullptr : native::scalar(c.inputs[9], "denom")};
  }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 10, 3);
    Call in(c);
    float* const loss = native::scalar(c.outputs[0], "loss");
    native::check_list(c.outputs[1], "logps", CHECKOP_F32, in.rows);
    native::check_list(c.outputs[2], "entropy", CHECKOP_F32, in.rows);
    std::vector<float> terms(size(in.p.rows));
    for (int64_t r = 0; r < in.batch.value; ++r)
      in.tokens.for_tokens(r, [&](int64_t i, const native::LossToken& t) {
        terms[size(i)] = in.tokens.weight(i) * in.tokens.loss(i, t);
      });
    *loss = native::blocked_sum(in.p.rows, [&](int64_t i) { return terms[size(i)]; });
    std::copy(in.logps.begin(), in.logps.end(), static_cast<float*>(c.outputs[1].data));
    std::copy(in.entropy.begin(), in.entropy.end(), static_cast<float*>(c.outputs[2].data));
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 11, 3);
    Call in(c);
    const int32_t dtype = c.inputs[0].dtype;
    const float g = *native::scalar(c.inputs[10], "grad_loss");
    native::check_matrix(c.outputs[0], "dhidden", dtype, in.rows, in.hidden);
    native::check_matrix(c.outputs[1], "dlm_head_weight", dtype, in.vocab, in.hidden);
    if (!in.p.bias32.empty()) native::check_list(c.outputs[2], "dbias", dtype, in.vocab);
    std::vector<float> by_logp(size(in.p.rows)), by_entropy(by_logp.size());
    for (int64_t r = 0; r < in.batch.value; ++r)
      in.tokens.for_tokens(r, [&](int64_t i, const native::LossToken& t) {
        const float a = g * in.tokens.weight(i);
        by_logp[size(i)] = a * in.tokens.dlogp(t), by_entropy[size(i)] = -a * in.tokens.entropy_coef();
      });
    store_gradients(in.p, in.x.data(), c, [&](int64_t i, int64_t v, float logit) {
      if (in.left_out(i)) return 0.0f;
      const EntropySums& s = in.sums[size(i)];
      const float z = in.transform(logit), p = s.probability(z);
      const float of_logp = v == in.ids[i] ? by_logp[size(i)] * (1.0f - p) : -by_logp[size(i)] * p;
      return (of_logp + by_entropy[size(i)] * s.gradient(z)) * in.transform.slope(logit);
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "linear_policy_loss", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "linear_policy_loss", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
