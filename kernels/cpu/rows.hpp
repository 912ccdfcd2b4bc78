// SPDX-License-Identifier: Apache-2.0
// Shared by the CPU candidates named "native" that move rows: copies of rows, and rows that slots name.
#pragma once

#include <cstring>

#include "cpu/native.hpp"

namespace native {

constexpr int64_t kNoRow = -1;

/// Row r of `to` becomes row from[r] of `source`, or zeros if from[r] is kNoRow.
inline void copy_rows(const checkop_tensor& source, const std::vector<int64_t>& from, int64_t columns,
                      const checkop_tensor& to) {
  const size_t bytes = static_cast<size_t>(columns) * (source.dtype == CHECKOP_F32 ? 4 : 2);
  const auto rows = static_cast<int64_t>(from.size());
  parallel_for(rows, rows * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      char* const row = static_cast<char*>(to.data) + static_cast<size_t>(r) * bytes;
      const int64_t source_row = from[static_cast<size_t>(r)];
      if (source_row == kNoRow)
        std::memset(row, 0, bytes);
      else
        std::memcpy(row, static_cast<const char*>(source.data) + static_cast<size_t>(source_row) * bytes, bytes);
    }
  });
}

/// Refuses int32 elements outside [0, end) other than -1.
inline void check_slots(const checkop_tensor& t, const char* name, int64_t count, int64_t end) {
  const auto* slots = static_cast<const int32_t*>(t.data);
  for (int64_t i = 0; i < count; ++i)
    if (slots[i] < -1 || slots[i] >= end)
      throw Refusal(CHECKOP_FAILED, std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(slots[i]) +
                                        " is neither in [0, " + std::to_string(end) + ") nor -1");
}

/// Refuses offsets of groups that do not start with 0, decrease, leave the rows, or are no multiples of `align`.
inline void check_offsets(const int32_t* offsets, int64_t groups, int64_t rows, int64_t align) {
  for (int64_t e = 0; e <= groups; ++e)
    if (offsets[e] < (e == 0 ? 0 : offsets[e - 1]) || offsets[e] > rows || offsets[e] % align != 0)
      throw Refusal(CHECKOP_FAILED, align == 1 ? "offsets decrease or leave the rows"
                                               : "offsets decrease, leave the rows or are no multiples of 128");
  if (offsets[0] != 0) throw Refusal(CHECKOP_FAILED, "offsets do not start with 0");
}

}  // namespace native
