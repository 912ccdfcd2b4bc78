// SPDX-License-Identifier: Apache-2.0
// Memory of this process that a candidate in another process maps: arenas behind descriptors, and blocks in them. This
// process allocates, fills and reads it; the other process can end at any time without harm to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/frame.hpp"

namespace checkop {

/// What another process may do with memory.
enum class Access : uint8_t {
  none,   ///< it is not shared
  read,   ///< inputs
  write,  ///< outputs
};

/// One stretch of memory behind a descriptor.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  /// A new descriptor of the memory, for the other process. Throws DeviceError.
  virtual Descriptor open() const = 0;
  /// Whether the system keeps other processes from writing.
  virtual bool is_read_only() const { return false; }
};

/// How blocks lie in arenas.
enum class Blocks : uint8_t {
  packed,      ///< the other process maps whole arenas
  own_pages,   ///< it maps single blocks: each begins at a page, and has pages of its own
  own_arenas,  ///< the same where an arena can only be mapped as a whole: each has one of its own
};

/// Who maps blocks.
enum class Sharing : uint8_t {
  one_process,
  /// Each block is for one process or another: each has an arena of its own, which is not used again, so that a process
  /// reaches nothing that was not made for it.
  several_processes,
};

/// How arenas are made.
struct ArenaKind {
  std::string transport;     ///< its name in protocol 2: "memfd", "cuda_vmm"
  size_t granularity;        ///< sizes of arenas are multiples of it
  size_t least_bytes;        ///< of an arena: small tensors share one
  size_t most_unused_bytes;  ///< of arenas without blocks that are kept for later blocks
  /// Makes an arena of `bytes` bytes of zeros. Throws OutOfMemory or DeviceError.
  std::function<std::unique_ptr<Arena>(size_t bytes, Access access)> make;
  Blocks blocks = Blocks::packed;
};

/// Blocks in arenas. Ids of arenas are never used twice, and an arena lives as long as it has blocks, so that another
/// process maps it once for many launches.
class SharedMemory {
 public:
  struct Place {
    int64_t arena;
    size_t offset;
  };

  explicit SharedMemory(ArenaKind kind);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const std::string& transport() const { return kind_.transport; }

  /// A block as the other process maps it.
  struct Block {
    int64_t arena;
    size_t offset, bytes;  ///< whole pages
    Access access;
    uint64_t number;  ///< of the block, never used twice
    const std::byte* begin;
  };

  /// Bytes of the block that is made for `bytes`.
  size_t block_bytes(size_t bytes) const;
  /// A block of block_bytes(bytes), 256-byte aligned, in an arena of this access. `access` is not none. Throws
  /// OutOfMemory or DeviceError.
  std::byte* allocate(size_t bytes, Access access);
  /// The size of a block; nullopt if `memory` is not the begin of one.
  std::optional<size_t> size_of(const std::byte* memory) const;
  void free(std::byte* memory) noexcept;

  /// Where an address lies; nullopt if in no arena.
  std::optional<Place> find(const std::byte* memory) const;
  /// Throws std::out_of_range for an id that is not there, or no longer.
  const Arena& arena(int64_t id) const { return *arenas_.at(id).arena; }
  /// The block that holds an address. Not where blocks are packed. Throws std::out_of_range for an address in none.
  const Block& block_at(const void* memory) const;
  /// Whether the block of this number, which began there, has not been freed.
  bool has(const std::byte* begin, uint64_t number) const;
  /// How many blocks were freed so far.
  uint64_t frees() const { return frees_; }
  /// Registers `body`, which is called before a block of `kLargeBytes` or more is made and when no memory is left. It
  /// should have the process of `user` unmap freed blocks.
  void before_large_block(const void* user, std::function<void()> body) { before_large_block_[user] = std::move(body); }
  void forget_user(const void* user) { before_large_block_.erase(user); }
  static constexpr size_t kLargeBytes = size_t{16} << 20;

  /// Ids of arenas that have gone since the last call.
  std::vector<int64_t> take_gone();

 private:
  struct Entry {
    std::unique_ptr<Arena> arena;
    Access access;
    std::map<size_t, size_t> free;  ///< sizes by offset; no two are adjacent
    bool is_unused() const { return free.size() == 1 && free.begin()->second == arena->bytes(); }
  };

  /// A block in an arena that has room for it; nullptr if none has.
  std::byte* take(size_t bytes, Access access);
  void add_arena(size_t bytes, Access access);
  void tell_users() const;
  /// Lets arenas without blocks go, the oldest first, until at most `most` bytes of such arenas are left.
  void drop_unused(size_t most) noexcept;

  ArenaKind kind_;
  std::map<int64_t, Entry> arenas_;
  std::map<const std::byte*, Block> blocks_;
  std::vector<int64_t> gone_;
  int64_t next_ = 1;
  uint64_t frees_ = 0, next_number_ = 1;
  std::map<const void*, std::function<void()>> before_large_block_;  ///< by user
};

/// Arenas of host memory: memfds that can't be resized. With `read_only_inputs`, those of Access::read are sealed
/// against writing by others.
ArenaKind memfd_arenas(bool read_only_inputs, Blocks blocks = Blocks::packed);
/// Arenas of this kind for several processes.
ArenaKind for_sharing(ArenaKind kind, Sharing sharing);

/// Arenas of the memory of CUDA device `index`, which the calling process uses: the driver's virtual memory with
/// descriptors, between unmapped addresses. Throws EnvironmentError with the reason if the driver refuses.
ArenaKind cuda_arenas(int index, Blocks blocks = Blocks::packed);
/// The UUID of CUDA device `index`, 32 hex digits; "" if the driver does not tell.
std::string cuda_uuid(int index);

}  // namespace checkop
