// SPDX-License-Identifier: Apache-2.0
// Contexts: other launches in which a row must keep its bits. Which ones a case gets; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "case/axes.hpp"
#include "case/case.hpp"
#include "device/device.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// What floating-point inputs of a row hold that is there to disturb the others.
enum class Disturbance : uint8_t { none, zeros, huge, nan, infinity };

std::string_view describe(Disturbance disturbance);  ///< "copies of one of them", "NaN"

/// One launch of some rows of a case, or several of the same.
struct Context {
  Axis axis;
  std::string what;  ///< "the last row alone"
  /// The row of the case that each row of the launch is. Negative: ~r, made of row r to disturb, and not compared.
  std::vector<int64_t> rows;
  int64_t outer = 1;  ///< of the row dimensions, the first; the last has rows/outer, any other is 1
  bool sums = false;  ///< the rows are those of what it is compared with, in order: sums over rows are compared too
  Disturbance disturbance = Disturbance::none;
  int launches = 1;                  ///< more: each but the first is compared with the first
  size_t offset = 0;                 ///< bytes past a 256-byte boundary, rounded up to whole elements, of every tensor
  int64_t row_padding = 0;           ///< elements between rows of per-row tensors with rank 2 or more
  bool zeros_between = false;        ///< what those hold; else NaN
  int outputs_before = 0;            ///< what lies in the outputs: poison 0 or 1, or zeros (2)
  uint64_t workspace_before = 0xff;  ///< every byte of the workspace
  size_t workspace_extra = 0;        ///< bytes more than asked for
  LaunchMode mode = {};
  bool covers = false;  ///< it is needed for its axis to compare every row but the first, and every carried sum
  int64_t ranks = 0;    ///< that share the launch; 0: those of the case
  /// The batch is launched in pieces of so many rows, in order, each with the sums of the one before as its carries;
  /// what the last one leaves of carried sums is compared, and nothing else. 0: one launch.
  int64_t piece_rows = 0;
  /// Rows [first, second) of the case, launched plainly, are what it is compared with; an empty range: the full batch.
  std::pair<int64_t, int64_t> twin{0, 0};

  bool has_twin() const { return twin.second > twin.first; }
};

/// The most that all contexts of a case cost together, in launches of the whole case, two of them the runner's own.
inline constexpr double kMostLaunches = 20;

/// What launches beside the boundaries between a candidate's variants may cost on top of that.
inline constexpr double kMostForBoundaries = 4;

/// What a launch of `context` costs, in launches of the whole case: the bytes of its tensors, or its multiplications at
/// kProductsPerByte where they take longer, as on an H200 in bf16. Where arithmetic is slower, a launch of few rows
/// costs less than this says. A small case counts as kSmallBytes, on a GPU as kSmallGpuBytes, for below that a launch
/// costs more than what it does.
inline constexpr double kSmallBytes = 4 << 20, kSmallGpuBytes = 256 << 20, kProductsPerByte = 100;
double cost_of(const Case& c, const DeviceInfo& device, const Context& context);

std::string rows_text(int64_t n);  ///< "1 row", "17 rows"

/// The first n rows of a case alone.
Context first_rows(int64_t n);

/// The case that a context launches; of pieces, that of the whole.
Case context_case(const Case& c, const Context& context);

/// The launches of a context of pieces.
std::vector<Context> pieces_of(const Context& context);

/// Whether an axis is asked of an output: those of rows of per-row outputs, and `chunks` of carried sums too.
bool is_asked_of(const Case& c, const TensorSpec& output, Axis axis);

/// Rows that `context` compares: row 0 does not count for axes of rows.
int64_t rows_that_count(const Context& context);

/// Elements of an output that `context` compares, row 0 of axes of rows not counted; 0 where it says nothing of it.
int64_t compared_elements(const Case& c, const TensorSpec& output, const Context& context);

/// The contexts of `c` in the order in which they run. Without `plan.all` these are batch (the last row alone, the
/// first half), position and neighbours on at most 64 rows: what a kernel breaks most often, for the price of a launch
/// or two. With it every axis has its contexts, and every axis of rows compares every row but the first; of the others,
/// when all would cost more than kMostLaunches together, those that no longer fit are left out, the least telling
/// first. `repetition` keeps its number of launches, most of them on few rows; only where those cost as much as many,
/// since weights outweigh the rows, does the whole cost more than kMostLaunches. None for a case without rows, and none
/// of rows for operators without row dimensions.
std::vector<Context> plan_contexts(const Case& c, const DeviceInfo& device, const AxisPlan& plan);

/// The contexts that `checks` ask for.
std::vector<Context> contexts_of(const Case& c, const DeviceInfo& device, const RunChecks& checks);

}  // namespace checkop
