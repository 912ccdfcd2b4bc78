// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): a collision-resistant digest, for files that a run vouches for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace checkop {

class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  /// The digest of all bytes so far, as 64 hex digits.
  std::string hex() const;

 private:
  static constexpr size_t kBlockBytes = 64;

  void take_block(const char* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string rest_;  ///< less than a block
  uint64_t bytes_ = 0;
};

}  // namespace checkop
