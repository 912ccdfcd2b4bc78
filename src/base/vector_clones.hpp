// SPDX-License-Identifier: Apache-2.0
// Functions that are compiled for several instruction sets.
#pragma once

/// Before a function whose loops are vectorised: compiles it a second time, for processors with AVX2, and lets the
/// program choose when it starts, if g++ compiles it. AVX2 has no fused multiply-add, so the bits of all results are the same.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CHECKOP_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CHECKOP_VECTOR_CLONES
#endif
