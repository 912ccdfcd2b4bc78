// SPDX-License-Identifier: Apache-2.0
// grouped_gemm: successive groups of rows, each times the matrix of its expert.
#include <array>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "product.hpp"
#include "row_groups.hpp"
#include "tensor_core.hpp"

namespace checkop {

extern const Emulation kGroupedGemmForward, kGroupedGemmBackward;  // emulation/grouped_gemm.cpp

namespace {

constexpr std::string_view kRowsK = "rows k_dim", kRowsN = "rows n_dim", kExpertsNK = "experts n_dim k_dim";
constexpr TensorSpec kA{"a", kRowsK}, kB{"b", kExpertsNK}, kGradC{"grad_c", kRowsN, Fill::upstream};
constexpr TensorSpec kOffsets{"offsets", "experts+1", Fill::positions, "", DType::i32};
enum Input : int { kOfA, kOfB, kOfOffsets, kOfGradC };

constexpr std::array kForwardIn{kA, kB, kOffsets};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowsN}, Numerics::contraction, "k_dim", /*sampled=*/true}};
constexpr std::array kBackwardIn{kA, kB, kOffsets, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowsK}, Numerics::contraction, "n_dim", /*sampled=*/true},
    OutputSpec{{"db", kExpertsNK}, Numerics::contraction, "rows", /*sampled=*/true},
};
constexpr std::array kForwardRecipes{tf32_operands("c")};
constexpr std::array kBackwardRecipes{tf32_operands("da db")};

/// The sizes, and where the rows of each expert begin.
struct Groups : RowGroups {
  Groups(const Tensor& a, const Tensor& b, const Tensor& given)
      : RowGroups(a.shape.front(), given), k_dim(b.shape.back()), n_dim(b.shape[1]) {}

  /// The rows of `expert` of a tensor [rows, columns].
  Factor part(const Tensor& of_rows, int64_t expert, bool transposed = false) const {
    return {&of_rows, count(expert), of_rows.shape.back(), transposed, first(expert)};
  }
  Factor matrix(const Tensor& b, int64_t expert, bool transposed = false) const {
    return {&b, n_dim, k_dim, transposed, expert * n_dim};
  }

  int64_t k_dim, n_dim;
};

Groups groups_of(const GoldArgs& args) {
  Groups groups(args.in(kOfA), args.in(kOfB), args.in(kOfOffsets));
  groups.require_order();
  return groups;
}

/// The `rows` of an output that belong to x, counted from x's first row, which is row `first` of the output.
RowSet rows_of_part(const RowSet& rows, int64_t first, const Factor& x) {
  if (rows.all) return {};
  return {false, rows_within(rows, first, x.transposed ? x.columns : x.rows)};
}

/// Emits rows [first, first + rows of x) of output `index` = x y.
void emit_part(const GoldArgs& args, int index, int64_t first, const Factor& x, const Factor& y) {
  const RowSet of_part = rows_of_part(args.rows(index), first, x);
  if (!of_part.all && of_part.chosen.empty()) return;
  std::vector<RowSet> own(args.output_shapes.size());
  own[static_cast<size_t>(index)] = of_part;
  GoldArgs part = args;
  part.row_sets = own;
  part.sink = [&](GoldRows block) {
    block.first_row += first;
    args.sink(block);
  };
  emit_product(part, index, x, y);
}

/// Gold of grouped_gemm.
///   in:  a[rows, k_dim], b[experts, n_dim, k_dim], offsets[experts+1]     out: c[rows, n_dim]
///   c_r = a_r b_e^T for the rows offsets_e <= r < offsets_(e+1) of expert e;  0 from row offsets_experts on
/// The rows of a behind the last expert's rows are never read; they may hold anything.
/// Throws InputError for offsets that do not start with 0, decrease, or end beyond the rows.
void forward(const GoldArgs& args) {
  const Groups groups = groups_of(args);
  for (int64_t e = 0; e < groups.experts(); ++e)
    emit_part(args, 0, groups.first(e), groups.part(args.in(kOfA), e), groups.matrix(args.in(kOfB), e, true));
  emit_rest(args, 0, groups.end());
}

/// Gold of grouped_gemm's gradients.
///   in:  as forward, then grad_c[rows, n_dim]
///   out: da[rows, k_dim] = grad_c b_e for the rows of expert e, 0 behind them
///        db[experts, n_dim, k_dim]: db_e = grad_c_e^T a_e of the rows of expert e, 0 for an expert without rows
/// Source: differentiated by hand; checked by gradient_test.
void backward(const GoldArgs& args) {
  const Groups groups = groups_of(args);
  for (int64_t e = 0; e < groups.experts(); ++e) {
    emit_part(args, 0, groups.first(e), groups.part(args.in(kOfGradC), e), groups.matrix(args.in(kOfB), e));
    emit_part(args, 1, e * groups.n_dim, groups.part(args.in(kOfGradC), e, true), groups.part(args.in(kOfA), e));
  }
  emit_rest(args, 0, groups.end());
}

/// Models rows [first, first + rows of x) of output `index` = x y.
void model_part(const ModelArgs& args, int index, int64_t first, const Factor& x, const Factor& y) {
  std::vector<RowSet> own(args.row_sets.size(), RowSet{false, {}});
  own[static_cast<size_t>(index)] = rows_of_part(args.rows(index), first, x);
  ModelArgs part = args;
  part.row_sets = own;
  part.sink = [&](int output, int64_t row, const float* values) { args.sink(output, first + row, values); };
  emit_tensor_core_product(part, index, x, y);
}

void model_rest(const ModelArgs& args, int index, const Groups& groups, int64_t columns) {
  const std::vector<float> zeros(static_cast<size_t>(columns));
  for (int64_t row = groups.end(); row < groups.rows; ++row)
    if (args.rows(index).has(row)) args.sink(index, row, zeros.data());
}

void model_forward(const ModelArgs& args) {
  const Groups groups(args.in(kOfA), args.in(kOfB), args.in(kOfOffsets));
  for (int64_t e = 0; e < groups.experts(); ++e)
    model_part(args, 0, groups.first(e), groups.part(args.in(kOfA), e), groups.matrix(args.in(kOfB), e, true));
  model_rest(args, 0, groups, groups.n_dim);
}

/// The blocks of an expert's sum over rows begin with its first row.
void model_backward(const ModelArgs& args) {
  const Groups groups(args.in(kOfA), args.in(kOfB), args.in(kOfOffsets));
  for (int64_t e = 0; e < groups.experts(); ++e) {
    model_part(args, 0, groups.first(e), groups.part(args.in(kOfGradC), e), groups.matrix(args.in(kOfB), e));
    model_part(args, 1, e * groups.n_dim, groups.part(args.in(kOfGradC), e, true), groups.part(args.in(kOfA), e));
  }
  model_rest(args, 0, groups, groups.k_dim);
}

/// Rows behind those of all experts must be 0.
void check_rest(const IdentityArgs& args, const Groups& groups) { check_zero_rows(args, 0, groups.used_rows()); }

void check_forward(const IdentityArgs& args) {
  const Groups groups(args.in(kOfA), args.in(kOfB), args.in(kOfOffsets));
  for (int64_t e = 0; e < groups.experts(); ++e)
    check_product(args, 0, groups.part(args.in(kOfA), e), groups.matrix(args.in(kOfB), e, true), nullptr,
                  groups.first(e));
  check_rest(args, groups);
}

/// The gradient of an expert without rows must be 0, too.
void check_backward(const IdentityArgs& args) {
  const Groups groups(args.in(kOfA), args.in(kOfB), args.in(kOfOffsets));
  std::vector<char> active;
  for (int64_t e = 0; e < groups.experts(); ++e) {
    const Factor grad = groups.part(args.in(kOfGradC), e);
    check_product(args, 0, grad, groups.matrix(args.in(kOfB), e), nullptr, groups.first(e));
    check_product(args, 1, groups.part(args.in(kOfGradC), e, true), groups.part(args.in(kOfA), e), nullptr,
                  e * groups.n_dim);
    active.insert(active.end(), static_cast<size_t>(groups.n_dim), groups.count(e) > 0 ? 1 : 0);
  }
  check_rest(args, groups);
  check_zero_rows(args, 1, active);
}

/// `products` products of the experts' rows. Rows behind them are not read, nor are matrices of experts without rows.
template <int products>
Work work(const GoldArgs& args) {
  const Groups groups = groups_of(args);
  const std::vector<char> rows = groups.used_rows();
  double unread = bytes_left_out(args.in(kOfA), rows) + bytes_left_out(args.in(kOfB), groups.used_experts());
  if (products > 1) unread += bytes_left_out(args.in(kOfGradC), rows);
  const double of_row = static_cast<double>(groups.k_dim) * static_cast<double>(groups.n_dim);
  return {2.0 * products * static_cast<double>(groups.end()) * of_row, unread};
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work<1>,
                                  &kGroupedGemmForward, model_forward, kForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, check_backward, work<2>,
                                  &kGroupedGemmBackward, model_backward, kBackwardRecipes}};

void refine(const FillArgs& args) { draw_row_groups(args, {"a", "grad_c"}); }

}  // namespace

extern const Operator kGroupedGemm;
constexpr Operator kGroupedGemm{"grouped_gemm",
                                "reduction",
                                "c = a b[expert]^T, expert: the one whose offsets hold the row; rows behind them: 0",
                                "",
                                {},
                                kPasses,
                                nullptr,
                                refine,
                                /*parallel_dim=*/"",
                                /*left_out=*/"rows of no expert"};

}  // namespace checkop
