// SPDX-License-Identifier: Apache-2.0
// mmap() at random addresses.
#include "host/windows.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <random>

namespace checkop::host {
namespace {

/// Addresses within this distance of a window can't be touched.
constexpr size_t kApart = size_t{64} << 20;
/// Windows begin in a range of this size, wherever the system has so much room.
constexpr size_t kRange = size_t{1} << 38;
constexpr size_t kStep = size_t{1} << 16;
/// Pages of smaller windows are all mapped at once, since nearly all are used.
constexpr size_t kPopulated = size_t{1} << 20;
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/// An address at which the system is asked to map something; it is free to choose another.
std::byte* random_address() {
  static std::mt19937_64 random{std::random_device{}()};
  static std::byte* const begin = [] {
    void* const room = mmap(nullptr, kRange, PROT_NONE, kNoMemory, -1, 0);
    if (room == MAP_FAILED) return static_cast<std::byte*>(nullptr);
    munmap(room, kRange);
    return static_cast<std::byte*>(room);
  }();
  return begin == nullptr ? nullptr : begin + random() % (kRange / kStep) * kStep;
}

}  // namespace

void Windows::map(const Window& window, int descriptor) {
  const std::lock_guard lock(mutex_);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inner = (window.bytes + page - 1) / page * page, whole = inner + 2 * kApart;
  void* const around = mmap(random_address(), whole, PROT_NONE, kNoMemory, -1, 0);
  if (around == MAP_FAILED) throw std::bad_alloc();
  Mapped mapped{static_cast<std::byte*>(around), whole, static_cast<std::byte*>(around) + kApart, kSlots};
  const int rights = window.is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = MAP_SHARED | MAP_FIXED | (window.bytes <= kPopulated ? MAP_POPULATE : 0);
  if (mmap(mapped.memory, inner, rights, flags, descriptor, static_cast<off_t>(window.offset)) == MAP_FAILED) {
    munmap(around, whole);
    throw WireError("memory can't be mapped");
  }
  for (size_t i = 0; !window.is_writable && i < kSlots; ++i) {
    if (read_only_[i].memory != nullptr) continue;
    mapped.slot = i;
    read_only_[i].number = window.number;
    read_only_[i].bytes = inner;
    read_only_[i].memory = mapped.memory;
    break;
  }
  mapped_.emplace(window.number, mapped);
}

void Windows::drop(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(number);
  if (found == mapped_.end()) return;
  if (found->second.slot < kSlots) read_only_[found->second.slot].memory = nullptr;
  munmap(found->second.around, found->second.whole);
  mapped_.erase(found);
}

std::byte* Windows::at(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(number);
  if (found == mapped_.end()) throw WireError("a window that is not mapped");
  return found->second.memory;
}

std::optional<Windows::Hit> Windows::read_only_at(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const Slot& slot : read_only_) {
    const std::byte* const begin = slot.memory;
    if (begin != nullptr && byte >= begin && byte < begin + slot.bytes)
      return Hit{slot.number, static_cast<uint64_t>(byte - begin)};
  }
  return {};
}

}  // namespace checkop::host
