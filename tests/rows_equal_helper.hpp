// SPDX-License-Identifier: Apache-2.0
// What Device::rows_equal() must tell, on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "device.hpp"
#include "random.hpp"

namespace checkop {

/// Rows of `a` are rows of `b` in reverse, every third one not compared; one byte at a time is then another. Both begin
/// `offset` bytes behind an aligned address.
inline void expect_rows_equal_tells(Device& device, size_t row_bytes, int64_t n, size_t offset) {
  const size_t bytes = row_bytes * static_cast<size_t>(n);
  std::vector<std::byte> b(bytes), a(bytes);
  const Stream stream = Stream::derive(1, "rows_equal", "b");
  for (size_t i = 0; i < bytes; ++i) b[i] = static_cast<std::byte>(stream.below(i, 256));
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t from = n - 1 - k;
    rows.push_back(k % 3 == 2 ? ~from : from);
    std::memcpy(&a[static_cast<size_t>(k) * row_bytes], &b[static_cast<size_t>(from) * row_bytes], row_bytes);
  }
  std::byte* const on_a = device.allocate(bytes + offset, "a");
  std::byte* const on_b = device.allocate(bytes + offset, "b");
  device.upload(on_b + offset, b.data(), bytes);
  const auto equal = [&] {
    device.upload(on_a + offset, a.data(), bytes);
    return device.rows_equal(on_a + offset, on_b + offset, row_bytes, rows);
  };
  EXPECT_TRUE(equal()) << row_bytes << " x " << n << " + " << offset;
  for (const size_t at : {size_t{0}, row_bytes - 1, row_bytes, bytes / 2, 2 * row_bytes, bytes - 1}) {
    if (at >= bytes) continue;
    const auto row = static_cast<int64_t>(at / row_bytes);
    a[at] ^= std::byte{0x40};
    EXPECT_EQ(equal(), row % 3 == 2) << row_bytes << " x " << n << " + " << offset << " at " << at;
    a[at] ^= std::byte{0x40};
  }
  device.free(on_a);
  device.free(on_b);
}

inline void expect_rows_equal_tells(Device& device) {
  for (const size_t row_bytes : {1, 2, 4, 6, 8, 24, 300, 4098, 40000}) {
    for (const int64_t n : {1, 3, 40, 3000}) {
      if (static_cast<int64_t>(row_bytes) * n > 4'000'000) continue;
      for (const size_t offset : {0, 1, 2, 4, 8}) expect_rows_equal_tells(device, row_bytes, n, offset);
    }
  }
  EXPECT_TRUE(device.rows_equal(nullptr, nullptr, 8, {}));
}

}  // namespace checkop
