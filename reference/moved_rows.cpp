// SPDX-License-Identifier: Apache-2.0
// Emits moved rows and integers, which have no error.
#include "moved_rows.hpp"

#include <cmath>

namespace checkop {

void emit_moved_rows(const GoldArgs& args, int index, const Tensor& source, const std::vector<int64_t>& from) {
  const int64_t columns = source.shape.back();
  const std::vector<double> none(static_cast<size_t>(columns));
  args.for_rows(index, std::ssize(from), [&](int64_t row) {
    static thread_local std::vector<double> value;
    value.assign(static_cast<size_t>(columns), 0.0);
    const int64_t place = from[static_cast<size_t>(row)];
    if (place != kNoRow) decode_row(source, place, value);
    args.sink({index, row, 1, columns, value.data(), none.data(), none.data()});
  });
}

void emit_integers(const GoldArgs& args, int index, const std::vector<int64_t>& values, int64_t columns) {
  const std::vector<double> value(values.begin(), values.end()), none(values.size());
  args.sink({index, 0, std::ssize(values) / columns, columns, value.data(), none.data(), none.data()});
}

void plant_whole_range(const FillArgs& args, Tensor& rows) {
  if (args.mode != InputMode::random || rows.dtype == DType::f64) return;
  const int64_t columns = rows.shape.back();
  const int least = info(rows.dtype).min_exponent;  // the largest exponent is 1 - least
  for (int64_t row = 0; row * columns < rows.count(); ++row) {
    const int64_t small = row * columns + 5 * row % columns, large = row * columns + (5 * row + 1) % columns;
    rows.set(small, std::ldexp(rows.at(small), least - 2));
    rows.set(large, std::ldexp(row % 2 == 0 ? 1.75 : -1.75, -least));
  }
}

}  // namespace checkop
