// SPDX-License-Identifier: Apache-2.0
// mmap() at random addresses. A GPU's memory is mapped by its device.
#include "plugin_host/windows.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <random>
#include <utility>

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

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

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

/// Pages behind a descriptor, between addresses that can't be touched.
class Pages final : public BorrowedMemory {
 public:
  Pages(const Window& window, int descriptor) : inner_(whole_pages(window.bytes)) {
    void* const around = mmap(random_address(), inner_ + 2 * kApart, PROT_NONE, kNoMemory, -1, 0);
    if (around == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(around) + kApart;
    const int rights = window.is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    const int flags = MAP_SHARED | MAP_FIXED | (window.bytes <= kPopulated ? MAP_POPULATE : 0);
    if (mmap(memory_, inner_, rights, flags, descriptor, static_cast<off_t>(window.offset)) != MAP_FAILED) return;
    unmap();
    throw WireError("memory can't be mapped");
  }
  ~Pages() override { unmap(); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const override { return memory_; }

 private:
  void unmap() { munmap(memory_ - kApart, inner_ + 2 * kApart); }

  size_t inner_;
  std::byte* memory_;
};

}  // namespace

void Windows::map(const Window& window, int descriptor) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<BorrowedMemory> memory;
  size_t slot = kSlots;
  if (device_ != nullptr) {
    memory = device_->map(descriptor, window.bytes, window.is_writable);
  } else {
    memory = std::make_unique<Pages>(window, descriptor);
    if (!window.is_writable) slot = note_read_only(window, memory->data());
  }
  mapped_.emplace(window.number, Mapped{std::move(memory), slot});
}

/// The slot in which the signal handler finds the window; kSlots where none is free.
size_t Windows::note_read_only(const Window& window, std::byte* memory) {
  for (size_t i = 0; i < kSlots; ++i) {
    if (read_only_[i].memory != nullptr) continue;
    read_only_[i].number = window.number;
    read_only_[i].bytes = whole_pages(window.bytes);
    read_only_[i].memory = memory;
    return i;
  }
  return kSlots;
}

void Windows::drop(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(number);
  if (found == mapped_.end()) return;
  if (found->second.slot < kSlots) read_only_[found->second.slot].memory = nullptr;
  mapped_.erase(found);
}

std::byte* Windows::at(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(number);
  if (found == mapped_.end()) throw WireError("a window that is not mapped");
  return found->second.memory->data();
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
