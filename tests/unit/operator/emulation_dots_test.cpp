// SPDX-License-Identifier: Apache-2.0
// Dot products computed side by side have the same bits as single ones.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "base/random.hpp"
#include "operator/emulation.hpp"

namespace checkop::emulation_dots_test {
namespace {

std::vector<float> numbers(std::string_view name, size_t n) {
  const Stream stream = Stream::derive(7, "dots", name);
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(stream.normal(i));
  return values;
}

/// Number of elements of dots() over `count` columns whose bits differ from dot(); columns lie side by side in b, or
/// one after the other.
int64_t different(const Arithmetic& arithmetic, int64_t n, int64_t count, bool beside) {
  const std::vector<float> a = numbers("a", static_cast<size_t>(2 * n)),
                           b = numbers("b", static_cast<size_t>(n * count));
  const int64_t step = beside ? count : 1, next = beside ? 1 : n;
  std::vector<float> found(static_cast<size_t>(count));
  arithmetic.dots(count, found.data(), n, a.data(), 2, b.data(), step, next);
  int64_t bad = 0;
  for (int64_t c = 0; c < count; ++c) {
    const float single = arithmetic.dot(n, a.data(), 2, b.data() + c * next, step);
    bad += std::bit_cast<uint32_t>(single) != std::bit_cast<uint32_t>(found[static_cast<size_t>(c)]);
  }
  return bad;
}

TEST(EmulationDots, HaveTheBitsOfSingleOnes) {
  std::vector<Plan> plans(all_plans().begin(), all_plans().end());
  for (const std::string_view fault :
       {std::string_view(), faults::kLastKDropped.name, faults::kLastKTileDropped.name, faults::kBf16Accumulator.name,
        faults::kBf16Partials.name, faults::kPartialLost.name}) {
    for (const Plan& plan : plans) {
      const Arithmetic arithmetic(plan, fault);
      for (const int64_t n : {0, 1, 3, 100, 1030}) {
        for (const int64_t count : {1, 15, 16, 17, 50}) {
          for (const bool beside : {false, true})
            EXPECT_EQ(different(arithmetic, n, count, beside), 0) << to_string(plan) << " " << fault << " " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace checkop::emulation_dots_test
