// SPDX-License-Identifier: Apache-2.0
// Functions that are compiled for several instruction sets.
#pragma once

#include <cstddef>  // defines __GLIBC__, whose loader chooses among the versions

/// Before a function whose loops are vectorised: g++ compiles it a second time, for processors with AVX2, and the
/// program chooses when it starts. The bits of all results are the same, since the build contracts no multiplication
/// and addition.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define CHECKOP_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CHECKOP_VECTOR_CLONES
#endif
