// SPDX-License-Identifier: Apache-2.0
// ratio_kl / native: CPU, one row at a time in fp32.
//   ratio[r] = exp(lp - old[r]),  kl[r] = exp(d) - d - 1,  d = lr - lp;  lp, lr: logp of action_ids[r]
//   dpolicy_logits[r,v] = c * ([v = t] - softmax(policy[r])[v]),  c = grad_ratio * ratio + grad_kl * (1 - exp(d))
//   If attention_mask[r] = 0: ratio is 1, kl and gradient are 0, and nothing else of the row is read.
//   policy_logits, ref_logits, dpolicy_logits: [..., vocab] fp32|bf16|fp16   action_ids: int64   attention_mask: uint8
//   old_logps, grad_ratio, grad_kl, ratio, kl: [...] fp32
//   Limits: contiguous.   Expected error: sums are chains of 68 + log2(vocab / 1024) additions.
#include "cpu/policy.hpp"

namespace {

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 5, 2);
    native::PolicyCall in(c);
    native::check_list(c.outputs[0], "ratio", CHECKOP_F32, in.rows);
    native::check_list(c.outputs[1], "kl", CHECKOP_F32, in.rows);
    in.check_active_ids([&](int64_t r) { return in.mask[r] != 0; });

    auto* ratio = static_cast<float*>(c.outputs[0].data);
    auto* kl = static_cast<float*>(c.outputs[1].data);
    native::parallel_for(in.rows.value, 32 * in.rows.value * in.vocab.value, [&](int64_t begin, int64_t end) {
      std::vector<float> z = in.row_buffer();
      for (int64_t r = begin; r < end; ++r) {
        ratio[r] = 1.0f, kl[r] = 0.0f;
        if (in.mask[r] == 0) continue;
        const native::PolicyLogs logs = native::policy_logs(in, r, z.data());
        ratio[r] = std::exp(logs.delta), kl[r] = native::k3(logs.d);
      }
    });
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 7, 1);
    native::PolicyCall in(c);
    native::check_list(c.inputs[5], "grad_ratio", CHECKOP_F32, in.rows);
    native::check_list(c.inputs[6], "grad_kl", CHECKOP_F32, in.rows);
    native::check_matrix(c.outputs[0], "dpolicy_logits", in.policy->dtype, in.rows, in.vocab);
    in.check_active_ids([&](int64_t r) { return in.mask[r] != 0; });

    const auto* grad_ratio = static_cast<const float*>(c.inputs[5].data);
    const auto* grad_kl = static_cast<const float*>(c.inputs[6].data);
    const int64_t vocab = in.vocab.value;
    native::parallel_for(in.rows.value, 48 * in.rows.value * vocab, [&](int64_t begin, int64_t end) {
      std::vector<float> z = in.row_buffer();
      for (int64_t r = begin; r < end; ++r) {
        if (in.mask[r] == 0) {
          std::fill(z.begin(), z.end(), 0.0f);
        } else {
          const native::PolicyLogs logs = native::policy_logs(in, r, z.data());
          const float factor = grad_ratio[r] * std::exp(logs.delta) - grad_kl[r] * std::expm1(logs.d);
          native::row_gradient(z.data(), vocab, in.ids[r], factor);
        }
        native::store(c.outputs[0], r * vocab, vocab, z.data());
      }
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "ratio_kl", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "ratio_kl", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
