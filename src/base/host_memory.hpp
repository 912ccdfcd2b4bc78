// SPDX-License-Identifier: Apache-2.0
// Host memory that stands alone, and how much of it the machine has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace checkop {

/// No address this near to a block of map_apart() can be read or written.
inline constexpr size_t kApartBytes = size_t{64} << 20;

/// `bytes` of zeros, page-aligned, with kApartBytes on both sides that may not be touched: who runs past a guard band
/// is stopped there, and so is who touches what was freed, until 256 more blocks were. nullptr when the memory can't be
/// had.
std::byte* map_apart(size_t bytes);
/// `bytes` as for map_apart().
void unmap_apart(std::byte* memory, size_t bytes) noexcept;

/// What can be had without driving the system to end processes: the kernel's MemAvailable, or what the memory limits of
/// this process's control groups leave, whichever is less. Nothing where the system does not tell.
/// `proc` and `groups` are where those file systems are.
std::optional<uint64_t> available_memory(const std::string& proc = "/proc",
                                         const std::string& groups = "/sys/fs/cgroup");

/// As available_memory(); as it was a tenth of a second ago at most where that is eight times `need`: a small check
/// takes no longer than asking.
std::optional<uint64_t> available_memory_for(uint64_t need);
inline constexpr uint64_t kUnknownNeed = ~uint64_t{0};

/// What of it candidates may have that need so much: the system needs room to go on. 0 where the system does not tell.
uint64_t room_for_candidates(uint64_t need);

/// Bytes of this process's private memory. What it shares with another does not count, as the tensors of a case.
uint64_t own_memory();
/// From here on own_memory() may come to `has` + `bytes`; a further call replaces the limit.
void limit_own_memory(uint64_t has, uint64_t bytes);

}  // namespace checkop
