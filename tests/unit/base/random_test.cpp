// SPDX-License-Identifier: Apache-2.0
// Philox against its published vectors; the normal quantile and the logarithm against 60 digits; streams.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace checkop::random_test {
namespace {

TEST(Philox, GivesThePublishedKnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Point {
  double x, y;
};

// Expected values: mpmath at 60 digits, the erfc equation solved for the given double.
TEST(NormalQuantile, AgreesWithSixtyDigits) {
  constexpr Point kPoints[] = {
      {0.25, -0.6744897501960817432},
      {0.75, 0.6744897501960817432},
      {0.500001, 2.5066282747057051991e-6},
      {0.6180339887498949, 0.3003213853899986574},
      {0.075, -1.4395314709384559349},
      {0.0749999, -1.4395321773759005864},
      {0.925, 1.4395314709384562291},
      {0.9250001, 1.4395321773759004884},
      {0.01, -2.3263478740408410931},
      {0.99, 2.3263478740408407676},
      {1e-8, -5.6120012441747887279},
      {1.3887943864964e-11, -6.6579046435011038061},
      {1.3887943864965e-11, -6.6579046435010932197},
      {1e-12, -7.0344838253011319326},
      {0x1p-53, -8.2095361516013868556},
      {1.0 - 0x1p-53, 8.2095361516013868556},
      {1e-17, -8.4937932241095980661},
      {1e-100, -21.273453560965324294},
      {1e-300, -37.047096299361199237},
      {0x1p-1022, -37.519379347144499821},
  };
  for (const auto& [p, z] : kPoints) EXPECT_LE(std::abs(normal_quantile(p) - z), 1e-15 * std::abs(z)) << p;
}

TEST(NormalQuantile, MiddleAndEndsAreExact) {
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_EQ(normal_quantile(0.0), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(normal_quantile(1.0), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(normal_quantile(-0.1)));
  EXPECT_TRUE(std::isnan(normal_quantile(std::nan(""))));
}

// Expected values: mpmath at 60 digits.
TEST(NaturalLog, AgreesWithSixtyDigits) {
  constexpr Point kPoints[] = {
      {5e-324, -744.44007192138126231},
      {0x1p-1022, -708.39641853226410622},
      {1e-300, -690.77552789821370518},
      {0.01, -4.6051701859880913472},
      {0.5, -0.69314718055994530942},
      {0.7071067811865475, -0.34657359027997274336},
      {0.7071067811865476, -0.34657359027997258635},
      {0.9, -0.10536051565782627656},
      {1.0 - 0x1p-53, -1.1102230246251566021e-16},
      {1.0 + 0x1p-52, 2.2204460492503128343e-16},
      {1.1, 0.095310179804324940787},
      {1.4142135623730951, 0.34657359027997272307},
      {1.5, 0.40546510810816438198},
      {10.0, 2.302585092994045684},
      {1367415.0, 14.128432654125226615},
      {1e300, 690.77552789821370526},
      {1.7976931348623157e308, 709.78271289338399673},
  };
  for (const auto& [x, y] : kPoints) EXPECT_LE(std::abs(natural_log(x) - y), 4.4e-16 * std::abs(y)) << x;
  EXPECT_EQ(natural_log(1.0), 0.0);
}

TEST(Stream, UniformsLieInTheOpenIntervalAndAreOddMultiplesOfTwoToTheMinus53) {
  const Stream stream = Stream::derive(1, "op", "x");
  for (uint64_t i = 0; i < 10000; ++i) {
    const double scaled = stream.uniform(i) * 0x1p53;
    ASSERT_EQ(scaled, std::floor(scaled));
    ASSERT_EQ(std::fmod(scaled, 2.0), 1.0);
    ASSERT_GT(scaled, 0.0);
    ASSERT_LT(scaled, 0x1p53);
  }
}

TEST(Stream, BelowReachesEveryValueAndNeverTheBound) {
  const Stream stream = Stream::derive(1, "op", "x");
  std::array<int, 7> counts{};
  for (uint64_t i = 0; i < 70000; ++i) ++counts.at(stream.below(i, 7));
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard deviations
  EXPECT_EQ(stream.below(0, 1), 0u);
}

TEST(Stream, EveryPartOfTheNameAndSeedCounts) {
  std::set<std::array<uint32_t, 4>> seen;
  size_t n = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    for (const auto& [op, tensor] : {std::pair{"ab", "c"}, {"a", "bc"}, {"ab", "d"}, {"abc", ""}, {"", "abc"}}) {
      const Stream stream = Stream::derive(seed, op, tensor);
      seen.insert({stream.key[0], stream.key[1], stream.counter_high[0], stream.counter_high[1]});
      ++n;
    }
  }
  EXPECT_EQ(seen.size(), n);
}

TEST(Stream, BulkDrawsAreTheSingleOnes) {
  const Stream stream = Stream::derive(7, "op", "tensor");
  double values[9];
  stream.normals(4, values, 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], stream.normal(static_cast<uint64_t>(4 + i)));
  stream.integers(2, values, 7, 4);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(values[i], static_cast<double>(stream.below(static_cast<uint64_t>(2 + i), 9)) - 4);
  }
}

// Draws are kept: of more streams than there is room for, in changing sizes, each twice.
TEST(Stream, BulkDrawsFromABeginAreTheSingleOnesWhateverWasDrawnBefore) {
  std::vector<double> values(kDrawBuffer + 1);
  for (const int64_t n : {3, 1024, 5, 100}) {
    for (uint64_t seed = 0; seed < 3000; ++seed) {
      const Stream stream = Stream::derive(seed / 2, "op", "tensor");
      const int64_t first = seed % 4 < 2 ? 0 : kDrawBuffer;
      stream.normals(first, values.data(), n);
      for (int64_t i = 0; i < n; i += 1 + n / 4)
        ASSERT_EQ(values[static_cast<size_t>(i)], stream.normal(static_cast<uint64_t>(first + i))) << seed;
    }
  }
}

TEST(Stream, BulkDrawsOfSeveralThreadsAreTheSingleOnes) {
  const auto draw = [] {
    std::vector<double> values(kDrawBuffer + 1);
    for (uint64_t seed = 0; seed < 2000; ++seed) {
      const Stream stream = Stream::derive(seed % 7, "op", "tensor");
      stream.normals(0, values.data(), 10 + static_cast<int64_t>(seed % 5));
      EXPECT_EQ(values[9], stream.normal(9));
    }
  };
  std::thread other(draw);
  draw();
  other.join();
}

}  // namespace
}  // namespace checkop::random_test
