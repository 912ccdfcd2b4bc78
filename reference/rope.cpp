// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embedding: pairs (i, i + head_dim/2) are rotated by an angle that grows with the position.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kRopeForward, kRopeBackward;  // emulation/rope.cpp

namespace {

constexpr std::string_view kHeads = "batch heads seq head_dim";
constexpr TensorSpec kPositions{"positions", "seq", Fill::positions, "", DType::i64};

constexpr std::array kForwardIn{TensorSpec{"x", kHeads}, kPositions};
constexpr std::array kForwardOut{OutputSpec{{"y", kHeads}, Numerics::pointwise, ""}};
constexpr std::array kBackwardIn{kPositions, TensorSpec{"grad_y", kHeads, Fill::upstream}};
constexpr std::array kBackwardOut{OutputSpec{{"dx", kHeads}, Numerics::pointwise, ""}};

// Errors of function values in units of their precision: CUDA's powf errs by at most 4 ulp, sinf and cosf by 2. An ulp
// is at most 2u of the value.
constexpr double kPowRounding = 8, kSinCosRounding = 4;

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

/// One angle: its sine, its cosine, and the coefficient of u in the error of a computed angle. The exponent 2i/D and
/// theta are rounded, which changes theta^(-2i/D) by the exponent times log(theta), and by the exponent. The power has
/// its own error. The reciprocal, the conversion of the position and the product with it round once each.
struct Turn {
  double sin, cos, error;
};

Turn turn_of(int64_t position, double exponent, double theta) {
  const double angle = static_cast<double>(position) * std::pow(theta, -exponent);
  const double steps = 2 * exponent * std::abs(std::log(theta)) + exponent + kPowRounding + 3;
  return {std::sin(angle), std::cos(angle), std::abs(angle) * steps};
}

/// Rotations with roundings to 16 bits: of the table, of the products with it, or of both. Without the rounding of the
/// table an angle error of d moves the sine and the cosine by at most d.
class RoundedRotation {
 public:
  explicit RoundedRotation(const GoldArgs& args)
      : args_(args), table_(args.recipes.has(recipe::kTable)), products_(args.recipes.has(recipe::kProducts)) {}

  bool active() const { return table_ || products_; }
  /// x times a sine or cosine.
  GoldElement product(double x, double of_angle, double angle_error) const {
    const GoldElement entry =
        rounded_if(table_, args_, 0, {of_angle, 0, kSinCosRounding * std::abs(of_angle) + angle_error});
    const double value = x * entry.value, error = std::abs(x) * entry.rounding;
    // fp32 holds a product of two 16-bit values.
    return rounded_if(products_, args_, 0, {value, 0, error + (table_ ? 0 : std::abs(value))});
  }
  /// a + b, where each errs as product() says, and the sum rounds.
  static GoldElement sum(const GoldElement& a, const GoldElement& b) {
    const double value = a.value + b.value;
    return {value, 0, a.rounding + b.rounding + std::abs(value)};
  }

 private:
  const GoldArgs& args_;
  const bool table_, products_;
};

std::vector<int64_t> read_positions(const Tensor& tensor) {
  std::vector<int64_t> positions(static_cast<size_t>(tensor.count()));
  decode_int(tensor.dtype, tensor.bytes.data(), positions.data(), positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= 0) continue;
    throw InputError("input '" + tensor.name + "'", fmt::format("element {} is {}, below 0", i, positions[i]),
                     "count positions from 0");
  }
  return positions;
}

/// y[.., s, :] = x[.., s, :] rotated by sign*positions[s]*f.
/// An angle error of d moves y_i by |y_i (cos d - 1) +- y_(i+D/2) sin d| <= (|y_i| + |y_(i+D/2)|) d for every d.
void rotate(const GoldArgs& args, const Tensor& x, const Tensor& positions_tensor, double sign) {
  const std::vector<int64_t> positions = read_positions(positions_tensor);
  const int64_t batch = x.shape[0], heads = x.shape[1], seq = x.shape[2], half = x.shape[3] / 2;
  std::vector<Turn> turns;
  turns.reserve(static_cast<size_t>(seq * half));
  for (const int64_t position : positions) {
    for (int64_t i = 0; i < half; ++i) {
      turns.push_back(turn_of(position, static_cast<double>(i) / static_cast<double>(half), args.attrs[0]));
      turns.back().sin *= sign;
    }
  }
  const DTypeInfo& type = info(x.dtype);
  const auto columns = static_cast<size_t>(heads * seq * 2 * half);
  const std::vector<double> magnitude(columns, 0.0);  // there are no long sums
  const RoundedRotation rounded(args);
  args.parallel_for(batch, [&](int64_t b) {
    std::vector<double> from(columns), value(columns), rounding(columns);
    type.decode(x.bytes.data() + static_cast<size_t>(b) * columns * type.bytes, from.data(), columns);
    for (int64_t row = 0; row < heads * seq; ++row) {
      const Turn* turn = &turns[static_cast<size_t>(row % seq * half)];
      for (int64_t i = 0; i < half; ++i, ++turn) {
        const auto low = static_cast<size_t>(row * 2 * half + i), high = low + static_cast<size_t>(half);
        if (rounded.active()) {
          const auto times = [&](double x, double of_angle) { return rounded.product(x, of_angle, turn->error); };
          const GoldElement l = rounded.sum(times(from[low], turn->cos), times(-from[high], turn->sin));
          const GoldElement h = rounded.sum(times(from[high], turn->cos), times(from[low], turn->sin));
          value[low] = l.value, rounding[low] = l.rounding, value[high] = h.value, rounding[high] = h.rounding;
          continue;
        }
        const double lc = from[low] * turn->cos, ls = from[low] * turn->sin;
        const double hc = from[high] * turn->cos, hs = from[high] * turn->sin;
        value[low] = lc - hs;
        value[high] = hc + ls;
        const double moved = (std::abs(value[low]) + std::abs(value[high])) * turn->error;
        // Both products have the error of their sine or cosine and round once; their sum rounds once.
        rounding[low] = moved + (kSinCosRounding + 1) * (std::abs(lc) + std::abs(hs)) + std::abs(value[low]);
        rounding[high] = moved + (kSinCosRounding + 1) * (std::abs(hc) + std::abs(ls)) + std::abs(value[high]);
      }
    }
    args.sink({0, b, 1, static_cast<int64_t>(columns), value.data(), magnitude.data(), rounding.data()});
  });
}

/// Gold of rope.
///   in:  x[batch, heads, seq, head_dim], positions[seq]     out: y[batch, heads, seq, head_dim]
///   y = x cos(a) + rot(x) sin(a),  rot(x) = [-x_high, x_low],  a[s, i] = positions[s] theta^(-2i/head_dim)
/// Throws InputError for a negative position.
/// Source: Su et al. 2021, with the pairs of GPT-NeoX and Llama (halves, not neighbours).
void forward(const GoldArgs& args) { rotate(args, args.in(0), args.in(1), 1); }

/// Gold of rope's gradient: the inverse rotation.
///   in:  positions[seq], grad_y[batch, heads, seq, head_dim]     out: dx[batch, heads, seq, head_dim]
///   dx = grad_y cos(a) - rot(grad_y) sin(a)
/// Throws InputError for a negative position.
void backward(const GoldArgs& args) { rotate(args, args.in(1), args.in(0), -1); }

void check_sizes(const CaseSizes& sizes) {
  if (const int64_t head_dim = sizes.dim("head_dim"); head_dim % 2 != 0) {
    throw InputError("--head-dim", fmt::format("head_dim must be even, got {}", head_dim), "give an even size");
  }
  if (const double theta = sizes.attrs[0]; !(theta > 0 && std::isfinite(theta))) {
    throw InputError("--theta", fmt::format("expected a finite number above 0, got {}", theta), "1e6 is usual");
  }
}

constexpr std::array kAttrs{AttrSpec{"theta", 1e6, "base of rope's frequencies theta^(-2i/head_dim)"}};
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kRopeForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kRopeBackward, nullptr, kBackwardRecipes}};

}  // namespace

extern const Operator kRope;
constexpr Operator kRope{
    "rope",     "elementwise", "y = x cos(a) + [-x_high, x_low] sin(a), a = positions[s] theta^(-2i/head_dim)",
    "batch",    kAttrs,        kPasses,
    check_sizes};

}  // namespace checkop
