// SPDX-License-Identifier: Apache-2.0
// Defines an operator: named inputs and outputs, attributes, two passes, FP64 gold. Declares the table operators().
#pragma once

#include <algorithm>
#include <any>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "operator/recipe.hpp"
#include "tensor/tensor.hpp"

namespace checkop {

/// The kind of arithmetic behind an output, which decides its error analysis.
enum class Numerics : uint8_t { exact, pointwise, reduction, contraction, logprob, composite };
std::string_view to_string(Numerics numerics);
std::optional<Numerics> parse_numerics(std::string_view name);

/// How an input is generated; inputs.cpp has the generators.
enum class Fill : uint8_t {
  normal,     ///< standard normal
  rows,       ///< standard normal; every fourth row is times 2^-10, where an eps of 1e-6 counts
  weight,     ///< standard normal over the square root of the extent `fan_in`
  logits,     ///< standard normal; mode `peaked` plants the target, mode `extreme` see plant_extreme_logits
  scores,     ///< standard normal; mode `extreme` is left to the operator's refine
  codes,      ///< standard normal; mode `extreme` has NaN, which are left to the operator's refine
  query,      ///< standard normal; a softmax is taken of its products with keys, or with the rows of a `weight`
  key,        ///< standard normal; see `query`
  ids,        ///< integers in [0, extent of `fan_in`)
  upstream,   ///< gradient of an output: standard normal or ones
  mask,       ///< 0 in about a quarter of the elements, else 1 and sometimes 2; every nonzero value keeps
  positions,  ///< the index along the last dimension
  saved,      ///< what the gold of the forward pass gives, rounded, as the output of this name; see fill_saved
};

/// One input or output. A dimension list is a string of extents, "batch seq vocab". An extent is a name, or a sum of
/// products of names and numbers: "batch*seq", "batch+1", a name or a product in parentheses over a number, rounded up:
/// "hidden/128", "(batch*seq)/128", or a number: "3". "numel/world_size" is all of `numel` in the case, of which each
/// rank has one of even_bounds(). A tensor is per-row if its list starts with the operator's `row_dims`.
struct TensorSpec {
  std::string_view name;
  std::string_view dims;
  Fill fill = Fill::normal;
  std::string_view fan_in = "";     ///< the dimension that fills `weight` and `ids` refer to
  std::optional<DType> dtype = {};  ///< nullopt: the dtype of the case
  bool optional = false;            ///< present only with `--with NAME`; an optional output `dNAME` follows input NAME
  bool constant = false;            ///< a floating-point input that has no gradient
  /// For an output that sums over rows: the optional f32 input with the sum of earlier rows. If it is present, the
  /// output is f32 for any dtype of the case, and equals the carry plus the sum of this call's rows. Its bits must not
  /// depend on how rows are split into calls at multiples of kCarryRows.
  std::string_view carry = "";
  /// Of an optional output: the input, or the optional output before it, with which it is there, if that is not the
  /// input NAME of dNAME.
  std::string_view follows = "";
};

/// A batch may be split into calls with carried sums at multiples of this many rows.
inline constexpr int64_t kCarryRows = 16;

/// One output of a pass. Outputs are judged as matrices; see judged_view().
struct OutputSpec {
  TensorSpec tensor;
  Numerics numerics;
  std::string_view reduced;  ///< sums behind an element, "hidden vocab batch*seq"; the longest sets the bound's chain
  bool sampled = false;      ///< the gold computes only GoldArgs::rows(); if false, every row
  /// Of a sampled output whose rows are cheap together only: leading dimensions, "batch kv_heads". Where a case has
  /// more than two entries of them, all rows of two entries are chosen.
  std::string_view sampled_whole = "";
  /// NaN of inputs reaches the output; identities check, in all rows, which elements are NaN.
  bool locates_nan = false;
};

struct AttrSpec {
  std::string_view name;
  double fallback;
  std::string_view meaning;
};

/// A block of gold rows of one output. The output is seen as a matrix of `columns` columns: those of judged_view(), or
/// a multiple of them. Arrays are [n_rows, columns], row-major. For each element:
///   value      the exact result, in FP64
///   magnitude  coefficient of the growth of accumulated sums: size of the partial sums plus the terms' own errors
///   rounding   coefficient of one unit roundoff of the arithmetic: roundings that no sum amplifies
///   spread, deviation   what the roundings that the active recipes allow for, and those of inputs of Fill::saved, may
///              add to the error, and its standard deviation; see Spread. nullptr: nothing
///   reference  what a trusted implementation computed, of a gold in a file that has it; else nullptr
/// A computation in precision u with sums of chain length h errs by about growth(h, u)*magnitude + u*rounding + spread.
struct GoldRows {
  int output;
  int64_t first_row, n_rows, columns;
  const double *value, *magnitude, *rounding, *spread = nullptr, *deviation = nullptr, *reference = nullptr;
};

/// Receives gold rows in any order, from several threads at once; each row of each output exactly once.
using GoldSink = std::function<void(const GoldRows&)>;

/// The rows of an output, seen as a matrix, that the gold computes.
struct RowSet {
  bool all = true;
  std::vector<int64_t> chosen = {};  ///< ascending; used when not all

  int64_t count(int64_t total) const { return all ? total : static_cast<int64_t>(chosen.size()); }
  int64_t at(int64_t i) const { return all ? i : chosen[static_cast<size_t>(i)]; }
  bool has(int64_t row) const { return all || std::binary_search(chosen.begin(), chosen.end(), row); }
  /// Whether it has one of the rows [begin, end).
  bool has_any(int64_t begin, int64_t end) const {
    const auto first = std::lower_bound(chosen.begin(), chosen.end(), begin);
    return all || (first != chosen.end() && *first < end);
  }
};

/// Intermediate results that golds, or emulations, of one case and the same inputs share. The key says what else a
/// result depends on.
using KeptResults = std::map<std::string, std::any>;

/// Arguments of a gold function: the stored bytes that the candidate gets, decoded on demand.
struct GoldArgs {
  std::span<const Tensor* const> inputs;  ///< in the order of the pass; nullptr for an absent optional input
  std::span<const double> attrs;          ///< in the order of the operator
  unsigned threads = 1;                   ///< results do not depend on it
  GoldSink sink;
  std::vector<Shape> output_shapes = {};  ///< in the order of the pass; empty shape for an absent output
  std::span<const RowSet> row_sets = {};  ///< in the order of the pass; empty: every row. See rows().
  ActiveRecipes recipes = {};             ///< roundings that the gold has to make or to allow for
  KeptResults* kept = nullptr;            ///< nullptr: for this gold alone
  bool values_only = false;               ///< the sink takes no errors: they may be anything

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  bool has(int index) const { return inputs[static_cast<size_t>(index)] != nullptr; }
  /// The rows to compute of a `sampled` output. All per-row outputs of a pass whose rows have the same dimensions share
  /// one set of rows; so do all other outputs with the same first dimension. A set may be empty: no row is wanted. The
  /// set of an absent output says nothing.
  const RowSet& rows(int output) const;
  /// Runs body(row) for each of rows(output), out of `total` rows, as parallel_for does.
  void for_rows(int output, int64_t total, const std::function<void(int64_t)>& body) const;
  /// Runs body(i) for every i in [0, n) on `threads` threads; rethrows the first exception.
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// A quantity that is 0 in exact arithmetic for correct outputs and needs no gold. Under the output's bound_ratio gate,
/// |value| may reach
///   growth(h, u)*magnitude + u*rounding + u_out*stored,  u_out the unit roundoff of the output's dtype
/// It must be 0 where all three coefficients are 0.
struct Residual {
  std::string_view identity;  ///< "row_sum", "freivalds", "masked_zero", "nan"
  int output;
  int64_t row;  ///< row of the output seen as a matrix
  double value, magnitude, rounding, stored;
};

/// Arguments of an identity: all inputs and all outputs of a candidate.
struct IdentityArgs {
  std::span<const Tensor*const> inputs, outputs;  ///< in the order of the pass; nullptr: absent
  std::span<const double> attrs;
  unsigned threads = 1;
  std::function<double(std::string_view, uint64_t)> sign;  ///< random 1 or -1, from the stream of this name, by index
  std::function<void(const Residual&)> sink;               ///< called from several threads at once
  ActiveRecipes recipes = {};                              ///< those by which the outputs were judged

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
  const Tensor* out(int index) const { return outputs[static_cast<size_t>(index)]; }
  void parallel_for(int64_t n, const std::function<void(int64_t)>& body) const;
};

/// Cost of a pass for any algorithm; rates are computed from it. The bytes are those of all inputs, read once, and of
/// all outputs, written once, minus `unread_bytes`.
struct Work {
  double flops = 0;         ///< operations of the matrix products between inputs and outputs; 0: none
  double unread_bytes = 0;  ///< input bytes that no output depends on: rows of masked tokens, rows that no id selects
};

struct Emulation;  // emulation.hpp
struct ModelArgs;  // model.hpp

struct Pass {
  std::string_view name;  ///< "forward" or "backward"
  std::span<const TensorSpec> inputs;
  std::span<const OutputSpec> outputs;
  /// Throws InputError for input values outside the operator's domain, such as an id out of range.
  void (*gold)(const GoldArgs&);
  /// Emits residuals for every row of the outputs that have them. Time and memory are of the order of the tensors'
  /// size.
  void (*identities)(const IdentityArgs&) = nullptr;
  Work (*work)(const GoldArgs&) = nullptr;  ///< nullptr: no products, and every input is read
  const Emulation* emulation = nullptr;     ///< the pass as kernels compute it, with typical faults; nullptr: none
  /// Computes the outputs that are matrix products as tensor cores do; see has_model(). nullptr: no model.
  void (*model)(const ModelArgs&) = nullptr;
  std::span<const Recipe> recipes = {};  ///< rounding points that kernels in use have
};

/// Sizes and attributes of a case, for the operator's own rules, such as an even head size.
struct CaseSizes {
  std::function<int64_t(std::string_view)> dim;
  std::span<const double> attrs;
  std::function<bool(std::string_view)> has;  ///< whether an optional input is present
};

/// What generated inputs hold where an operator leaves elements out: masked keys, ignored rows, padded tokens.
///   nonfinite   NaN and infinities: 0 times one of them is NaN, so a kernel must not even multiply it by 0
///   finite      large numbers, and ids of the vocabulary: a kernel may multiply what it computes from them by 0
enum class LeftOut : uint8_t { nonfinite, finite };
inline constexpr std::array kLeftOutContents{LeftOut::nonfinite, LeftOut::finite};
std::string_view to_string(LeftOut content);

/// The data of a case; inputs.cpp has the generators.
enum class InputMode : uint8_t { random, constant, integer, peaked, extreme, wide, captured };

/// Generated inputs, for the operator's own changes: values that depend on each other, such as group boundaries.
struct FillArgs {
  std::span<Tensor> inputs;  ///< in the order of the pass; an absent one has an empty name
  std::span<const double> attrs;
  /// Standard normal and uniform (0, 1) random numbers, from the stream of this name, by index.
  std::function<double(std::string_view, uint64_t)> normal, uniform;
  unsigned threads = 1;       ///< results must not depend on it
  int64_t ignored_every = 0;  ///< one run of rows in this many gets ignore_index as its ids; 0: none
  int64_t ignored_run = 1;    ///< rows per such run
  LeftOut left_out = LeftOut::nonfinite;
  std::function<int64_t(std::string_view)> dim = {};  ///< the case's extent of a dimension, which no input need have
  InputMode mode = InputMode::random;

  Tensor* find(std::string_view name) const;  ///< nullptr when absent
};

/// Other inputs of a case, with which rows of the outputs must have the bits that they have in the case.
struct Rearranged {
  std::map<std::string, int64_t, std::less<>> dims = {};  ///< the extents that differ
  std::vector<Tensor> inputs = {};  ///< in the order of the pass; one without a name is that of the case
  /// By leading dimensions of outputs, "tokens_q" or "experts capacity", along which rows count: for every row its row
  /// of the case, or -1 where it has none. The most leading dimensions decide. Without any: the same rows along the
  /// first dimension.
  std::map<std::string, std::vector<int64_t>, std::less<>> rows = {};
};

struct RearrangeArgs {
  const Pass& pass;
  std::span<const Tensor* const> inputs;  ///< in the order of the pass; nullptr for an absent optional input
  std::span<const double> attrs;
  /// Uniform (0, 1) random numbers, from the stream of this name, by index.
  std::function<double(std::string_view, uint64_t)> uniform;

  const Tensor& in(int index) const { return *inputs[static_cast<size_t>(index)]; }
};

struct Rearrangement {
  std::string_view axis;                                    ///< its name in case/axes.hpp
  std::string_view what;                                    ///< "pages in reverse"
  std::string_view dims;                                    ///< outputs that begin with one of these are compared
  int64_t least;                                            ///< for cases with this extent of the first one of `dims`
  std::optional<Rearranged> (*make)(const RearrangeArgs&);  ///< nullopt for inputs that it would not change
};

struct Operator {
  std::string_view name;
  std::string_view op_class;  ///< class in contracts of the RL-Kernel format: elementwise, reduction, logprob
  std::string_view formula;
  std::string_view row_dims;  ///< leading dimensions that enumerate independent rows, "batch seq"; "" for none
  std::span<const AttrSpec> attrs;
  std::span<const Pass> passes;
  void (*validate)(const CaseSizes&) = nullptr;  ///< throws InputError for inconsistent sizes
  void (*refine)(const FillArgs&) = nullptr;     ///< called after the inputs were filled by their specs, in every mode
  /// The dimension that is divided over tensor-parallel ranks: each rank holds a contiguous part of every tensor with
  /// this dimension, and all other tensors whole. "" for operators of one rank.
  std::string_view parallel_dim = "";
  std::string_view left_out = "";                      ///< what no output depends on, "masked keys"; "" for none
  std::span<const Rearrangement> rearrangements = {};  ///< the first one of each axis is checked in every run
  std::string_view may_be_empty = "";                  ///< a dimension that is none of row_dims and may still be 0
};

/// Whether a rearrangement of the operator compares this output.
bool is_rearranged(const Operator& op, const TensorSpec& output);
bool is_rearranged(const Rearrangement& by, const TensorSpec& output);

/// The number of ranks: a dimension of a tensor-parallel operator's cases that no tensor has.
inline constexpr std::string_view kWorldSize = "world_size";

/// "numel" of the extent "numel/world_size", which ranks divide; "" of any other extent.
std::string_view dim_over_ranks(std::string_view extent);

std::span<const Operator* const> operators();
const Operator* find_operator(std::string_view name);  ///< nullptr when unknown
const Pass* find_pass(const Operator& op, std::string_view name);
bool has_attr(const Operator& op, std::string_view name);
/// Whether its own generator draws what it leaves out: neither an ignore_index nor a mask says it.
bool draws_left_out(const Operator& op);
/// What `--with` can add to a case of the pass: optional inputs, and optional outputs that follow no input.
std::vector<std::string_view> optionals_of(const Pass& pass);
/// The recipes of one output in cases of one dtype, in the order of the pass.
std::vector<const Recipe*> recipes_of(const Pass& pass, const TensorSpec& output, DType case_dtype);
/// The largest parts of `names`, recipes of the pass, in which no recipe excludes another.
std::vector<std::vector<std::string_view>> families_of(const Pass& pass, const std::vector<std::string_view>& names);
/// The names of the recipes of all passes of `op`, each once, in their order.
std::vector<std::string_view> recipes_of(const Operator& op);
std::vector<std::string> all_recipes();  ///< the names of all operators' recipes, each once, sorted

std::vector<std::string_view> split_dims(std::string_view dims);
/// Whether `word` is one of the words of `list`, which have spaces between: Recipe::outputs, FaultSpec::dtypes.
bool lists(std::string_view list, std::string_view word);
bool lists(std::span<const std::string> list, std::string_view word);
/// Names in the extents, but for kWorldSize; "batch*seq batch+1 hidden/2" has four.
std::vector<std::string_view> names_in(std::string_view dims);
/// The value of one extent, given the value of each name; 2^62 for sums above that. Throws InputError for a product
/// above 2^62.
int64_t evaluate_extent(std::string_view extent, const std::function<int64_t(std::string_view)>& value_of);
bool is_per_row(const Operator& op, const TensorSpec& spec);

/// Rows and columns of a tensor as a matrix.
struct MatrixView {
  int64_t rows, columns;
};
/// The view by rows of the batch: per-row tensors [rows, rest], others [first dim, rest].
MatrixView matrix_view(const Operator& op, const TensorSpec& spec, const Shape& shape);
/// The view for judging outputs: one row per last dimension, or per element for a tensor with one element per row.
MatrixView judged_view(const Operator& op, const TensorSpec& spec, const Shape& shape);

}  // namespace checkop
