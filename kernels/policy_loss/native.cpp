// SPDX-License-Identifier: Apache-2.0
// policy_loss / native: CPU, one sequence at a time in fp32.
//   r = exp(logps - old), or for ratio_level 1 exp of its mean over the sequence; A = advantages; c = clip(r)
//   PPO   L = w max(-A min(r, delta), -A c), at most -A dual_clip where A < 0     CISPO  L = -w c A logps
//   w     by exp(old - rollout): of the token or the sequence, truncated to [is_low, is_high] or 0 outside
//   k     by x = logps - ref: x, x^2/2 or exp(-x) - 1 + x
//   policy_loss = sum a L,  kl = sum a k (with ref_logps),  loss = sum a (L + kl_coef k - entropy_coef entropy)
//   dlogps = g a (dL + kl_coef dk),  dentropy = -g a entropy_coef,  a = 1/denom or 1/(n denom)
//   logps, old_logps, advantages, ref_logps, rollout_logps, entropy, dlogps, dentropy: [batch, seq] fp32
//   mask: [batch, seq] uint8   denom, grad_loss and the outputs of forward: one fp32 element
//   ref_logps, rollout_logps, entropy and denom may be absent.
//   Where the mask is 0 nothing is read, and gradients are 0.
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(terms / 1024) additions.
#include "cpu/policy_loss.hpp"

namespace {

using native::Extent;
using native::PolicyBatch;
using native::scalar;

PolicyBatch batch_of(const checkop_call& c, Extent& rows, Extent& seq) {
  native::check_matrix(c.inputs[0], "logps", CHECKOP_F32, rows, seq);
  const auto list = [&](int index, const char* name, int32_t dtype) -> const void* {
    if (index > 3 && c.inputs[index].data == nullptr && c.inputs[index].rank == 0) return nullptr;
    native::check_matrix(c.inputs[index], name, dtype, rows, seq);
    return c.inputs[index].data;
  };
  const auto floats = [&](int index, const char* name) {
    return static_cast<const float*>(list(index, name, CHECKOP_F32));
  };
  const native::PolicyInputs in{
      floats(0, "logps"),      floats(1, "old_logps"),
      floats(2, "advantages"), static_cast<const uint8_t*>(list(3, "mask", CHECKOP_U8)),
      floats(4, "ref_logps"),  floats(5, "rollout_logps"),
      floats(6, "entropy"),    c.inputs[7].data == nullptr ? nullptr : scalar(c.inputs[7], "denom")};
  return {c, in, rows.value, seq.value};
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 8, 4);
    Extent rows{"batch"}, seq{"seq"};
    const PolicyBatch batch = batch_of(c, rows, seq);
    const char* names[] = {"loss", "policy_loss", "kl", "clip_fraction"};
    float* to[4] = {};
    for (int i = 0; i < 4; ++i)
      if (i != 2 || batch.has_ref()) to[i] = scalar(c.outputs[i], names[i]);
    // Terms first, then their sums in an order that depends on the number of tokens alone.
    const auto n = static_cast<size_t>(batch.tokens());
    std::vector<float> loss(n), policy(n), kl(n), clipped(n);
    native::parallel_for(rows.value, 64 * batch.tokens(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        batch.for_tokens(r, [&](int64_t i, const native::LossToken& t) {
          const auto at = static_cast<size_t>(i);
          const float a = batch.weight(i);
          policy[at] = a * t.loss, kl[at] = a * t.kl, clipped[at] = t.clipped;
          loss[at] = a * batch.loss(i, t);
        });
      }
    });
    const auto total = [&](const std::vector<float>& x) {
      return native::blocked_sum(batch.tokens(), [&](int64_t i) { return x[static_cast<size_t>(i)]; });
    };
    const float sums[] = {total(loss), total(policy), total(kl),
                          total(clipped) / static_cast<float>(std::max<int64_t>(batch.active(), 1))};
    for (int i = 0; i < 4; ++i)
      if (to[i] != nullptr) *to[i] = sums[i];
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 9, 2);
    Extent rows{"batch"}, seq{"seq"};
    const PolicyBatch batch = batch_of(c, rows, seq);
    const float g = *scalar(c.inputs[8], "grad_loss");
    native::check_matrix(c.outputs[0], "dlogps", CHECKOP_F32, rows, seq);
    auto* dlogps = static_cast<float*>(c.outputs[0].data);
    float* dentropy = nullptr;
    if (batch.has_entropy()) {
      native::check_matrix(c.outputs[1], "dentropy", CHECKOP_F32, rows, seq);
      dentropy = static_cast<float*>(c.outputs[1].data);
      std::fill_n(dentropy, batch.tokens(), 0.0f);
    }
    std::fill_n(dlogps, batch.tokens(), 0.0f);
    native::parallel_for(rows.value, 64 * batch.tokens(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        batch.for_tokens(r, [&](int64_t i, const native::LossToken& t) {
          const float a = g * batch.weight(i);
          dlogps[i] = a * batch.dlogp(t);
          if (dentropy != nullptr) dentropy[i] = -a * batch.entropy_coef();
        });
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "policy_loss", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "policy_loss", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
