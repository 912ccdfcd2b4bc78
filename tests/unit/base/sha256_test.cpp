// SPDX-License-Identifier: Apache-2.0
// SHA-256 against the examples that NIST publishes with FIPS 180.
#include <gtest/gtest.h>

#include "base/sha256.hpp"

namespace checkop::sha256_test {
namespace {

constexpr const char* kOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr const char* kOf56Bytes = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
constexpr const char* kOf112Bytes = "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1";
constexpr const char* kOfAMillion = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

TEST(Sha256, AgreesWithPublishedExamples) {
  EXPECT_EQ(Sha256().hex(), kOfNothing);
  EXPECT_EQ(Sha256().update("abc").hex(), kOfAbc);
  EXPECT_EQ(Sha256().update("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq").hex(), kOf56Bytes);
  EXPECT_EQ(Sha256()
                .update("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
                        "lmnopqrsmnopqrstnopqrstu")
                .hex(),
            kOf112Bytes);
  EXPECT_EQ(Sha256().update(std::string(1'000'000, 'a')).hex(), kOfAMillion);
}

TEST(Sha256, IsTheSameInPiecesOfAnySize) {
  for (const size_t piece : {1u, 55u, 63u, 64u, 65u, 1000u}) {
    Sha256 digest;
    for (size_t done = 0; done < 1'000'000; done += piece)
      digest.update(std::string(std::min<size_t>(piece, 1'000'000 - done), 'a'));
    EXPECT_EQ(digest.hex(), kOfAMillion) << piece;
  }
}

}  // namespace
}  // namespace checkop::sha256_test
