// SPDX-License-Identifier: Apache-2.0
// Bit mixing for random streams, samples and fingerprints.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CHECKOP_HOST_DEVICE __host__ __device__
#else
#define CHECKOP_HOST_DEVICE
#endif

namespace checkop {

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants are Stafford's "Mix13"): a bijection.
CHECKOP_HOST_DEVICE inline uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Random per process, constant within it.
uint64_t fingerprint_salt();

/// Term of the word at `index`; Device::fingerprint() is the sum of these terms.
CHECKOP_HOST_DEVICE inline uint64_t fingerprint_of(uint64_t word, uint64_t index, uint64_t salt) {
  return mix_bits(word ^ mix_bits(index + salt));
}

}  // namespace checkop
