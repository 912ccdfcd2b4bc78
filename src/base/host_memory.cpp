// SPDX-License-Identifier: Apache-2.0
// Isolated mappings; reads /proc/meminfo and the memory files of cgroups, versions 1 and 2.
#include "base/host_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <utility>

#include "base/clock.hpp"

namespace checkop {
namespace {

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (std::max<size_t>(bytes, 1) + page - 1) / page * page;
}

/// Freed blocks. Their addresses stay inaccessible for a while, so that a stale pointer does not hit a later block.
/// After that, small blocks are reused: mapping fresh pages takes longer than a small check.
class FreedBlocks {
 public:
  struct Block {
    std::byte* memory = nullptr;
    size_t bytes = 0;  ///< a multiple of the page size
  };

  static FreedBlocks& instance() {
    static FreedBlocks blocks;
    return blocks;
  }

  /// A zero-filled block of `bytes` that has left quarantine; nullptr when there is none.
  std::byte* take(size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    const auto end = rested_.begin() + static_cast<std::ptrdiff_t>(n_rested_);
    const auto found = std::find_if(rested_.begin(), end, [bytes](const Block& block) { return block.bytes == bytes; });
    if (found == end) return nullptr;
    const Block block = std::exchange(*found, rested_[--n_rested_]);
    if (mprotect(block.memory, bytes, PROT_READ | PROT_WRITE) != 0) {
      unmap(block);
      return nullptr;
    }
    std::memset(block.memory, 0, bytes);
    return block.memory;
  }

  void put(Block block) noexcept {
    const std::lock_guard lock(mutex_);
    if (!close(block)) return unmap(block);
    std::swap(block, resting_[next_++ % kKept]);
    if (block.memory == nullptr) return;
    if (block.bytes > kSmallBytes) return unmap(block);
    if (n_rested_ < kKept) {
      rested_[n_rested_++] = block;
    } else {
      unmap(std::exchange(rested_[next_ % kKept], block));
    }
  }

 private:
  // At most 64 MiB in all (256 blocks of 128 KiB in each array), which no limit of a process's own memory counts.
  static constexpr size_t kKept = 256, kSmallBytes = size_t{128} << 10;

  /// Makes the block inaccessible. A large block also gives its pages back.
  static bool close(const Block& block) {
    if (block.bytes <= kSmallBytes) return mprotect(block.memory, block.bytes, PROT_NONE) == 0;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(block.memory, block.bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
  }
  static void unmap(const Block& block) { munmap(block.memory - kApartBytes, block.bytes + 2 * kApartBytes); }

  std::mutex mutex_;
  std::array<Block, kKept> resting_{}, rested_{};
  size_t next_ = 0, n_rested_ = 0;
};

/// The number after `key` in the first line that begins with it ("MemAvailable:"). For a file that holds just one
/// number, key is "".
std::optional<uint64_t> number_in(const std::string& path, const std::string& key) {
  // Not a stream: it takes as long as the rest of a small check.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text = "\n";
  std::array<char, 4096> part;
  for (ssize_t n = 0; (n = read(file, part.data(), part.size())) > 0;) text.append(part.data(), static_cast<size_t>(n));
  close(file);
  const size_t line = text.find("\n" + key);
  if (line == std::string::npos) return {};
  const size_t begin = text.find_first_not_of(" \t", line + 1 + key.size());
  if (begin == std::string::npos) return {};
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  return std::from_chars(text.data() + begin, end, value).ec == std::errc() ? std::optional(value)
                                                                            : std::nullopt;  // "max"
}

/// Bytes left under one cgroup's memory limit; nullopt without a limit.
std::optional<uint64_t> left_in_group(const std::string& folder, bool version2) {
  const auto limit = number_in(folder + (version2 ? "/memory.max" : "/memory.limit_in_bytes"), "");
  constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // version 1 writes a number near 2^63 for "no limit"
  if (!limit || *limit >= kNoLimit) return {};
  const auto used = number_in(folder + (version2 ? "/memory.current" : "/memory.usage_in_bytes"), "");
  if (!used) return {};
  // Cached file pages are reclaimed under memory pressure, so they do not count as used.
  const uint64_t cached =
      number_in(folder + "/memory.stat", version2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  const uint64_t needed = *used - std::min(*used, cached);
  return *limit - std::min(*limit, needed);
}

}  // namespace

std::byte* map_apart(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2 - 2 * kApartBytes) return nullptr;
  const size_t inner = whole_pages(bytes), whole = inner + 2 * kApartBytes;
  if (std::byte* const freed = FreedBlocks::instance().take(inner)) return freed;
  void* around = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (around == MAP_FAILED) return nullptr;
  std::byte* memory = static_cast<std::byte*>(around) + kApartBytes;
  if (mprotect(memory, inner, PROT_READ | PROT_WRITE) == 0) return memory;
  munmap(around, whole);
  return nullptr;
}

void unmap_apart(std::byte* memory, size_t bytes) noexcept {
  FreedBlocks::instance().put({memory, whole_pages(bytes)});
}

std::optional<uint64_t> available_memory(const std::string& proc, const std::string& groups) {
  std::optional<uint64_t> least = number_in(proc + "/meminfo", "MemAvailable:");
  if (least) *least *= 1024;
  const auto take = [&](const std::optional<uint64_t>& left) {
    if (left) least = std::min(least.value_or(*left), *left);
  };
  std::ifstream list(proc + "/self/cgroup");
  for (std::string line; std::getline(list, line);) {  // "0::/user.slice/a.scope", "4:memory:/docker/1f"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && controllers != "memory") continue;
    const std::string root = groups + (version2 ? "" : "/memory");
    // In a container the path may be the host's, and only the root is visible. A limit applies to all groups below it,
    // so every ancestor counts.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      take(left_in_group(root + path, version2));
      if (path.empty()) break;
    }
  }
  return least;
}

std::optional<uint64_t> available_memory_for(uint64_t need) {
  constexpr auto kLongest = std::chrono::milliseconds{100};
  static std::mutex mutex;
  static std::optional<uint64_t> last;
  static Clock::time_point read_at;
  const std::lock_guard lock(mutex);
  const auto now = Clock::now();
  if (!last || *last / 8 < need || now - read_at > kLongest) {
    last = available_memory();
    read_at = now;
  }
  return last;
}

uint64_t room_for_candidates(uint64_t need) {
  constexpr uint64_t kLeastReserve = uint64_t{256} << 20;  // or a sixteenth of the free memory, if that is more
  const std::optional<uint64_t> free = available_memory_for(need);
  return free ? *free - std::min(*free, std::max(*free / 16, kLeastReserve)) : 0;
}

uint64_t own_memory() { return process_memory(getpid()); }
void limit_own_memory(uint64_t has, uint64_t bytes) { limit_process_memory(0, has, bytes); }

uint64_t process_memory(pid_t process) {
  return number_in(fmt::format("/proc/{}/status", process), "VmData:").value_or(0) * 1024;
}

void limit_process_memory(pid_t process, uint64_t has, uint64_t bytes) {
  rlimit limit{};
  if (prlimit(process, RLIMIT_DATA, nullptr, &limit) != 0) return;
  // A sum beyond the hard limit means no additional limit.
  const uint64_t most = limit.rlim_max == RLIM_INFINITY ? std::numeric_limits<uint64_t>::max() : limit.rlim_max;
  limit.rlim_cur = bytes > most - std::min(most, has) ? limit.rlim_max : has + bytes;
  prlimit(process, RLIMIT_DATA, &limit, nullptr);
}

}  // namespace checkop
