// SPDX-License-Identifier: Apache-2.0
// grpo_loss / native: CPU, one token at a time in fp32.
//   A = (r - mu)/sqrt(max(var, eps^2)) over each group of completions;  L = -min(ratio*A, clamp(ratio, 1-c, 1+c)*A)
//   policy_loss = sum of L/n over the n active tokens, kl likewise, loss = policy_loss + beta*kl; 0 if n = 0
//   dpolicy_logits[r,v] = c*([v = t] - softmax(policy[r])[v]),  c = g/n*(-A*ratio*[unclipped] - beta*(exp(d) - 1))
//   A token is active if attention_mask and completion_mask are not 0; nothing of other tokens is read.
//   policy_logits, ref_logits, dpolicy_logits: [batch, seq, vocab] fp32|bf16|fp16   action_ids: int64   masks: uint8
//   old_logps, rewards[batch], grad_loss, loss, policy_loss, kl: fp32   group_boundaries: int64, may be absent
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(terms / 1024) additions.
#include "cpu/groups.hpp"
#include "cpu/policy.hpp"

namespace {

using native::attribute;
using native::Extent;
using native::Refusal;

/// Advantages relative to the first reward: so equal rewards give exactly 0, although their computed mean could be an
/// ulp off.
void group_advantages(const float* rewards, int64_t n, float eps, float* out) {
  const auto count = static_cast<float>(n);
  const float mean = native::blocked_sum(n, [&](int64_t i) { return rewards[i] - rewards[0]; }) / count;
  const auto away = [&](int64_t i) { return (rewards[i] - rewards[0]) - mean; };
  const float variance = native::blocked_sum(n, [&](int64_t i) { return away(i) * away(i); }) / count;
  const float deviation = std::sqrt(std::max(variance, eps * eps));
  for (int64_t i = 0; i < n; ++i) out[i] = away(i) / deviation;
}

/// The checked inputs of both passes.
struct GrpoCall : native::PolicyCall {
  const uint8_t* completion_mask;
  std::vector<float> advantages;
  float clip, beta, divisor;
  int64_t seq = 1;

  explicit GrpoCall(const checkop_call& c) : PolicyCall(c), clip(attribute(c, "clip_eps")), beta(attribute(c, "beta")) {
    Extent batch{"batch"};
    native::check_list(c.inputs[5], "rewards", CHECKOP_F32, batch);
    native::check_list(c.inputs[6], "completion_mask", CHECKOP_U8, rows);
    if (batch.value == 0 || rows.value % batch.value != 0)
      throw Refusal(CHECKOP_FAILED, "rewards: " + std::to_string(batch.value) + " do not divide " +
                                        std::to_string(rows.value) + " tokens");
    seq = rows.value / batch.value;
    completion_mask = static_cast<const uint8_t*>(c.inputs[6].data);
    check_active_ids([this](int64_t r) { return active(r); });
    const std::vector<int64_t> bounds = native::group_bounds(c, c.inputs[7], batch.value);
    advantages.resize(static_cast<size_t>(batch.value));
    for (size_t g = 1; g < bounds.size(); ++g)
      group_advantages(static_cast<const float*>(c.inputs[5].data) + bounds[g - 1], bounds[g] - bounds[g - 1],
                       attribute(c, "eps"), advantages.data() + bounds[g - 1]);
    int64_t n = 0;
    for (int64_t r = 0; r < rows.value; ++r) n += active(r) ? 1 : 0;
    divisor = static_cast<float>(std::max(n, int64_t{1}));  // without active tokens every sum is 0
  }

  bool active(int64_t row) const { return mask[row] != 0 && completion_mask[row] != 0; }
  float advantage(int64_t row) const { return advantages[static_cast<size_t>(row / seq)]; }
  float clamped(float ratio) const { return std::min(std::max(ratio, 1.0f - clip), 1.0f + clip); }
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 8, 3);
    const GrpoCall in(c);
    native::scalar(c.outputs[0], "loss");
    native::scalar(c.outputs[1], "policy_loss");
    native::scalar(c.outputs[2], "kl");

    std::vector<float> losses(static_cast<size_t>(in.rows.value)), kls(losses.size());
    native::parallel_for(in.rows.value, 32 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> z = in.row_buffer();
      for (int64_t r = begin; r < end; ++r) {
        if (!in.active(r)) continue;
        const native::PolicyLogs logs = native::policy_logs(in, r, z.data());
        const float ratio = std::exp(logs.delta), a = in.advantage(r);
        losses[static_cast<size_t>(r)] = -std::min(ratio * a, in.clamped(ratio) * a);
        kls[static_cast<size_t>(r)] = native::k3(logs.d);
      }
    });
    const auto mean = [&](const std::vector<float>& terms) {
      return native::blocked_sum(in.rows.value, [&](int64_t r) { return terms[static_cast<size_t>(r)]; }) / in.divisor;
    };
    const float policy_loss = mean(losses), kl = mean(kls);
    *static_cast<float*>(c.outputs[0].data) = in.beta == 0.0f ? policy_loss : policy_loss + in.beta * kl;
    *static_cast<float*>(c.outputs[1].data) = policy_loss;
    *static_cast<float*>(c.outputs[2].data) = kl;
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 9, 1);
    GrpoCall in(c);
    native::scalar(c.inputs[8], "grad_loss");
    native::check_matrix(c.outputs[0], "dpolicy_logits", in.policy->dtype, in.rows, in.vocab);

    const float share = *static_cast<const float*>(c.inputs[8].data) / in.divisor;
    const int64_t vocab = in.vocab.value;
    native::parallel_for(in.rows.value, 48 * in.rows.value * vocab, [&](int64_t begin, int64_t end) {
      std::vector<float> z = in.row_buffer();
      for (int64_t r = begin; r < end; ++r) {
        if (!in.active(r)) {
          std::fill(z.begin(), z.end(), 0.0f);
        } else {
          const native::PolicyLogs logs = native::policy_logs(in, r, z.data());
          const float ratio = std::exp(logs.delta), a = in.advantage(r);
          const bool unclipped = a < 0.0f ? !(ratio < 1.0f - in.clip) : !(ratio > 1.0f + in.clip);
          const float of_loss = unclipped ? -a * ratio : 0.0f;
          const float of_kl = in.beta == 0.0f ? 0.0f : in.beta * std::expm1(logs.d);
          native::row_gradient(z.data(), vocab, in.ids[r], share * (of_loss - of_kl));
        }
        native::store(c.outputs[0], r * vocab, vocab, z.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "grpo_loss", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "grpo_loss", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
