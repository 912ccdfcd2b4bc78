// SPDX-License-Identifier: Apache-2.0
// mallopt() of glibc.
#include "base/heap.hpp"

#include <malloc.h>

namespace checkop {

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
  mallopt(M_TOP_PAD, 1 << 20);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  constexpr int kDefault = 128 << 10;  // of each of the three
  mallopt(M_MMAP_THRESHOLD, kDefault);
  mallopt(M_TRIM_THRESHOLD, kDefault);
  mallopt(M_TOP_PAD, kDefault);
  malloc_trim(0);
#endif
}

}  // namespace checkop
