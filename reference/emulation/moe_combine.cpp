// SPDX-License-Identifier: Apache-2.0
// Emulates moe_combine as kernels compute it.
#include <array>

#include "emulation/moe.hpp"
#include "recipes.hpp"

namespace checkop {
namespace moe_combine {
namespace {

using namespace emulation;

constexpr FaultSpec kWeightsLeftOut{"weights_left_out", "every weight is 1"};
constexpr FaultSpec kNextWeight{"next_weight", "a slot takes the weight of the slot behind it"};
constexpr FaultSpec kWeightsOfRows{"weights_of_rows", "weights are read in the order of rows, not of slots"};
constexpr FaultSpec kWeightsTwice{"weights_twice", "rows are weighted before they are added, and again after"};
// Not visible in bf16 outputs alone, but in the sum of several slots.
constexpr FaultSpec kBf16Weights{"bf16_weights", "weights are rounded to bf16", "accuracy", "", "", recipe::kWeights};
constexpr FaultSpec kBf16Sum{"bf16_sum", "the sum is rounded to bf16 after each slot", "accuracy", "fp32 fp16"};
constexpr FaultSpec kDroppedMultiplied{"dropped_multiplied",
                                       "a slot without a row counts row 0 times 0 times its weight", "nonfinite"};
constexpr FaultSpec kUnusedRows{"unused_rows", "the gradient of a row at no position is that of the first token"};
constexpr FaultSpec kDroppedGetGradient{"dropped_get_gradient", "a slot without a row gets the gradient of row 0"};

/// The weight that the emulated kernel gives to a slot.
float weight_of(const Arithmetic& a, const std::vector<float>& weights, const std::vector<int64_t>& positions,
                int64_t slot) {
  if (a.has(kWeightsLeftOut.name)) return 1;
  size_t at = static_cast<size_t>(slot);
  if (a.has(kNextWeight.name)) at = (at + 1) % weights.size();
  if (a.has(kWeightsOfRows.name)) at = static_cast<size_t>(positions[at]) % weights.size();
  const float weight = a.has(kBf16Weights.name) ? Arithmetic::to_bf16(weights[at])
                                                : a.rounded_if(a.rounds(recipe::kWeights), weights[at]);
  return a.has(kWeightsTwice.name) ? weight * weight : weight;
}

/// The sum of weights[i] column[i], with the roundings of the recipes.
float weighted_sum(const Arithmetic& a, const std::vector<float>& weights, std::vector<float> column) {
  const auto n = std::ssize(column);
  const bool of_sums = a.rounds(recipe::kSumsBySlot) || a.rounds(recipe::kSumsByRow);
  if (!of_sums && !a.rounds(recipe::kProducts)) return a.dot(n, weights.data(), 1, column.data(), 1);
  for (size_t i = 0; i < column.size(); ++i)
    column[i] = a.rounded_if(a.rounds(recipe::kProducts), weights[i] * column[i]);
  const std::vector<float> ones(column.size(), 1.0F);
  if (!of_sums) return a.dot(n, ones.data(), 1, column.data(), 1);
  float y = 0;
  const int64_t dropped = n > 1 && a.has(faults::kLastKDropped.name) ? 1 : 0;
  for (size_t i = 0; i < static_cast<size_t>(n - dropped); ++i) y = a.rounded_if(true, y + column[i]);
  return y;
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix x = matrix(args, 0);
  const std::vector<int64_t> positions = positions_taken(args, 1, x.rows());
  const std::vector<float> weights = args.floats(2);
  const int64_t topk = args.in(1).shape.back();
  args.parallel_for(std::ssize(positions) / topk, [&](int64_t token) {
    std::vector<int64_t> slots = slots_of_token(a, positions, token, topk);
    const auto n = std::ssize(slots);
    if (a.rounds(recipe::kSumsByRow)) {
      std::sort(slots.begin(), slots.end(), [&](int64_t i, int64_t j) {
        return positions[static_cast<size_t>(i)] < positions[static_cast<size_t>(j)];
      });
    }
    std::vector<float> own_weights;
    for (const int64_t slot : slots) own_weights.push_back(weight_of(a, weights, positions, slot));
    const float scale = a.has(kAveraged.name) && n > 0 ? 1 / static_cast<float>(n) : 1.0F;
    float leak = 0;
    for (int64_t slot = token * topk; slot < (token + 1) * topk && a.has(kDroppedMultiplied.name); ++slot)
      if (positions[static_cast<size_t>(slot)] == kNone) leak += weights[static_cast<size_t>(slot)] * 0;
    std::vector<float> column(slots.size());
    for (int64_t h = 0; h < x.columns; ++h) {
      for (size_t i = 0; i < slots.size(); ++i) column[i] = x.row(positions[static_cast<size_t>(slots[i])])[h];
      float y = weighted_sum(a, own_weights, column);
      if (a.has(kBf16Sum.name)) {
        y = 0;
        for (size_t i = 0; i < slots.size(); ++i) y = Arithmetic::to_bf16(y + own_weights[i] * column[i]);
      }
      args.out(0)[static_cast<size_t>(token * x.columns + h)] = scale * y + leak;
    }
  });
}

/// The sum of g[h] x[h], with the roundings of the recipes.
float weight_gradient(const Arithmetic& a, const float* g, const float* x, int64_t hidden) {
  if (!a.rounds(recipe::kWeightTerms)) return a.rounded_if(a.rounds(recipe::kWeights), a.dot(hidden, g, 1, x, 1));
  std::vector<float> terms;
  for (int64_t h = 0; h < hidden; ++h) terms.push_back(a.rounded_if(true, g[h] * x[h]));
  const std::vector<float> ones(terms.size(), 1.0F);
  return a.rounded_if(a.rounds(recipe::kWeights), a.dot(hidden, ones.data(), 1, terms.data(), 1));
}

void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix x = matrix(args, 0), g = matrix(args, 3);
  const std::vector<int64_t> given = args.integers(1), positions = positions_taken(args, 1, x.rows());
  const std::vector<float> weights = args.floats(2);
  const int64_t topk = args.in(1).shape.back(), hidden = x.columns;
  std::vector<double>&dx = args.out(0), &dweights = args.out(1);
  if (a.has(kUnusedRows.name)) {
    for (size_t i = 0; i < dx.size(); ++i) dx[i] = g.values[i % static_cast<size_t>(hidden)];
  }
  for (int64_t token = 0; token < g.rows(); ++token) {
    for (const int64_t slot : slots_of_token(a, positions, token, topk)) {
      const int64_t row = positions[static_cast<size_t>(slot)];
      const float weight = weight_of(a, weights, positions, slot);
      for (int64_t h = 0; h < hidden; ++h) dx[static_cast<size_t>(row * hidden + h)] = weight * g.row(token)[h];
      dweights[static_cast<size_t>(slot)] = weight_gradient(a, g.row(token), x.row(row), hidden);
    }
    for (int64_t slot = token * topk; slot < (token + 1) * topk && a.has(kDroppedGetGradient.name); ++slot)
      if (given[static_cast<size_t>(slot)] == kNone)
        dweights[static_cast<size_t>(slot)] = a.dot(hidden, g.row(token), 1, x.row(0), 1);
  }
}

constexpr std::array kForwardFaults{faults::kLastKDropped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    kDroppedWraps,
                                    kDroppedMultiplied,
                                    kFirstSlotAlone,
                                    kLastSlotOverwrites,
                                    kAveraged,
                                    reads_left_out(kRowPositionsShifted),
                                    reads_left_out(kNeighboursSlots),
                                    kWeightsLeftOut,
                                    reads_left_out(kNextWeight),
                                    reads_left_out(kWeightsOfRows),
                                    kWeightsTwice,
                                    kBf16Weights,
                                    kBf16Sum};
constexpr std::array kBackwardFaults{faults::kLastKDropped,
                                     faults::kLastKTileDropped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     kDroppedGetGradient,
                                     kFirstSlotAlone,
                                     kRowPositionsShifted,
                                     reads_left_out(kNeighboursSlots),
                                     kWeightsLeftOut,
                                     reads_left_out(kNextWeight),
                                     reads_left_out(kWeightsOfRows),
                                     kWeightsTwice,
                                     kBf16Weights,
                                     kUnusedRows};

}  // namespace
}  // namespace moe_combine

extern const Emulation kMoeCombineForward, kMoeCombineBackward;
const Emulation kMoeCombineForward{moe_combine::forward, moe_combine::kForwardFaults};
const Emulation kMoeCombineBackward{moe_combine::backward, moe_combine::kBackwardFaults};

}  // namespace checkop
