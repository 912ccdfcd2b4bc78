// SPDX-License-Identifier: Apache-2.0
// One question: an operator's pass at given sizes, dtype, attributes and data.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "operator/operator.hpp"

namespace checkop {

enum class InputMode : uint8_t { random, constant, integer, peaked, extreme, wide };
enum class GradMode : uint8_t { random, ones };
std::string_view to_string(InputMode mode);

struct Case {
  const Operator* op = nullptr;
  const Pass* pass = nullptr;
  DType dtype = DType::f32;
  std::map<std::string, int64_t, std::less<>> dims;
  std::vector<double> attrs;                     ///< in the order of op->attrs
  std::set<std::string, std::less<>> optionals;  ///< optional inputs that are present
  InputMode input_mode = InputMode::random;
  double constant_value = 0.25;
  int64_t token_value = 0;
  int64_t ignored_every = 8;          ///< operators with ignore_index: one run of rows in so many has it; 0: none
  int64_t ignored_run = 1;            ///< rows of such a run, as a prompt is one
  std::vector<int64_t> shard_bounds;  ///< where ranks' parts begin and end; empty: as shard_bounds() says
  GradMode grad_mode = GradMode::random;
  uint64_t seed = 123;
  uint64_t grad_seed = 123;
};

/// "logp-bf16-8x512x151936": operator, dtype, the extents in the order of the operator's first use, "@4" for the ranks
/// of a sharded operator or "@0-3-7-12-16" for bounds of their parts that were given; then what differs
/// from the default ("+bias", "~peaked", "#7" for another seed). Together with the pass it names the data.
std::string case_name(const Case& c);

/// Whether rows are ignored in runs.
bool has_ignored_runs(const Case& c);

/// The command line flags that make this case: the `repeat:` line without the candidate.
std::string case_flags(const Case& c);

/// Every dimension that the operator's passes use, in order of first use; of a sharded operator, then kWorldSize.
std::vector<std::string_view> dims_of(const Operator& op);

/// The value of an extent as dimension lists have them. Throws InputError when a name has no size.
int64_t extent_of(const Case& c, std::string_view extent);
Shape shape_of(const Case& c, const TensorSpec& spec);
/// Whether the case brings the sum that the output carries on.
bool is_carried(const Case& c, const TensorSpec& output);
DType dtype_of(const Case& c, const TensorSpec& spec);
bool is_present(const Case& c, const TensorSpec& spec);
int64_t row_count(const Case& c);  ///< product of the extents of op->row_dims

/// Bytes of all inputs and outputs: what the host holds, and a device once more. Throws InputError beyond 2^48.
int64_t tensor_bytes(const Case& c);

/// Throws InputError, naming the dimension and its value, unless every extent is at least 1, or 0 where it counts rows,
/// and every tensor's size and
/// the sum of sizes fit in memory arithmetic. Nothing is allocated.
void validate(const Case& c);

/// The case that holds rows [begin, end) of `c`: leading row dimensions become 1 and the last of them end - begin.
Case slice_rows(const Case& c, int64_t begin, int64_t end);

}  // namespace checkop
