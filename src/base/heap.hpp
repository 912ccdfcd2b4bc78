// SPDX-License-Identifier: Apache-2.0
// What malloc() does with freed memory.
#pragma once

namespace checkop {

/// From now on malloc() keeps up to 128 MiB of freed memory in place of giving them back to the system: clearing and
/// mapping their pages again takes longer than a small check. Memory that is kept counts as the process's own.
void keep_freed_memory();

}  // namespace checkop
