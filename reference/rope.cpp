// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding: pairs of columns are rotated by an angle that grows with the position.
#include "rotation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace checkop {

extern const Emulation kRopeForward, kRopeBackward;  // emulation/rope.cpp

namespace rope {
namespace {

constexpr std::string_view kHeads = "batch heads seq head_dim";
constexpr TensorSpec kPositions{"positions", "seq", Fill::positions, "", DType::i64};
constexpr TensorSpec kBatchPositions{"batch_positions", "batch seq",      Fill::positions, "",
                                     DType::i64,        /*optional=*/true};
constexpr TensorSpec kThreePositions{"mrope_positions", "batch seq 3",    Fill::positions, "",
                                     DType::i64,        /*optional=*/true};

constexpr std::array kForwardIn{TensorSpec{"x", kHeads}, kPositions, kBatchPositions, kThreePositions};
constexpr std::array kForwardOut{OutputSpec{{"y", kHeads}, Numerics::pointwise, ""}};
constexpr std::array kBackwardIn{kPositions, TensorSpec{"grad_y", kHeads, Fill::upstream}, kBatchPositions,
                                 kThreePositions};
constexpr std::array kBackwardOut{OutputSpec{{"dx", kHeads}, Numerics::pointwise, ""}};

constexpr std::array kForwardRecipes{
    Recipe{recipe::kTable, "y", k16Bit, /*exact=*/true, "y = x round(cos a) + rot(x) round(sin a)",
           "Hugging Face's LlamaRotaryEmbedding casts cos and sin to the dtype of x; vLLM's and unsloth's caches"},
    Recipe{recipe::kProducts, "y", k16Bit, /*exact=*/true, "y = round(x cos a) + round(rot(x) sin a)",
           "q * cos + rotate_half(q) * sin in Hugging Face's apply_rotary_pos_emb: both products are 16-bit tensors"}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kTable, "dx", k16Bit, /*exact=*/true, "dx = grad_y round(cos a) - rot(grad_y) round(sin a)",
           "autograd of the forward pass with such a table"},
    Recipe{recipe::kProducts, "dx", k16Bit, /*exact=*/true, "dx = round(grad_y cos a) - rot(round(grad_y sin a))",
           "autograd of q * cos + rotate_half(q) * sin"}};

constexpr int kOfBatchPositions = 2, kOfThreePositions = 3;

/// Rotates every row of x by sign*angle.
void rotate(const GoldArgs& args, const Tensor& x, const Tensor& shared_positions, double sign) {
  const int64_t batch = x.shape[0], heads = x.shape[1], seq = x.shape[2], head_dim = x.shape[3];
  const Rotation rotation(args.attrs, head_dim);
  const bool has_three = args.has(kOfThreePositions), has_batch = has_three || args.has(kOfBatchPositions);
  std::vector<Positions> positions = read_positions(shared_positions, false);  // refuses negative ones, used or not
  if (has_batch) positions = read_positions(args.in(has_three ? kOfThreePositions : kOfBatchPositions), has_three);
  std::vector<Turn> turns;
  turns.reserve(positions.size() * static_cast<size_t>(rotation.pairs()));
  for (const Positions& each : positions) rotation.append_turns(each, sign, turns);
  const DTypeInfo& type = info(x.dtype);
  const auto columns = static_cast<size_t>(heads * seq * head_dim);
  const std::vector<double> magnitude(columns, 0.0);  // there are no long sums
  const RoundedRotation rounded(args, 0, rotation);
  args.parallel_for(batch, [&](int64_t b) {
    std::vector<double> from(columns), value(columns), rounding(columns);
    type.decode(x.bytes.data() + static_cast<size_t>(b) * columns * type.bytes, from.data(), columns);
    for (int64_t row = 0; row < heads * seq; ++row) {
      const int64_t at = (has_batch ? b * seq : 0) + row % seq;
      const auto first = static_cast<size_t>(row * head_dim);
      turn_row(
          rotation, rounded, turns.data() + at * rotation.pairs(), head_dim,
          [&](size_t column) {
            return GoldElement{from[first + column], 0, 0};
          },
          [&](size_t column, const GoldElement& e) {
            value[first + column] = e.value, rounding[first + column] = e.rounding;
          });
    }
    args.sink({0, b, 1, static_cast<int64_t>(columns), value.data(), magnitude.data(), rounding.data()});
  });
}

/// Gold of rope.
///   in:  x[batch, heads, seq, head_dim], positions[seq]; optional batch_positions[batch, seq] or
///        mrope_positions[batch, seq, 3] take their place     out: y[batch, heads, seq, head_dim]
///   y_low = m (x_low cos a - x_high sin a),  y_high = m (x_high cos a + x_low sin a) for each pair i of columns,
///   a = position f_i,  f_i = theta^(-2i/rotary_dim), scaled;  m = attention_factor
/// Throws InputError for a negative position.
/// Source: Su et al. 2021, with the pairs of GPT-NeoX and Llama (halves) or of GPT-J (neighbours); scaled frequencies
/// as in Hugging Face's modeling_rope_utils.py; three positions as in Qwen2-VL.
void forward(const GoldArgs& args) { rotate(args, args.in(0), args.in(1), 1); }

/// Gold of rope's gradient: the inverse rotation, times the attention factor.
///   in:  positions as above, grad_y[batch, heads, seq, head_dim]     out: dx[batch, heads, seq, head_dim]
/// Throws InputError for a negative position.
void backward(const GoldArgs& args) { rotate(args, args.in(1), args.in(0), -1); }

void check_sizes(const CaseSizes& sizes) { validate_rope(sizes.attrs, sizes.dim("head_dim")); }

/// Positions that all sequences share begin after 0 and grow; of every 16, one is repeated, two change places, and one
/// needs more than 16 bits. Positions per sequence are similar; each sequence begins at another position, and one
/// position is 2^20.
void plant_positions(const FillArgs& args) {
  constexpr int64_t kFirst = 11, kPeriod = 16, kFar = 70001, kFarthest = 1 << 20;
  Tensor& shared = *args.find("positions");
  for (int64_t i = 0; i < shared.count(); ++i) {
    const int64_t s = i % kPeriod, place = s == 3 ? 2 : s == 5 ? 6 : s == 6 ? 5 : s;
    shared.set(i, static_cast<double>(kFirst + i - s + place + (s == 7 ? kFar : 0)));
  }
  if (Tensor* const own = args.find("batch_positions"); own != nullptr) {
    const int64_t seq = own->shape.back();
    for (int64_t i = 0; i < own->count(); ++i) {
      const int64_t b = i / seq, s = i % seq, place = s == 3 ? 2 : s == 5 ? 6 : s == 6 ? 5 : s;
      const auto start = static_cast<int64_t>(4000 * args.uniform("start", static_cast<uint64_t>(b)));
      own->set(i, static_cast<double>(i == own->count() - 1 && seq > 8 ? kFarthest : start + place));
    }
  }
  if (Tensor* const three = args.find("mrope_positions"); three != nullptr) plant_three_positions(args, *three);
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kRopeForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kRopeBackward, nullptr, kBackwardRecipes}};

// Errors of function values in units of their precision: CUDA's powf errs by at most 4 ulp, sinf and cosf by 2. An ulp
// is at most 2u of the value.
constexpr double kPowRounding = 8, kSinCosRounding = 4;

constexpr double kUnit = 0x1p-24;  // of fp32, which a frequency near the end of a ramp may be off by

struct Ramped {
  double value, error;  ///< within [0, 1]; in units of u
};

/// A value clamped to [0, 1], with its error unless it is well outside.
Ramped clamped(double x, double error) {
  const bool outside = x + kUnit * error < 0 || x - kUnit * error > 1;
  return {std::clamp(x, 0.0, 1.0), outside ? 0 : error};
}

/// The share of a frequency f, whose error is `units`, that llama3 keeps: (original_length f/(2 pi) - low)/(high -
/// low). The turns have f's error and three roundings, those of 2 pi included; the attributes, both differences and the
/// division round once each.
Ramped kept_by_llama3(std::span<const double> attrs, double f, double units) {
  const double turns = attrs[kOfOriginalLength] * f / (2 * std::numbers::pi);
  const double low = attrs[kOfLowFreqFactor], high = attrs[kOfHighFreqFactor], width = high - low;
  const double x = (turns - low) / width;
  const double of_difference = turns * (units + 3) + low + std::abs(turns - low);
  return clamped(x, of_difference / width + std::abs(x) * ((high + low) / width + 2));
}

/// The pair whose frequency turns `beta` times in the original length. Public code computes it once, in FP64.
double pair_of_turns(std::span<const double> attrs, int64_t rotary_dim, double beta) {
  return static_cast<double>(rotary_dim) * std::log(attrs[kOfOriginalLength] / (2 * std::numbers::pi * beta)) /
         (2 * std::log(attrs[kOfTheta]));
}

/// The share of frequency i that YaRN keeps: 1 - (i - low)/(high - low). Both ends, both differences, the division and
/// the subtraction from 1 round once.
Ramped kept_by_yarn(std::span<const double> attrs, int64_t rotary_dim, double i) {
  double low = pair_of_turns(attrs, rotary_dim, attrs[kOfBetaFast]),
         high = pair_of_turns(attrs, rotary_dim, attrs[kOfBetaSlow]);
  if (attrs[kOfTruncate] != 0) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;
  const double width = high - low, x = 1 - (i - low) / width;
  const double of_ratio = (std::abs(low) + std::abs(i - low)) / width +
                          std::abs(i - low) / width * ((std::abs(low) + std::abs(high)) / width + 2);
  return clamped(x, of_ratio + std::abs(x));
}

}  // namespace
}  // namespace rope

void plant_three_positions(const FillArgs& args, Tensor& positions) {
  constexpr int64_t kPeriod = 16, kText = 2, kWidth = 3;
  for (int64_t token = 0; token < positions.count() / 3; ++token) {
    const int64_t place = token % kPeriod, pixel = place - kText;
    const auto start = static_cast<int64_t>(1000 * args.uniform("image", static_cast<uint64_t>(token / kPeriod)));
    const Positions at = pixel < 0 ? Positions{start + place, start + place, start + place}
                                   : Positions{start + kText, start + 3 + pixel / kWidth, start + 7 + pixel % kWidth};
    for (size_t p = 0; p < at.size(); ++p)
      positions.set(3 * token + static_cast<int64_t>(p), static_cast<double>(at[p]));
  }
}

std::vector<Positions> read_positions(const Tensor& tensor, bool has_three) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.count()));
  decode_int(tensor.dtype, tensor.bytes.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0) continue;
    throw InputError("input '" + tensor.name + "'", fmt::format("element {} is {}, below 0", i, values[i]),
                     "count positions from 0");
  }
  std::vector<Positions> positions;
  for (size_t i = 0; i < values.size(); i += has_three ? 3 : 1)
    positions.push_back(has_three ? Positions{values[i], values[i + 1], values[i + 2]}
                                  : Positions{values[i], values[i], values[i]});
  return positions;
}

Rotation::Rotation(std::span<const double> attrs, int64_t head_dim)
    : pairs_((attrs[kOfRotaryDim] < 0 ? head_dim : static_cast<int64_t>(attrs[kOfRotaryDim])) / 2),
      interleaved_(attrs[kOfInterleaved] != 0),
      entry_units_(rope::kSinCosRounding) {
  const double factor = attrs[kOfFactor];
  if (attrs[kOfAttentionFactor] >= 0)
    attention_factor_ = attrs[kOfAttentionFactor];
  else if (attrs[kOfScaling] == 3 && factor > 1)
    attention_factor_ = 0.1 * std::log(factor) + 1;
  // The factor is a rounded attribute, or 0.1 log(factor) + 1: the logarithm errs by 4 units but is only a part of it,
  // and three roundings follow. The product with the factor rounds once more.
  if (attention_factor_ != 1) entry_units_ += 6;
  for (int64_t i = 0; i < pairs_; ++i) frequencies_.push_back(frequency(attrs, i));
}

/// The exponent 2i/D and theta are rounded, which changes f = theta^(-2i/D) by the exponent times log(theta), and by
/// the exponent. The power has its own error, and the reciprocal rounds. The factor and the division by it round. A sum
/// k f + (1 - k) f/factor of positive terms has both errors, that of k times the difference, and four roundings.
Rotation::Frequency Rotation::frequency(std::span<const double> attrs, int64_t i) const {
  const double theta = attrs[kOfTheta], factor = attrs[kOfFactor];
  const double exponent = static_cast<double>(i) / static_cast<double>(pairs_);
  Frequency f{std::pow(theta, -exponent), 2 * exponent * std::abs(std::log(theta)) + exponent + rope::kPowRounding + 1,
              0};
  const int scaling = static_cast<int>(attrs[kOfScaling]);
  if (scaling == 1) f = {f.value / factor, f.units + 2, 0};
  if (scaling >= 2) {
    const rope::Ramped k = scaling == 2 ? rope::kept_by_llama3(attrs, f.value, f.units)
                                        : rope::kept_by_yarn(attrs, rotary_dim(), static_cast<double>(i));
    const double divided = f.value / factor, value = k.value * f.value + (1 - k.value) * divided;
    f = {value, f.units + 6 + k.error * std::abs(f.value - divided) / value, 0};
  }
  const auto h = static_cast<int64_t>(attrs[kOfSectionH]), w = static_cast<int64_t>(attrs[kOfSectionW]);
  if (attrs[kOfSectionsInterleaved] != 0) {
    f.position = i % 3 == 1 && i < 3 * h ? 1 : i % 3 == 2 && i < 3 * w ? 2 : 0;
  } else {
    f.position = i >= pairs_ - w ? 2 : i >= pairs_ - w - h ? 1 : 0;
  }
  return f;
}

/// An angle errs as its frequency does; the conversion of the position and the product with it round once each.
void Rotation::append_turns(const Positions& positions, double sign, std::vector<Turn>& to) const {
  for (const Frequency& f : frequencies_) {
    const double angle = static_cast<double>(positions[f.position]) * f.value;
    to.push_back({sign * attention_factor_ * std::sin(angle), attention_factor_ * std::cos(angle),
                  std::abs(angle) * (f.units + 2)});
  }
}

void validate_rope(std::span<const double> attrs, int64_t head_dim) {
  const auto refuse = [&](RopeAttr attr, const std::string& expected, const std::string& hint) {
    std::string flag = fmt::format("--{}", kRopeAttrs[attr].name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    throw InputError(flag, fmt::format("expected {}, got {}", expected, attrs[attr]), hint);
  };
  const auto is_whole = [](double x) { return x == std::floor(x); };
  if (head_dim % 2 != 0)
    throw InputError("--head-dim", fmt::format("head_dim must be even, got {}", head_dim), "give an even size");
  for (const RopeAttr attr : {kOfTheta, kOfFactor, kOfOriginalLength, kOfBetaFast, kOfBetaSlow}) {
    if (const double x = attrs[attr]; !(x > 0 && std::isfinite(x)))
      refuse(attr, "a finite number above 0",
             attr == kOfTheta ? "1e6 is usual" : std::string(kRopeAttrs[attr].meaning));
  }
  const double rotary = attrs[kOfRotaryDim];
  if (rotary != -1 && (!(rotary >= 2 && rotary <= static_cast<double>(head_dim)) || std::fmod(rotary, 2) != 0))
    refuse(kOfRotaryDim, fmt::format("-1 or an even number from 2 to head_dim {}", head_dim), "a pair has two columns");
  for (const RopeAttr attr : {kOfInterleaved, kOfScaling, kOfTruncate, kOfSectionsInterleaved}) {
    const int most = attr == kOfScaling ? 3 : 1;
    if (const double x = attrs[attr]; !(x >= 0 && x <= most) || !is_whole(x))
      refuse(attr, fmt::format("an integer from 0 to {}", most), std::string(kRopeAttrs[attr].meaning));
  }
  const double low = attrs[kOfLowFreqFactor], high = attrs[kOfHighFreqFactor];
  if (!(low >= 0 && low < high && std::isfinite(high)))
    refuse(kOfHighFreqFactor, fmt::format("a number above low_freq_factor {}", low), "4 is usual, and 1 for the other");
  if (attrs[kOfScaling] == 3 && !(attrs[kOfBetaSlow] <= attrs[kOfBetaFast]))
    refuse(kOfBetaSlow, fmt::format("no more than beta_fast {}", attrs[kOfBetaFast]), "1 and 32 are usual");
  if (attrs[kOfScaling] == 3 && attrs[kOfTheta] == 1)
    refuse(kOfTheta, "a number other than 1", "all frequencies of theta 1 are equal, so YaRN has no ramp");
  if (const double factor = attrs[kOfAttentionFactor]; factor != -1 && !(factor > 0 && std::isfinite(factor)))
    refuse(kOfAttentionFactor, "-1 or a finite number above 0", std::string(kRopeAttrs[kOfAttentionFactor].meaning));
  const double pairs = (rotary < 0 ? static_cast<double>(head_dim) : rotary) / 2;
  for (const RopeAttr attr : {kOfSectionH, kOfSectionW}) {
    if (const double x = attrs[attr]; !(x >= 0 && attrs[kOfSectionH] + attrs[kOfSectionW] <= pairs) || !is_whole(x))
      refuse(attr, fmt::format("an integer >= 0, and no more than the {} pairs in both sections", pairs),
             std::string(kRopeAttrs[attr].meaning));
  }
}

extern const Operator kRope;
constexpr Operator kRope{"rope",
                         "elementwise",
                         "y = x cos(a) + [-x_high, x_low] sin(a), a = positions[s] theta^(-2i/head_dim)",
                         "batch",
                         kRopeAttrs,
                         rope::kPasses,
                         rope::check_sizes,
                         rope::plant_positions};

}  // namespace checkop
