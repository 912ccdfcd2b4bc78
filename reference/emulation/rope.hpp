// SPDX-License-Identifier: Apache-2.0
// Rotations by positions, with the faults that rope and qk_norm_rope can have.
#pragma once

#include <array>
#include <numbers>

#include "emulation/common.hpp"
#include "recipes.hpp"
#include "rotation.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kWrongBase{"wrong_base", "the base of the frequencies is 10000, whatever theta is"};
inline constexpr FaultSpec kExponentHalved{"exponent_halved", "frequencies are theta^(-i/rotary_dim)"};
inline constexpr FaultSpec kPositionsShifted{"positions_shifted", "positions count from 1"};
inline constexpr FaultSpec kTurnedTheOtherWay{"turned_the_other_way", "the sines have the wrong sign"};
inline constexpr FaultSpec kOtherPairs{"other_pairs", "pairs are neighbours instead of halves, or halves instead"};
inline constexpr FaultSpec kHighHalfKept{"high_half_kept", "the second element of each pair is copied"};
// Half of the pairs, because the last pair alone hardly turns.
inline constexpr FaultSpec kPartlyTurned{"partly_turned", "the second half of the pairs is copied"};
inline constexpr FaultSpec kFrequenciesRounded{"frequencies_rounded", "frequencies are rounded to bf16"};
inline constexpr FaultSpec kPositionsRounded{"positions_rounded", "positions are rounded to bf16"};
inline constexpr FaultSpec kAnglesRounded{"angles_rounded", "angles are rounded to bf16"};
inline constexpr FaultSpec kTableRounded{"table_rounded", "sines and cosines are rounded to bf16", "accuracy",
                                         "fp32 fp16"};  // in bf16 it is a recipe
inline constexpr FaultSpec kPositionsIn16Bits{"positions_in_16_bits", "of positions only the lowest 16 bits count"};
inline constexpr FaultSpec kTableTooShort{"table_too_short", "positions beyond 255 take the last row of the table"};
inline constexpr FaultSpec kAllColumnsTurned{"all_columns_turned", "rotary_dim is ignored: all columns turn"};
inline constexpr FaultSpec kFrequenciesOfHead{"frequencies_of_head",
                                              "frequencies are those of head_dim, not of rotary_dim"};
inline constexpr FaultSpec kRestDropped{"rest_dropped", "columns from rotary_dim on are 0"};
inline constexpr FaultSpec kScalingLeftOut{"scaling_left_out", "frequencies are not scaled"};
inline constexpr FaultSpec kAllFrequenciesScaled{"all_frequencies_scaled",
                                                 "every frequency is divided by the factor, whatever the scaling"};
inline constexpr FaultSpec kRampLeftOut{"ramp_left_out", "frequencies on the ramp stay as they are"};
inline constexpr FaultSpec kRampReversed{"ramp_reversed", "the low frequencies stay, and the high ones are divided"};
inline constexpr FaultSpec kRampTruncated{"ramp_truncated",
                                          "the ramp of YaRN is truncated if it should not be, or not"};
inline constexpr FaultSpec kAttentionFactorLeftOut{"attention_factor_left_out",
                                                   "sines and cosines are not multiplied by the attention factor"};
inline constexpr FaultSpec kAttentionFactorDefault{"attention_factor_default",
                                                   "a given attention factor is ignored for that of the scaling"};
inline constexpr FaultSpec kSectionsDropped{"sections_dropped", "every pair turns by the first of three positions",
                                            "accuracy", "", "mrope_positions"};
inline constexpr FaultSpec kSectionsSwapped{"sections_swapped", "height and width change places", "accuracy", "",
                                            "mrope_positions"};
inline constexpr FaultSpec kOtherSections{
    "other_sections", "sections are blocks instead of interleaved, or interleaved", "accuracy", "", "mrope_positions"};

/// The rotation matrix of a pair, for the low and for the high element, rounded as a table may be.
struct PairTurn {
  float low[2], high[2];
};

/// The turns of the pairs of a head, as a kernel computes them in fp32.
class Turns {
 public:
  Turns(const EmulationArgs& args, std::span<const double> attrs, int64_t head_dim)
      : arithmetic_(args.arithmetic), attrs_(attrs), head_dim_(head_dim) {
    const Arithmetic& a = arithmetic_;
    const bool all = of(kOfRotaryDim) < 0 || a.has(kAllColumnsTurned.name);
    rotary_dim_ = all ? head_dim : static_cast<int64_t>(of(kOfRotaryDim));
    neighbours_ = (of(kOfInterleaved) != 0) != a.has(kOtherPairs.name);
    const double factor = of(kOfFactor);
    attention_factor_ = of(kOfScaling) == 3 && factor > 1 ? 0.1F * std::log(static_cast<float>(factor)) + 1 : 1;
    if (of(kOfAttentionFactor) >= 0 && !a.has(kAttentionFactorDefault.name))
      attention_factor_ = static_cast<float>(of(kOfAttentionFactor));
    if (a.has(kAttentionFactorLeftOut.name)) attention_factor_ = 1;
    for (int64_t i = 0; i < pairs(); ++i) {
      const float f = frequency(i);
      frequencies_.push_back(a.has(kFrequenciesRounded.name) ? Arithmetic::to_bf16(f) : f);
      sections_.push_back(section(i));
    }
  }

  int64_t pairs() const { return rotary_dim_ / 2; }

  std::vector<PairTurn> at(const Positions& positions, float sign) const {
    const Arithmetic& a = arithmetic_;
    if (a.has(kTurnedTheOtherWay.name)) sign = -sign;
    std::vector<PairTurn> turns;
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      int64_t position = positions[sections_[i]] + (a.has(kPositionsShifted.name) ? 1 : 0);
      if (a.has(kPositionsIn16Bits.name)) position %= int64_t{1} << 16;
      if (a.has(kTableTooShort.name)) position = std::min<int64_t>(position, 255);
      const auto steps = static_cast<float>(position);
      float angle = (a.has(kPositionsRounded.name) ? Arithmetic::to_bf16(steps) : steps) * frequencies_[i];
      if (a.has(kAnglesRounded.name)) angle = Arithmetic::to_bf16(angle);
      const float cosine = entry(std::cos(angle)), sine = sign * entry(std::sin(angle));
      turns.push_back({{cosine, -sine}, {sine, cosine}});
    }
    return turns;
  }

  /// Stores a head turned by `turns` in `to`.
  void apply(const std::vector<PairTurn>& turns, const float* from, float* to) const {
    const Arithmetic& a = arithmetic_;
    const int64_t turned = a.has(kPartlyTurned.name) ? pairs() / 2 : pairs();
    const bool rounds = a.rounds(recipe::kProducts), keeps_high = a.has(kHighHalfKept.name);
    std::copy_n(from, head_dim_, to);
    if (a.has(kRestDropped.name)) std::fill(to + rotary_dim_, to + head_dim_, 0.0F);
    for (int64_t i = 0; i < turned; ++i) {
      const int64_t low = neighbours_ ? 2 * i : i, distance = neighbours_ ? 1 : pairs();
      const auto turned_by = [&](const float(&row)[2]) {
        if (!rounds) return a.dot(2, from + low, distance, row, 1);
        return a.rounded_if(true, from[low] * row[0]) + a.rounded_if(true, from[low + distance] * row[1]);
      };
      to[low] = turned_by(turns[static_cast<size_t>(i)].low);
      if (!keeps_high) to[low + distance] = turned_by(turns[static_cast<size_t>(i)].high);
    }
  }

 private:
  double of(RopeAttr attr) const { return attrs_[attr]; }

  float entry(float x) const {
    x *= attention_factor_;
    return arithmetic_.has(kTableRounded.name) ? Arithmetic::to_bf16(x)
                                               : arithmetic_.rounded_if(arithmetic_.rounds(recipe::kTable), x);
  }

  float frequency(int64_t i) const {
    const Arithmetic& a = arithmetic_;
    const float theta = a.has(kWrongBase.name) ? 10000.0F : static_cast<float>(of(kOfTheta));
    const int64_t dim = a.has(kFrequenciesOfHead.name) ? head_dim_ : rotary_dim_;
    const auto halves = static_cast<float>(a.has(kExponentHalved.name) ? dim : dim / 2);
    const float f = 1 / std::pow(theta, static_cast<float>(i) / halves), factor = static_cast<float>(of(kOfFactor));
    const auto scaling = static_cast<int>(of(kOfScaling));
    if (scaling == 0 || a.has(kScalingLeftOut.name)) return f;
    if (scaling == 1 || a.has(kAllFrequenciesScaled.name)) return f / factor;
    float kept = scaling == 2 ? kept_by_llama3(f) : kept_by_yarn(i);
    if (a.has(kRampReversed.name)) kept = 1 - kept;
    if (a.has(kRampLeftOut.name) && kept > 0) kept = 1;
    return kept * f + (1 - kept) * (f / factor);
  }
  float kept_by_llama3(float f) const {
    const auto low = static_cast<float>(of(kOfLowFreqFactor)), high = static_cast<float>(of(kOfHighFreqFactor));
    const float wavelength = 2 * std::numbers::pi_v<float> / f;
    return std::clamp((static_cast<float>(of(kOfOriginalLength)) / wavelength - low) / (high - low), 0.0F, 1.0F);
  }
  float kept_by_yarn(int64_t i) const {
    const auto pair = [&](RopeAttr beta) {
      return static_cast<double>(rotary_dim_) * std::log(of(kOfOriginalLength) / (2 * std::numbers::pi * of(beta))) /
             (2 * std::log(of(kOfTheta)));
    };
    double low = pair(kOfBetaFast), high = pair(kOfBetaSlow);
    if ((of(kOfTruncate) != 0) != arithmetic_.has(kRampTruncated.name)) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotary_dim_ - 1));
    if (low == high) high += 0.001;
    const auto start = static_cast<float>(low), end = static_cast<float>(high);
    return 1 - std::clamp((static_cast<float>(i) - start) / (end - start), 0.0F, 1.0F);
  }

  size_t section(int64_t i) const {
    const Arithmetic& a = arithmetic_;
    const auto h = static_cast<int64_t>(of(kOfSectionH)), w = static_cast<int64_t>(of(kOfSectionW));
    const bool interleaved = (of(kOfSectionsInterleaved) != 0) != a.has(kOtherSections.name);
    const bool of_height = interleaved ? i % 3 == 1 && i < 3 * h : i >= pairs() - w - h && i < pairs() - w;
    const bool of_width = interleaved ? i % 3 == 2 && i < 3 * w : i >= pairs() - w;
    if (a.has(kSectionsDropped.name)) return 0;
    const bool swapped = a.has(kSectionsSwapped.name);
    return of_height ? (swapped ? 2 : 1) : of_width ? (swapped ? 1 : 2) : 0;
  }

  const Arithmetic& arithmetic_;
  std::span<const double> attrs_;
  int64_t head_dim_, rotary_dim_;
  bool neighbours_;
  float attention_factor_;
  std::vector<float> frequencies_;
  std::vector<size_t> sections_;
};

inline constexpr std::array kTurnFaults{faults::kBf16Accumulator,
                                        kWrongBase,
                                        kExponentHalved,
                                        kPositionsShifted,
                                        kTurnedTheOtherWay,
                                        kOtherPairs,
                                        kHighHalfKept,
                                        kPartlyTurned,
                                        kFrequenciesRounded,
                                        kPositionsRounded,
                                        kAnglesRounded,
                                        kPositionsIn16Bits,
                                        kTableTooShort,
                                        kTableRounded,
                                        kAllColumnsTurned,
                                        kFrequenciesOfHead,
                                        kRestDropped,
                                        kScalingLeftOut,
                                        kAllFrequenciesScaled,
                                        kRampLeftOut,
                                        kRampReversed,
                                        kRampTruncated,
                                        kAttentionFactorLeftOut,
                                        kAttentionFactorDefault,
                                        kSectionsDropped,
                                        kSectionsSwapped,
                                        kOtherSections};

}  // namespace checkop::emulation
