// SPDX-License-Identifier: Apache-2.0
// Rows that an operator leaves out: the meaning of ignore_index, and the payloads that generated inputs hold where
// nothing may be read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "operator/model.hpp"
#include "operator/operator.hpp"

namespace checkop {

/// The first attribute of logp and linear_logp.
inline constexpr AttrSpec kIgnoreIndex{
    "ignore_index", -100,
    "a row whose id equals it, in the vocabulary or not, is left out: logp 0, all its gradients 0"};

/// Throws InputError unless ignore_index, the first attribute, is an integer.
void validate_ignore_index(const CaseSizes& sizes);

/// The id that read_ids_to_use() returns for a row that is left out.
inline constexpr int64_t kLeftOut = -1;

/// The ids of a per-row integer input; kLeftOut where an id equals attrs[0], the ignore_index.
/// Throws InputError that names the first other id outside [0, vocab).
std::vector<int64_t> read_ids_to_use(const GoldArgs& args, const Tensor& ids, int64_t vocab);

/// 1 where the id differs from attrs[0], the ignore_index. For identities: does not validate ids.
std::vector<char> rows_to_use(const Tensor& ids, std::span<const double> attrs);

/// Bytes of the rows of `per_row` with used[row] == 0: no output depends on them.
double bytes_left_out(const Tensor& per_row, const std::vector<char>& used);

/// Emits `value` in the rows of output `index` with used[row] == 0.
void emit_unused(const GoldArgs& args, int index, const std::vector<char>& used, double value = 0);

/// The same of a model, 0 in `columns` columns.
void model_unused(const ModelArgs& args, int index, const std::vector<char>& used, int64_t columns);

/// Emits `value` in the rows of output `index` from row `end` on, whose inputs belong to no sequence or no expert. A
/// row is an element of the first dimension.
void emit_rest(const GoldArgs& args, int index, int64_t end, double value = 0);

/// The largest number of a finite payload: the product of two rows stays finite in fp16, so that adding a mask of -inf
/// or of the least number to it gives no NaN.
inline constexpr double kLargestPayload = 512;

/// Fills row `row` of a tensor [rows, columns] with a payload that no output may depend on, by `kind` modulo 4: 0 NaN,
/// 2 infinities of both signs, 1 and 3 unchanged. NaN times zero is NaN, so a kernel that multiplies a row by 0 instead
/// of leaving it out is detected. With LeftOut::finite, kinds 0 and 2 are numbers of both signs up to `largest`, each
/// the other's opposite.
void plant_payload(const FillArgs& args, Tensor& tensor, int64_t columns, int64_t row, uint64_t kind,
                   double largest = kLargestPayload);

/// The kind of payload for element i of a mask, if that element is 0.
uint64_t payload_kind(const FillArgs& args, uint64_t i);

/// Plants runs of args.ignored_run rows to leave out: in every block of args.ignored_every runs, one run. It is the
/// last run of the first block, so that fewer runs than a block have none, and a random run of every other block. The
/// ids become ignore_index, the rows of `features` payloads.
void plant_ignored_rows(const FillArgs& args, std::string_view ids, std::string_view features);

/// Rows of `features` where the optional input `mask` is 0 hold payloads.
void plant_masked_rows(const FillArgs& args, std::string_view mask, std::string_view features);

}  // namespace checkop
