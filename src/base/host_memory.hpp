// SPDX-License-Identifier: Apache-2.0
// Isolated host memory, and how much memory the machine has left.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace checkop {

/// Addresses within this distance of a block of map_apart() can't be read or written.
inline constexpr size_t kApartBytes = size_t{64} << 20;

/// Maps `bytes` of zeros, page-aligned, with kApartBytes of inaccessible addresses on both sides: an access beyond a
/// guard band faults. Freed blocks stay inaccessible until 256 more blocks were freed. Returns nullptr when there is
/// not enough memory.
std::byte* map_apart(size_t bytes);
/// Frees a block; `bytes` as passed to map_apart().
void unmap_apart(std::byte* memory, size_t bytes) noexcept;

/// Bytes that can be allocated without making the system kill processes: the kernel's MemAvailable, or the rest of the
/// memory limits of this process's cgroups, whichever is less. nullopt when the system does not tell. `proc` and
/// `groups` are the mount points of the two file systems.
std::optional<uint64_t> available_memory(const std::string& proc = "/proc",
                                         const std::string& groups = "/sys/fs/cgroup");

/// As available_memory(), but may return a value up to 0.1 s old if it is at least eight times `need`: reading the
/// files takes longer than a small check.
std::optional<uint64_t> available_memory_for(uint64_t need);
inline constexpr uint64_t kUnknownNeed = ~uint64_t{0};

/// Bytes that candidates may use when they need `need` bytes; a reserve is left to the system. 0 when the system does
/// not tell.
uint64_t room_for_candidates(uint64_t need);

/// Bytes of this process's private memory. Memory shared with other processes, such as a case's tensors, does not
/// count.
uint64_t own_memory();
/// Limits own_memory() to `has` + `bytes`. A further call replaces the limit.
void limit_own_memory(uint64_t has, uint64_t bytes);

/// The same of another process, a child.
uint64_t process_memory(pid_t process);
void limit_process_memory(pid_t process, uint64_t has, uint64_t bytes);

}  // namespace checkop
