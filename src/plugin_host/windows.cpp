// SPDX-License-Identifier: Apache-2.0
// mmap() at random addresses, of all windows of a request side by side: an unmapping costs as much as a small launch.
// A GPU's memory is mapped by its device.
#include "plugin_host/windows.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iterator>
#include <new>
#include <random>
#include <string_view>
#include <utility>

namespace checkop::host {
namespace {

/// Addresses within this distance of a window can't be touched.
constexpr size_t kApart = size_t{64} << 20;
/// Windows lie at least kApart and at most this far apart: the address of one tells little of another's.
constexpr size_t kMostApart = size_t{4} << 30;
/// The same where addresses are few.
constexpr size_t kMostApartIfFew = 2 * kApart;
/// Rooms begin in a range of this size, wherever the system has so much room.
constexpr size_t kRange = size_t{1} << 42;
/// Distances of windows and rooms from the range's begin are multiples of it.
constexpr size_t kStep = size_t{1} << 16;
/// Pages of smaller windows for writing are all mapped at once, since nearly all are used. A look at a page for reading
/// maps its neighbours, too.
constexpr size_t kPopulated = size_t{1} << 20;
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return whole(bytes, page);
}

std::byte* reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, kNoMemory, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// Whether this process may have only so many addresses: others need them then.
bool are_addresses_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

uint64_t draw() {
  static std::mt19937_64 random{std::random_device{}()};
  return random();
}

}  // namespace

/// Addresses of windows that are mapped at once, none of which can be touched where there is no window. Most lie in a
/// range that this process reserves for good, where two calls of the system for each window are saved.
class Room {
 public:
  /// Throws std::bad_alloc where there are no addresses left.
  explicit Room(size_t bytes) : bytes_(bytes) {
    begin_ = place_in_range();
    is_in_range_ = begin_ != nullptr;
    if (!is_in_range_) begin_ = reserve(bytes_);
    if (begin_ == nullptr) throw std::bad_alloc();
    if (is_in_range_) taken()[begin_] = bytes_;
  }
  ~Room() {
    if (!is_in_range_) {
      munmap(begin_, bytes_);
      return;
    }
    close(begin_, bytes_);
    taken().erase(begin_);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  std::byte* begin() const { return begin_; }
  /// From now on nothing there can be touched.
  void close(std::byte* begin, size_t bytes) const {
    if (mmap(begin, bytes, PROT_NONE, kNoMemory | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    // Unmapped, others could be given these addresses, and a later window would be mapped over them.
    constexpr std::string_view kText = "check_operator, process of plugins: a window can't be closed\n";
    _exit(write(STDERR_FILENO, kText.data(), kText.size()) < 0 ? 2 : 1);
  }

  size_t windows = 0;  ///< that are in it

 private:
  /// Begins and sizes of the rooms in the range. Never destroyed: a plugin may call exit(), and rooms end after that.
  static std::map<std::byte*, size_t>& taken() {
    static auto* const rooms = new std::map<std::byte*, size_t>;
    return *rooms;
  }

  /// A place in the range that touches no other room; nullptr where none is found.
  std::byte* place_in_range() const {
    static std::byte* const range = are_addresses_limited() ? nullptr : reserve(kRange);
    if (range == nullptr || bytes_ > kRange / 2) return nullptr;
    constexpr int kTries = 16;
    for (int i = 0; i < kTries; ++i) {
      std::byte* const begin = range + draw() % ((kRange - bytes_) / kStep + 1) * kStep;
      const auto next = taken().lower_bound(begin);
      if (next != taken().end() && next->first < begin + bytes_) continue;
      if (next != taken().begin() && std::prev(next)->first + std::prev(next)->second > begin) continue;
      return begin;
    }
    return nullptr;
  }

  size_t bytes_;
  std::byte* begin_ = nullptr;
  bool is_in_range_ = false;
};

void Windows::map(const std::vector<Source>& sources) {
  const std::lock_guard lock(mutex_);
  if (sources.empty()) return;
  if (device_ == nullptr) return map_host(sources);
  for (const auto& [window, descriptor] : sources) {
    auto memory = device_->map(descriptor, window.bytes, window.is_writable);
    std::byte* const begin = memory->data();
    mapped_.emplace(window.number, Mapped{begin, window.bytes, kSlots, std::move(memory), {}});
  }
}

void Windows::map_host(const std::vector<Source>& sources) {
  std::vector<size_t> offsets;
  std::shared_ptr<Room> room;
  const auto lay_out = [&](size_t most_apart) {
    offsets.clear();
    size_t end = 0;  // of the window before
    for (const auto& [window, descriptor] : sources) {
      offsets.push_back(whole(end, kStep) + kApart + draw() % ((most_apart - kApart) / kStep) * kStep);
      end = offsets.back() + whole_pages(window.bytes);
    }
    room = std::make_shared<Room>(whole(end, kStep) + kApart);
  };
  try {
    lay_out(are_addresses_limited() ? kMostApartIfFew : kMostApart);
  } catch (const std::bad_alloc&) {
    lay_out(kMostApartIfFew);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto& [window, descriptor] = sources[i];
    std::byte* const begin = room->begin() + offsets[i];
    const size_t bytes = whole_pages(window.bytes);
    const int rights = window.is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    const bool is_populated = window.is_writable && bytes <= kPopulated;
    const int flags = MAP_SHARED | MAP_FIXED | (is_populated ? MAP_POPULATE : 0);
    if (mmap(begin, bytes, rights, flags, descriptor, static_cast<off_t>(window.offset)) == MAP_FAILED)
      throw WireError("memory can't be mapped");
    const size_t slot = window.is_writable ? kSlots : note_read_only(window.number, begin, bytes);
    mapped_.emplace(window.number, Mapped{begin, bytes, slot, {}, room});
    ++room->windows;
  }
}

/// The slot in which the signal handler finds the window; kSlots where none is free.
size_t Windows::note_read_only(uint64_t number, std::byte* memory, size_t bytes) {
  for (size_t i = 0; i < kSlots; ++i) {
    if (read_only_[i].memory != nullptr) continue;
    read_only_[i].number = number;
    read_only_[i].bytes = bytes;
    read_only_[i].memory = memory;
    return i;
  }
  return kSlots;
}

void Windows::drop(const std::vector<uint64_t>& numbers) {
  const std::lock_guard lock(mutex_);
  std::vector<Mapped> gone;
  for (const uint64_t number : numbers) {
    const auto found = mapped_.find(number);
    if (found == mapped_.end()) continue;
    if (found->second.slot < kSlots) read_only_[found->second.slot].memory = nullptr;
    if (found->second.room) --found->second.room->windows;
    gone.push_back(std::move(found->second));
    mapped_.erase(found);
  }
  for (const Mapped& each : gone)  // a room without windows closes as a whole
    if (each.room && each.room->windows > 0) each.room->close(each.begin, each.bytes);
}

std::byte* Windows::at(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(number);
  if (found == mapped_.end()) throw WireError("a window that is not mapped");
  return found->second.begin;
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
