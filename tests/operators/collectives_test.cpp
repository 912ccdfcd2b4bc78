// SPDX-License-Identifier: Apache-2.0
// Orders of addition of all_reduce, in which the gold gives every bit, and cases in which a sum is no number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "judge/compare.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::collectives_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

/// One element, of which each leaf is given.
Case case_of(const std::vector<double>& leaves, double order, DType dtype = DType::f32, int64_t ranks = 1) {
  Case c =
      gold_case("all_reduce", "forward", dtype, {{"leaves", std::ssize(leaves)}, {"numel", 1}, {"world_size", ranks}});
  c.attrs.front() = order;
  return c;
}

std::vector<Tensor> inputs_of(const Case& c, const std::vector<double>& leaves) {
  std::vector<Tensor> inputs;
  inputs.push_back(gold_input(c, c.pass->inputs[0], [&](int64_t leaf) { return leaves[static_cast<size_t>(leaf)]; }));
  return inputs;
}

GoldOutput gold_of(const std::vector<double>& leaves, double order, DType dtype = DType::f32) {
  const Case c = case_of(leaves, order, dtype);
  return collect_gold(c, inputs_of(c, leaves), 1).front();
}
double sum_of(const std::vector<double>& leaves, double order, DType dtype = DType::f32) {
  return gold_of(leaves, order, dtype).value.front();
}

constexpr double kLarge = 0x1p24;  // fp32 holds no odd number above it

TEST(Collectives, ChainAddsFromTheFirstLeafToTheLast) {
  EXPECT_EQ(sum_of({kLarge, 1, 1, -kLarge}, 0), 0);
  EXPECT_EQ(sum_of({1, 1, kLarge, -kLarge}, 0), 2);
  EXPECT_EQ(sum_of({kLarge, 1, 1, -kLarge}, -1), 2);
}

TEST(Collectives, TreeAddsNeighboursAndCarriesAnOddOneOn) {
  EXPECT_EQ(sum_of({kLarge, 1, 1, -kLarge}, 1), 1);  // (2^24 + 1) + (1 - 2^24): fp32 holds the second
  EXPECT_EQ(sum_of({kLarge, -kLarge, 1, 1}, 1), 2);
  EXPECT_EQ(sum_of({1, 1, kLarge, -kLarge, 3}, 1), 5);
  EXPECT_EQ(sum_of({kLarge, 1, 1, 1, -kLarge}, 1), 2);     // ((2^24 + 1) + (1 + 1)) - 2^24
  EXPECT_EQ(sum_of({0, 0, kLarge, 1, 1, -kLarge}, 1), 1);  // ((0 + 0) + (2^24 + 1)) + (1 - 2^24)
}

TEST(Collectives, SumOf16BitIsRoundedOnce) {
  // 256 + 1 + 1 is 258 in fp32, which bf16 holds; rounded after each addition it would stay 256.
  EXPECT_EQ(sum_of({256, 1, 1}, 0, DType::bf16), 258);
  EXPECT_EQ(sum_of({256, 1, 0}, 0, DType::bf16), 256);  // a tie, to even
}

TEST(Collectives, OrderLeavesNoRoomAndAnyOrderHasThatOfASum) {
  const GoldOutput ordered = gold_of({3, -2, 0.5}, 0), any = gold_of({3, -2, 0.5}, -1), copied = gold_of({3}, -1);
  EXPECT_EQ(ordered.magnitude.front(), 0);
  EXPECT_EQ(any.magnitude.front(), 5.5);
  EXPECT_EQ(copied.magnitude.front(), 0);
}

TEST(Collectives, NotANumberOfOneRankComesOutOnAllOfThem) {
  const std::vector<double> leaves{1, kNan, 2, -3};
  for (const double order : {-1, 0, 1}) {
    EXPECT_TRUE(std::isnan(sum_of(leaves, order)));
    EXPECT_EQ(sum_of({1, kInfinity, 2, -3}, order), kInfinity);
    EXPECT_TRUE(std::isnan(sum_of({1, kInfinity, 2, -kInfinity}, order)));
    const Case c = case_of(leaves, order, DType::bf16, 4);
    std::vector<Tensor> outputs = make_outputs(c);
    Worker worker({{native_plugin("all_reduce")}, "cpu"});
    const RunResult result =
        worker.run("native", c, inputs_of(c, leaves), outputs, RunChecks{}, std::chrono::seconds(60));
    EXPECT_EQ(result.status, RunStatus::ok) << result.message;
    EXPECT_TRUE(result.rank_differences.empty());
    EXPECT_TRUE(std::isnan(outputs.front().at(0)));
  }
}

TEST(Collectives, NegativeZerosStayNegative) {
  for (const double order : {0, 1}) {
    const Case c = case_of({-0.0, -0.0, -0.0}, order, DType::f32, 3);
    std::vector<Tensor> outputs = make_outputs(c);
    Worker worker({{native_plugin("all_reduce")}, "cpu"});
    worker.run("native", c, inputs_of(c, {-0.0, -0.0, -0.0}), outputs, RunChecks{}, std::chrono::seconds(60));
    EXPECT_TRUE(std::signbit(outputs.front().at(0)));
    EXPECT_TRUE(std::signbit(sum_of({-0.0, -0.0, -0.0}, order)));
  }
}

TEST(Collectives, EmptyMessagesTestTheLaunchAndTheMemory) {
  for (const char* op : {"all_reduce", "reduce_scatter", "all_gather"}) {
    const std::string empty =
        fmt::format("--op {} --leaves 4 --numel 0 --world-size 4 --candidate native --device cpu", op);
    expect_exit(run_program(empty), 0, "an empty message: launch and memory only");
    expect_exit(run_program(empty + " --check invariance"), 3, "an empty message: there is nothing to compare");
  }
}

}  // namespace
}  // namespace checkop::collectives_test
