// SPDX-License-Identifier: Apache-2.0
// moe_combine: adds up what the experts of each token computed, times their weights: the way back from moe_permute.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "moe.hpp"
#include "operator/operator.hpp"

namespace checkop {

extern const Emulation kMoeCombineForward, kMoeCombineBackward;  // emulation/moe_combine.cpp

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

/// Gold of moe_combine.
///   in:  x_perm[rows, hidden], positions[batch, seq, topk]: the row of each slot, or -1, weights[batch, seq, topk]
///   out: y[batch, seq, hidden] = sum over the slots of a token that have a row of weight times row
/// Rows at no position and weights of slots without a row are never read; they may hold anything.
/// Each product rounds once, or not at all if it is fused with its addition.
/// Throws InputError for a position outside [-1, rows) and for one that occurs twice.
void forward(const GoldArgs& args) {
  const Tensor& x = args.in(kOfXPerm);
  const int64_t topk = args.in(kOfPositions).shape.back(), hidden = x.shape.back();
  const std::vector<int64_t> positions = read_positions(args);
  const std::vector<double> none(static_cast<size_t>(hidden));
  args.for_rows(0, std::ssize(positions) / topk, [&](int64_t token) {
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
  args.for_rows(0, rows, [&](int64_t row) {
    static thread_local std::vector<double> value, size;
    for (auto* array : {&value, &size}) array->assign(static_cast<size_t>(hidden), 0.0);
    if (const int64_t slot = slot_of_row[static_cast<size_t>(row)]; slot != kNoRow) {
      decode_row(grad, slot / topk, value);
      const double weight = args.in(kOfWeights).at(slot);
      for (size_t h = 0; h < value.size(); ++h) value[h] *= weight, size[h] = std::abs(value[h]);
    }
    args.sink({0, row, 1, hidden, value.data(), none.data(), size.data()});
  });
  args.for_rows(1, std::ssize(positions) / topk, [&](int64_t token) {
    static thread_local std::vector<double> g, row, value, size;
    g.resize(static_cast<size_t>(hidden)), row.resize(static_cast<size_t>(hidden));
    for (auto* array : {&value, &size}) array->assign(static_cast<size_t>(topk), 0.0);
    decode_row(grad, token, g);
    for (int64_t s = 0; s < topk; ++s) {
      const int64_t position = positions[static_cast<size_t>(token * topk + s)];
      if (position == kNoRow) continue;
      decode_row(x, position, row);
      const auto at = static_cast<size_t>(s);
      for (size_t h = 0; h < row.size(); ++h) value[at] += g[h] * row[h], size[at] += std::abs(g[h] * row[h]);
    }
    args.sink({1, token, 1, topk, value.data(), size.data(), size.data()});
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

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work, &kMoeCombineForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, check_backward, work, &kMoeCombineBackward}};

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

extern const Operator kMoeCombine;
constexpr Operator kMoeCombine{"moe_combine",
                               "reduction",
                               "y = sum over slots of weights x_perm[positions]; -1: the slot is left out",
                               kRow,
                               {},
                               kPasses,
                               nullptr,
                               refine,
                               /*parallel_dim=*/"",
                               /*left_out=*/"slots without a row"};

}  // namespace checkop
