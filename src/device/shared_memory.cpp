// SPDX-License-Identifier: Apache-2.0
// Places blocks in arenas, and makes arenas of host memory.
#include "device/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "device/device.hpp"
#include "tensor/tensor.hpp"

namespace checkop {
namespace {

constexpr size_t kAlignment = 256;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class MemfdArena final : public Arena {
 public:
  MemfdArena(Bytes memory, bool read_only) : memory_(std::move(memory)), read_only_(read_only) {
    if (read_only_) {
      memory_.forbid_writes_by_others();
    } else {
      memory_.forbid_resizing();
    }
  }

  std::byte* data() const override { return const_cast<std::byte*>(memory_.data()); }
  size_t bytes() const override { return memory_.size(); }
  bool is_read_only() const override { return read_only_; }

  Descriptor open() const override {
    const int copy = fcntl(memory_.fd(), F_DUPFD_CLOEXEC, 0);
    // lint: allow message, no descriptor left
    if (copy < 0) throw DeviceError(fmt::format("pass on shared memory: {}", std::strerror(errno)), /*sticky=*/false);
    return Descriptor(copy);
  }

 private:
  Bytes memory_;
  bool read_only_;
};

}  // namespace

ArenaKind memfd_arenas(bool read_only_inputs, Blocks blocks) {
  const auto make = [=](size_t bytes, Access access) -> std::unique_ptr<Arena> {
    try {
      return std::make_unique<MemfdArena>(Bytes(bytes), read_only_inputs && access == Access::read);
    } catch (const InputError& e) {
      throw OutOfMemory(e.what());
    }
  };
  return {"memfd", size_t{1} << 16, size_t{4} << 20, size_t{64} << 20, make, blocks};
}

ArenaKind for_sharing(ArenaKind kind, Sharing sharing) {
  if (sharing == Sharing::one_process) return kind;
  kind.blocks = Blocks::own_arenas;
  kind.least_bytes = kind.granularity;
  kind.most_unused_bytes = 0;
  return kind;
}

SharedMemory::SharedMemory(ArenaKind kind) : kind_(std::move(kind)) {}

size_t SharedMemory::block_bytes(size_t bytes) const {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t unit = 0;
  switch (kind_.blocks) {
    case Blocks::packed:
      unit = kAlignment;
      break;
    case Blocks::own_pages:
      unit = page;
      break;
    case Blocks::own_arenas:
      unit = kind_.granularity;
      break;
  }
  return round_up(std::max<size_t>(bytes, 1), unit);
}

std::byte* SharedMemory::allocate(size_t bytes, Access access) {
  bytes = block_bytes(bytes);
  if (bytes >= kLargeBytes) tell_users();
  if (std::byte* memory = take(bytes, access)) return memory;
  try {
    add_arena(bytes, access);
  } catch (const OutOfMemory&) {
    drop_unused(0);
    tell_users();
    add_arena(bytes, access);
  }
  return take(bytes, access);
}

void SharedMemory::tell_users() const {
  for (const auto& [user, body] : before_large_block_) body();
}

std::byte* SharedMemory::take(size_t bytes, Access access) {
  for (auto& [id, entry] : arenas_) {
    if (entry.access != access) continue;
    const bool is_shared = kind_.blocks != Blocks::own_arenas;
    const auto fits = [&](const auto& part) { return is_shared ? part.second >= bytes : part.second == bytes; };
    const auto found = std::find_if(entry.free.begin(), entry.free.end(), fits);
    if (found == entry.free.end()) continue;
    const auto [offset, size] = *found;
    entry.free.erase(found);
    if (size > bytes) entry.free[offset + bytes] = size - bytes;
    std::byte* const memory = entry.arena->data() + offset;
    blocks_[memory] = {id, offset, bytes, access, next_number_++, memory};
    return memory;
  }
  return nullptr;
}

void SharedMemory::add_arena(size_t bytes, Access access) {
  const size_t size = round_up(std::max(bytes, kind_.least_bytes), kind_.granularity);
  Entry entry{kind_.make(size, access), access, {{0, size}}};
  arenas_.emplace(next_++, std::move(entry));
}

std::optional<size_t> SharedMemory::size_of(const std::byte* memory) const {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return {};
  return found->second.bytes;
}

void SharedMemory::free(std::byte* memory) noexcept {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return;
  auto [id, offset, bytes, access, number, begin] = found->second;
  ++frees_;
  blocks_.erase(found);
  std::map<size_t, size_t>& free = arenas_.at(id).free;
  auto next = free.lower_bound(offset);
  if (next != free.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin() && std::prev(next)->first + std::prev(next)->second == offset) {
    std::prev(next)->second += bytes;
  } else {
    free[offset] = bytes;
  }
  drop_unused(kind_.most_unused_bytes);
}

void SharedMemory::drop_unused(size_t most) noexcept {
  size_t unused = 0;
  for (const auto& [id, entry] : arenas_) unused += entry.is_unused() ? entry.arena->bytes() : 0;
  for (auto each = arenas_.begin(); each != arenas_.end() && unused > most;) {
    if (!each->second.is_unused()) {
      ++each;
      continue;
    }
    unused -= each->second.arena->bytes();
    gone_.push_back(each->first);
    each = arenas_.erase(each);
  }
}

std::optional<SharedMemory::Place> SharedMemory::find(const std::byte* memory) const {
  for (const auto& [id, entry] : arenas_) {
    const std::byte* const begin = entry.arena->data();
    if (memory >= begin && memory < begin + entry.arena->bytes()) return Place{id, static_cast<size_t>(memory - begin)};
  }
  return {};
}

const SharedMemory::Block& SharedMemory::block_at(const void* memory) const {
  const auto* const byte = static_cast<const std::byte*>(memory);
  auto found = blocks_.upper_bound(byte);
  if (found == blocks_.begin() || byte >= (--found)->first + found->second.bytes)
    throw std::out_of_range("an address in no block");
  return found->second;
}

bool SharedMemory::has(const std::byte* begin, uint64_t number) const {
  const auto found = blocks_.find(begin);
  return found != blocks_.end() && found->second.number == number;
}

std::vector<int64_t> SharedMemory::take_gone() { return std::exchange(gone_, {}); }

}  // namespace checkop
