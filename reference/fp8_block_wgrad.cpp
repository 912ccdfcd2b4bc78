// SPDX-License-Identifier: Apache-2.0
// fp8_block_wgrad: the gradient of every expert's weight from e4m3 codes of its rows, with scales for 128 rows.
#include <array>
#include <cmath>
#include <vector>

#include "fp8_product.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kFp8BlockWgradForward;  // emulation/fp8_block_wgrad.cpp

namespace fp8_block_wgrad {
namespace {

using fp8_product::kBlock;
using fp8_product::ScaledCodes;

constexpr TensorSpec kG{"grad_t", "n_dim rows", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleG{"scale_grad_t", "n_dim rows/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kX{"x_t", "k_dim rows", Fill::codes, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleX{"scale_x_t", "k_dim rows/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kOffsets{"offsets", "experts+1", Fill::positions, "", DType::i32};
enum Input : int { kOfG, kOfScaleG, kOfX, kOfScaleX, kOfOffsets };

constexpr std::array kForwardIn{kG, kScaleG, kX, kScaleX, kOffsets};
constexpr std::array kForwardOut{OutputSpec{
    {"dw", "experts n_dim k_dim"}, Numerics::contraction, "rows/128", /*sampled=*/true, "", /*locates_nan=*/true}};

template <class Args>
struct Groups : RowGroups {
  explicit Groups(const Args& args_)
      : RowGroups(args_.in(kOfG).shape.back(), args_.in(kOfOffsets)),
        n_dim(args_.in(kOfG).shape.front()),
        k_dim(args_.in(kOfX).shape.front()),
        args(args_) {}

  ScaledCodes grad(int64_t expert) const { return part(kOfG, kOfScaleG, expert); }
  ScaledCodes x(int64_t expert) const { return part(kOfX, kOfScaleX, expert); }

  int64_t n_dim, k_dim;
  const Args& args;

 private:
  ScaledCodes part(int codes, int scales, int64_t expert) const {
    return {args.in(codes), args.in(scales), 1, 0, 0, first(expert), count(expert)};
  }
};

/// Gold of fp8_block_wgrad.
///   in:  grad_t[n_dim, rows], x_t[k_dim, rows] e4m3, offsets[experts+1], multiples of 128
///        scale_grad_t[n_dim, rows/128], scale_x_t[k_dim, rows/128] fp32
///   out: dw[experts, n_dim, k_dim]: dw_e = sum over the rows r of expert e of
///        (grad_t_r scale_grad_t[r/128]) (x_t_r scale_x_t[r/128])^T;  0 for an expert without rows
/// Columns behind the last expert's rows are never read. With one expert it is the gradient of a weight of its own.
/// Throws InputError for offsets that do not start with 0, decrease, end beyond the rows, or are no multiples of 128.
void forward(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order(kBlock);
  for (int64_t e = 0; e < groups.experts(); ++e)
    fp8_product::emit_product(args, 0, e * groups.n_dim, rows_within(args.rows(0), e * groups.n_dim, groups.n_dim),
                              groups.grad(e), groups.x(e), groups.k_dim);
}

void identities(const IdentityArgs& args) {
  const Groups groups(args);
  std::vector<char> active;
  for (int64_t e = 0; e < groups.experts(); ++e) {
    active.insert(active.end(), static_cast<size_t>(groups.n_dim), groups.count(e) > 0 ? 1 : 0);
    if (groups.count(e) > 0)
      fp8_product::check_product(args, 0, e * groups.n_dim, groups.n_dim, groups.grad(e), groups.x(e), groups.k_dim);
  }
  check_zero_rows(args, 0, active);
}

Work work(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order(kBlock);
  // Codes of a byte and scales of four, of the rows behind the last group, which ends with a block.
  const int64_t unread_blocks = (groups.rows + kBlock - 1) / kBlock - groups.end() / kBlock;
  const double unread = static_cast<double>(groups.rows - groups.end() + 4 * unread_blocks) *
                        static_cast<double>(groups.n_dim + groups.k_dim);
  return {2.0 * static_cast<double>(groups.end() * groups.k_dim) * static_cast<double>(groups.n_dim), unread};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, identities, work, &kFp8BlockWgradForward}};

/// Half of the columns of no expert hold NaN, or large numbers.
void refine(const FillArgs& args) {
  fp8_product::draw(args, "grad_t", "scale_grad_t", 1, /*of_rows=*/true);
  fp8_product::draw(args, "x_t", "scale_x_t", args.dim("rows"), /*of_rows=*/false);
  const RowGroups groups = draw_row_groups(args, {}, kBlock);
  for (const char* name : {"grad_t", "x_t"}) {
    Tensor& codes = *args.find(name);
    for (int64_t column = groups.end(); column < groups.rows; ++column) {
      const uint64_t kind = payload_kind(args, static_cast<uint64_t>(column));
      for (int64_t i = column; i < codes.count() && kind % 2 == 0; i += groups.rows)
        codes.set(i, args.left_out == LeftOut::nonfinite ? NAN : kind == 0 ? 448 : -448);
    }
  }
}

}  // namespace
}  // namespace fp8_block_wgrad

extern const Operator kFp8BlockWgrad;
constexpr Operator kFp8BlockWgrad{
    "fp8_block_wgrad",
    "reduction",
    "dw[expert] = (grad_t scale_grad_t) (x_t scale_x_t)^T of the expert's columns, a scale for 128 of them",
    "",
    fp8_product::kAttrs,
    fp8_block_wgrad::kPasses,
    fp8_product::validate,
    fp8_block_wgrad::refine,
    /*parallel_dim=*/"",
    /*left_out=*/"columns of no expert"};

}  // namespace checkop
