// SPDX-License-Identifier: Apache-2.0
// Verdicts: their precedence, and that the message names the element.
#include <gtest/gtest.h>

#include <cmath>

#include "support/clean_result.hpp"

namespace checkop::verdict_test {
namespace {

using Clean = CleanResult;

TEST(Verdict, CleanRunPasses) { EXPECT_EQ(Clean().judged().verdict, Verdict::pass); }

TEST(Verdict, OutOfBoundFailsAndNamesTheElement) {
  Clean r;
  r.out_of_bound();
  const Judgment j = r.judged();
  EXPECT_EQ(j.verdict, Verdict::fail);
  EXPECT_EQ(j.kind, "accuracy");
  EXPECT_EQ(
      j.reason,
      "logp[1,1] = -1.5, gold -1.25: error 2.50e-01 is 2x the bound 1.25e-01 (logprob/fp32); 2 of 6 out of bound");
}

TEST(Verdict, NonfiniteIsNamedBeforeAccuracy) {
  Clean r;
  r.not_finite(1, 1);
  EXPECT_EQ(r.judged().kind, "nonfinite");
}

TEST(Verdict, SaysHowAnElementMissesItsGate) {
  Clean exact, ulp, mixed, leak;
  for (Clean* r : {&exact, &ulp, &mixed, &leak}) r->out_of_bound();
  exact.comparisons[0].worst->gate = "bits";
  EXPECT_EQ(exact.judged().reason, "logp[1,1] = -1.5, gold -1.25: the bits must be equal; 2 of 6 out of bound");
  ulp.comparisons[0].worst->gate = "ulp";
  EXPECT_EQ(
      ulp.judged().reason,
      "logp[1,1] = -1.5, gold -1.25: further from the gold rounded once than the contract's number of ulp of fp32; "
      "2 of 6 out of bound");
  leak.comparisons[0].leaks_left_out = true;
  EXPECT_EQ(leak.judged().reason,
            "ignored rows are multiplied by 0: NaN there reaches logp; logp[1,1] = -1.5, gold -1.25; 2 of 6 out of "
            "bound; passes with finite numbers there");
}

TEST(Verdict, SaysWhatAMissedGateOfAWholeOutputMeans) {
  const auto reason = [](Metric metric, int64_t out_of_bound = 0) {
    Clean r;
    GateResult gate;
    gate.metric = metric, gate.achieved = 3.5, gate.limit = 2, gate.holds = false, gate.out_of_bound = out_of_bound;
    r.comparisons[0].gates = {gate};
    return r.judged().reason;
  };
  EXPECT_EQ(reason(Metric::bound_rms),
            "logp: bound_rms is 3.5, limit 2: each error is within its bound, but too many are near it");
  EXPECT_EQ(reason(Metric::bias_t), "logp: bias_t is 3.5, limit 2: errors are biased to one side, as with truncation");
  EXPECT_EQ(reason(Metric::block_rel_l2, 7), "logp: block_rel_l2 is 3.5, limit 2: missed by 7 blocks");
  EXPECT_EQ(reason(Metric::vs_reference),
            "logp: vs_reference is 3.5, limit 2: so many times the error of the reference");
  EXPECT_EQ(reason(Metric::vs_baseline),
            "logp: vs_baseline is 3.5, limit 2: so many times the rms error of storing the gold");
}

TEST(Verdict, NamesTheFirstElementThatDiffersFromTheModel) {
  Clean r;
  GateResult gate;
  gate.metric = Metric::bits_of_model, gate.holds = false;
  r.comparisons[0].gates = {gate};
  ModelComparison& model = r.comparisons[0].model.emplace();
  model.arch = "sm90", model.different = 2, model.compared = 6, model.expected = 6, model.first_index = 4;
  model.got = 1.5, model.model = 1.25, model.got_bits = 0x3fc00000, model.model_bits = 0x3fa00000;
  EXPECT_EQ(r.judged().reason,
            "logp: bits_of_model: 2 of 6 differ; first logp[1,1] = 1.5 (0x3fc00000), the model of sm90 has 1.25 "
            "(0x3fa00000)");
}

TEST(Verdict, EmptyOutputIsVacuous) {
  Clean r;
  r.comparisons[0].count = r.comparisons[0].expected = 0;
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
  EXPECT_EQ(r.judged().reason, "logp has no elements: nothing was compared");
}

TEST(Verdict, TrivialAnswersThatWouldPassAreVacuousAndNamed) {
  Clean r;
  r.comparisons[0].would_pass = {Trivial::constant, Trivial::next_row};
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
  EXPECT_EQ(r.judged().kind, "constant");
  EXPECT_EQ(r.judged().reason,
            "logp: one constant everywhere, or the result of the next row in every row would pass too: this contract "
            "can't tell right from wrong on this data");
}

TEST(Verdict, NothingComparedIsVacuous) {
  Clean r;
  r.accuracy = false;
  r.comparisons.clear();
  r.checks = {false, false, false};
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
}

TEST(Verdict, MissingGoldRowsAreAnError) {
  Clean r;
  r.comparisons[0].count = 5;
  EXPECT_EQ(r.judged().verdict, Verdict::error);
  EXPECT_EQ(r.judged().reason, "logp: the gold gave 5 of 6 elements");
}

TEST(Verdict, MemoryOutranksNumbers) {
  Clean r;
  r.comparisons[0].out_of_bound = 1;
  r.comparisons[0].worst = ElementReport{};
  r.run.outputs[0].unwritten = 2;
  r.run.outputs[0].first_unwritten = 5;
  EXPECT_EQ(r.judged().kind, "unwritten");
  EXPECT_NE(r.judged().reason.find("logp[1,2]"), std::string::npos);
  r.run.modified_inputs = {"logits: 1 element changed, first at index 0"};
  EXPECT_EQ(r.judged().kind, "input");
  r.run.guard_violations = {"output 'logp': 1 element changed behind its end, first at +0"};
  EXPECT_EQ(r.judged().kind, "guard");
  r.checks.memory = false;
  EXPECT_EQ(r.judged().kind, "accuracy");
}

TEST(Verdict, BitDifferencesFailOnlyWhereDemanded) {
  Clean r;
  r.run.outputs[0].repeat = {6, 1, 3, 0x3f800000, 0x3f800001};
  EXPECT_EQ(r.judged().kind, "determinism");
  r.demands[0].determinism = false;
  EXPECT_EQ(r.judged().verdict, Verdict::pass);
  r.run.contexts = {{Axis::batch, "the last row alone", true, ""}};
  r.run.outputs[0].contexts = {{{1, 1, 5, 0x3f800000, 0x3f800003}}};
  EXPECT_EQ(r.judged().kind, "invariance");
  r.checks.invariance = false;
  EXPECT_EQ(r.judged().verdict, Verdict::pass);
}

TEST(Verdict, InvarianceThatCouldNotBeSeenIsVacuous) {
  Clean r;
  r.run.contexts = {{Axis::batch, "the last row alone", true, ""}, {Axis::position, "6 rows in reverse", true, ""}};
  r.run.outputs[0].contexts.resize(2);
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
  EXPECT_EQ(r.judged().reason, "logp: the candidate supports no smaller batch, so batch invariance was not tested");
  r.run.outputs[0].contexts[1].bits.compared = 1;
  EXPECT_EQ(r.judged().verdict, Verdict::pass);
}

TEST(Verdict, BrokenAxisIsNamedWithItsPlaceAndTheSmallestNumberOfRows) {
  Clean r;
  r.run.contexts = {{Axis::padding, "1 row behind", true, ""},
                    {Axis::batch, "the last row alone", true, ""},
                    {Axis::batch, "first 2", true, ""}};
  r.run.outputs[0].contexts = {{{5, 5, 1, 7, 8}}, {{1, 1, 5, 0x3f800000, 0x3f800003}}, {{1, 1, 1, 1, 2}}};
  r.run.outputs[0].smallest_rows = 3;
  EXPECT_EQ(
      r.judged().reason,
      "a row's bits depend on the number of rows (batch: the last row alone): 1 of 1 elements differ, first "
      "logp[1,2]: bits 0x3f800000 and 0x3f800003 (3 ulp); differs from the single-row result for batches of 3 or more");
}

TEST(Verdict, SaysWhatABrokenAxisMeans) {
  const auto reason = [](Axis axis) {
    Clean r;
    r.run.contexts = {{axis, "somehow", true, ""}};
    r.run.outputs[0].contexts = {{{1, 1, 5, 0x3f800000, 0x3f800003}}};
    const std::string text = r.judged().reason;
    return text.substr(0, text.find(" ("));
  };
  EXPECT_EQ(reason(Axis::outputs), "the result depends on what lay in the outputs before");
  EXPECT_EQ(reason(Axis::alignment), "the result depends on the alignment of the tensors");
  EXPECT_EQ(reason(Axis::after_shapes), "the result depends on launches of other shapes before");
  EXPECT_EQ(reason(Axis::contention), "the result depends on other work on the device");
  EXPECT_EQ(reason(Axis::graph), "a replayed graph and a launch disagree");
  EXPECT_EQ(reason(Axis::pages), "the result depends on which pages hold the keys or on what lies in others");
  EXPECT_EQ(reason(Axis::phase), "a query's bits depend on the queries that are launched with it");
  EXPECT_EQ(reason(Axis::documents), "the bits of a sequence or group depend on the others that are packed with it");
  EXPECT_EQ(reason(Axis::micro_batch), "bits depend on what else is in the micro-batch, though denom is the same");
  EXPECT_EQ(reason(Axis::message), "an element's bits depend on the length of the message or on its place in it");
  EXPECT_EQ(reason(Axis::neighbours), "a row's bits depend on what the other rows hold");
  EXPECT_EQ(reason(Axis::position), "a row's bits depend on its place in the batch");
  EXPECT_EQ(reason(Axis::grouping), "a row's bits depend on how the batch's dimensions share the rows");
  EXPECT_EQ(reason(Axis::padding), "a row's bits depend on rows behind the last one");
}

TEST(Verdict, DifferenceThatSpoilsEveryComparisonIsNamedFirst) {
  Clean r;
  r.run.contexts = {{Axis::neighbours, "odd rows hold NaN", true, ""},
                    {Axis::first_call, "the same launch again", true, ""}};
  r.run.outputs[0].contexts = {{{3, 1, 2, 1, 2}}, {{6, 1, 0, 1, 2}}};
  r.run.outputs[0].repeat = {6, 1, 0, 1, 2};
  EXPECT_EQ(r.judged().kind, "determinism");
  EXPECT_EQ(r.judged().reason.find("the first launch and a later one disagree (first_call: "), 0u);
  r.demands[0].determinism = false;
  EXPECT_EQ(r.judged().kind, "invariance");
}

TEST(Verdict, AxisThatTheContractDoesNotNameDoesNotCount) {
  Clean r;
  r.run.contexts = {{Axis::position, "6 rows in reverse", true, ""}, {Axis::batch, "the last row alone", true, ""}};
  r.run.outputs[0].contexts = {{{5, 1, 3, 1, 2}, 0}, {{1, 0, -1, 0, 0}, 0}};
  EXPECT_EQ(r.judged().verdict, Verdict::fail);
  r.demands[0].axes = {Axis::batch};
  EXPECT_EQ(r.judged().verdict, Verdict::pass);
}

TEST(Verdict, NumbersAndBitsOfACaseWithoutRowsAreSkipped) {
  Clean r;
  r.c.dims["batch"] = 0;
  r.run.outputs[0].repeat.compared = 0;
  r.checks.memory = false;
  for (const bool accuracy : {false, true}) {
    r.accuracy = accuracy;
    EXPECT_EQ(r.judged().verdict, Verdict::skipped);
    EXPECT_EQ(r.judged().reason, "no rows: there is nothing to compare");
  }
}

TEST(Verdict, RunStatusDecidesFirst) {
  const auto verdict = [](RunStatus status, bool device_lost = false) {
    Clean r;
    r.run.status = status;
    r.run.device_lost = device_lost;
    return r.judged().verdict;
  };
  EXPECT_EQ(verdict(RunStatus::unsupported), Verdict::unsupported);
  EXPECT_EQ(verdict(RunStatus::timeout), Verdict::timeout);
  EXPECT_EQ(verdict(RunStatus::crashed), Verdict::error);
  EXPECT_EQ(verdict(RunStatus::failed), Verdict::fail);
  EXPECT_EQ(verdict(RunStatus::failed, true), Verdict::error);
}

TEST(Verdict, ExitCodesFollowTheirPriority) {
  using enum Verdict;
  EXPECT_EQ(exit_code({}), 3);
  EXPECT_EQ(exit_code({unsupported, skipped}), 3);
  EXPECT_EQ(exit_code({pass, unsupported}), 3);
  EXPECT_EQ(exit_code({pass, skipped}), 0);
  EXPECT_EQ(exit_code({fail, unsupported}), 1);
  EXPECT_EQ(exit_code({pass, xfail}), 0);
  EXPECT_EQ(exit_code({pass, fail}), 1);
  EXPECT_EQ(exit_code({pass, vacuous}), 1);
  EXPECT_EQ(exit_code({pass, xpass}), 1);
  EXPECT_EQ(exit_code({fail, error, pass}), 4);
  EXPECT_EQ(exit_code({fail, timeout}), 4);
}

TEST(Verdict, CoordinatesAreRowMajor) {
  EXPECT_EQ(coordinates({2, 3, 4}, 17), "[1,1,1]");
  EXPECT_EQ(coordinates({}, 0), "[]");
}

}  // namespace
}  // namespace checkop::verdict_test
