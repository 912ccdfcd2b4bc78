// SPDX-License-Identifier: Apache-2.0
// pack: moves the rows that a mask keeps next to each other, and tells where each sequence begins among them.
#include <array>
#include <vector>

#include "left_out.hpp"
#include "moved_rows.hpp"
#include "operator/operator.hpp"

namespace checkop {

extern const Emulation kPackForward, kPackBackward;  // emulation/pack.cpp

namespace pack {
namespace {

constexpr std::string_view kRow = "batch seq", kRowHidden = "batch seq hidden", kPackedHidden = "batch*seq hidden";
constexpr TensorSpec kX{"x", kRowHidden}, kMask{"mask", kRow, Fill::mask, "", DType::u8};
constexpr TensorSpec kGradPacked{"grad_packed", kPackedHidden, Fill::upstream};

constexpr std::array kForwardIn{kX, kMask};
constexpr std::array kForwardOut{
    OutputSpec{{"packed", kPackedHidden}, Numerics::exact, ""},
    OutputSpec{{"cu_seqlens", "batch+1", Fill::normal, "", DType::i64}, Numerics::exact, ""},
};
// No x: only its extents matter to the gradient.
constexpr std::array kBackwardIn{kMask, kGradPacked};
constexpr std::array kBackwardOut{OutputSpec{{"dx", kRowHidden}, Numerics::exact, ""}};

bool keeps(const Tensor& mask, int64_t row) { return mask.at(row) != 0; }

/// Gold of pack. A row is kept where its mask is nonzero.
///   in:  x[batch, seq, hidden], mask[batch, seq]     out: packed[batch*seq, hidden], cu_seqlens[batch+1]
///   cu_seqlens_b = number of kept rows in the first b sequences
///   packed = the kept rows in order, then zeros from row cu_seqlens_batch on
/// Rows that are not kept are never read; they may hold anything.
void forward(const GoldArgs& args) {
  const Tensor& mask = args.in(1);
  const int64_t seq = mask.shape.back(), rows = mask.count();
  std::vector<int64_t> from;
  std::vector<int64_t> ends{0};
  for (int64_t row = 0; row < rows; ++row) {
    if (keeps(mask, row)) from.push_back(row);
    if (row % seq == seq - 1) ends.push_back(std::ssize(from));
  }
  from.resize(static_cast<size_t>(rows), kNoRow);
  emit_moved_rows(args, 0, args.in(0), from);
  emit_integers(args, 1, ends);
}

/// Gold of pack's gradient.
///   in:  mask[batch, seq], grad_packed[batch*seq, hidden]     out: dx[batch, seq, hidden]
///   dx = for a kept row of x its row of grad_packed, for other rows 0
/// Rows of grad_packed after the last kept one are never read; they may hold anything.
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Tensor& mask = args.in(0);
  std::vector<int64_t> from(static_cast<size_t>(mask.count()), kNoRow);
  int64_t kept = 0;
  for (int64_t row = 0; row < mask.count(); ++row) {
    if (keeps(mask, row)) from[static_cast<size_t>(row)] = kept++;
  }
  emit_moved_rows(args, 0, args.in(1), from);
}

/// Plants sequences that a random mask would hardly ever have: nothing kept, only the last row, only the first row.
/// Every fourth sequence stays as drawn. A mask that keeps everything is intended and stays; so does a given mask. Rows
/// that are not kept get payloads that must not be read.
void refine(const FillArgs& args) {
  Tensor& mask = *args.find("mask");
  const int64_t seq = mask.shape.back();
  bool keeps_all = true;
  for (int64_t row = 0; row < mask.count(); ++row) keeps_all = keeps_all && keeps(mask, row);
  const bool stays = keeps_all || args.ignored_every == 0;
  for (int64_t row = 0; row < mask.count() && !stays; ++row) {
    const int64_t kind = row / seq % 4, place = row % seq;
    if (kind != 0) mask.set(row, (kind == 2 && place == seq - 1) || (kind == 3 && place == 0) ? 1 : 0);
  }
  Tensor* const x = args.find("x");
  if (x != nullptr) plant_whole_range(args, *x);
  for (int64_t row = 0; row < mask.count() && x != nullptr; ++row) {
    if (!keeps(mask, row))
      plant_payload(args, *x, x->shape.back(), row, payload_kind(args, static_cast<uint64_t>(row)));
  }
}

/// Neither rows that are not kept nor rows of grad_packed after the last kept one are read: the same number of rows.
template <int mask, int rows>
Work work(const GoldArgs& args) {
  std::vector<char> used(static_cast<size_t>(args.in(mask).count()));
  for (size_t row = 0; row < used.size(); ++row) used[row] = keeps(args.in(mask), static_cast<int64_t>(row));
  return {0, bytes_left_out(args.in(rows), used)};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, work<1, 0>, &kPackForward},
    Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, work<0, 1>, &kPackBackward}};

}  // namespace
}  // namespace pack

extern const Operator kPack;
constexpr Operator kPack{"pack",
                         "elementwise",
                         "packed = x[mask != 0], cu_seqlens = where each sequence begins in it",
                         "",
                         {},
                         pack::kPasses,
                         nullptr,
                         pack::refine,
                         /*parallel_dim=*/"",
                         /*left_out=*/"padded tokens"};

}  // namespace checkop
