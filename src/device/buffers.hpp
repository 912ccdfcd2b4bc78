// SPDX-License-Identifier: Apache-2.0
// Device memory for one tensor between guard bands, with poison that reveals missing and stray writes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "tensor/bits.hpp"
#include "tensor/dtype.hpp"

namespace checkop {

/// Bit patterns of one element type. For floats they are quiet NaNs with a payload, except `output[1]`, which looks
/// like a result, so that a kernel can't recognise unwritten elements by NaN. For integers they are unlikely numbers.
/// All patterns differ, so an element that holds `output[0]` after the first launch and `output[1]` after the second
/// was not written.
struct Poison {
  uint64_t output[2];
  uint64_t guard;
};
const Poison& poison_of(DType dtype);

/// Replaces the patterns by others made of `seed`, in this process and in processes that it forks later, so that code
/// without the seed can't know them. Do not call it if ranks are processes: each would have its own patterns.
void draw_poison(uint64_t seed);

/// A variant of output[kind], another one for each `draw`; output[kind] itself for draw 0.
uint64_t drawn_poison(DType dtype, size_t kind, uint64_t draw);
/// A `draw` that no launch of this process had.
uint64_t next_draw();

/// Guard elements on each side of every buffer.
inline constexpr int64_t kGuardElements = 4096;

/// A guard band, `count` elements that begin `offset` bytes past a 256-byte boundary, and another guard band. A guard
/// band has at least kGuardElements elements and least_guard_bytes() bytes; the front band also covers everything else
/// in the block that another process can reach. `offset` is a multiple of the element size.
class GuardedBuffer {
 public:
  /// `what` begins every message: "output 'dlogits'". `unit` is the word for an element in messages. `access` is what a
  /// candidate in another process may do.
  GuardedBuffer(DeviceMemory& device, DType dtype, int64_t count, std::string what, std::string unit = "element",
                size_t offset = 0, Access access = Access::none);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::byte* data() { return memory_ + front_bytes_; }
  size_t bytes() const { return bytes_; }
  int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  const std::string& what() const { return what_; }

  void put(const std::byte* host) { device_.upload(data(), host, bytes_); }
  /// put() and note_given().
  void upload(const std::byte* host);
  void download(std::byte* host);
  std::vector<std::byte> content();
  void poison_output(int run) { poison(poison_of(dtype_).output[run]); }
  /// Fills the payload with `pattern`, one element's bits.
  void poison(uint64_t pattern);
  void poison_element(int64_t index, uint64_t pattern);

  /// Appends a sentence for each guard band that has changed.
  void check_guards(std::vector<std::string>& violations);

  /// Remembers the payload's fingerprint for is_as_given().
  void note_given() { given_ = fingerprint(); }
  /// Whether the payload has not changed since note_given(). Computed on the device.
  bool is_as_given() { return fingerprint() == given_; }

  /// Whether the payloads have the same bytes. Compared on the device.
  bool equals(GuardedBuffer& other) { return bytes_ == other.bytes_ && device_.equal(data(), other.data(), bytes_); }
  void copy_from(GuardedBuffer& other) { device_.copy(data(), other.data(), bytes_); }
  /// Takes the payload that the other buffer was given, and with it what is_as_given() compares with.
  void take_given(GuardedBuffer& other) {
    copy_from(other);
    given_ = other.given_;
  }
  uint64_t fingerprint() { return device_.fingerprint(data(), bytes_); }

  /// Differences between the payload and `host`; `a` is the host's side.
  BitDifference difference_from(const std::byte* host);

  /// Calls body(block on the host, first element, elements) for the payload in order, in blocks of some MiB, to avoid a
  /// second copy of a large tensor.
  void for_each_block(const std::function<void(const std::byte*, int64_t, int64_t)>& body);

 private:
  DeviceMemory& device_;
  DType dtype_;
  int64_t count_;
  std::string what_, unit_;
  size_t guard_bytes_, bytes_, front_bytes_;  ///< of the band behind, of the payload, of the band in front
  std::byte* memory_;
  uint64_t given_ = 0;  ///< fingerprint
};

}  // namespace checkop
