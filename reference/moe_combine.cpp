// SPDX-License-Identifier: Apache-2.0
// moe_combine: adds up what the experts of each token computed, times their weights: the way back from moe_permute.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "gold_element.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "moe.hpp"
#include "operator/operator.hpp"
#include "recipes.hpp"

namespace checkop {

extern const Emulation kMoeCombineForward, kMoeCombineBackward;  // emulation/moe_combine.cpp

namespace moe_combine {
namespace {

constexpr std::string_view kRow = "batch seq", kTokenHidden = "batch seq hidden", kTokenSlots = "batch seq topk";
constexpr std::string_view kRowsHidden = "rows hidden";
constexpr TensorSpec kXPerm{"x_perm", kRowsHidden}, kPositions{"positions", kTokenSlots, Fill::ids, "rows", DType::i32};
constexpr TensorSpec kWeights{"weights", kTokenSlots, Fill::normal, "", DType::f32};
constexpr TensorSpec kGradY{"grad_y", kTokenHidden, Fill::upstream};
enum Input : int { kOfXPerm, kOfPositions, kOfWeights, kOfGradY };

constexpr std::array kForwardIn{kXPerm, kPositions, kWeights};
constexpr std::array kForwardOut{OutputSpec{{"y", kTokenHidden}, Numerics::reduction, "topk", /*sampled=*/true}};
constexpr std::array kBackwardIn{kXPerm, kPositions, kWeights, kGradY};
constexpr std::array kBackwardOut{
    OutputSpec{{"dx_perm", kRowsHidden}, Numerics::pointwise, "", /*sampled=*/true},
    OutputSpec{
        {"dweights", kTokenSlots, Fill::normal, "", DType::f32}, Numerics::reduction, "hidden", /*sampled=*/true},
};

/// The rows of slots, of which no two have the same.
std::vector<int64_t> read_positions(const GoldArgs& args) {
  std::vector<int64_t> positions = read_slots(args.in(kOfPositions), args.in(kOfXPerm).shape.front());
  std::vector<char> seen(static_cast<size_t>(args.in(kOfXPerm).shape.front()));
  for (size_t slot = 0; slot < positions.size(); ++slot) {
    if (positions[slot] == kNoRow || seen[static_cast<size_t>(positions[slot])]++ == 0) continue;
    throw InputError("input 'positions'", fmt::format("element {} is {}, as an earlier one is", slot, positions[slot]),
                     "give every slot a row of its own");
  }
  return positions;
}

/// The recipes of a kernel that computes the forward pass in 16 bits.
struct Roundings {
  bool weights, products, by_slot, by_row;

  explicit Roundings(const ActiveRecipes& recipes)
      : weights(recipes.has(recipe::kWeights)),
        products(recipes.has(recipe::kProducts)),
        by_slot(recipes.has(recipe::kSumsBySlot)),
        by_row(recipes.has(recipe::kSumsByRow)) {}
  bool of_sums() const { return by_slot || by_row; }
};

/// A term of y. fp32 holds the product of two numbers of 16 bits.
GoldElement term_of(const GoldArgs& args, const Roundings& rounds, double weight, double x) {
  const double value = weight * x;
  return rounded_if(rounds.products, args, 0, {value, 0, rounds.weights ? 0 : std::abs(value)});
}

/// The sum of terms in their order, rounded after each but the last, whose rounding is that of y.
GoldElement rounded_sum(const GoldArgs& args, const std::vector<GoldElement>& terms) {
  GoldElement sum = exact(0);
  for (size_t i = 0; i < terms.size(); ++i) {
    sum = i == 0 ? terms[i] : sum_of_16_bit(sum, terms[i]);
    sum = rounded_if(i + 1 < terms.size(), args, 0, sum);
  }
  return sum;
}

/// The row of y of a token whose slots have these rows and weights.
void emit_rounded(const GoldArgs& args, int64_t token, std::vector<std::pair<int64_t, double>> slots) {
  const Roundings rounds(args.recipes);
  if (rounds.by_row) std::sort(slots.begin(), slots.end());
  const Tensor& x = args.in(kOfXPerm);
  std::vector<std::vector<double>> rows;
  for (auto& [position, weight] : slots) {
    decode_row(x, position, rows.emplace_back(static_cast<size_t>(x.shape.back())));
    if (rounds.weights) weight = args.recipes.round(weight);
  }
  GoldElements y(x.shape.back());
  std::vector<GoldElement> terms;
  for (int64_t h = 0; h < x.shape.back(); ++h) {
    terms.clear();
    for (size_t i = 0; i < slots.size(); ++i)
      terms.push_back(term_of(args, rounds, slots[i].second, rows[i][static_cast<size_t>(h)]));
    GoldElement e = rounds.of_sums() ? rounded_sum(args, terms) : sum_of(terms);
    if (terms.size() == 1) e.magnitude = 0;
    y.set(h, e);
  }
  y.emit(args, 0, token);
}

/// Gold of moe_combine.
///   in:  x_perm[rows, hidden], positions[batch, seq, topk]: the row of each slot, or -1, weights[batch, seq, topk]
///   out: y[batch, seq, hidden] = sum over the slots of a token that have a row of weight times row
/// Rows that are no slot's position and weights of slots without a row are never read; they may hold anything.
/// Each product rounds once, or not at all if it is fused with its addition.
/// Throws InputError for a position outside [-1, rows) and for one that occurs twice.
void forward(const GoldArgs& args) {
  const Tensor& x = args.in(kOfXPerm);
  const int64_t topk = args.in(kOfPositions).shape.back(), hidden = x.shape.back();
  const std::vector<int64_t> positions = read_positions(args);
  const std::vector<double> none(static_cast<size_t>(hidden));
  args.for_rows(0, std::ssize(positions) / topk, [&](int64_t token) {
    if (!args.recipes.none()) {
      std::vector<std::pair<int64_t, double>> slots;
      for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
        const int64_t position = positions[static_cast<size_t>(slot)];
        if (position != kNoRow) slots.emplace_back(position, args.in(kOfWeights).at(slot));
      }
      return emit_rounded(args, token, std::move(slots));
    }
    static thread_local std::vector<double> row, value, size;
    for (auto* array : {&row, &value, &size}) array->assign(static_cast<size_t>(hidden), 0.0);
    int64_t terms = 0;
    for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
      const int64_t position = positions[static_cast<size_t>(slot)];
      if (position == kNoRow) continue;
      decode_row(x, position, row);
      const double weight = args.in(kOfWeights).at(slot);
      for (size_t h = 0; h < row.size(); ++h) value[h] += weight * row[h], size[h] += std::abs(weight * row[h]);
      ++terms;
    }
    args.sink({0, token, 1, hidden, value.data(), terms > 1 ? size.data() : none.data(), size.data()});
  });
}

/// Gold of moe_combine's gradients.
///   in:  as forward, then grad_y[batch, seq, hidden]
///   out: dx_perm[rows, hidden] = weight times the row of grad_y of the slot's token; 0 for a row at no position
///        dweights[batch, seq, topk] = sum over hidden of grad_y times the slot's row; 0 for a slot without a row
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor &x = args.in(kOfXPerm), &grad = args.in(kOfGradY);
  const int64_t topk = args.in(kOfPositions).shape.back(), hidden = x.shape.back(), rows = x.shape.front();
  const std::vector<int64_t> positions = read_positions(args);
  std::vector<int64_t> slot_of_row(static_cast<size_t>(rows), kNoRow);
  for (size_t slot = 0; slot < positions.size(); ++slot)
    if (positions[slot] != kNoRow) slot_of_row[static_cast<size_t>(positions[slot])] = static_cast<int64_t>(slot);
  const std::vector<double> none(static_cast<size_t>(hidden));
  const bool rounds_weights = args.recipes.has(recipe::kWeights), rounds_terms = args.recipes.has(recipe::kWeightTerms);
  args.for_rows(0, rows, [&](int64_t row) {
    static thread_local std::vector<double> value, size;
    for (auto* array : {&value, &size}) array->assign(static_cast<size_t>(hidden), 0.0);
    if (const int64_t slot = slot_of_row[static_cast<size_t>(row)]; slot != kNoRow) {
      decode_row(grad, slot / topk, value);
      const double stored = args.in(kOfWeights).at(slot), weight = rounds_weights ? args.recipes.round(stored) : stored;
      for (size_t h = 0; h < value.size(); ++h) value[h] *= weight, size[h] = std::abs(value[h]);
    }
    args.sink({0, row, 1, hidden, value.data(), none.data(), size.data()});
  });
  args.for_rows(1, std::ssize(positions) / topk, [&](int64_t token) {
    static thread_local std::vector<double> g, row, value, size, rounding;
    g.resize(static_cast<size_t>(hidden)), row.resize(static_cast<size_t>(hidden));
    for (auto* array : {&value, &size}) array->assign(static_cast<size_t>(topk), 0.0);
    decode_row(grad, token, g);
    for (int64_t s = 0; s < topk; ++s) {
      const int64_t position = positions[static_cast<size_t>(token * topk + s)];
      if (position == kNoRow) continue;
      decode_row(x, position, row);
      const auto at = static_cast<size_t>(s);
      for (size_t h = 0; h < row.size(); ++h) {
        const double term = rounds_terms ? args.recipes.round(g[h] * row[h]) : g[h] * row[h];
        value[at] += term, size[at] += std::abs(term);
      }
    }
    rounding = size;
    for (size_t s = 0; s < value.size() && rounds_weights; ++s) {
      const GoldElement e = rounded_if(true, args, 1, {value[s], size[s], size[s]});
      value[s] = e.value, size[s] = e.magnitude, rounding[s] = e.rounding;
    }
    args.sink({1, token, 1, topk, value.data(), size.data(), rounding.data()});
  });
}

/// Tokens without a row must be 0.
void check_forward(const IdentityArgs& args) {
  const Tensor& positions = args.in(kOfPositions);
  std::vector<char> active(static_cast<size_t>(positions.count() / positions.shape.back()));
  for (int64_t slot = 0; slot < positions.count(); ++slot)
    if (positions.at(slot) != kNoRow) active[static_cast<size_t>(slot / positions.shape.back())] = 1;
  check_zero_rows(args, 0, active);
}

/// The gradients of rows at no position must be 0.
void check_backward(const IdentityArgs& args) {
  const int64_t rows = args.in(kOfXPerm).shape.front();
  check_zero_rows(args, 0, rows_in_use(read_slots(args.in(kOfPositions), rows), rows));
}

/// Rows at no position are not read.
Work work(const GoldArgs& args) {
  const int64_t rows = args.in(kOfXPerm).shape.front();
  return {0, bytes_left_out(args.in(kOfXPerm), rows_in_use(read_slots(args.in(kOfPositions), rows), rows))};
}

constexpr std::array kForwardRecipes{
    Recipe{recipe::kWeights, "y", k16Bit, /*exact=*/true, "y = sum round(weights) x",
           "Hugging Face's Mixtral and Qwen MoE, Megatron-LM's unpermute with 16-bit probabilities"},
    Recipe{recipe::kProducts, "y", k16Bit, /*exact=*/true, "y = sum round(weights x)",
           "Hugging Face's Mixtral and Qwen MoE; vLLM's fused MoE stores the weighted rows in 16 bits"},
    Recipe{recipe::kSumsBySlot, "y", k16Bit, /*exact=*/true, "y = round(round(t_1 + t_2) + t_3) ..., by slot",
           "vLLM's moe_sum, whose sum has the dtype of the rows", recipe::kSumsByRow},
    Recipe{recipe::kSumsByRow, "y", k16Bit, /*exact=*/true, "y = round(round(t_1 + t_2) + t_3) ..., by row of x_perm",
           "index_add_ of Hugging Face's Mixtral and Qwen MoE, one expert after the other", recipe::kSumsBySlot}};
constexpr std::array kBackwardRecipes{
    Recipe{recipe::kWeights, "dx_perm dweights", k16Bit, /*exact=*/true,
           "dx_perm = round(weights) grad_y, dweights = round(sum grad_y x)",
           "autograd of Hugging Face's Mixtral and Qwen MoE: the weights are 16-bit tensors"},
    Recipe{recipe::kWeightTerms, "dweights", k16Bit, /*exact=*/true, "dweights = sum round(grad_y x)",
           "autograd of Hugging Face's Mixtral and Qwen MoE: the product is a 16-bit tensor before its sum"}};

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work, &kMoeCombineForward,
                                  nullptr, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_backward, work,
                                  &kMoeCombineBackward, nullptr, kBackwardRecipes}};

/// Draws the positions and plants payloads in what must not be read.
void refine(const FillArgs& args) {
  const int64_t topk = args.dim("topk"), rows = args.dim("rows");
  Tensor &positions = *args.find("positions"), &weights = *args.find("weights");
  const std::vector<int64_t> drawn = draw_rows(args, positions.count() / topk, topk, rows);
  store_integers(drawn, positions);
  plant_unused_rows(args, *args.find("x_perm"), rows_in_use(drawn, rows));
  for (size_t slot = 0; slot < drawn.size(); ++slot) {
    const auto number = static_cast<int64_t>(slot);
    if (drawn[slot] == kNoRow) plant_payload(args, weights, 1, number, payload_kind(args, slot));
  }
}

}  // namespace
}  // namespace moe_combine

extern const Operator kMoeCombine;
constexpr Operator kMoeCombine{"moe_combine",
                               "reduction",
                               "y = sum over slots of weights x_perm[positions]; -1: the slot is left out",
                               moe_combine::kRow,
                               {},
                               moe_combine::kPasses,
                               nullptr,
                               moe_combine::refine,
                               /*parallel_dim=*/"",
                               /*left_out=*/"slots without a row"};

}  // namespace checkop
