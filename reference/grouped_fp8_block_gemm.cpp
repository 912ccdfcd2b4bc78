// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm: successive groups of rows of e4m3 codes, each times the codes of its expert, with the scales
// of fp8_block_gemm.
#include <array>
#include <vector>

#include "fp8_product.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "operator/operator.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kGroupedFp8BlockGemmForward;  // emulation/grouped_fp8_block_gemm.cpp

namespace {

using fp8_product::ScaledCodes;

constexpr TensorSpec kA{"a", "rows k_dim", Fill::normal, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleA{"scale_a", "rows k_dim/128", Fill::normal, "", DType::f32, false, /*constant=*/true};
constexpr TensorSpec kB{"b", "experts n_dim k_dim", Fill::normal, "", DType::e4m3, false, /*constant=*/true};
constexpr TensorSpec kScaleB{"scale_b",        "experts n_dim/128 k_dim/128", Fill::normal, "", DType::f32, false,
                             /*constant=*/true};
constexpr TensorSpec kOffsets{"offsets", "experts+1", Fill::positions, "", DType::i32};
enum Input : int { kOfA, kOfScaleA, kOfB, kOfScaleB, kOfOffsets };

constexpr std::array kForwardIn{kA, kScaleA, kB, kScaleB, kOffsets};
constexpr std::array kForwardOut{OutputSpec{{"d", "rows n_dim"}, Numerics::contraction, "k_dim/128", /*sampled=*/true}};

/// The operands of the groups.
template <class Args>
struct Groups : RowGroups {
  explicit Groups(const Args& args_)
      : RowGroups(args_.in(kOfA).shape.front(), args_.in(kOfOffsets)), n_dim(args_.in(kOfB).shape[1]), args(args_) {}

  ScaledCodes rows_of(int64_t expert) const {
    return {args.in(kOfA), args.in(kOfScaleA), 1, first(expert), first(expert)};
  }
  ScaledCodes matrix(int64_t expert) const {
    return {args.in(kOfB), args.in(kOfScaleB), fp8_product::kBlock, expert * n_dim,
            expert * args.in(kOfScaleB).shape[1]};
  }

  int64_t n_dim;
  const Args& args;
};

/// Gold of grouped_fp8_block_gemm.
///   in:  a[rows, k_dim], b[experts, n_dim, k_dim] e4m3, offsets[experts+1]
///        scale_a[rows, k_dim/128], scale_b[experts, n_dim/128, k_dim/128] fp32
///   out: d[rows, n_dim]: rows offsets_e <= r < offsets_(e+1) are those of fp8_block_gemm with the b and scale_b of
///        expert e;  0 from row offsets_experts on
/// The rows of a behind the last expert's rows are never read; they may hold anything.
/// Throws InputError for offsets that do not start with 0, decrease, or end beyond the rows.
/// The gradient by the numbers of a is the same operation, of codes of the upstream gradient and of the transposed b.
void forward(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order();
  for (int64_t e = 0; e < groups.experts(); ++e)
    fp8_product::emit_product(args, 0, groups.first(e), rows_within(args.rows(0), groups.first(e), groups.count(e)),
                              groups.rows_of(e), groups.matrix(e), groups.n_dim);
  emit_rest(args, 0, groups.end());
}

void identities(const IdentityArgs& args) {
  const Groups groups(args);
  for (int64_t e = 0; e < groups.experts(); ++e)
    if (groups.count(e) > 0)
      fp8_product::check_product(args, 0, groups.first(e), groups.rows_of(e).dequantised(args, groups.count(e)),
                                 groups.matrix(e).dequantised(args, groups.n_dim));
  check_zero_rows(args, 0, groups.used_rows());
}

Work work(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order();
  const std::vector<char> rows = groups.used_rows(), experts = groups.used_experts();
  double unread = 0;
  for (const Input of_rows : {kOfA, kOfScaleA}) unread += bytes_left_out(args.in(of_rows), rows);
  for (const Input of_experts : {kOfB, kOfScaleB}) unread += bytes_left_out(args.in(of_experts), experts);
  return {2.0 * static_cast<double>(groups.end() * args.in(kOfA).shape.back()) * static_cast<double>(groups.n_dim),
          unread};
}

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, identities, work, &kGroupedFp8BlockGemmForward}};

void refine(const FillArgs& args) {
  fp8_product::draw(args, "a", "scale_a", 1, /*of_rows=*/true);
  fp8_product::draw(args, "b", "scale_b", args.dim("k_dim"), /*of_rows=*/false);
  draw_row_groups(args, {"a", "scale_a"});
}

}  // namespace

extern const Operator kGroupedFp8BlockGemm;
constexpr Operator kGroupedFp8BlockGemm{
    "grouped_fp8_block_gemm",
    "reduction",
    "d = (a scale_a) (b[expert] scale_b[expert])^T, expert: the one whose offsets hold the row; rows behind them: 0",
    "",
    fp8_product::kAttrs,
    kPasses,
    fp8_product::validate,
    refine,
    /*parallel_dim=*/"",
    /*left_out=*/"rows of no expert"};

}  // namespace checkop
