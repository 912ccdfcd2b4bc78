// SPDX-License-Identifier: Apache-2.0
// Emits moved rows and integers, which have no error.
#include "moved_rows.hpp"

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

}  // namespace checkop
