// SPDX-License-Identifier: Apache-2.0
// Emulates qk_norm_rope as kernels compute it.
#include <array>

#include "emulation/rms_norm.hpp"
#include "emulation/rope.hpp"

namespace checkop {
namespace qk_norm_rope {
namespace {

using namespace emulation;

constexpr FaultSpec kWeightsSwapped{"weights_swapped", "queries have the keys' weight, and keys the queries'"};
constexpr FaultSpec kOffsetLeftOut{"offset_left_out", "the weights' offset is not added"};
constexpr FaultSpec kKeysNotNormalised{"keys_not_normalised", "keys turn as they are"};
constexpr FaultSpec kKeysNotTurned{"keys_not_turned", "keys are normalised and do not turn"};
constexpr FaultSpec kTurnedFirst{"turned_first", "heads turn before they are multiplied by the weight"};
constexpr FaultSpec kRoundedBetween{"rounded_between", "normalised heads are rounded to bf16 before they turn",
                                    "accuracy", "fp32 fp16"};  // in bf16 it is a recipe
constexpr FaultSpec kPositionOfHead{"position_of_head", "a head's number serves as the row of `positions`"};
constexpr FaultSpec kPartOfFirstHead{"part_of_first_head", "of heads but the first, all columns turn"};
constexpr FaultSpec kTextPositions{"text_positions", "`positions` serve in place of mrope_positions", "accuracy", "",
                                   "mrope_positions"};

enum Input : int { kOfQ, kOfQWeight = 2, kOfPositions = 4, kOfThreePositions, kOfGradQ };

/// Queries or keys.
struct Heads {
  const EmulationArgs& args;
  const int side;  ///< 0: queries, 1: keys
  Shape shape;
  NormRows in;
  std::array<double, kRopeAttrs.size()> all_columns;  ///< the attributes of kernels with kPartOfFirstHead
  Turns turns, turns_of_rest;
  std::vector<Positions> positions;

  Heads(const EmulationArgs& emulation, int number)
      : args(emulation),
        side(number),
        shape(args.in(kOfQ + side).shape),
        in(args, matrix(args, kOfQ + side), weight(), args.attrs[0]),
        all_columns(changed(args.attrs)),
        turns(args, args.attrs.subspan(2), shape[2]),
        turns_of_rest(
            args,
            args.arithmetic.has(kPartOfFirstHead.name) ? std::span<const double>(all_columns) : args.attrs.subspan(2),
            shape[2]) {
    const Arithmetic& a = args.arithmetic;
    if (side == 1 && a.has(kKeysNotNormalised.name)) {
      std::fill(in.weight.begin(), in.weight.end(), 1.0F), std::fill(in.roots.begin(), in.roots.end(), 1.0F);
    }
    const bool three = args.has(kOfThreePositions) && !a.has(kTextPositions.name);
    positions = read_positions(args.in(three ? kOfThreePositions : kOfPositions), three);
  }

  /// Every row of x turned by sign*angle.
  Matrix turned(const Matrix& x, float sign) const {
    const Arithmetic& a = args.arithmetic;
    if (side == 1 && a.has(kKeysNotTurned.name)) return x;
    const bool by_head = a.has(kPositionOfHead.name);
    Matrix y = x;
    args.parallel_for(x.rows(), [&](int64_t row) {
      const int64_t token = row / shape[1], head = row % shape[1];
      const Positions& at = positions[static_cast<size_t>(by_head ? head % shape[0] : token)];
      const Turns& own = head == 0 ? turns : turns_of_rest;
      own.apply(own.at(at, sign), x.row(row), y.row(row));
    });
    return y;
  }

  /// The rows to turn.
  Matrix rounded(Matrix x, std::string_view recipe) const {
    const Arithmetic& a = args.arithmetic;
    for (float& value : x.values)
      value = a.has(kRoundedBetween.name) ? Arithmetic::to_bf16(value) : a.rounded_if(a.rounds(recipe), value);
    return x;
  }

 private:
  std::vector<float> weight() const {
    const Arithmetic& a = args.arithmetic;
    std::vector<float> values = args.floats(kOfQWeight + (a.has(kWeightsSwapped.name) ? 1 - side : side));
    const float offset = a.has(kOffsetLeftOut.name) ? 0 : static_cast<float>(args.attrs[1]);
    for (float& w : values) w += offset;
    return values;
  }
  static std::array<double, kRopeAttrs.size()> changed(std::span<const double> attrs) {
    std::array<double, kRopeAttrs.size()> own{};
    std::copy_n(attrs.begin() + 2, own.size(), own.begin());
    own[kOfRotaryDim] = -1;
    return own;
  }
};

void forward(const EmulationArgs& args) {
  for (const int side : {0, 1}) {
    Heads heads(args, side);
    if (args.arithmetic.has(kTurnedFirst.name)) {
      const std::vector<float> weight = heads.in.weight;
      std::fill(heads.in.weight.begin(), heads.in.weight.end(), 1.0F);
      Matrix y = heads.turned(normalised_rows(args, heads.in), 1);
      for (size_t i = 0; i < y.values.size(); ++i) y.values[i] *= weight[i % weight.size()];
      store(y, args.out(side));
      continue;
    }
    store(heads.turned(heads.rounded(normalised_rows(args, heads.in), recipe::kWeightedRow), 1), args.out(side));
  }
}

void backward(const EmulationArgs& args) {
  for (const int side : {0, 1}) {
    const Heads heads(args, side);
    const Matrix g = heads.rounded(heads.turned(matrix(args, kOfGradQ + side), -1), recipe::kRotatedGradient);
    store(row_gradients(args, heads.in, g), args.out(side));
    args.out(2 + side) = weight_gradient(args, heads.in, g);
  }
}

constexpr std::array kOwnFaults{kWeightsSwapped, kOffsetLeftOut,  kKeysNotNormalised, kKeysNotTurned,
                                kRoundedBetween, kPositionOfHead, kPartOfFirstHead,   kTextPositions};
/// The second list without what both lists have.
constexpr auto kTurns = [] {
  static_assert(kTurnFaults[0].name == faults::kBf16Accumulator.name);
  std::array<FaultSpec, kTurnFaults.size() - 1> rest;
  std::copy(kTurnFaults.begin() + 1, kTurnFaults.end(), rest.begin());
  return rest;
}();
constexpr auto kForwardFaults =
    joined(joined(kNormForwardFaults, kTurns), joined(kOwnFaults, std::array{kTurnedFirst}));
constexpr auto kBackwardFaults = joined(joined(kNormBackwardFaults, kTurns), kOwnFaults);

}  // namespace
}  // namespace qk_norm_rope

extern const Emulation kQkNormRopeForward, kQkNormRopeBackward;
const Emulation kQkNormRopeForward{qk_norm_rope::forward, qk_norm_rope::kForwardFaults};
const Emulation kQkNormRopeBackward{qk_norm_rope::backward, qk_norm_rope::kBackwardFaults};

}  // namespace checkop
