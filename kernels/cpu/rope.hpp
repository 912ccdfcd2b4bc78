// SPDX-License-Identifier: Apache-2.0
// Shared by the native candidates that rotate pairs by positions: frequencies with their scalings, positions, a table.
#pragma once

#include <algorithm>
#include <numbers>

#include "cpu/native.hpp"

namespace native {

/// The attributes that fix the angles. Checks only those that choose a formula.
class RopeAngles {
 public:
  RopeAngles(const checkop_call& c, int64_t head_dim)
      : interleaved_(choice(c, "interleaved", 1) != 0),
        section_h_(static_cast<int64_t>(attribute(c, "section_h"))),
        section_w_(static_cast<int64_t>(attribute(c, "section_w"))),
        sections_interleaved_(choice(c, "sections_interleaved", 1) != 0) {
    const auto rotary_dim = static_cast<int64_t>(attribute(c, "rotary_dim"));
    rotary_dim_ = rotary_dim < 0 ? head_dim : rotary_dim;
    if (rotary_dim_ % 2 != 0 || rotary_dim_ > head_dim)
      throw Refusal(CHECKOP_FAILED, "rotary_dim " + std::to_string(rotary_dim_) + ": expected an even number up to " +
                                        std::to_string(head_dim));
    const int scaling = choice(c, "scaling", 3);
    const float factor = attribute(c, "factor");
    scale_ = attribute(c, "attention_factor");
    if (scale_ < 0) scale_ = scaling == 3 && factor > 1.0f ? 0.1f * std::log(factor) + 1.0f : 1.0f;
    make_frequencies(c, scaling, factor);
  }

  int64_t pairs() const { return rotary_dim_ / 2; }
  /// Which of three positions rotates pair i.
  int64_t section(int64_t i) const {
    if (sections_interleaved_) return i % 3 == 1 && i < 3 * section_h_ ? 1 : i % 3 == 2 && i < 3 * section_w_ ? 2 : 0;
    return i >= pairs() - section_w_ ? 2 : i >= pairs() - section_w_ - section_h_ ? 1 : 0;
  }
  /// The cosine and the sine of pair i, both times the attention factor.
  std::pair<float, float> turn(int64_t position, int64_t i) const {
    const float angle = static_cast<float>(position) * frequencies_[static_cast<size_t>(i)];
    return {scale_ * std::cos(angle), scale_ * std::sin(angle)};
  }
  /// Rotates a row by the cosines and sines of its pairs; columns from rotary_dim on stay.
  void apply(const float* cosine, const float* sine, float* row) const {
    for (int64_t i = 0; i < pairs(); ++i) {
      float &low = row[interleaved_ ? 2 * i : i], &high = row[interleaved_ ? 2 * i + 1 : i + pairs()];
      const float a = low, b = high;
      low = a * cosine[i] - b * sine[i];
      high = b * cosine[i] + a * sine[i];
    }
  }

 private:
  static int choice(const checkop_call& c, const char* name, int most) {
    const float value = attribute(c, name);
    if (!(value >= 0 && value <= static_cast<float>(most)))
      throw Refusal(CHECKOP_UNSUPPORTED,
                    std::string(name) + " " + std::to_string(value) + ": choices up to " + std::to_string(most));
    return static_cast<int>(value);
  }

  void make_frequencies(const checkop_call& c, int scaling, float factor) {
    const float theta = attribute(c, "theta"), original = attribute(c, "original_length");
    const float low = attribute(c, "low_freq_factor"), high = attribute(c, "high_freq_factor");
    const auto pair_of_turns = [&](const char* beta) {
      return static_cast<double>(rotary_dim_) *
             std::log(static_cast<double>(original) / (exact_attribute(c, beta) * 2 * std::numbers::pi)) /
             (2 * std::log(static_cast<double>(theta)));
    };
    double begin = pair_of_turns("beta_fast"), end = pair_of_turns("beta_slow");
    if (attribute(c, "truncate") != 0) begin = std::floor(begin), end = std::ceil(end);
    begin = std::max(begin, 0.0), end = std::min(end, static_cast<double>(rotary_dim_ - 1));
    if (begin == end) end += 0.001;
    for (int64_t i = 0; i < pairs(); ++i) {
      const float f = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(rotary_dim_));
      float kept = scaling == 1 ? 0.0f : 1.0f;
      if (scaling == 2) kept = (original * f / (2.0f * std::numbers::pi_v<float>)-low) / (high - low);
      if (scaling == 3) kept = 1.0f - static_cast<float>((static_cast<double>(i) - begin) / (end - begin));
      kept = std::clamp(kept, 0.0f, 1.0f);
      frequencies_.push_back(kept == 1.0f ? f : kept * f + (1.0f - kept) * (f / factor));
    }
  }

  int64_t rotary_dim_ = 0;
  bool interleaved_;
  int64_t section_h_, section_w_;
  bool sections_interleaved_;
  float scale_ = 1;
  std::vector<float> frequencies_;
};

/// Throws Refusal for a negative position.
inline void check_positions(const checkop_tensor& t, const char* name, int64_t count) {
  const auto* positions = static_cast<const int64_t*>(t.data);
  for (int64_t i = 0; i < count; ++i)
    if (positions[i] < 0)
      throw Refusal(CHECKOP_FAILED, std::string(name) + "[" + std::to_string(i) +
                                        "] = " + std::to_string(positions[i]) + " is below 0");
}

/// Cosines and sines [rows, pairs] of `rows` tokens with `each` positions, 1 or 3.
struct RopeTable {
  std::vector<float> cosine, sine;

  RopeTable(const RopeAngles& angles, const int64_t* positions, int64_t rows, int64_t each, float direction) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < angles.pairs(); ++i) {
        const auto [c, s] = angles.turn(positions[r * each + (each == 3 ? angles.section(i) : 0)], i);
        cosine.push_back(c), sine.push_back(direction * s);
      }
    }
  }
};

}  // namespace native
