// SPDX-License-Identifier: Apache-2.0
// Guarded device memory: layout, poison, and checks of both.
#include "device/buffers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "base/mix.hpp"

namespace checkop {
namespace {

constexpr size_t kBlockBytes = size_t{32} << 20;
constexpr size_t kPayloadAlignment = 256;

/// Explicit bits of the fraction; 0 for integers and for types of 8 bits, which have too few NaNs to draw from.
int mantissa_bits(DType dtype) {
  const DTypeInfo& type = info(dtype);
  return type.is_float && type.bytes > 1 ? type.precision - 1 : 0;
}

uint64_t poison_key = 0x636f7061;

// In the order of DType. 8-bit guards miss a write of the guard's own value; wider guards practically never do.
Poison poisons[] = {
    {{0x7ff8d00dc0ffee01, 0x3fe8beef0ddba112}, 0x7ffa5afe5afe5afe},  // f64
    {{0x7fc1d00d, 0x3f42beef}, 0x7fe35afe},                          // f32
    {{0x7e11, 0x3a22}, 0x7e5a},                                      // f16
    {{0x7fc1, 0x3f52}, 0x7fe3},                                      // bf16
    {{0x5bad1deadc0ffee1, 0x6dead1deadbea7e5}, 0x7a5afe5afe5afe5b},  // i64
    {{0x5badc0e1, 0x6deadbe5}, 0x7a5afe5b},                          // i32
    {{0xa5, 0x5b}, 0xc3},                                            // u8
    {{0xa6, 0x5a}, 0xc9},                                            // e4m3
    {{0xa6, 0x5a}, 0xc9},                                            // e5m2
    {{0xa6, 0x5a}, 0xc9},                                            // e8m0
    {{0xa6, 0x5a}, 0xc9},                                            // e2m1x2
};

}  // namespace

const Poison& poison_of(DType dtype) { return poisons[static_cast<size_t>(dtype)]; }

namespace {

/// A poison pattern made of random `bits`: a quiet NaN, or a finite value of either sign with a magnitude in [1/8, 2).
/// For integers a large positive number, which no candidate can take for a valid id. For types of 8 bits any pattern.
uint64_t pattern_of_bits(DType dtype, bool is_nan, uint64_t bits) {
  const auto low = [&](int n) { return bits & ((uint64_t{1} << n) - 1); };
  const int width = static_cast<int>(info(dtype).bytes) * 8, mantissa = mantissa_bits(dtype);
  if (mantissa == 0) {
    if (width == 8) return low(width);
    return uint64_t{0x5b} << (width - 8) | low(width - 8);
  }
  if (is_nan) {
    const uint64_t exponent = ((uint64_t{1} << (width - 1 - mantissa)) - 1) << mantissa;
    return exponent | uint64_t{1} << (mantissa - 1) | low(mantissa - 1);
  }
  const uint64_t exponents = ((uint64_t{1} << (width - 2 - mantissa)) - 1) & ~uint64_t{3};
  const uint64_t top = mix_bits(bits);  // independent of the fraction
  return (top >> 2 & 1) << (width - 1) | (exponents | (top & 3)) << mantissa | low(mantissa);
}

}  // namespace

void draw_poison(uint64_t seed) {
  std::mt19937_64 random(seed);
  poison_key = random();
  for (size_t i = 0; i < std::size(poisons); ++i) {
    const DType dtype = static_cast<DType>(i);
    Poison& poison = poisons[i];
    do {
      poison = {{pattern_of_bits(dtype, true, random()), pattern_of_bits(dtype, false, random())},
                pattern_of_bits(dtype, true, random())};
    } while (poison.output[0] == poison.output[1] || poison.output[0] == poison.guard ||
             poison.output[1] == poison.guard || poison.output[0] == 0 || poison.output[1] == 0 || poison.guard == 0);
  }
}

uint64_t drawn_poison(DType dtype, size_t kind, uint64_t draw) {
  const Poison& poison = poison_of(dtype);
  if (draw == 0) return poison.output[kind];
  for (uint64_t bits = mix_bits(poison_key + mix_bits(draw));; bits = mix_bits(bits)) {
    const uint64_t pattern = pattern_of_bits(dtype, kind == 0, bits);
    if (pattern != poison.output[0] && pattern != poison.output[1] && pattern != poison.guard && pattern != 0)
      return pattern;
  }
}

uint64_t next_draw() {
  static std::atomic<uint64_t> draws = 0;
  return ++draws;
}

GuardedBuffer::GuardedBuffer(DeviceMemory& device, DType dtype, int64_t count, std::string what, std::string unit,
                             size_t offset, Access access)
    : device_(device),
      dtype_(dtype),
      count_(count),
      what_(std::move(what)),
      unit_(std::move(unit)),
      guard_bytes_(std::max(static_cast<size_t>(kGuardElements) * info(dtype).bytes, device.least_guard_bytes())),
      bytes_(static_cast<size_t>(count) * info(dtype).bytes),
      front_bytes_(guard_bytes_ + offset),
      memory_(nullptr) {
  static_assert(kGuardElements % 256 == 0 && kMostGuardBytes % 256 == 0, "the payload would not be 256-byte aligned");
  const size_t needed = front_bytes_ + bytes_ + guard_bytes_;
  if (access == Access::none) {
    memory_ = device.allocate(needed, what_);
  } else {
    const size_t rest = device.shared_bytes(needed) - needed;
    front_bytes_ += rest / kPayloadAlignment * kPayloadAlignment;
    guard_bytes_ += rest % kPayloadAlignment / info(dtype).bytes * info(dtype).bytes;
    memory_ = device.allocate_shared(needed, what_, access);
  }
  try {
    device_.fill(memory_, poison_of(dtype_).guard, info(dtype_).bytes, front_bytes_);
    device_.fill(data() + bytes_, poison_of(dtype_).guard, info(dtype_).bytes, guard_bytes_);
  } catch (...) {
    device_.free(memory_);  // the destructor does not run if the constructor throws
    throw;
  }
}

GuardedBuffer::~GuardedBuffer() { device_.free(memory_); }

void GuardedBuffer::upload(const std::byte* host) {
  put(host);
  note_given();
}

void GuardedBuffer::download(std::byte* host) { device_.download(host, data(), bytes_); }

std::vector<std::byte> GuardedBuffer::content() {
  std::vector<std::byte> host(bytes_);
  download(host.data());
  return host;
}

void GuardedBuffer::poison(uint64_t pattern) { device_.fill(data(), pattern, info(dtype_).bytes, bytes_); }

void GuardedBuffer::poison_element(int64_t index, uint64_t pattern) {
  const size_t width = info(dtype_).bytes;
  device_.fill(data() + static_cast<size_t>(index) * width, pattern, width, width);
}

void GuardedBuffer::check_guards(std::vector<std::string>& violations) {
  const size_t width = info(dtype_).bytes;
  const uint64_t guard = poison_of(dtype_).guard;
  std::vector<std::byte> band;
  const auto elements = [&](size_t bytes) { return static_cast<int64_t>(bytes / width); };
  // If each element equals the next, all are equal.
  const auto are_all_guards = [&](const std::byte* from, size_t bytes) {
    if (bytes <= 2 * kMostGuardBytes) return false;  // as fast to read as to compare
    band.resize(width);
    device_.download(band.data(), from, width);
    return load_bits(dtype_, band.data(), 0) == guard && device_.equal(from, from + width, bytes - width);
  };
  const auto changed_in_band = [&](const std::byte* from, size_t bytes) {
    std::vector<int64_t> changed;
    if (are_all_guards(from, bytes)) return changed;
    band.resize(bytes);
    device_.download(band.data(), from, bytes);
    if (load_bits(dtype_, band.data(), 0) == guard && std::memcmp(band.data(), band.data() + width, bytes - width) == 0)
      return changed;
    for (int64_t i = 0; i < elements(bytes); ++i) {
      if (load_bits(dtype_, band.data(), i) != guard) changed.push_back(i);
    }
    return changed;
  };
  const auto plural = [&](size_t n) { return fmt::format("{} {}{}", n, unit_, n == 1 ? "" : "s"); };

  if (const auto before = changed_in_band(memory_, front_bytes_); !before.empty()) {
    violations.push_back(fmt::format("{}: {} changed before its start, nearest at {}", what_, plural(before.size()),
                                     before.back() - elements(front_bytes_)));
  }
  if (const auto behind = changed_in_band(data() + bytes_, guard_bytes_); !behind.empty()) {
    violations.push_back(
        fmt::format("{}: {} changed behind its end, first at +{}", what_, plural(behind.size()), behind.front()));
  }
}

BitDifference GuardedBuffer::difference_from(const std::byte* host) {
  BitDifference total;
  for_each_block([&](const std::byte* block, int64_t first, int64_t n) {
    const std::byte* expected = host + static_cast<size_t>(first) * info(dtype_).bytes;
    const BitDifference part = compare_bits(dtype_, expected, block, n);
    if (total.different == 0 && part.different > 0) {
      total.first_index = first + part.first_index;
      total.a_bits = part.a_bits;
      total.b_bits = part.b_bits;
    }
    total.compared += part.compared;
    total.different += part.different;
  });
  return total;
}

void GuardedBuffer::for_each_block(const std::function<void(const std::byte*, int64_t, int64_t)>& body) {
  const size_t element_bytes = info(dtype_).bytes;
  const auto block_elements = static_cast<int64_t>(kBlockBytes / element_bytes);
  std::vector<std::byte> block(std::min(bytes_, kBlockBytes));
  for (int64_t first = 0; first < count_; first += block_elements) {
    const int64_t n = std::min(block_elements, count_ - first);
    device_.download(block.data(), data() + static_cast<size_t>(first) * element_bytes,
                     static_cast<size_t>(n) * element_bytes);
    body(block.data(), first, n);
  }
}

}  // namespace checkop
