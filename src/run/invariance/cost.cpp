// SPDX-License-Identifier: Apache-2.0
// The case that a context launches, its cost, and what it compares.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "case/sampling.hpp"
#include "run/invariance/contexts.hpp"

namespace checkop {

std::string_view describe(Disturbance disturbance) {
  constexpr std::array<std::string_view, 5> kTexts{"copies of one of them", "zeros", "the largest finite numbers",
                                                   "NaN", "infinities"};
  return kTexts[static_cast<size_t>(disturbance)];
}

std::string rows_text(int64_t n) { return fmt::format("{} row{}", n, n == 1 ? "" : "s"); }

Context first_rows(int64_t n) {
  Context context;
  context.axis = Axis::batch, context.what = fmt::format("the first {}", rows_text(n));
  for (int64_t row = 0; row < n; ++row) context.rows.push_back(row);
  return context;
}

Case context_case(const Case& c, const Context& context) {
  const auto names = split_dims(c.op->row_dims);
  Case arranged = c;
  if (context.ranks > 0) {
    arranged.dims.find(kWorldSize)->second = context.ranks;
    arranged.shard_bounds.clear();
  }
  if (names.empty()) return arranged;
  for (const std::string_view name : names) arranged.dims.find(name)->second = 1;
  arranged.dims.find(names.front())->second = context.outer;
  arranged.dims.find(names.back())->second = std::ssize(context.rows) / context.outer;
  return arranged;
}

double cost_of(const Case& c, const DeviceInfo& device, const Context& context) {
  const double small = device.kind == "cpu" ? kSmallBytes : kSmallGpuBytes;
  const auto bytes = [](const Case& launched) {
    return std::max(static_cast<double>(tensor_bytes(launched)), gold_work(launched) / kProductsPerByte);
  };
  double launched = 0;
  if (context.piece_rows == 0) launched = bytes(context_case(c, context));
  for (const Context& piece : pieces_of(context)) launched += bytes(context_case(c, piece));
  return launched / std::max(small, bytes(c));
}

bool is_asked_of(const Case& c, const TensorSpec& output, Axis axis) {
  return !is_of_rows(axis) || is_per_row(*c.op, output) || (axis == Axis::chunks && is_carried(c, output));
}

int64_t rows_that_count(const Context& context) {
  const bool counts_first = !is_of_rows(context.axis);
  const auto counts = [&](int64_t row) { return row > 0 || (row == 0 && counts_first); };
  return std::count_if(context.rows.begin(), context.rows.end(), counts);
}

int64_t compared_elements(const Case& c, const TensorSpec& output, const Context& context) {
  if (!is_present(c, output) || (context.piece_rows > 0 && !is_carried(c, output))) return 0;
  const int64_t times = std::max(1, context.launches - 1);
  const MatrixView view = matrix_view(*c.op, output, shape_of(c, output));
  if (!is_per_row(*c.op, output)) return context.sums ? times * view.rows * view.columns : 0;
  return times * view.columns * rows_that_count(context);
}

}  // namespace checkop
