// SPDX-License-Identifier: Apache-2.0
// policy_loss / native: CPU, one sequence at a time in fp32.
//   r = exp(logps - old), or for ratio_level 1 exp of its mean over the sequence; A = advantages; c = clip(r)
//   PPO   L = w max(-A min(r, delta), -A c), at most -A dual_clip where A < 0     CISPO  L = -w c A logps
//   w     by exp(old - rollout): of the token or the sequence, truncated to [is_low, is_high] or 0 outside
//   k     by x = logps - ref: x, x^2/2 or exp(-x) - 1 + x
//   loss = sum a (L + kl_coef k - entropy_coef entropy), policy_loss = sum a L, kl = sum a k (with ref_logps),  a =
//   1/denom or 1/(n denom) dlogps = g a (dL + kl_coef dk), dentropy = -g a entropy_coef logps, old_logps, advantages,
//   ref_logps, rollout_logps, entropy, dlogps, dentropy: [batch, seq] fp32 mask: [batch, seq] uint8   denom, grad_loss
//   and the outputs of forward: one fp32 element ref_logps, rollout_logps, entropy and denom may be absent. Where the
//   mask is 0 nothing is read, and gradients are 0. Limits: contiguous.   Expected error: sums are chains of 68 +
//   log2(terms / 1024) additions.
#include "cpu/native.hpp"

namespace {

using native::attribute;
using native::Extent;
using native::scalar;

struct Settings {
  bool of_sequence, cispo;
  float low, high, dual_clip, delta;
  int is_mode;
  float is_low, is_high;
  int kl_estimator;
  float kl_coef;
  int kl_gradient;
  float ratio_clamp, kl_clamp_in, kl_clamp_out, entropy_coef;
  int aggregation;

  explicit Settings(const checkop_call& c)
      : of_sequence(attribute(c, "ratio_level") == 1),
        cispo(attribute(c, "objective") == 1),
        low(1 - attribute(c, "clip_low")),
        high(1 + attribute(c, "clip_high")),
        dual_clip(attribute(c, "dual_clip")),
        delta(attribute(c, "delta")),
        is_mode(static_cast<int>(attribute(c, "is_mode"))),
        is_low(attribute(c, "is_low")),
        is_high(attribute(c, "is_high")),
        kl_estimator(static_cast<int>(attribute(c, "kl_estimator"))),
        kl_coef(attribute(c, "kl_coef")),
        kl_gradient(static_cast<int>(attribute(c, "kl_gradient"))),
        ratio_clamp(attribute(c, "ratio_clamp")),
        kl_clamp_in(attribute(c, "kl_clamp_in")),
        kl_clamp_out(attribute(c, "kl_clamp_out")),
        entropy_coef(attribute(c, "entropy_coef")),
        aggregation(static_cast<int>(attribute(c, "aggregation"))) {}
};

/// Puts x back into [-limit, limit]; 0 is no limit. Returns the derivative: 0 if x was outside.
float hold(float& x, float limit) {
  if (limit == 0 || (x <= limit && x >= -limit)) return 1.0f;
  x = x > 0 ? limit : -limit;
  return 0.0f;
}

struct Token {
  float loss = 0, dloss = 0, kl = 0, dkl = 0, clipped = 0;
};

class Batch {
 public:
  Batch(const checkop_call& c, Extent& rows, Extent& seq) : set_(c) {
    native::check_matrix(c.inputs[0], "logps", CHECKOP_F32, rows, seq);
    const auto list = [&](int index, const char* name, int32_t dtype) -> const void* {
      if (index > 3 && c.inputs[index].data == nullptr && c.inputs[index].rank == 0) return nullptr;
      native::check_matrix(c.inputs[index], name, dtype, rows, seq);
      return c.inputs[index].data;
    };
    logps_ = static_cast<const float*>(c.inputs[0].data);
    old_ = static_cast<const float*>(list(1, "old_logps", CHECKOP_F32));
    advantages_ = static_cast<const float*>(list(2, "advantages", CHECKOP_F32));
    mask_ = static_cast<const uint8_t*>(list(3, "mask", CHECKOP_U8));
    ref_ = static_cast<const float*>(list(4, "ref_logps", CHECKOP_F32));
    rollout_ = static_cast<const float*>(list(5, "rollout_logps", CHECKOP_F32));
    entropy_ = static_cast<const float*>(list(6, "entropy", CHECKOP_F32));
    rows_ = rows.value, seq_ = seq.value;
    int64_t sequences = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t n = std::count_if(mask_ + r * seq_, mask_ + (r + 1) * seq_, [](uint8_t m) { return m != 0; });
      n_.push_back(static_cast<float>(n));
      active_ += n, sequences += n > 0 ? 1 : 0;
    }
    const int64_t own = set_.aggregation == 0 ? active_ : set_.aggregation == 3 ? rows_ * seq_ : sequences;
    denom_ =
        c.inputs[7].data == nullptr ? static_cast<float>(std::max<int64_t>(own, 1)) : *scalar(c.inputs[7], "denom");
  }

  const Settings& set() const { return set_; }
  int64_t tokens() const { return rows_ * seq_; }
  int64_t active() const { return active_; }
  bool has_ref() const { return ref_ != nullptr; }
  bool has_entropy() const { return entropy_ != nullptr; }
  bool is_active(int64_t i) const { return mask_[i] != 0; }
  float entropy(int64_t i) const { return entropy_ == nullptr ? 0.0f : entropy_[i]; }
  float weight(int64_t i) const {
    return set_.aggregation == 2 ? 1.0f / (n_[static_cast<size_t>(i / seq_)] * denom_) : 1.0f / denom_;
  }

  /// Calls body(i, token) for the active tokens of sequence r.
  template <class Body>
  void for_tokens(int64_t r, const Body& body) const {
    const int64_t first = r * seq_;
    const float n = n_[static_cast<size_t>(r)];
    if (n == 0) return;
    const auto sum = [&](const float* x, const float* y) {
      return native::blocked_sum(seq_,
                                 [&](int64_t j) { return is_active(first + j) ? x[first + j] - y[first + j] : 0.0f; });
    };
    const float mean_log_ratio = set_.of_sequence ? sum(logps_, old_) / n : 0.0f;
    const float mismatch = rollout_ != nullptr && (set_.is_mode == 2 || set_.is_mode == 4) ? sum(old_, rollout_) : 0.0f;
    for (int64_t i = first; i < first + seq_; ++i)
      if (is_active(i)) body(i, token(i, mean_log_ratio, mismatch, n));
  }

 private:
  Token token(int64_t i, float mean_log_ratio, float mismatch, float n) const {
    Token t;
    float log_ratio = set_.of_sequence ? mean_log_ratio : logps_[i] - old_[i];
    const float free = hold(log_ratio, set_.ratio_clamp), ratio = std::exp(log_ratio), slope = free * ratio;
    const float a = advantages_[i], inside = std::min(std::max(ratio, set_.low), set_.high);
    if (set_.cispo) {
      t.dloss = -inside * a, t.loss = t.dloss * logps_[i], t.clipped = inside != ratio ? 1.0f : 0.0f;
    } else {
      const bool limited = set_.delta > 0 && ratio > set_.delta;
      const float plain = -a * (limited ? set_.delta : ratio), other = -a * inside;
      t.clipped = other > plain ? 1.0f : 0.0f;
      t.loss = std::max(plain, other);
      t.dloss = other > plain || limited ? 0.0f : -a * slope;
      if (a < 0 && set_.dual_clip > 0 && t.loss > -a * set_.dual_clip) t.loss = -a * set_.dual_clip, t.dloss = 0.0f;
    }
    if (rollout_ != nullptr && set_.is_mode != 0) {
      const float w = weight_of(std::exp(old_[i] - rollout_[i]), mismatch, n);
      t.loss *= w, t.dloss *= w;
    }
    if (ref_ != nullptr) set_kl(logps_[i] - ref_[i], ratio, slope, t);
    return t;
  }

  float weight_of(float own, float mismatch, float n) const {
    switch (set_.is_mode) {
      case 1:
        return std::min(std::max(own, set_.is_low), set_.is_high);
      case 2:
        return std::min(std::max(std::exp(mismatch), set_.is_low), set_.is_high);
      case 3:
        return own >= set_.is_low && own <= set_.is_high ? own : 0.0f;
      default: {
        const float mean = std::exp(mismatch / n);
        return mean >= set_.is_low && mean <= set_.is_high ? own : 0.0f;
      }
    }
  }

  void set_kl(float x, float ratio, float slope, Token& t) const {
    const float free = hold(x, set_.kl_clamp_in), decay = std::expm1(-x);
    const float values[] = {x, 0.5f * x * x, decay + x}, slopes[] = {1.0f, x, -decay};
    t.kl = values[set_.kl_estimator - 1], t.dkl = slopes[set_.kl_estimator - 1] * free;
    t.dkl *= hold(t.kl, set_.kl_clamp_out);
    if (set_.kl_gradient == 1) t.dkl = x * free;
    if (set_.kl_gradient == 2) t.dkl = slope * t.kl + ratio * t.dkl, t.kl *= ratio;
  }

  Settings set_;
  const float *logps_, *old_, *advantages_, *ref_, *rollout_, *entropy_;
  const uint8_t* mask_;
  int64_t rows_ = 0, seq_ = 0, active_ = 0;
  std::vector<float> n_;
  float denom_ = 1;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 8, 4);
    Extent rows{"batch"}, seq{"seq"};
    const Batch batch(c, rows, seq);
    const char* names[] = {"loss", "policy_loss", "kl", "clip_fraction"};
    float* to[4] = {};
    for (int i = 0; i < 4; ++i)
      if (i != 2 || batch.has_ref()) to[i] = scalar(c.outputs[i], names[i]);
    // Terms first, then their sums in an order that depends on the number of tokens alone.
    const auto n = static_cast<size_t>(batch.tokens());
    std::vector<float> loss(n), policy(n), kl(n), clipped(n);
    native::parallel_for(rows.value, 64 * batch.tokens(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        batch.for_tokens(r, [&](int64_t i, const Token& t) {
          const auto at = static_cast<size_t>(i);
          const float a = batch.weight(i);
          policy[at] = a * t.loss, kl[at] = a * t.kl, clipped[at] = t.clipped;
          loss[at] = a * (t.loss + batch.set().kl_coef * t.kl - batch.set().entropy_coef * batch.entropy(i));
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
    const Batch batch(c, rows, seq);
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
        batch.for_tokens(r, [&](int64_t i, const Token& t) {
          const float a = g * batch.weight(i);
          dlogps[i] = a * (t.dloss + batch.set().kl_coef * t.dkl);
          if (dentropy != nullptr) dentropy[i] = -a * batch.set().entropy_coef;
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
