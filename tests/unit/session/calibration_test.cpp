// SPDX-License-Identifier: Apache-2.0
// Proposed limits: the policy in numbers, and the largest value of each gate.
#include <gtest/gtest.h>

#include <cmath>

#include "session/calibration.hpp"
#include "support/gold_helper.hpp"

namespace checkop::calibration_test {
namespace {

TEST(Calibration, ProposesTwiceTheLargestValueRoundedUp) {
  EXPECT_EQ(propose_limit(0.1, 1), 0.2);
  EXPECT_EQ(propose_limit(0.11, 1), 0.3);
  EXPECT_EQ(propose_limit(0.035, 1), 0.07);
  EXPECT_EQ(propose_limit(3e-6, 1e-5), 6e-6);
  EXPECT_EQ(propose_limit(0.48, 1), 1.0);
}

TEST(Calibration, NeverProposesMoreThanTheLimitThatHolds) {
  EXPECT_EQ(propose_limit(0.7, 1), 1.0);
  EXPECT_EQ(propose_limit(1, 1), 1.0);
  EXPECT_EQ(propose_limit(0.3, 0.35), 0.35);
}

TEST(Calibration, ProposesMoreOnlyWhereTheLimitIsExceeded) {
  EXPECT_EQ(propose_limit(3, 1), 6.0);
  GateResult gate;
  gate.limit = 1, gate.achieved = 3;
  EXPECT_EQ(proposal_text(gate), "6, EXCEEDED: look at the candidate first");
}

TEST(Calibration, ProposesNothingWhereNothingWasMeasured) {
  EXPECT_FALSE(propose_limit(0, 1));
  EXPECT_FALSE(propose_limit(INFINITY, 1));
  EXPECT_FALSE(propose_limit(NAN, 1));
  GateResult gate;
  gate.limit = 1;
  EXPECT_EQ(proposal_text(gate), "unchanged: nothing was off");
  gate.achieved = NAN;
  EXPECT_EQ(proposal_text(gate), "no limit passes, EXCEEDED: look at the candidate first");
}

TEST(Calibration, OfTolerancesBothShrinkTogether) {
  GateResult gate;
  gate.metric = Metric::atol_rtol;
  gate.limit = 1, gate.achieved = 0.12, gate.atol = 5e-2, gate.rtol = 0;
  EXPECT_EQ(proposal_text(gate), "atol 0.02, rtol 0");
  gate.rtol = 1e-3;
  EXPECT_EQ(proposal_text(gate), "atol 0.02, rtol 0.0003");
}

/// A record of logp forward whose only output has these gates.
CaseRecord record_with(const std::vector<GateResult>& gates, int64_t vocab = 7) {
  CaseRecord record;
  record.c = gold_case("logp", "forward", DType::f32, {{"batch", 1}, {"seq", 2}, {"vocab", vocab}});
  record.candidate = "mine";
  Comparison comparison;
  comparison.count = 2;
  comparison.gates = gates;
  record.comparisons = {comparison};
  return record;
}

GateResult result(double achieved, std::string source = "c.json: rules[9].gates[0]") {
  GateResult gate;
  gate.limit = 1, gate.achieved = achieved, gate.source = std::move(source);
  return gate;
}

TEST(Calibration, KeepsTheLargestValueOfEachGateAndItsCase) {
  Calibration calibration;
  calibration.add(record_with({result(0.1), result(0.2, "c.json: rules[10].gates[0]")}, 7));
  calibration.add(record_with({result(0.5)}, 9));
  calibration.add(record_with({result(0.3)}, 11));
  ASSERT_EQ(calibration.gates().size(), 2u);
  const auto& [source, gate] = *calibration.gates().begin();
  EXPECT_EQ(source, "c.json: rules[9].gates[0]");
  EXPECT_EQ(gate.worst.achieved, 0.5);
  EXPECT_EQ(gate.case_name, "logp-fp32-1x2x9");
  EXPECT_EQ(gate.where, "logp/forward logp of mine");
  EXPECT_EQ(gate.outputs, 3);
  EXPECT_EQ(calibration.outputs(), 3);
  EXPECT_FALSE(calibration.exceeded());
}

TEST(Calibration, ANanIsTheLargestValue) {
  Calibration calibration;
  calibration.add(record_with({result(NAN)}));
  calibration.add(record_with({result(0.5)}));
  EXPECT_TRUE(std::isnan(calibration.gates().begin()->second.worst.achieved));
  EXPECT_TRUE(calibration.exceeded());
}

TEST(Calibration, EmptyOutputsSayNothing) {
  Calibration calibration;
  CaseRecord record = record_with({result(0)});
  record.comparisons[0].count = 0;
  calibration.add(record);
  EXPECT_EQ(calibration.outputs(), 0);
  EXPECT_TRUE(calibration.gates().empty());
}

}  // namespace
}  // namespace checkop::calibration_test
