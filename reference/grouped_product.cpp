// SPDX-License-Identifier: Apache-2.0
// Products of rows with the matrix of their expert: gold, tensor core model and identities.
#include "grouped_product.hpp"

#include <array>
#include <vector>

#include "identity.hpp"
#include "left_out.hpp"
#include "row_groups.hpp"
#include "tensor_core.hpp"

namespace checkop::grouped_product {
namespace {

/// The sizes, and where the rows of each expert lie.
struct Groups : RowGroups {
  template <class Args>
  explicit Groups(const Args& args)
      : RowGroups(of(args.in(kOfA), args.in(kOfGroups))),
        k_dim(args.in(kOfB).shape.back()),
        n_dim(args.in(kOfB).shape[1]) {}

  /// The rows of `expert` of a tensor of rows.
  Factor part(const Tensor& of_rows, int64_t expert, bool transposed = false) const {
    return {&of_rows, count(expert), of_rows.shape.back(), transposed, first(expert)};
  }
  Factor matrix(const Tensor& b, int64_t expert, bool transposed = false) const {
    return {&b, n_dim, k_dim, transposed, expert * n_dim};
  }

  int64_t k_dim, n_dim;
};

Groups groups_of(const GoldArgs& args) {
  Groups groups(args);
  groups.require_order();
  return groups;
}

/// Those of `rows` that are rows of x, the first of which is row `first`.
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

}  // namespace

void forward(const GoldArgs& args) {
  const Groups groups = groups_of(args);
  for_experts(args, groups, groups.k_dim * groups.n_dim, [&](const GoldArgs& own, int64_t e) {
    emit_part(own, 0, groups.first(e), groups.part(args.in(kOfA), e), groups.matrix(args.in(kOfB), e, true));
  });
  emit_unused(args, 0, groups.used_rows());
}

void backward(const GoldArgs& args) {
  const Groups groups = groups_of(args);
  for_experts(args, groups, groups.k_dim * groups.n_dim, [&](const GoldArgs& own, int64_t e) {
    emit_part(own, 0, groups.first(e), groups.part(args.in(kOfGradC), e), groups.matrix(args.in(kOfB), e));
    emit_part(own, 1, e * groups.n_dim, groups.part(args.in(kOfGradC), e, true), groups.part(args.in(kOfA), e));
  });
  emit_unused(args, 0, groups.used_rows());
}

void model_forward(const ModelArgs& args) {
  const Groups groups(args);
  for (int64_t e = 0; e < groups.experts(); ++e)
    emit_tensor_core_part(args, 0, groups.first(e), groups.part(args.in(kOfA), e),
                          groups.matrix(args.in(kOfB), e, true));
  model_unused(args, 0, groups.used_rows(), groups.n_dim);
}

/// The blocks of an expert's sum over rows begin with its first row.
void model_backward(const ModelArgs& args) {
  const Groups groups(args);
  for (int64_t e = 0; e < groups.experts(); ++e) {
    emit_tensor_core_part(args, 0, groups.first(e), groups.part(args.in(kOfGradC), e), groups.matrix(args.in(kOfB), e));
    emit_tensor_core_part(args, 1, e * groups.n_dim, groups.part(args.in(kOfGradC), e, true),
                          groups.part(args.in(kOfA), e));
  }
  model_unused(args, 0, groups.used_rows(), groups.k_dim);
}

namespace {

/// Rows of no expert must be 0.
void check_rest(const IdentityArgs& args, const Groups& groups) { check_zero_rows(args, 0, groups.used_rows()); }

}  // namespace

void check_forward(const IdentityArgs& args) {
  const Groups groups(args);
  for_experts(args, groups, groups.k_dim * groups.n_dim, [&](const IdentityArgs& own, int64_t e) {
    check_product(own, 0, groups.part(args.in(kOfA), e), groups.matrix(args.in(kOfB), e, true), nullptr,
                  groups.first(e));
  });
  check_rest(args, groups);
}

/// The gradient of an expert without rows must be 0, too.
void check_backward(const IdentityArgs& args) {
  const Groups groups(args);
  for_experts(args, groups, groups.k_dim * groups.n_dim, [&](const IdentityArgs& own, int64_t e) {
    check_product(own, 0, groups.part(args.in(kOfGradC), e), groups.matrix(args.in(kOfB), e), nullptr, groups.first(e));
    check_product(own, 1, groups.part(args.in(kOfGradC), e, true), groups.part(args.in(kOfA), e), nullptr,
                  e * groups.n_dim);
  });
  check_rest(args, groups);
  std::vector<char> active;
  for (int64_t e = 0; e < groups.experts(); ++e)
    active.insert(active.end(), static_cast<size_t>(groups.n_dim), groups.count(e) > 0 ? 1 : 0);
  check_zero_rows(args, 1, active);
}

namespace {

/// `products` products of the experts' rows.
Work work(const GoldArgs& args, int products) {
  const Groups groups = groups_of(args);
  const std::vector<char> rows = groups.used_rows();
  double unread = bytes_left_out(args.in(kOfA), rows) + bytes_left_out(args.in(kOfB), groups.used_experts());
  if (products > 1) unread += bytes_left_out(args.in(kOfGradC), rows);
  const double of_row = static_cast<double>(groups.k_dim) * static_cast<double>(groups.n_dim);
  return {2.0 * products * static_cast<double>(groups.used()) * of_row, unread};
}

}  // namespace

Work forward_work(const GoldArgs& args) { return work(args, 1); }
Work backward_work(const GoldArgs& args) { return work(args, 2); }

}  // namespace checkop::grouped_product
