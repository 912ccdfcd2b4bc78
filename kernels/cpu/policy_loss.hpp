// SPDX-License-Identifier: Apache-2.0
// The losses of PPO and its variants over tokens, in fp32; policy_loss / native has the formulas. Nothing of a masked
// token is read.
#pragma once

#include "cpu/native.hpp"

namespace native {

struct PolicySettings {
  bool of_sequence, cispo;
  float low, high, dual_clip, delta;
  int is_mode;
  float is_low, is_high;
  int kl_estimator;
  float kl_coef;
  int kl_gradient;
  float ratio_clamp, kl_clamp_in, kl_clamp_out, entropy_coef;
  int aggregation;

  explicit PolicySettings(const checkop_call& c)
      : of_sequence(attribute(c, "ratio_level") == 1),
        cispo(attribute(c, "objective") == 1),
        low(1 - number(c, "clip_low")),
        high(1 + number(c, "clip_high")),
        dual_clip(number(c, "dual_clip")),
        delta(number(c, "delta")),
        is_mode(static_cast<int>(attribute(c, "is_mode"))),
        is_low(number(c, "is_low")),
        is_high(number(c, "is_high")),
        kl_estimator(static_cast<int>(attribute(c, "kl_estimator"))),
        kl_coef(number(c, "kl_coef")),
        kl_gradient(static_cast<int>(attribute(c, "kl_gradient"))),
        ratio_clamp(number(c, "ratio_clamp")),
        kl_clamp_in(number(c, "kl_clamp_in")),
        kl_clamp_out(number(c, "kl_clamp_out")),
        entropy_coef(number(c, "entropy_coef")),
        aggregation(static_cast<int>(attribute(c, "aggregation"))) {}

 private:
  static float number(const checkop_call& c, const char* name) { return static_cast<float>(attribute(c, name)); }
};

/// Puts x back into [-limit, limit]; 0 is no limit. Returns the derivative: 0 if x was outside.
inline float hold(float& x, float limit) {
  if (limit == 0 || (x <= limit && x >= -limit)) return 1.0f;
  x = x > 0 ? limit : -limit;
  return 0.0f;
}

struct LossToken {
  float loss = 0, dloss = 0, kl = 0, dkl = 0, clipped = 0;
};

/// [batch, seq] each, and one element of denom; nullptr where absent.
struct PolicyInputs {
  const float *logps, *old_logps, *advantages;
  const uint8_t* mask;
  const float *ref_logps, *rollout_logps, *entropy, *denom;
};

class PolicyBatch {
 public:
  PolicyBatch(const checkop_call& c, const PolicyInputs& inputs, int64_t rows, int64_t seq)
      : set_(c), in_(inputs), rows_(rows), seq_(seq) {
    int64_t sequences = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t n = std::count_if(in_.mask + r * seq_, in_.mask + (r + 1) * seq_, [](uint8_t m) { return m != 0; });
      n_.push_back(static_cast<float>(n));
      active_ += n, sequences += n > 0 ? 1 : 0;
    }
    const int64_t own = set_.aggregation == 0 ? active_ : set_.aggregation == 3 ? rows_ * seq_ : sequences;
    denom_ = in_.denom == nullptr ? static_cast<float>(std::max<int64_t>(own, 1)) : *in_.denom;
  }

  float entropy_coef() const { return set_.entropy_coef; }
  int64_t tokens() const { return rows_ * seq_; }
  int64_t active() const { return active_; }
  bool has_ref() const { return in_.ref_logps != nullptr; }
  bool has_entropy() const { return in_.entropy != nullptr; }
  bool is_active(int64_t i) const { return in_.mask[i] != 0; }
  float entropy(int64_t i) const { return in_.entropy == nullptr ? 0.0f : in_.entropy[i]; }
  float weight(int64_t i) const {
    return set_.aggregation == 2 ? 1.0f / (n_[static_cast<size_t>(i / seq_)] * denom_) : 1.0f / denom_;
  }

  /// A token's part of the loss and of its derivative by the log-probability, without weight().
  float loss(int64_t i, const LossToken& t) const {
    return t.loss + set_.kl_coef * t.kl - set_.entropy_coef * entropy(i);
  }
  float dlogp(const LossToken& t) const { return t.dloss + set_.kl_coef * t.dkl; }

  /// Calls body(i, token) for the active tokens of sequence r.
  template <class Body>
  void for_tokens(int64_t r, const Body& body) const {
    const int64_t first = r * seq_;
    const float n = n_[static_cast<size_t>(r)];
    if (n == 0) return;
    const auto sum = [&](const float* x, const float* y) {
      return blocked_sum(seq_, [&](int64_t j) { return is_active(first + j) ? x[first + j] - y[first + j] : 0.0f; });
    };
    const float mean_log_ratio = set_.of_sequence ? sum(in_.logps, in_.old_logps) / n : 0.0f;
    const float mismatch = in_.rollout_logps != nullptr && (set_.is_mode == 2 || set_.is_mode == 4)
                               ? sum(in_.old_logps, in_.rollout_logps)
                               : 0.0f;
    for (int64_t i = first; i < first + seq_; ++i)
      if (is_active(i)) body(i, token(i, mean_log_ratio, mismatch, n));
  }

 private:
  LossToken token(int64_t i, float mean_log_ratio, float mismatch, float n) const {
    LossToken t;
    float log_ratio = set_.of_sequence ? mean_log_ratio : in_.logps[i] - in_.old_logps[i];
    const float free = hold(log_ratio, set_.ratio_clamp), ratio = std::exp(log_ratio), slope = free * ratio;
    const float a = in_.advantages[i], inside = std::min(std::max(ratio, set_.low), set_.high);
    if (set_.cispo) {
      t.dloss = -inside * a, t.loss = t.dloss * in_.logps[i], t.clipped = inside != ratio ? 1.0f : 0.0f;
    } else {
      const bool limited = set_.delta > 0 && ratio > set_.delta;
      const float plain = -a * (limited ? set_.delta : ratio), other = -a * inside;
      t.clipped = other > plain ? 1.0f : 0.0f;
      t.loss = std::max(plain, other);
      t.dloss = other > plain || limited ? 0.0f : -a * slope;
      if (a < 0 && set_.dual_clip > 0 && t.loss > -a * set_.dual_clip) t.loss = -a * set_.dual_clip, t.dloss = 0.0f;
    }
    if (in_.rollout_logps != nullptr && set_.is_mode != 0) {
      const float w = weight_of(std::exp(in_.old_logps[i] - in_.rollout_logps[i]), mismatch, n);
      t.loss *= w, t.dloss *= w;
    }
    if (in_.ref_logps != nullptr) set_kl(in_.logps[i] - in_.ref_logps[i], ratio, slope, t);
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

  void set_kl(float x, float ratio, float slope, LossToken& t) const {
    const float free = hold(x, set_.kl_clamp_in), decay = std::expm1(-x);
    const float values[] = {x, 0.5f * x * x, decay + x}, slopes[] = {1.0f, x, -decay};
    t.kl = values[set_.kl_estimator - 1], t.dkl = slopes[set_.kl_estimator - 1] * free;
    t.dkl *= hold(t.kl, set_.kl_clamp_out);
    if (set_.kl_gradient == 1) t.dkl = x * free;
    if (set_.kl_gradient == 2) t.dkl = slope * t.kl + ratio * t.dkl, t.kl *= ratio;
  }

  PolicySettings set_;
  PolicyInputs in_;
  int64_t rows_ = 0, seq_ = 0, active_ = 0;
  std::vector<float> n_;
  float denom_ = 1;
};

}  // namespace native
