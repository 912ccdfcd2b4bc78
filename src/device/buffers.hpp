// SPDX-License-Identifier: Apache-2.0
// Device memory for one tensor between guard bands, and the poison that shows what was never or wrongly written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "tensor/bits.hpp"
#include "tensor/dtype.hpp"

namespace checkop {

/// Bit patterns of one element type: quiet NaNs with a payload for floats, odd patterns for integers. All differ, so
/// that an element which holds `output[0]` after the first run and `output[1]` after the second was never written.
struct Poison {
  uint64_t output[2];
  uint64_t guard;
};
const Poison& poison_of(DType dtype);

/// Elements of poison on both sides of every buffer.
inline constexpr int64_t kGuardElements = 4096;

/// A guard band of at least kGuardElements and the device's least_guard_bytes(), `count` elements `offset` bytes past a
/// 256-byte boundary, another guard band. `offset` is a multiple of the element's size.
class GuardedBuffer {
 public:
  /// `what` begins every message: "output 'dlogits'". `unit` is what an element is called there.
  GuardedBuffer(Device& device, DType dtype, int64_t count, std::string what, std::string unit = "element",
                size_t offset = 0);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::byte* data() { return memory_ + guard_bytes_ + offset_; }
  size_t bytes() const { return bytes_; }
  int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  const std::string& what() const { return what_; }

  void upload(const std::byte* host);
  void download(std::byte* host);
  std::vector<std::byte> content();
  void poison_output(int run) { poison(poison_of(dtype_).output[run]); }
  /// Fills the payload with one element's pattern.
  void poison(uint64_t pattern);

  /// Appends a sentence for each guard band that was written to.
  void check_guards(std::vector<std::string>& violations);

  /// The payload is what it was given: for is_as_given(). upload() does so too.
  void note_given() { given_ = device_.fingerprint(data(), bytes_); }
  /// Whether the payload is still that. Told without reading it back.
  bool is_as_given() { return device_.fingerprint(data(), bytes_) == given_; }

  /// Whether the payloads have the same bytes. Told without reading them back.
  bool equals(GuardedBuffer& other) { return bytes_ == other.bytes_ && device_.equal(data(), other.data(), bytes_); }
  void copy_from(GuardedBuffer& other) { device_.copy(data(), other.data(), bytes_); }

  /// The payload's differences from `host`, `a` being the host's side.
  BitDifference difference_from(const std::byte* host);

  /// Calls body(block on the host, first element, elements) for the payload in order, a block of some MiB at a time:
  /// no second copy of a large tensor is made.
  void for_each_block(const std::function<void(const std::byte*, int64_t, int64_t)>& body);

 private:
  Device& device_;
  DType dtype_;
  int64_t count_;
  std::string what_, unit_;
  size_t guard_bytes_, offset_, bytes_;  ///< the guard in front is longer by the offset
  std::byte* memory_;
  uint64_t given_ = 0;  ///< the fingerprint
};

}  // namespace checkop
