// SPDX-License-Identifier: Apache-2.0
// Code shared by rope and qk_norm_rope: the attributes of rope's angles, the angles with their errors, and rotations of
// rows.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

/// Places of the attributes among kRopeAttrs.
enum RopeAttr : size_t {
  kOfTheta,
  kOfRotaryDim,
  kOfInterleaved,
  kOfScaling,
  kOfFactor,
  kOfOriginalLength,
  kOfLowFreqFactor,
  kOfHighFreqFactor,
  kOfBetaFast,
  kOfBetaSlow,
  kOfTruncate,
  kOfAttentionFactor,
  kOfSectionH,
  kOfSectionW,
  kOfSectionsInterleaved
};
inline constexpr std::array kRopeAttrs{
    AttrSpec{"theta", 1e6, "base of the frequencies theta^(-2i/rotary_dim)"},
    AttrSpec{"rotary_dim", -1, "columns that turn, the first ones of head_dim; -1: all"},
    AttrSpec{"interleaved", 0, "columns of pair i, 0: i and i + rotary_dim/2 (Llama), 1: 2i and 2i + 1 (GPT-J)"},
    AttrSpec{"scaling", 0, "of the frequencies, 0: none, 1: linear, 2: llama3, 3: YaRN"},
    AttrSpec{"factor", 1, "scaling divides frequencies by it, llama3 and YaRN the low ones alone"},
    AttrSpec{"original_length", 8192, "llama3, YaRN: the longest sequence before the scaling"},
    AttrSpec{"low_freq_factor", 1, "llama3: turns in original_length below which a frequency is divided by factor"},
    AttrSpec{"high_freq_factor", 4, "llama3: turns in original_length above which a frequency stays"},
    AttrSpec{"beta_fast", 32, "YaRN: turns in original_length above which a frequency stays"},
    AttrSpec{"beta_slow", 1, "YaRN: turns in original_length below which a frequency is divided by factor"},
    AttrSpec{"truncate", 1, "YaRN: 1: the ramp between both begins and ends at whole pairs, 0: at fractions (gpt-oss)"},
    AttrSpec{"attention_factor", -1, "factor of sines and cosines; -1: 0.1 ln(factor) + 1 with YaRN, else 1"},
    AttrSpec{"section_h", 0, "pairs that turn by the second of three positions; those of neither section by the first"},
    AttrSpec{"section_w", 0, "pairs that turn by the third of three positions"},
    AttrSpec{"sections_interleaved", 0,
             "0: the sections are blocks, the last ones (Qwen2-VL), 1: pairs 1, 4, ... and 2, 5, ... (Qwen3-VL)"},
};

/// Throws InputError for attributes out of range. `attrs` begin with theta.
void validate_rope(std::span<const double> attrs, int64_t head_dim);

/// One angle: its sine and its cosine, both times the attention factor, and the coefficient of u in the error of a
/// computed angle.
struct Turn {
  double sin, cos, error;
};

/// The three positions of a token: of time, height and width. All the same for text.
using Positions = std::array<int64_t, 3>;

/// Reads [rows] positions, or [rows, 3]. Throws InputError for a negative one.
std::vector<Positions> read_positions(const Tensor& tensor, bool has_three);

/// Sets [rows, 3] positions: text, then the rows and columns of an image, again and again.
void plant_three_positions(const FillArgs& args, Tensor& positions);

/// The angles of rope's attributes.
class Rotation {
 public:
  Rotation(std::span<const double> attrs, int64_t head_dim);

  int64_t pairs() const { return pairs_; }
  size_t low(int64_t i) const { return static_cast<size_t>(interleaved_ ? 2 * i : i); }
  size_t high(int64_t i) const { return static_cast<size_t>(interleaved_ ? 2 * i + 1 : i + pairs_); }
  int64_t rotary_dim() const { return 2 * pairs_; }
  /// The turns of all pairs; `sign` -1 for the inverse.
  void append_turns(const Positions& positions, double sign, std::vector<Turn>& to) const;
  /// Coefficient of u in the relative error of a sine or cosine times the attention factor.
  double entry_units() const { return entry_units_; }

 private:
  struct Frequency {
    double value, units;  ///< relative error in units of u
    size_t position;      ///< which of the three turns it
  };

  Frequency frequency(std::span<const double> attrs, int64_t i) const;

  int64_t pairs_;
  bool interleaved_;
  double attention_factor_ = 1, entry_units_;
  std::vector<Frequency> frequencies_;
};

/// Rotations with roundings to 16 bits: of the table of sines and cosines, of the products with it, or of both. Without
/// the rounding of the table an angle error of d moves the sine and the cosine by at most d.
class RoundedRotation {
 public:
  RoundedRotation(const GoldArgs& args, int output, const Rotation& rotation)
      : args_(args),
        output_(output),
        units_(rotation.entry_units()),
        table_(args.recipes.has(recipe::kTable)),
        products_(args.recipes.has(recipe::kProducts)) {}

  bool active() const { return table_ || products_; }
  /// x times a sine or cosine.
  GoldElement product(const GoldElement& x, double of_angle, double angle_error) const {
    const GoldElement entry =
        rounded_if(table_, args_, output_, {of_angle, 0, units_ * std::abs(of_angle) + angle_error});
    const double value = x.value * entry.value, size = std::abs(entry.value);
    const double error = std::abs(x.value) * entry.rounding + size * x.rounding;
    // fp32 holds a product of two 16-bit values.
    const bool exact = table_ && x.magnitude == 0 && x.rounding == 0;
    return rounded_if(products_, args_, output_, {value, size * x.magnitude, error + (exact ? 0 : std::abs(value))});
  }
  /// a + b, where each errs as product() says, and the sum rounds.
  static GoldElement sum(const GoldElement& a, const GoldElement& b) {
    const double value = a.value + b.value;
    return {value, a.magnitude + b.magnitude, a.rounding + b.rounding + std::abs(value)};
  }

 private:
  const GoldArgs& args_;
  const int output_;
  const double units_;
  const bool table_, products_;
};

/// Turns a row by `turns`, the angles of its position: reads element(column), emits take(column, e). Columns from
/// rotary_dim on stay as they are. An angle error of d moves y_low by |y_low (cos d - 1) +- y_high sin d| <= (|y_low| +
/// |y_high|) d for every d.
template <class Element, class Take>
void turn_row(const Rotation& rotation, const RoundedRotation& rounded, const Turn* turns, int64_t head_dim,
              const Element& element, const Take& take) {
  const double units = rotation.entry_units() + 1;
  for (int64_t i = 0; i < rotation.pairs(); ++i) {
    const Turn& turn = turns[i];
    const size_t low = rotation.low(i), high = rotation.high(i);
    const GoldElement a = element(low), b = element(high);
    if (rounded.active()) {
      const auto times = [&](const GoldElement& x, double of_angle) {
        return rounded.product(x, of_angle, turn.error);
      };
      take(low, RoundedRotation::sum(times(a, turn.cos), times({-b.value, b.magnitude, b.rounding}, turn.sin)));
      take(high, RoundedRotation::sum(times(b, turn.cos), times(a, turn.sin)));
      continue;
    }
    const double ac = a.value * turn.cos, as = a.value * turn.sin, bc = b.value * turn.cos, bs = b.value * turn.sin;
    const double y_low = ac - bs, y_high = bc + as, moved = (std::abs(y_low) + std::abs(y_high)) * turn.error;
    const double c = std::abs(turn.cos), s = std::abs(turn.sin);
    // Both products have the error of their sine or cosine and round once; their sum rounds once.
    take(low, GoldElement{
                  y_low, c * a.magnitude + s * b.magnitude,
                  moved + units * (std::abs(ac) + std::abs(bs)) + std::abs(y_low) + c * a.rounding + s * b.rounding});
    take(high, GoldElement{
                   y_high, c * b.magnitude + s * a.magnitude,
                   moved + units * (std::abs(bc) + std::abs(as)) + std::abs(y_high) + c * b.rounding + s * a.rounding});
  }
  for (auto column = static_cast<size_t>(rotation.rotary_dim()); column < static_cast<size_t>(head_dim); ++column)
    take(column, element(column));
}

}  // namespace checkop
