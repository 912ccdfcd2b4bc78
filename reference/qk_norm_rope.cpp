// SPDX-License-Identifier: Apache-2.0
// qk_norm_rope: queries and keys, each head normalised as rms_norm does and then rotated as rope does.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "rms_norm.hpp"
#include "rotation.hpp"

namespace checkop {

extern const Emulation kQkNormRopeForward, kQkNormRopeBackward;  // emulation/qk_norm_rope.cpp

namespace qk_norm_rope {
namespace {

constexpr std::string_view kToken = "tokens", kQueries = "tokens q_heads head_dim", kKeys = "tokens kv_heads head_dim";
constexpr TensorSpec kQ{"q", kQueries}, kK{"k", kKeys}, kQWeight{"q_weight", "head_dim"},
    kKWeight{"k_weight", "head_dim"};
constexpr TensorSpec kPositions{"positions", kToken, Fill::positions, "", DType::i64};
constexpr TensorSpec kThreePositions{"mrope_positions", "tokens 3", Fill::positions, "", DType::i64, /*optional=*/true};
constexpr TensorSpec kGradQ{"grad_q_out", kQueries, Fill::upstream}, kGradK{"grad_k_out", kKeys, Fill::upstream};
enum Input : int { kOfQ, kOfK, kOfQWeight, kOfKWeight, kOfPositions, kOfThreePositions, kOfGradQ, kOfGradK };

constexpr std::array kForwardIn{kQ, kK, kQWeight, kKWeight, kPositions, kThreePositions};
constexpr std::array kForwardOut{OutputSpec{{"q_out", kQueries}, Numerics::reduction, "head_dim"},
                                 OutputSpec{{"k_out", kKeys}, Numerics::reduction, "head_dim"}};
constexpr std::array kBackwardIn{kQ, kK, kQWeight, kKWeight, kPositions, kThreePositions, kGradQ, kGradK};
constexpr std::array kBackwardOut{
    OutputSpec{{"dq", kQueries}, Numerics::reduction, "head_dim"},
    OutputSpec{{"dk", kKeys}, Numerics::reduction, "head_dim"},
    OutputSpec{{"dq_weight", "head_dim"}, Numerics::reduction, "head_dim tokens*q_heads"},
    OutputSpec{{"dk_weight", "head_dim"}, Numerics::reduction, "head_dim tokens*kv_heads"},
};

constexpr Recipe of_outputs(std::string_view name, std::string_view formula, std::string_view source) {
  return {name, "q_out k_out", k16Bit, /*exact=*/true, formula, source};
}
constexpr std::array kForwardRecipes{
    of_outputs(recipe::kNormalisedRow, "q_out = rope(round(q r) w)", "Hugging Face's Qwen3RMSNorm before its rope"),
    of_outputs(recipe::kWeightedRow, "q_out = rope(round(q r w))",
               "a norm and a rope that are kernels of their own: Hugging Face, vLLM without fusion"),
    of_outputs(recipe::kTable, "q_out = n round(cos a) + rot(n) round(sin a), n = q r w", "as in rope"),
    of_outputs(recipe::kProducts, "q_out = round(n cos a) + round(rot(n) sin a), n = q r w", "as in rope")};
constexpr std::string_view kAllGradients = "dq dk dq_weight dk_weight";
constexpr Recipe of_gradients(std::string_view name, std::string_view outputs, std::string_view formula,
                              std::string_view source) {
  return {name, outputs, k16Bit, /*exact=*/true, formula, source};
}
constexpr std::array kBackwardRecipes{
    of_gradients(recipe::kTable, kAllGradients, "g = grad cos a - rot(grad) sin a with round(cos a), round(sin a)",
                 "as in rope"),
    of_gradients(recipe::kProducts, kAllGradients, "g = round(grad cos a) - rot(round(grad sin a))", "as in rope"),
    of_gradients(recipe::kRotatedGradient, kAllGradients, "the norm's gradients for round(g)",
                 "a norm and a rope that are kernels of their own"),
    of_gradients(recipe::kWeightedGradient, "dq dk", "dq = r round(g w) - q r^3 mean_h(round(g w) q)",
                 "autograd of Hugging Face's Qwen3RMSNorm"),
    of_gradients(recipe::kNormalisedRow, "dq_weight dk_weight", "dq_weight = sum g round(q r)",
                 "autograd of Hugging Face's Qwen3RMSNorm"),
    of_gradients(recipe::kWeightTerms, "dq_weight dk_weight", "dq_weight = sum round(g q r)",
                 "autograd of Hugging Face's Qwen3RMSNorm: the product is a 16-bit tensor before its sum")};

enum Attr : size_t { kOfEps, kOfWeightOffset, kFirstOfRope };
constexpr auto kAttrs = [] {
  std::array<AttrSpec, kFirstOfRope + kRopeAttrs.size()> all{kEps, kWeightOffset};
  std::copy(kRopeAttrs.begin(), kRopeAttrs.end(), all.begin() + kFirstOfRope);
  return all;
}();

/// Queries or keys: their number among the inputs and outputs of each kind.
struct Heads {
  const GoldArgs& args;
  const int side;  ///< 0: queries, 1: keys
  const Tensor& x;
  const int64_t heads, head_dim, rows;
  const NormWeight weight;

  Heads(const GoldArgs& gold, int number)
      : args(gold),
        side(number),
        x(gold.in(kOfQ + number)),
        heads(x.shape[1]),
        head_dim(x.shape[2]),
        rows(x.shape[0] * heads),
        weight(read_weight(gold.in(kOfQWeight + number), gold.attrs[kOfWeightOffset])) {}
};

/// The turns of every token.
struct Turns {
  const Rotation rotation;
  std::vector<Turn> turns;

  Turns(const GoldArgs& args, double sign) : rotation(args.attrs.subspan(kFirstOfRope), args.in(kOfQ).shape[2]) {
    std::vector<Positions> positions = read_positions(args.in(kOfPositions), false);
    if (args.has(kOfThreePositions)) positions = read_positions(args.in(kOfThreePositions), true);
    for (const Positions& each : positions) rotation.append_turns(each, sign, turns);
  }
  const Turn* of(int64_t token) const { return turns.data() + token * rotation.pairs(); }
};

void emit_turned(const Heads& in, const Turns& turns) {
  const GoldArgs& args = in.args;
  const bool rounds_row = args.recipes.has(recipe::kNormalisedRow), rounds = args.recipes.has(recipe::kWeightedRow);
  const RoundedRotation rounded(args, in.side, turns.rotation);
  args.parallel_for(in.rows, [&](int64_t row) {
    NormScratch& s = norm_scratch(in.head_dim);
    static thread_local std::vector<GoldElement> n;
    n.clear();
    decode_row(in.x, row, s.x);
    const Root r = root_of(s.row(), args.attrs[kOfEps]);
    for (size_t h = 0; h < s.x.size(); ++h) {
      const GoldElement unit = rounded_if(rounds_row, args, in.side, normalised(s.x[h], 0, r));
      n.push_back(rounded_if(rounds, args, in.side, weighted(unit, in.weight.value[h], in.weight.units)));
    }
    turn_row(
        turns.rotation, rounded, turns.of(row / in.heads), in.head_dim, [&](size_t h) { return n[h]; },
        [&](size_t h, const GoldElement& e) { s.set(h, e); });
    args.sink({in.side, row, 1, in.head_dim, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
}

/// Gold of qk_norm_rope.
///   in:  q[tokens, q_heads, head_dim], k[tokens, kv_heads, head_dim], q_weight, k_weight [head_dim],
///        positions[tokens]; optional mrope_positions[tokens, 3] take their place
///   out: q_out, k_out: rope(q r (q_weight + weight_offset)), r = (mean q^2 + eps)^-1/2 of each head; keys likewise
/// Throws InputError for a negative position.
/// Source: Qwen3's attention, as rms_norm and rope.
void forward(const GoldArgs& args) {
  const Turns turns(args, 1);
  for (const int side : {0, 1}) emit_turned(Heads(args, side), turns);
}

/// g, the gradient of a normalised row: that of the turned row, turned back.
void turn_back(const Heads& in, const Turns& turns, int output, int64_t row, const Erring& g) {
  const GoldArgs& args = in.args;
  const bool rounds = args.recipes.has(recipe::kRotatedGradient);
  const RoundedRotation rounded(args, output, turns.rotation);
  static thread_local std::vector<double> upstream;
  upstream.resize(g.value.size());
  decode_row(args.in(kOfGradQ + in.side), row, upstream);
  turn_row(
      turns.rotation, rounded, turns.of(row / in.heads), in.head_dim,
      [&](size_t h) {
        return GoldElement{upstream[h], 0, 0};
      },
      [&](size_t h, const GoldElement& e) {
        const GoldElement stored = rounded_if(rounds, args, output, e);
        g.value[h] = stored.value, g.error[h] = stored.rounding;
      });
}

void emit_gradients(const Heads& in, const Turns& turns) {
  const GoldArgs& args = in.args;
  const int dx = in.side, dweight = 2 + in.side;
  const bool rounds = args.recipes.has(recipe::kWeightedGradient);
  std::vector<Root> roots(static_cast<size_t>(in.rows));
  args.parallel_for(in.rows, [&](int64_t row) {
    NormScratch& s = norm_scratch(in.head_dim);
    decode_row(in.x, row, s.x);
    const Root r = roots[static_cast<size_t>(row)] = root_of(s.row(), args.attrs[kOfEps]);
    turn_back(in, turns, dx, row, s.gradient());
    weigh(args, dx, rounds, in.weight, 0, s.gradient());
    gradient_of_row(s.row(), s.gradient(), r, [&](size_t h, const GoldElement& e) { s.set(h, e); });
    args.sink({dx, row, 1, in.head_dim, s.value.data(), s.magnitude.data(), s.rounding.data()});
  });
  const auto read = [&](int64_t row, int64_t first, const Erring& x, const Erring& g) {
    NormScratch& s = norm_scratch(in.head_dim);
    decode_columns(in.x, in.head_dim, row, first, x.value);
    turn_back(in, turns, dweight, row, s.gradient());
    std::copy_n(s.g.begin() + first, g.value.size(), g.value.begin());
    std::copy_n(s.g_error.begin() + first, g.error.size(), g.error.begin());
    return true;
  };
  emit_weight_gradient(args, dweight, in.head_dim, in.rows, read,
                       [&](int64_t row, int64_t) -> const Root& { return roots[static_cast<size_t>(row)]; });
}

/// Gold of qk_norm_rope's gradients.
///   in:  as forward, then grad_q_out[tokens, q_heads, head_dim], grad_k_out[tokens, kv_heads, head_dim]
///   out: dq, dk, dq_weight, dk_weight: those of rms_norm for g, the gradient of rope
///   g = m (grad cos a - rot(grad) sin a),  dq = r g w - q r^3 mean_h(g w q)
///   dq_weight = sum over tokens, heads of g q r
/// Throws InputError for a negative position.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Turns turns(args, -1);
  for (const int side : {0, 1}) emit_gradients(Heads(args, side), turns);
}

void validate(const CaseSizes& sizes) {
  validate_eps(sizes, kOfEps), validate_weight_offset(sizes, kOfWeightOffset);
  validate_rope(sizes.attrs.subspan(kFirstOfRope), sizes.dim("head_dim"));
}

/// Positions of packed sequences: each begins at 0 again, with one that is repeated; the last token is far behind.
void plant(const FillArgs& args) {
  constexpr int64_t kLength = 13, kFar = 70001;
  if (Tensor* const own = args.find("positions"); own != nullptr) {
    for (int64_t t = 0; t < own->count(); ++t)
      own->set(t, static_cast<double>(t == own->count() - 1 && t > 4 ? kFar
                                      : t % kLength == 3             ? 2
                                                                     : 29 * (t % kLength)));
  }
  if (Tensor* const three = args.find("mrope_positions"); three != nullptr) plant_three_positions(args, *three);
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kQkNormRopeForward, nullptr, kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, nullptr, &kQkNormRopeBackward, nullptr,
         kBackwardRecipes}};

}  // namespace
}  // namespace qk_norm_rope

extern const Operator kQkNormRope;
constexpr Operator kQkNormRope{"qk_norm_rope",
                               "reduction",
                               "q_out = rope(q (q_weight + weight_offset) / sqrt(mean_d q^2 + eps)), keys likewise",
                               qk_norm_rope::kToken,
                               qk_norm_rope::kAttrs,
                               qk_norm_rope::kPasses,
                               qk_norm_rope::validate,
                               qk_norm_rope::plant};

}  // namespace checkop
