// SPDX-License-Identifier: Apache-2.0
// Plans launches of a batch in pieces with carried sums.
#include "run/invariance/pieces.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace checkop {

std::vector<Context> carried_pieces(const Case& c, const std::vector<int64_t>& rows) {
  const auto outputs = c.pass->outputs;
  std::vector<Context> contexts;
  if (std::none_of(outputs.begin(), outputs.end(), [&](const OutputSpec& o) { return is_carried(c, o.tensor); }))
    return contexts;
  for (const int64_t wanted : rows) {
    const int64_t each = std::max<int64_t>(1, (wanted + kCarryRows - 1) / kCarryRows) * kCarryRows;
    const auto is_there = [each](const Context& context) { return context.piece_rows == each; };
    if (each >= row_count(c) || std::any_of(contexts.begin(), contexts.end(), is_there)) continue;
    Context context = first_rows(row_count(c));
    context.axis = Axis::chunks, context.what = fmt::format("{} at a time, sums carried on", rows_text(each));
    context.sums = true, context.covers = contexts.empty(), context.piece_rows = each;
    contexts.push_back(std::move(context));
  }
  return contexts;
}

std::vector<Context> pieces_of(const Context& context) {
  std::vector<Context> pieces;
  const int64_t n = std::ssize(context.rows);
  for (int64_t begin = 0; context.piece_rows > 0 && begin < n; begin += context.piece_rows) {
    const int64_t end = std::min(n, begin + context.piece_rows);
    Context& piece = pieces.emplace_back();
    piece.axis = context.axis;
    piece.what = fmt::format("{}, rows [{}, {})", context.what, begin, end);
    piece.rows.assign(context.rows.begin() + begin, context.rows.begin() + end);
  }
  return pieces;
}

size_t carry_of(const Case& c, size_t output) {
  const auto inputs = c.pass->inputs;
  const auto is_it = [&](const TensorSpec& spec) { return spec.name == c.pass->outputs[output].tensor.carry; };
  return static_cast<size_t>(std::find_if(inputs.begin(), inputs.end(), is_it) - inputs.begin());
}

}  // namespace checkop
