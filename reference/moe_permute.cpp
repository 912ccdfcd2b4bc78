// SPDX-License-Identifier: Apache-2.0
// moe_permute: moves the rows of tokens to their experts; backward: adds up what comes back.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.hpp"
#include "left_out.hpp"
#include "moe.hpp"
#include "operator/operator.hpp"

namespace checkop {

extern const Emulation kMoePermuteForward, kMoePermuteBackward;  // emulation/moe_permute.cpp

namespace moe_permute {
namespace {

constexpr std::string_view kTokenHidden = "batch seq hidden", kTokenSlots = "batch seq topk",
                           kRowsHidden = "rows hidden";
constexpr TensorSpec kX{"x", kTokenHidden}, kIds{"ids", kTokenSlots, Fill::ids, "experts", DType::i32};
constexpr TensorSpec kPositions{"positions", kTokenSlots, Fill::ids, "rows", DType::i32};
constexpr TensorSpec kGradXPerm{"grad_x_perm", kRowsHidden, Fill::upstream};

constexpr std::array kForwardIn{kX, kIds};
constexpr std::array kForwardOut{
    OutputSpec{{"x_perm", kRowsHidden}, Numerics::exact, ""},
    OutputSpec{{"src", "rows", Fill::normal, "", DType::i32}, Numerics::exact, ""},
    OutputSpec{kPositions, Numerics::exact, ""},
    OutputSpec{{"offsets", "experts+1", Fill::normal, "", DType::i32}, Numerics::exact, ""},
};
// No x and no ids: only the extents of x matter to the gradient, and positions say what ids decided.
constexpr std::array kBackwardIn{kPositions, kGradXPerm};
constexpr std::array kBackwardOut{OutputSpec{{"dx", kTokenHidden}, Numerics::reduction, "topk"}};

constexpr std::array kAttrs{AttrSpec{"align", 1, "the rows of every expert begin at a multiple of it"}};

/// Gold of moe_permute.
///   in:  x[batch, seq, hidden], ids[batch, seq, topk]: the experts of each token, -1 for a slot without one
///   out: x_perm[rows, hidden], src[rows], positions[batch, seq, topk], offsets[experts+1]
///   slots in the order (expert, token, slot) get successive rows, each expert's from offsets_expert on
///   offsets_0 = 0,  offsets_(e+1) = offsets_e + (number of slots of expert e, rounded up to a multiple of align)
///   x_perm_r = the row of x of its slot's token,  src_r = token*topk + slot,  positions = the row of each slot
///   other rows: x_perm 0, src -1;  positions -1 for a slot without an expert
/// Tokens all of whose slots have no expert are not read; they may hold anything.
/// Throws InputError for an id outside [-1, experts).
void forward(const GoldArgs& args) {
  const int64_t topk = args.in(1).shape.back(), rows = args.output_shapes[0].front();
  const int64_t experts = args.output_shapes[3].front() - 1;
  const ExpertOrder order(read_slots(args.in(1), experts), experts, static_cast<int64_t>(args.attrs[0]), rows);
  std::vector<int64_t> token_of_row = order.slot_of_row;
  for (int64_t& token : token_of_row) token = token == kNoRow ? kNoRow : token / topk;
  emit_moved_rows(args, 0, args.in(0), token_of_row);
  emit_integers(args, 1, order.slot_of_row);
  emit_integers(args, 2, order.row_of_slot, topk);
  emit_integers(args, 3, order.offsets);
}

/// Gold of moe_permute's gradient.
///   in:  positions[batch, seq, topk], grad_x_perm[rows, hidden]
///   out: dx[batch, seq, hidden] = sum over the slots of a token of the row of grad_x_perm at its position
/// Rows of grad_x_perm that are no slot's position are never read; they may hold anything. A token with one position is
/// copied.
/// Throws InputError for a position outside [-1, rows).
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor& grad = args.in(1);
  const int64_t topk = args.in(0).shape.back(), hidden = grad.shape.back();
  const std::vector<int64_t> positions = read_slots(args.in(0), grad.shape.front());
  const std::vector<double> none(static_cast<size_t>(hidden));
  args.parallel_for(std::ssize(positions) / topk, [&](int64_t token) {
    static thread_local std::vector<double> row, value, magnitude;
    for (auto* array : {&row, &value, &magnitude}) array->assign(static_cast<size_t>(hidden), 0.0);
    int64_t terms = 0;
    for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
      const int64_t position = positions[static_cast<size_t>(slot)];
      if (position == kNoRow) continue;
      decode_row(grad, position, row);
      for (size_t h = 0; h < row.size(); ++h) value[h] += row[h], magnitude[h] += std::abs(row[h]);
      ++terms;
    }
    args.sink({0, token, 1, hidden, value.data(), terms > 1 ? magnitude.data() : none.data(), none.data()});
  });
}

/// Tokens without an expert are not read, nor are rows at no position.
Work forward_work(const GoldArgs& args) {
  const int64_t topk = args.in(1).shape.back(), tokens = args.in(1).count() / topk;
  std::vector<char> used(static_cast<size_t>(tokens));
  for (int64_t slot = 0; slot < tokens * topk; ++slot)
    if (args.in(1).at(slot) != kNoExpert) used[static_cast<size_t>(slot / topk)] = 1;
  return {0, bytes_left_out(args.in(0), used)};
}

Work backward_work(const GoldArgs& args) {
  const int64_t rows = args.in(1).shape.front();
  return {0, bytes_left_out(args.in(1), rows_in_use(read_slots(args.in(0), rows), rows))};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, forward_work, &kMoePermuteForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, backward_work, &kMoePermuteBackward}};

void validate(const CaseSizes& sizes) {
  const int64_t slots = sizes.dim("batch") * sizes.dim("seq") * sizes.dim("topk"), rows = sizes.dim("rows");
  const int64_t experts = sizes.dim("experts");
  validate_topk(sizes);
  const double align = sizes.attrs[0];
  if (!(align >= 1) || align != std::floor(align) || !(align <= static_cast<double>(rows))) {
    throw InputError("--align",
                     fmt::format("expected an integer from 1 to the number of rows, {}, got {}", rows, align),
                     "1 leaves no gaps");
  }
  const int64_t needed = slots + std::min(experts, slots) * (static_cast<int64_t>(align) - 1);
  if (rows < needed) {
    throw InputError("--rows",
                     fmt::format("{} slots of {} experts may need {} rows, got {}", slots, experts, needed, rows),
                     "give batch*seq*topk rows, and align - 1 more for each expert");
  }
}

/// Draws the experts, the same for both passes, and plants payloads in what must not be read.
void refine(const FillArgs& args) {
  const int64_t topk = args.dim("topk"), tokens = args.dim("batch") * args.dim("seq"), rows = args.dim("rows");
  const int64_t experts = args.dim("experts");
  Tensor *const ids = args.find("ids"), *const positions = args.find("positions");
  const Tensor& given = ids != nullptr ? *ids : *positions;
  const int64_t first = given.count() == 0 ? 0 : static_cast<int64_t>(given.at(0)) % experts;
  const std::vector<int64_t> drawn = draw_experts(args, tokens, topk, experts, first);
  if (ids != nullptr) {
    store_integers(drawn, *ids);
    std::vector<int64_t> token_of_slot(drawn.size(), kNoRow);
    for (size_t slot = 0; slot < drawn.size(); ++slot)
      if (drawn[slot] != kNoExpert) token_of_slot[slot] = static_cast<int64_t>(slot) / topk;
    plant_whole_range(args, *args.find("x"));
    plant_unused_rows(args, *args.find("x"), rows_in_use(token_of_slot, tokens));
  } else {
    const ExpertOrder order(drawn, experts, static_cast<int64_t>(args.attrs[0]), rows);
    store_integers(order.row_of_slot, *positions);
    if (args.ignored_every != 0)
      plant_unused_rows(args, *args.find("grad_x_perm"), rows_in_use(order.row_of_slot, rows));
  }
}

}  // namespace
}  // namespace moe_permute

extern const Operator kMoePermute;
constexpr Operator kMoePermute{"moe_permute",
                               "elementwise",
                               "x_perm = x[src / topk], its rows ordered by (expert, token, slot); offsets: where each "
                               "expert's rows begin; positions: the row of each slot",
                               "",
                               moe_permute::kAttrs,
                               moe_permute::kPasses,
                               moe_permute::validate,
                               moe_permute::refine,
                               /*parallel_dim=*/"",
                               /*left_out=*/"tokens without an expert"};

}  // namespace checkop
