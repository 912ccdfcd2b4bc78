// SPDX-License-Identifier: Apache-2.0
// Rows that an operator leaves out: what ignore_index means, and what generated inputs hold where nothing may be read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

/// The attribute of logp and linear_logp. It comes first among their attributes.
inline constexpr AttrSpec kIgnoreIndex{
    "ignore_index", -100,
    "a row whose id equals it, in the vocabulary or not, is left out: logp 0, all its gradients 0"};

/// Throws InputError unless ignore_index, the first attribute, is an integer.
void validate_ignore_index(const CaseSizes& sizes);

/// What read_ids_to_use() gives for a row that is left out.
inline constexpr int64_t kLeftOut = -1;

/// The ids of a per-row integer input, kLeftOut where they equal attrs[0], the ignore_index.
/// Throws InputError naming the first other one that is outside [0, vocab).
std::vector<int64_t> read_ids_to_use(const GoldArgs& args, const Tensor& ids, int64_t vocab);

/// 1 where the id is not attrs[0], the ignore_index; for identities, which take no part in refusing ids.
std::vector<char> rows_to_use(const Tensor& ids, std::span<const double> attrs);

/// Bytes of the rows of `per_row` where used[row] is 0: nothing depends on them.
double bytes_left_out(const Tensor& per_row, const std::vector<char>& used);

/// Gives row `row` of a tensor [rows, columns] content that must not be read, by `kind` modulo 4: NaN, what it has,
/// infinities of both signs, what it has. NaN times zero is NaN: a row that is multiplied away instead of left out
/// shows.
void plant_payload(Tensor& tensor, int64_t columns, int64_t row, uint64_t kind);

/// The kind of payload for element i of a mask that is 0 there.
uint64_t payload_kind(const FillArgs& args, uint64_t i);

/// Makes one run of args.ignored_run rows in args.ignored_every one to leave out: the last of the first block of so
/// many, one drawn from every other block, so that data of fewer runs have none. The ids become ignore_index, the rows
/// of `features` payloads.
void plant_ignored_rows(const FillArgs& args, std::string_view ids, std::string_view features);

}  // namespace checkop
