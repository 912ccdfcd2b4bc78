// SPDX-License-Identifier: Apache-2.0
// Rows of a case as a context has them: gathered on the way in, told apart on the way out.
#include "invariance_rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "buffers.hpp"

namespace checkop {
namespace {

/// Bits of a number that disturbs.
uint64_t pattern_of(DType dtype, Disturbance disturbance) {
  if (disturbance == Disturbance::nan) return poison_of(dtype).guard;
  const double infinity = std::numeric_limits<double>::infinity();
  uint64_t bits = 0;
  if (disturbance == Disturbance::zeros) return bits;
  info(dtype).encode(&infinity, reinterpret_cast<std::byte*>(&bits), 1);
  return disturbance == Disturbance::huge ? bits - 1 : bits;  // what lies below infinity is the largest finite number
}

void fill_elements(std::byte* to, size_t width, uint64_t pattern, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + static_cast<size_t>(i) * width, &pattern, width);
}

/// A tensor with `padding` elements of `pattern` behind each run of `run` elements.
std::vector<std::byte> spread(const std::byte* from, int64_t count, int64_t run, int64_t padding, size_t width,
                              uint64_t pattern) {
  std::vector<std::byte> to(static_cast<size_t>(count / run * (run + padding)) * width);
  for (int64_t i = 0; i < count / run; ++i) {
    std::byte* const at = to.data() + static_cast<size_t>(i * (run + padding)) * width;
    std::memcpy(at, from + static_cast<size_t>(i * run) * width, static_cast<size_t>(run) * width);
    fill_elements(at + static_cast<size_t>(run) * width, width, pattern, padding);
  }
  return to;
}

bool is_a_run(const std::vector<int64_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] != rows.front() + static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

const std::byte* gather(const Case& c, const Context& context, const Tensor& from, const TensorSpec& spec,
                        int64_t padding, std::vector<std::byte>& storage) {
  const size_t width = info(from.dtype).bytes;
  const std::byte* content = from.bytes.data();
  int64_t count = from.count();
  if (is_per_row(*c.op, spec)) {
    const int64_t columns = matrix_view(*c.op, spec, from.shape).columns;
    const size_t row_bytes = static_cast<size_t>(columns) * width;
    count = std::ssize(context.rows) * columns;
    if (is_a_run(context.rows)) {
      content += static_cast<size_t>(context.rows.front()) * row_bytes;
    } else {
      storage.resize(context.rows.size() * row_bytes);
      for (size_t k = 0; k < context.rows.size(); ++k) {
        const int64_t row = context.rows[k] < 0 ? ~context.rows[k] : context.rows[k];
        std::byte* const to = storage.data() + k * row_bytes;
        if (context.rows[k] < 0 && context.disturbance != Disturbance::none && info(from.dtype).is_float) {
          fill_elements(to, width, pattern_of(from.dtype, context.disturbance), columns);
        } else {
          std::memcpy(to, from.bytes.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
        }
      }
      content = storage.data();
    }
  }
  if (padding > 0) {
    // The last dimension may be one of rows: a launch of other rows has another run.
    const int64_t run = shape_of(context_case(c, context), spec).back();
    storage = spread(content, count, run, padding, width, context.zeros_between ? 0 : poison_of(from.dtype).guard);
    content = storage.data();
  }
  return content;
}

void RowsCompared::add(const std::byte* block, int64_t first, int64_t n) {
  const size_t width = info(reference_.dtype).bytes;
  for (int64_t done = 0; done < n;) {
    const int64_t at = (first + done) % columns_, run = std::min(columns_ - at, n - done);
    const int64_t row = context_.rows[static_cast<size_t>((first + done) / columns_)];
    if (row >= 0) {
      const std::byte* expected =
          reference_.bytes.data() + static_cast<size_t>((row - first_row_) * columns_ + at) * width;
      take(row, at, compare_bits(reference_.dtype, expected, block + static_cast<size_t>(done) * width, run));
    }
    done += run;
  }
}

void RowsCompared::take(int64_t row, int64_t at, const BitDifference& part) {
  if (row == 0 && is_of_rows(context_.axis)) {
    found_.row_zero_different += part.different;
    return;
  }
  BitDifference& total = found_.bits;
  const int64_t index = row * columns_ + at + part.first_index;
  if (part.different > 0 && (total.different == 0 || index < total.first_index)) {
    total.first_index = index, total.a_bits = part.a_bits, total.b_bits = part.b_bits;
  }
  total.compared += part.compared;
  total.different += part.different;
}

}  // namespace checkop
