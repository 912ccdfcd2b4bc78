// SPDX-License-Identifier: Apache-2.0
// Nearest names and digests.
#include <gtest/gtest.h>

#include "base/text.hpp"

namespace checkop::text_test {
namespace {

const std::vector<std::string> kOps{"logp", "linear_logp", "matmul"};

TEST(Text, SuggestsTheNameOneSlipAway) {
  EXPECT_EQ(did_you_mean("lgop", kOps), "did you mean 'logp'?");      // two adjacent letters swapped
  EXPECT_EQ(did_you_mean("matmu", kOps), "did you mean 'matmul'?");   // a letter missing
  EXPECT_EQ(did_you_mean("llogp", kOps), "did you mean 'logp'?");     // a letter too many
  EXPECT_EQ(did_you_mean("matnul", kOps), "did you mean 'matmul'?");  // a wrong letter
}

TEST(Text, SuggestsTheNearestOfSeveral) {
  EXPECT_EQ(did_you_mean("sm91", {"sm70", "sm80", "sm90", "sm100"}), "did you mean 'sm90'?");
  EXPECT_EQ(did_you_mean("backwards", {"backward", "backwork"}), "did you mean 'backward'?");
}

TEST(Text, IgnoresCase) { EXPECT_EQ(did_you_mean("MatMul", kOps), "did you mean 'matmul'?"); }

TEST(Text, SuggestsNothingForANameThatIsFarFromAll) {
  EXPECT_EQ(did_you_mean("softmax", kOps), "");
  EXPECT_EQ(did_you_mean("x", kOps), "");
  EXPECT_EQ(did_you_mean("", kOps), "");
  EXPECT_EQ(did_you_mean("logp", {}), "");
}

TEST(Text, DoesNotSuggestAnUnrelatedShortName) { EXPECT_EQ(did_you_mean("a", {"b", "c"}), ""); }

TEST(Text, DoesNotLookForWhatIsNearALongText) {
  EXPECT_EQ(did_you_mean(std::string(300, 'a'), {std::string(301, 'a')}), "");
}

// Test vectors published with the algorithm (Noll).
TEST(Text, Fnv1aGivesThePublishedDigests) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ull);
}

TEST(Text, Fnv1aGoesOnFromAState) { EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar")); }

TEST(Text, Fnv1aReadsBytesBeyond127AsUnsigned) {
  EXPECT_EQ(fnv1a("\xff"), (0xcbf29ce484222325ull ^ 0xffull) * 1099511628211ull);
}

TEST(Text, Fnv1aHexHasSixteenDigits) {
  EXPECT_EQ(fnv1a_hex("foobar"), "85944171f73967e8");
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(fnv1a_hex(std::string(1, static_cast<char>(byte))).size(), 16u);
}

TEST(Text, GlobsMatchWholeNames) {
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{{"cuda", "cuda"},
                                                                                      {"cuda*", "cuda"},
                                                                                      {"cuda*", "cuda-sm90"},
                                                                                      {"*", ""},
                                                                                      {"*sm*", "cuda-sm90"},
                                                                                      {"c?da", "cuda"},
                                                                                      {"a*b*c", "aXbYbZc"},
                                                                                      {"[x]", "[x]"},
                                                                                      {"**", "x"}})
    EXPECT_TRUE(glob_matches(pattern, name)) << pattern << " " << name;
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{
           {"cuda", "cuda-sm90"}, {"uda", "cuda"}, {"?", ""}, {"?", "ab"}, {"[x]", "x"}, {"a*b", "abc"}, {"", "x"}})
    EXPECT_FALSE(glob_matches(pattern, name)) << pattern << " " << name;
  EXPECT_TRUE(is_glob("a?") && is_glob("*"));
  EXPECT_FALSE(is_glob("cuda-sm90[1]"));
}

TEST(Text, GlobsOverlapWhenANameMatchesBoth) {
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"cuda*", "*sm90"}, {"a*", "*a"}, {"a?", "?b"}, {"*", "x"}, {"a*b*c", "*bc"}, {"", "*"}, {"a*a", "a?a"}}) {
    EXPECT_TRUE(globs_overlap(a, b)) << a << " " << b;
    EXPECT_TRUE(globs_overlap(b, a)) << a << " " << b;
  }
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"cuda*", "cublas"}, {"a*", "b*"}, {"??", "a"}, {"*a", "*b"}, {"a", ""}, {"a?c*", "b*abc"}}) {
    EXPECT_FALSE(globs_overlap(a, b)) << a << " " << b;
    EXPECT_FALSE(globs_overlap(b, a)) << a << " " << b;
  }
}

TEST(Text, AGlobCoversWhatMatchesLess) {
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"*", "cuda*"}, {"cuda*", "cuda-*"}, {"cuda*", "cuda"}, {"a?", "ab"}, {"?", "?"}, {"*b*", "ab*"}})
    EXPECT_TRUE(glob_covers(a, b)) << a << " " << b;
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"cuda*", "*"}, {"cuda", "cuda*"}, {"?", "*"}, {"ab", "a?"}, {"*a", "*"}})
    EXPECT_FALSE(glob_covers(a, b)) << a << " " << b;
}

TEST(Text, BytesAreGivenInTheUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(uint64_t{16} << 20), "16.0 MiB");
  EXPECT_EQ(format_bytes(uint64_t{5000} << 40), "5000.0 TiB");
}

TEST(Text, VersionIsAWordOfNumbers) {
  EXPECT_EQ(version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23"), "580.95.05");
  EXPECT_EQ(version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"),
            "580.159.04");
  EXPECT_EQ(version_in("580.95.05"), "580.95.05");
  EXPECT_EQ(version_in("Module for x86_64 v1.2 580"), "");
}

TEST(Text, InOneLineHasNoControlCharacters) {
  EXPECT_EQ(in_one_line("a\nb\x1b[2J\x7f"), "a b [2J ");
  EXPECT_EQ(in_one_line("\xc3\xa9"), "\xc3\xa9");
}

}  // namespace
}  // namespace checkop::text_test
