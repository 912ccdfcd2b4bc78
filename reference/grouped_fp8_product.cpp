// SPDX-License-Identifier: Apache-2.0
// Products of rows of e4m3 codes with the codes of their expert: gold and identities.
#include "grouped_fp8_product.hpp"

#include <algorithm>
#include <vector>

#include "fp8_product.hpp"
#include "identity.hpp"
#include "left_out.hpp"
#include "row_groups.hpp"

namespace checkop::grouped_fp8_product {
namespace {

using fp8_product::ScaledCodes;

/// The operands of the groups.
template <class Args>
struct Groups : RowGroups {
  explicit Groups(const Args& args_)
      : RowGroups(of(args_.in(kOfA), args_.in(kOfGroups))), n_dim(args_.in(kOfB).shape[1]), args(args_) {}

  ScaledCodes rows_of(int64_t expert) const {
    return {args.in(kOfA), args.in(kOfScaleA), 1, first(expert), first(expert)};
  }
  ScaledCodes matrix(int64_t expert) const {
    return {args.in(kOfB), args.in(kOfScaleB), fp8_product::kBlock, expert * n_dim,
            expert * args.in(kOfScaleB).shape[1]};
  }

  int64_t products_of_row() const { return args.in(kOfA).shape.back() * n_dim; }

  int64_t n_dim;
  const Args& args;
};

}  // namespace

void forward(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order();
  for_experts(args, groups, groups.products_of_row(), [&](const GoldArgs& own, int64_t e) {
    fp8_product::emit_product(own, 0, groups.first(e), rows_within(args.rows(0), groups.first(e), groups.count(e)),
                              groups.rows_of(e), groups.matrix(e), groups.n_dim);
  });
  emit_unused(args, 0, groups.used_rows());
}

void model_forward(const ModelArgs& args) {
  const Groups groups(args);
  for (int64_t e = 0; e < groups.experts(); ++e)
    fp8_product::model_product(args, 0, groups.first(e), groups.count(e), groups.rows_of(e), groups.matrix(e),
                               groups.n_dim);
  model_unused(args, 0, groups.used_rows(), groups.n_dim);
}

void identities(const IdentityArgs& args) {
  const Groups groups(args);
  for_experts(args, groups, groups.products_of_row(), [&](const IdentityArgs& own, int64_t e) {
    if (groups.count(e) == 0) return;
    fp8_product::check_product(own, 0, groups.first(e), groups.count(e), groups.rows_of(e), groups.matrix(e),
                               groups.n_dim);
  });
  check_zero_rows(args, 0, groups.used_rows());
}

Work work(const GoldArgs& args) {
  const Groups groups(args);
  groups.require_order();
  const std::vector<char> rows = groups.used_rows(), experts = groups.used_experts();
  double unread = 0;
  for (const Input of_rows : {kOfA, kOfScaleA}) unread += bytes_left_out(args.in(of_rows), rows);
  for (const Input of_experts : {kOfB, kOfScaleB}) unread += bytes_left_out(args.in(of_experts), experts);
  return {2.0 * static_cast<double>(groups.used() * args.in(kOfA).shape.back()) * static_cast<double>(groups.n_dim),
          unread};
}

void plant_unused_experts(const FillArgs& args, std::string_view given) {
  if (args.mode != InputMode::extreme || args.left_out != LeftOut::nonfinite) return;
  Tensor& b = *args.find("b");
  const RowGroups groups = RowGroups::of(*args.find("a"), *args.find(given));
  const auto codes = static_cast<size_t>(b.shape[1] * b.shape[2]);
  for (int64_t e = 0; e < groups.experts(); ++e)
    if (groups.count(e) == 0) std::fill_n(b.bytes.data() + static_cast<size_t>(e) * codes, codes, std::byte{0x7f});
}

}  // namespace checkop::grouped_fp8_product
