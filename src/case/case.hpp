// SPDX-License-Identifier: Apache-2.0
// One case: an operator's pass with sizes, dtype, attributes and data.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

inline constexpr std::array kInputModes{InputMode::random,  InputMode::constant, InputMode::integer, InputMode::peaked,
                                        InputMode::extreme, InputMode::wide,     InputMode::captured};
enum class GradMode : uint8_t { random, ones };
std::string_view to_string(InputMode mode);

struct Case {
  const Operator* op = nullptr;
  const Pass* pass = nullptr;
  DType dtype = DType::f32;
  std::map<std::string, int64_t, std::less<>> dims;
  std::vector<double> attrs;                     ///< in the order of op->attrs
  std::set<std::string, std::less<>> optionals;  ///< optional tensors that are present; see optionals_of
  InputMode input_mode = InputMode::random;
  double constant_value = 0.25;
  int64_t token_value = 0;
  int64_t ignored_every = 8;  ///< one run of rows in this many has ignore_index, if the operator has it; 0: none, and
                              ///< masks keep all; 1: every row, and masks keep nothing. See draws_left_out(), too
  int64_t ignored_run = 1;    ///< rows per ignored run; a prompt is such a run
  std::vector<int64_t> part_bounds;  ///< bounds of the ranks' parts; empty: part_bounds() decides
  GradMode grad_mode = GradMode::random;
  uint64_t seed = 123;
  uint64_t grad_seed = 123;
};

/// The attributes, by name, whose values are not the operator's defaults.
std::vector<std::pair<std::string_view, double>> chosen_attrs(const Case& c);

/// "logp-bf16-8x512x151936": operator, dtype, the extents in the order of dims_of(); for a tensor-parallel operator
/// "@4" for the number of ranks, or "@0-3-7-12-16" for given bounds of their parts; then everything that differs from
/// the default ("+bias", "~peaked", "#7" for another seed). The name and the pass identify the data.
std::string case_name(const Case& c);

/// Whether `ignored_every` is not the usual one and changes the data.
bool ignored_every_counts(const Case& c);

/// Whether rows are ignored in runs of more than one.
bool has_ignored_runs(const Case& c);

/// The command-line flags for this case: the `repeat:` line without the candidate.
std::string case_flags(const Case& c);

/// Every dimension of the operator's passes, in order of first use; for a tensor-parallel operator, kWorldSize comes
/// last.
std::vector<std::string_view> dims_of(const Operator& op);

/// The dimension whose size `dim` takes if the case gives it none: head_dim for v_dim. "" if the case must give a size.
std::string_view usual_size_of(std::string_view dim);
/// Removes sizes from c.dims that equal their usual size, so that equal cases have one name.
void drop_usual_sizes(Case& c);
/// The dimensions of its operator that the case gives a size.
std::vector<std::string_view> dims_of(const Case& c);

/// The value of an extent of a dimension list. Throws std::out_of_range when a name has no size.
int64_t extent_of(const Case& c, std::string_view extent);
Shape shape_of(const Case& c, const TensorSpec& spec);
/// Whether the case has the input whose sums `output` continues; see TensorSpec::carry.
bool is_carried(const Case& c, const TensorSpec& output);
DType dtype_of(const Case& c, const TensorSpec& spec);
bool is_present(const Case& c, const TensorSpec& spec);
int64_t row_count(const Case& c);  ///< product of the extents of op->row_dims
/// Whether the dimension Operator::may_be_empty has size 0 in the case.
bool has_empty_dim(const Case& c);

/// Bytes of all inputs and outputs: memory needed on the host, and once more on a device. Throws InputError beyond
/// 2^48.
int64_t tensor_bytes(const Case& c);

/// Checks that every extent is at least 1 (row dimensions: at least 0) and that each tensor's size and the total size
/// fit into 64-bit arithmetic. Throws InputError that names the dimension and its value. Allocates nothing.
void validate(const Case& c);

/// The case of rows [begin, end) of `c`: the last row dimension becomes end - begin, the others 1.
Case slice_rows(const Case& c, int64_t begin, int64_t end);

}  // namespace checkop
