// SPDX-License-Identifier: Apache-2.0
// Contexts: other launches in which a row must keep its bits. Plans the contexts of a case; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "case/axes.hpp"
#include "case/case.hpp"
#include "device/device.hpp"
#include "run/layout.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// Content of the floating-point inputs of rows that are there to disturb other rows.
enum class Disturbance : uint8_t { none, zeros, huge, nan, infinity };

std::string_view describe(Disturbance disturbance);  ///< "copies of one of them", "NaN"

/// One launch of some rows of a case, or several equal launches.
struct Context {
  Axis axis;
  std::string what;  ///< "the last row alone"
  /// For each row of the launch, its row of the case. ~r (negative) is a row that replaces row r to disturb the others;
  /// it is not compared.
  std::vector<int64_t> rows;
  int64_t outer = 1;  ///< extent of the first row dimension; the last has rows/outer, others have 1
  bool sums = false;  ///< the rows are those of the reference, in order, so sums over rows are compared too
  Disturbance disturbance = Disturbance::none;
  int launches = 1;                  ///< if more than 1, each is compared with the first
  size_t offset = 0;                 ///< of every tensor: bytes past a 256-byte boundary, rounded up to whole elements
  int64_t row_padding = 0;           ///< elements between rows of per-row tensors of rank 2 or more
  bool zeros_between = false;        ///< whether the padding holds zeros; else NaN
  Arrangement arrangement = {};      ///< of the inputs; where elements share memory, their values are equal
  bool is_contiguous = false;        ///< the inputs have only the values of `arrangement`, and lie contiguously
  int outputs_before = 0;            ///< initial content of the outputs: poison 0 or 1, or zeros (2)
  uint64_t workspace_before = 0xff;  ///< initial value of every byte of the workspace
  size_t workspace_extra = 0;        ///< bytes more than requested
  LaunchMode mode = {};
  bool covers = false;  ///< must run, so that its axis compares every row but the first, and every carried sum
  int64_t ranks = 0;    ///< number of ranks of the launch; 0: as in the case
  /// If not 0, the batch is launched in pieces of `piece_rows` rows, in order. Each piece takes the sums of the piece
  /// before it as carries. Only the carried sums after the last piece are compared.
  int64_t piece_rows = 0;
  /// The reference is a plain launch of rows [first, second) of the case; if the range is empty, the full batch.
  std::pair<int64_t, int64_t> twin{0, 0};
  const Rearrangement* rearrangement = nullptr;  ///< the launch has its inputs; `rows` are those of the case

  bool has_twin() const { return twin.second > twin.first; }
  Arrangement arrangement_in_memory() const { return is_contiguous ? Arrangement::contiguous : arrangement; }
};

/// The largest total cost of a case's contexts, in launches of the whole case, including the runner's own two.
inline constexpr double kMostLaunches = 20;

/// The largest cost of contexts of `layout` without `AxisPlan::all`.
inline constexpr double kMostForLayouts = 2;

/// The largest additional cost of launches next to the boundaries between a candidate's variants.
inline constexpr double kMostForBoundaries = 4;

/// The cost of a launch of `context`, in launches of the whole case. A launch costs the bytes of its tensors, or its
/// multiplications at kProductsPerByte if these take longer (the ratio of an H200 in bf16). With slower arithmetic, a
/// launch of few rows costs less than this estimate. A small case counts as kSmallBytes, on a GPU as kSmallGpuBytes,
/// because below that the launch itself takes longer than its work.
inline constexpr double kSmallBytes = 4 << 20, kSmallGpuBytes = 256 << 20, kProductsPerByte = 100;
double cost_of(const Case& c, const DeviceInfo& device, const Context& context);

std::string rows_text(int64_t n);  ///< "1 row", "17 rows"

/// The first n rows of a case alone.
Context first_rows(int64_t n);

/// The case that a context launches; for pieces, the whole case.
Case context_case(const Case& c, const Context& context);

/// The launches of a context with piece_rows > 0.
std::vector<Context> pieces_of(const Context& context);

/// Whether `axis` applies to an output: row axes only to per-row outputs, except that `chunks` applies to carried sums.
bool is_asked_of(const Case& c, const TensorSpec& output, Axis axis);

/// Rows that `context` compares; on row axes without row 0.
int64_t rows_that_count(const Context& context);

/// Elements of an output that `context` compares, on row axes without row 0; 0 if it does not compare the output.
int64_t compared_elements(const Case& c, const TensorSpec& output, const Context& context);

/// The contexts of `c` in the order in which they run; none for a case without rows, and no row contexts for operators
/// without row dimensions.
///
/// Without `plan.all`: batch (the last row alone, the first half), position and neighbours, on at most 64 rows. They
/// find the most frequent faults for the cost of one or two launches. With `plan.layouts` also contexts of `layout`,
/// all of them where they cost at most kMostForLayouts, else some, which depend on the case.
///
/// With `plan.all`: every axis has contexts, and every row axis compares every row but the first. If all contexts would
/// cost more than kMostLaunches, the least useful ones are left out. `repetition` keeps its number of launches, most of
/// them on few rows. Only if few rows cost as much as many, because weights are larger than the rows, can the total
/// exceed kMostLaunches.
std::vector<Context> plan_contexts(const Case& c, const DeviceInfo& device, const AxisPlan& plan);

/// The contexts that `checks` request.
std::vector<Context> contexts_of(const Case& c, const DeviceInfo& device, const RunChecks& checks);

}  // namespace checkop
