// SPDX-License-Identifier: Apache-2.0
// Emulates rope as kernels compute it.
#include <array>

#include "emulation/common.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kWrongBase{"wrong_base", "the base of the frequencies is 10000, whatever theta is"};
constexpr FaultSpec kExponentHalved{"exponent_halved", "frequencies are theta^(-i/head_dim)"};
constexpr FaultSpec kPositionsShifted{"positions_shifted", "positions count from 1"};
constexpr FaultSpec kPositionOfHead{"position_of_head", "a head's number serves as the row of `positions`"};
constexpr FaultSpec kTurnedTheOtherWay{"turned_the_other_way", "the sines have the wrong sign"};
constexpr FaultSpec kNeighboursPaired{"neighbours_paired", "elements 2i and 2i + 1 make a pair"};
constexpr FaultSpec kHighHalfKept{"high_half_kept", "the second half of a head is copied"};
// Half of the pairs, because the last pair alone hardly turns.
constexpr FaultSpec kPartlyTurned{"partly_turned", "the second half of the pairs is copied"};
constexpr FaultSpec kFrequenciesRounded{"frequencies_rounded", "frequencies are rounded to bf16"};
constexpr FaultSpec kAnglesRounded{"angles_rounded", "angles are rounded to bf16"};
constexpr FaultSpec kTableRounded{"table_rounded", "sines and cosines are rounded to bf16", "accuracy",
                                  "fp32 fp16"};  // in bf16 it is a recipe

float round_if(bool rounded, float x) { return rounded ? Arithmetic::to_bf16(x) : x; }

/// The two rows of a rotation matrix: for the low and for the high element of a pair.
struct Turn {
  float low[2], high[2];
};

/// Rotations [positions, half].
std::vector<Turn> make_turns(const EmulationArgs& args, const std::vector<int64_t>& positions, int64_t half,
                             float sign) {
  const Arithmetic& a = args.arithmetic;
  const float theta = a.has(kWrongBase.name) ? 10000.0F : static_cast<float>(args.attrs[0]);
  const auto halves = static_cast<float>(a.has(kExponentHalved.name) ? 2 * half : half);
  const bool frequencies = a.has(kFrequenciesRounded.name), angles = a.has(kAnglesRounded.name),
             table = a.has(kTableRounded.name), rounds = a.rounds(recipe::kTable);
  if (a.has(kTurnedTheOtherWay.name)) sign = -sign;
  std::vector<float> frequency;
  for (int64_t i = 0; i < half; ++i)
    frequency.push_back(round_if(frequencies, 1 / std::pow(theta, static_cast<float>(i) / halves)));
  std::vector<Turn> turns;
  for (const int64_t position : positions) {
    const auto steps = static_cast<float>(position + (a.has(kPositionsShifted.name) ? 1 : 0));
    for (const float f : frequency) {
      const float angle = round_if(angles, steps * f);
      const auto entry = [&](float x) { return table ? Arithmetic::to_bf16(x) : a.rounded_if(rounds, x); };
      const float cosine = entry(std::cos(angle)), sine = sign * entry(std::sin(angle));
      turns.push_back({{cosine, -sine}, {sine, cosine}});
    }
  }
  return turns;
}

/// Rotates input `of` by sign*positions; the positions are input `by`.
void rotate(const EmulationArgs& args, int of, int by, float sign) {
  const Arithmetic& a = args.arithmetic;
  const Shape& shape = args.in(of).shape;
  const int64_t heads = shape[1], seq = shape[2], half = shape[3] / 2;
  const Matrix x = matrix(args, of);
  const std::vector<Turn> turns = make_turns(args, args.integers(by), half, sign);
  const bool by_head = a.has(kPositionOfHead.name), neighbours = a.has(kNeighboursPaired.name);
  const bool rounds = a.rounds(recipe::kProducts);
  const auto turned_by = [&](const float* pair, int64_t distance, const float(&row)[2]) {
    if (!rounds) return a.dot(2, pair, distance, row, 1);
    return a.rounded_if(true, pair[0] * row[0]) + a.rounded_if(true, pair[distance] * row[1]);
  };
  const int64_t turned = a.has(kPartlyTurned.name) ? half / 2 : half;
  Matrix y = x;
  args.parallel_for(shape[0] * heads, [&](int64_t head) {
    for (int64_t s = 0; s < seq; ++s) {
      const float* from = x.row(head * seq + s);
      float* to = y.row(head * seq + s);
      const Turn* turn = &turns[static_cast<size_t>((by_head ? head % heads % seq : s) * half)];
      for (int64_t i = 0; i < turned; ++i) {
        const int64_t low = neighbours ? 2 * i : i, distance = neighbours ? 1 : half;
        to[low] = turned_by(from + low, distance, turn[i].low);
        to[low + distance] = turned_by(from + low, distance, turn[i].high);
      }
      if (a.has(kHighHalfKept.name)) std::copy_n(from + half, half, to + half);
    }
  });
  store(y, args.out(0));
}

void forward(const EmulationArgs& args) { rotate(args, 0, 1, 1); }
void backward(const EmulationArgs& args) { rotate(args, 1, 0, -1); }

constexpr std::array kFaults{
    faults::kBf16Accumulator, kWrongBase,    kExponentHalved, kPositionsShifted,   kPositionOfHead, kTurnedTheOtherWay,
    kNeighboursPaired,        kHighHalfKept, kPartlyTurned,   kFrequenciesRounded, kAnglesRounded,  kTableRounded};

}  // namespace

extern const Emulation kRopeForward, kRopeBackward;
const Emulation kRopeForward{forward, kFaults};
const Emulation kRopeBackward{backward, kFaults};

}  // namespace checkop
