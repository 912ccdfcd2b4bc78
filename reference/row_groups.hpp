// SPDX-License-Identifier: Apache-2.0
// Groups of rows, one for each expert: where they lie, their data, and the rows of no expert.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// The rows of every expert. They follow each other without a gap: successive groups; or every expert has room for
/// `capacity` rows, of which the first ones are its own: masked groups.
struct RowGroups {
  /// Successive groups: the rows offsets[e] <= r < offsets[e + 1].
  RowGroups(int64_t rows_, const Tensor& offsets);
  /// Of `per_row`: masked groups of tensors [experts, capacity, columns], whose expert e has counts[e] = given[e] rows;
  /// successive groups of tensors [rows, columns], whose offsets are `given`.
  static RowGroups of(const Tensor& per_row, const Tensor& given);

  int64_t experts() const { return std::ssize(begins); }
  int64_t first(int64_t expert) const { return begins[static_cast<size_t>(expert)]; }
  int64_t count(int64_t expert) const { return ends[static_cast<size_t>(expert)] - first(expert); }
  /// Of successive groups: the first row behind them.
  int64_t end() const { return ends.empty() ? 0 : ends.back(); }
  /// How many rows all experts have.
  int64_t used() const;
  /// 1 for every row that an expert has, and for every expert that has a row.
  std::vector<char> used_rows() const;
  std::vector<char> used_experts() const;

  /// Throws InputError unless successive groups begin with the first row, follow each other within the rows, at
  /// multiples of `align`; or unless the counts of masked groups lie in [0, capacity].
  void require_order(int64_t align = 1) const;

  static constexpr int64_t kSuccessive = -1;  ///< in place of a capacity
  int64_t rows = 0, capacity = kSuccessive;
  std::vector<int64_t> begins, ends;

 private:
  RowGroups() = default;
};

/// Runs body(own, expert) for every expert: those with many products by themselves and with all threads, the others
/// side by side, with one thread each. `own` are `args` with these threads; every row of an expert is `of_row`
/// products.
template <class Args, class Body>
void for_experts(const Args& args, const RowGroups& groups, int64_t of_row, const Body& body) {
  constexpr int64_t kManyProducts = 1 << 18;  // fewer take less time than threads to begin and to end
  Args alone = args;
  alone.threads = 1;
  std::vector<int64_t> others;
  for (int64_t e = 0; e < groups.experts(); ++e) {
    if (groups.count(e) * of_row >= kManyProducts) {
      body(args, e);
    } else {
      others.push_back(e);
    }
  }
  args.parallel_for(std::ssize(others), [&](int64_t i) { body(alone, others[static_cast<size_t>(i)]); });
}

/// Those of `rows` that lie in [first, first + count), counted from `first` on.
std::vector<int64_t> rows_within(const RowSet& rows, int64_t first, int64_t count);

/// Draws `offsets` with the loads that routing produces: one expert has about half of all rows, some have none. If rows
/// are to be left out, some rows at the end belong to no expert, and hold payloads in the tensors `of_rows`. Groups
/// begin at multiples of `align`.
RowGroups draw_row_groups(const FillArgs& args, std::initializer_list<std::string_view> of_rows, int64_t align = 1);

/// Draws the `counts` of masked groups: the expert in the middle is full, every fourth one has no row, the others have
/// some; in mode constant the first one is full and the others have none. If no rows are to be left out, all are full.
/// The rows of no expert hold payloads in the tensors `of_rows`.
void draw_row_counts(const FillArgs& args, std::initializer_list<std::string_view> of_rows);

/// Of operators with masked groups, whose tensors of rows begin with "experts capacity": the room of an expert and the
/// number of its rows change.
extern const std::array<Rearrangement, 2> kRooms;

}  // namespace checkop
