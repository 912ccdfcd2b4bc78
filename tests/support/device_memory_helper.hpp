// SPDX-License-Identifier: Apache-2.0
// Checks of a device's memory operations, for any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.hpp"
#include "device/device.hpp"

namespace checkop {

inline std::vector<std::byte> random_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  const Stream stream = Stream::derive(1, "device", "bytes");
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(stream.below(i, 256));
  return bytes;
}

/// Rows of `a` are rows of `b` in reverse, with every third one not compared. Then single bytes are changed one at a
/// time. Both begin `offset` bytes after an aligned address.
inline void expect_rows_equal_tells(Device& device, size_t row_bytes, int64_t n, size_t offset) {
  const size_t bytes = row_bytes * static_cast<size_t>(n);
  const std::vector<std::byte> b = random_bytes(bytes);
  std::vector<std::byte> a(bytes);
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

/// Copies rows of `from` in reverse, leaving out every third place, with `gap` bytes after each row. Both begin
/// `offset` bytes after an aligned address.
inline void expect_rows_are_copied(Device& device, size_t row_bytes, int64_t n, size_t gap, size_t offset) {
  const size_t stride = row_bytes + gap, bytes = row_bytes * static_cast<size_t>(n);
  const std::vector<std::byte> from = random_bytes(bytes);
  std::vector<std::byte> found(stride * static_cast<size_t>(n) + gap, std::byte{0x99}), expected = found;
  std::vector<int64_t> rows;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t row = n - 1 - k;
    rows.push_back(k % 3 == 2 ? ~row : row);
    if (k % 3 == 2) continue;
    std::memcpy(&expected[static_cast<size_t>(k) * stride], &from[static_cast<size_t>(row) * row_bytes], row_bytes);
  }
  std::byte* const on_from = device.allocate(from.size() + offset, "from");
  std::byte* const on_to = device.allocate(found.size() + offset, "to");
  device.upload(on_from + offset, from.data(), from.size());
  device.upload(on_to + offset, found.data(), found.size());
  device.copy_rows(on_to + offset, stride, on_from + offset, row_bytes, rows);
  device.download(found.data(), on_to + offset, found.size());
  EXPECT_TRUE(found == expected) << row_bytes << " + " << gap << " x " << n << " + " << offset;
  device.free(on_from);
  device.free(on_to);
}

inline void expect_rows_are_copied(Device& device) {
  for (const size_t row_bytes : {1, 2, 4, 6, 8, 300, 4098, 40000}) {
    for (const int64_t n : {1, 4, 3000}) {
      if (static_cast<int64_t>(row_bytes) * n > 4'000'000) continue;
      for (const size_t gap : {0, 1, 2, 16}) {
        for (const size_t offset : {0, 1, 2, 4}) expect_rows_are_copied(device, row_bytes, n, gap, offset);
      }
    }
  }
  device.copy_rows(nullptr, 8, nullptr, 8, {});
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

/// Fills with every width of pattern, at every valid address, part of a word, several words, and more than one wave.
inline void expect_fill_repeats(Device& device) {
  constexpr uint64_t kPattern = 0x1122334455667788;
  constexpr size_t kSlack = 64;
  for (const size_t width : {1, 2, 4, 8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{3}, size_t{17}, 8195 / width, 40'000'008 / width}) {
      for (size_t offset = 0; offset < 16; offset += width) {
        if (count > 10000 && offset > 2 * width) continue;
        const size_t bytes = count * width;
        std::vector<std::byte> memory(bytes + kSlack, std::byte{0x99}), expected = memory;
        for (size_t at = 0; at < bytes; at += width) std::memcpy(&expected[offset + at], &kPattern, width);
        std::byte* const there = device.allocate(memory.size(), "test");
        device.upload(there, memory.data(), memory.size());
        device.fill(there + offset, kPattern, width, bytes);
        device.download(memory.data(), there, memory.size());
        device.free(there);
        EXPECT_TRUE(memory == expected) << count << " of " << width << " bytes + " << offset;
      }
    }
  }
}

/// Changing any bit or exchanging two words changes the fingerprint; the memory's address does not. The same for
/// equal().
inline void expect_content_is_told_apart(Device& device) {
  for (const size_t bytes : {0, 1, 7, 8, 9, 64, 4097, 65536, 65537, 1'000'003}) {
    std::vector<std::byte> content = random_bytes(bytes);
    std::byte* const first = device.allocate(bytes, "first");
    std::byte* const other = device.allocate(bytes + 8, "other");
    device.upload(first, content.data(), bytes);
    const uint64_t print = device.fingerprint(first, bytes);
    for (const size_t offset : {0, 1, 2, 4}) {
      device.upload(other + offset, content.data(), bytes);
      EXPECT_EQ(device.fingerprint(other + offset, bytes), print) << bytes << " + " << offset;
      EXPECT_TRUE(device.equal(first, other + offset, bytes)) << bytes << " + " << offset;
    }
    const auto expect_another = [&](const char* what) {
      device.upload(other, content.data(), bytes);
      EXPECT_NE(device.fingerprint(other, bytes), print) << bytes << ": " << what;
      EXPECT_FALSE(device.equal(first, other, bytes)) << bytes << ": " << what;
    };
    for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
      if (bytes == 0) break;
      content[at] ^= std::byte{0x01};
      expect_another("a bit");
      content[at] ^= std::byte{0x01};
    }
    if (bytes >= 16) {
      std::swap_ranges(content.begin(), content.begin() + 8, content.begin() + 8);
      expect_another("two words");
    }
    device.free(first);
    device.free(other);
  }
}

}  // namespace checkop
