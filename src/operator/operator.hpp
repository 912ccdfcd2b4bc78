// SPDX-License-Identifier: Apache-2.0
// What an operator is: named tensors in and out, attributes, two passes, FP64 gold. Declares the table operators().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tensor/tensor.hpp"

namespace checkop {

/// Which error argument applies to an output.
enum class Numerics : uint8_t { exact, pointwise, reduction, contraction, logprob, composite };
std::string_view to_string(Numerics numerics);
std::optional<Numerics> parse_numerics(std::string_view name);

/// How an input is generated; inputs.cpp has the recipes.
enum class Fill : uint8_t {
  normal,     ///< standard normal
  weight,     ///< standard normal over the square root of the extent `fan_in`
  logits,     ///< standard normal; mode `peaked` plants the target, mode `extreme` what plant_extremes says
  ids,        ///< integers in [0, extent of `fan_in`)
  upstream,   ///< gradient of an output: standard normal or ones
  mask,       ///< 0 in about a quarter of the elements, else 1, now and then 2: whatever is not 0 keeps
  positions,  ///< the index along the last dimension
};

/// A dimension list is a string of extents, "batch seq vocab". An extent is a name, or a sum of products of names and
/// digits: "batch*seq", "batch+1". Names that start an operator's `row_dims` make a tensor per-row.
struct TensorSpec {
  std::string_view name;
  std::string_view dims;
  Fill fill = Fill::normal;
  std::string_view fan_in = "";     ///< the dimension that `weight` and `ids` refer to
  std::optional<DType> dtype = {};  ///< nullopt: the dtype of the case
  bool optional = false;            ///< present only with `--with NAME`; an optional output `dNAME` follows input NAME
  bool constant = false;            ///< a floating-point input that has no gradient
  /// Of an output that sums over rows: the optional f32 input that holds the sum of earlier rows. Where that is
  /// present, the output is f32 whatever the dtype of the case, and the carry plus the sum of this call's rows; its
  /// bits must not depend on how rows are cut into calls at multiples of kCarryRows.
  std::string_view carry = "";
};

/// Where a batch may be cut into calls that carry sums on.
inline constexpr int64_t kCarryRows = 16;

/// One output of a pass. Outputs are judged as matrices; see judged_view().
struct OutputSpec {
  TensorSpec tensor;
  Numerics numerics;
  std::string_view reduced;  ///< sums behind an element, "hidden vocab batch*seq"; the longest sets the bound's chain
  bool sampled = false;      ///< the gold heeds GoldArgs::rows(); where not, it gives every row
};

struct AttrSpec {
  std::string_view name;
  double fallback;
  std::string_view meaning;
};

/// A block of gold rows of one output, seen as a matrix of `columns` columns: those of judged_view(), or a multiple of
/// them. Arrays are [n_rows, columns], row-major. For an element:
///   value      the exact result, in FP64
///   magnitude  coefficient of the growth of accumulated sums: how large partial sums get, plus the terms' own errors
///   rounding   coefficient of one unit roundoff of the arithmetic: roundings that no sum amplifies
/// so that a computation in precision u with sums of chain length h errs by about growth(h, u)*magnitude + u*rounding.
struct GoldRows {
  int output;
  int64_t first_row, n_rows, columns;
  const double *value, *magnitude, *rounding;
};

/// Takes gold rows in any order, from several threads at once, each row of each output exactly once.
using GoldSink = std::function<void(const GoldRows&)>;

/// Rows of an output, seen as a matrix, that the gold computes.
struct RowSet {
  bool all = true;
  std::vector<int64_t> chosen = {};  ///< ascending; used when not all

  int64_t count(int64_t total) const { return all ? total : static_cast<int64_t>(chosen.size()); }
  int64_t at(int64_t i) const { return all ? i : chosen[static_cast<size_t>(i)]; }
  bool has(int64_t row) const { return all || std::binary_search(chosen.begin(), chosen.end(), row); }
};

/// What a gold function sees: the stored bytes that the candidate gets, decoded on demand.
struct GoldArgs {
  std::span<const Tensor* const> inputs;  ///< in the order of the pass; nullptr for an absent optional input
  std::span<const double> attrs;          ///< in the order of the operator
  unsigned threads = 1;                   ///< results do not depend on it
  GoldSink sink;
  std::vector<Shape> output_shapes = {};  ///< in the order of the pass; an absent output's is empty
  std::span<const RowSet> row_sets = {};  ///< in the order of the pass; none: every row. See rows().

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  bool has(int index) const { return inputs[static_cast<size_t>(index)] != nullptr; }
  /// The rows to compute of an output whose spec says `sampled`. All per-row outputs of a pass have the same rows, and
  /// so have all other outputs with the same first dimension.
  const RowSet& rows(int output) const;
  /// Runs body(row) for each of the rows(output), of `total`, as parallel_for.
  void for_rows(int output, int64_t total, const std::function<void(int64_t)>& body) const;
  /// Runs body(i) for every i in [0, n) on `threads` threads; rethrows the first exception.
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// Something that is 0 in exact arithmetic for right outputs, whatever the gold: |value| may reach
///   growth(h, u)*magnitude + u*rounding + u_out*stored,  u_out the unit roundoff of the output's dtype
/// under the output's bound_ratio gate, and nothing where all three are 0.
struct Residual {
  std::string_view identity;  ///< "row_sum", "freivalds", "masked_zero"
  int output;
  int64_t row;  ///< of the output as a matrix
  double value, magnitude, rounding, stored;
};

/// What an identity looks at: inputs and a candidate's outputs, all of them.
struct IdentityArgs {
  std::span<const Tensor*const> inputs, outputs;  ///< in the order of the pass; nullptr: absent
  std::span<const double> attrs;
  unsigned threads = 1;
  std::function<double(std::string_view, uint64_t)> sign;  ///< random, 1 or -1, of a stream of that name, by index
  std::function<void(const Residual&)> sink;               ///< called from several threads at once

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  const Tensor* out(int index) const { return outputs[static_cast<size_t>(index)]; }
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// What a pass costs however it is computed, for rates. The bytes are those of all inputs, read once, and of all
/// outputs, written once, but for `unread_bytes`.
struct Work {
  double flops = 0;         ///< of the matrix products that lead from the inputs to the outputs; 0: none
  double unread_bytes = 0;  ///< of inputs that nothing depends on: rows of masked tokens, rows that no id selects
};

struct Emulation;  // emulation.hpp
struct ModelArgs;  // model.hpp

struct Pass {
  std::string_view name;  ///< "forward" or "backward"
  std::span<const TensorSpec> inputs;
  std::span<const OutputSpec> outputs;
  /// Throws InputError for input values outside the operator's domain, such as an id out of range.
  void (*gold)(const GoldArgs&);
  /// Emits residuals for every row of the outputs that can have them, in time and memory of the order of the tensors.
  void (*identities)(const IdentityArgs&) = nullptr;
  Work (*work)(const GoldArgs&) = nullptr;  ///< nullptr: no products, and every input is read
  const Emulation* emulation = nullptr;     ///< as kernels compute it, with the faults they have; nullptr: none
  /// The outputs that are products, as tensor cores leave them; see has_model(). nullptr: no model.
  void (*model)(const ModelArgs&) = nullptr;
};

/// Sizes and attributes of a case, for the rules that only the operator knows: an even head size, say.
struct CaseSizes {
  std::function<int64_t(std::string_view)> dim;
  std::span<const double> attrs;
  std::function<bool(std::string_view)> has;  ///< whether an optional input is present
};

/// Generated inputs, for what only the operator knows: values that depend on each other, such as group boundaries.
struct FillArgs {
  std::span<Tensor> inputs;  ///< in the order of the pass; an absent one has an empty name
  std::span<const double> attrs;
  /// Standard normal and uniform (0, 1) numbers of a stream of that name, by index.
  std::function<double(std::string_view, uint64_t)> normal, uniform;
  unsigned threads = 1;       ///< results must not depend on it
  int64_t ignored_every = 0;  ///< one run of rows in so many gets the operator's ignore_index as its ids; 0: none
  int64_t ignored_run = 1;    ///< rows of such a run

  Tensor* find(std::string_view name) const;  ///< nullptr when absent
};

struct Operator {
  std::string_view name;
  std::string_view op_class;  ///< class in contracts of the seed's format: elementwise, reduction, logprob
  std::string_view formula;
  std::string_view row_dims;  ///< leading dimensions that enumerate independent rows, "batch seq"; "" for none
  std::span<const AttrSpec> attrs;
  std::span<const Pass> passes;
  void (*validate)(const CaseSizes&) = nullptr;  ///< throws InputError for sizes that do not go together
  void (*refine)(const FillArgs&) = nullptr;     ///< called after the inputs were filled by their specs, in every mode
  /// The dimension that tensor-parallel ranks share: each holds a contiguous part of every tensor that has it, and all
  /// of the others. "" for operators of one rank.
  std::string_view sharded_dim = "";
};

/// The dimension of a sharded operator's cases that no tensor has: how many ranks there are.
inline constexpr std::string_view kWorldSize = "world_size";

std::span<const Operator* const> operators();
const Operator* find_operator(std::string_view name);  ///< nullptr when unknown
const Pass* find_pass(const Operator& op, std::string_view name);
bool has_attr(const Operator& op, std::string_view name);

std::vector<std::string_view> split_dims(std::string_view dims);
std::vector<std::string_view> names_in(std::string_view dims);  ///< names in its extents, "batch*seq batch+1" has three
/// The value of one extent, given that of each name; 2^62 for all above. Throws InputError for a product above 2^62.
int64_t evaluate_extent(std::string_view extent, const std::function<int64_t(std::string_view)>& value_of);
bool is_per_row(const Operator& op, const TensorSpec& spec);

/// Rows and columns of a tensor as a matrix.
struct MatrixView {
  int64_t rows, columns;
};
/// By the rows of the batch: per-row tensors [rows, rest], others [first dim, rest].
MatrixView matrix_view(const Operator& op, const TensorSpec& spec, const Shape& shape);
/// As outputs are judged: one row per last dimension, or per element where a tensor has one element a row.
MatrixView judged_view(const Operator& op, const TensorSpec& spec, const Shape& shape);

}  // namespace checkop
