// SPDX-License-Identifier: Apache-2.0
// What malloc() does with freed memory.
#pragma once

namespace checkop {

/// From now on malloc() takes blocks below 32 MiB from its arenas, and an arena gives memory back only when more than
/// 128 MiB at its top are free: clearing and mapping pages again takes longer than a small check. Memory that is kept
/// counts as the process's own. Not for a process that runs candidates: a use of freed memory would stay unseen there.
void keep_freed_memory();

/// Gives back what keep_freed_memory() kept. From now on malloc() maps every block of 128 KiB or more by itself and
/// unmaps it when it is freed; glibc's own limit grows with the blocks that are freed. For a forked child that runs
/// candidates.
void return_freed_memory();

}  // namespace checkop
