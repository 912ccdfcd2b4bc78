// SPDX-License-Identifier: Apache-2.0
// What data can reveal: the share of elements that another order of summation changes, cases with a large enough share,
// and the result of a run without one or whose positive control was not caught.
#include <gtest/gtest.h>

#include <cmath>

#include "base/paths.hpp"
#include "case/inputs.hpp"
#include "judge/sensitivity.hpp"
#include "report/vacuity.hpp"
#include "session/control.hpp"
#include "support/built.hpp"
#include "support/gold_helper.hpp"

namespace checkop::sensitivity_test {
namespace {

Case product(int64_t rows, int64_t k, int64_t n, DType dtype = DType::f32) {
  return gold_case("matmul", "forward", dtype, {{"batch", 1}, {"seq", rows}, {"k_dim", k}, {"n_dim", n}});
}

using State = Sensitivity::State;

TEST(Sensitivity, LongSumsInFp32ChangeWithTheOrder) {
  const Sensitivity found = sensitivity_of(product(8, 256, 16), 1)[0];
  EXPECT_EQ(found.state, State::measured);
  EXPECT_GT(found.share(), 0.3);
  EXPECT_LE(found.share(), 1.0);
}

TEST(Sensitivity, NarrowOutputsChangeSeldom) {
  const auto share = [](DType dtype) { return sensitivity_of(product(8, 256, 64, dtype), 1, 1e7)[0].share(); };
  EXPECT_LT(share(DType::bf16), 1e-3);
  EXPECT_LT(share(DType::bf16), share(DType::f16));
  EXPECT_LT(share(DType::f16), share(DType::f32));
}

TEST(Sensitivity, ExactSumsNeverChange) {
  Case c = product(8, 64, 64);
  c.input_mode = InputMode::integer;
  const Sensitivity found = sensitivity_of(c, 1)[0];
  EXPECT_EQ(found.state, State::measured);
  EXPECT_GT(found.elements, 0);
  EXPECT_EQ(found.changed, 0);
}

TEST(Sensitivity, WithoutASumThereIsNothingToReorder) {
  EXPECT_EQ(sensitivity_of(product(8, 2, 16), 1)[0].state, State::not_applicable);
  const Case silu = gold_case("silu", "forward", DType::f32, {{"batch", 1}, {"seq", 4}, {"hidden", 64}});
  EXPECT_EQ(sensitivity_of(silu, 1)[0].state, State::not_applicable);
}

TEST(Sensitivity, OutputsThatSumOverRowsAreNotComparedRowByRow) {
  const Case c = gold_case("matmul", "backward", DType::f32, {{"batch", 1}, {"seq", 8}, {"k_dim", 64}, {"n_dim", 8}});
  EXPECT_EQ(sensitivity_of(c, 1)[0].state, State::measured);        // da
  EXPECT_EQ(sensitivity_of(c, 1)[1].state, State::not_applicable);  // db
}

TEST(Sensitivity, GivenDataAreMeasuredAsGeneratedOnes) {
  const Case c = product(8, 256, 16);
  constexpr double kOfEightRows = 8 * 256 * 16;
  const Sensitivity generated = sensitivity_of(c, 1, kOfEightRows)[0],
                    given = sensitivity_of(c, make_inputs(c, 1), 1, kOfEightRows)[0];
  EXPECT_EQ(given.state, State::measured);
  EXPECT_EQ(given.elements, 8 * 16);
  EXPECT_EQ(given.elements, generated.elements);
  EXPECT_EQ(given.changed, generated.changed);
}

TEST(Sensitivity, RowsOfGivenDataAreTakenFromAllOverThem) {
  const Case c = product(8, 256, 16);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t i = 0; i < 4 * 256; ++i) inputs[0].set(i, 0);
  const Sensitivity found = sensitivity_of(c, inputs, 1, 2 * 256 * 16)[0];
  EXPECT_EQ(found.elements, 2 * 16);
  EXPECT_GT(found.changed, 0);
  EXPECT_LE(found.changed, 16);  // row 0 is all zeros
}

TEST(Sensitivity, GivenFp64IsMeasuredAsTheFp32ThatItRoundsTo) {
  const Case wide = product(8, 256, 64, DType::f64), narrow = product(8, 256, 64);
  const std::vector<Tensor> inputs = make_inputs(wide, 1);
  std::vector<Tensor> rounded = make_inputs(narrow, 1);
  for (size_t t = 0; t < inputs.size(); ++t) {
    for (int64_t i = 0; i < inputs[t].count(); ++i) rounded[t].set(i, inputs[t].at(i));
  }
  const Sensitivity of_wide = sensitivity_of(wide, inputs, 1)[0], of_narrow = sensitivity_of(narrow, rounded, 1)[0];
  EXPECT_EQ(of_wide.state, State::measured);
  EXPECT_EQ(of_wide.elements, of_narrow.elements);
  EXPECT_EQ(of_wide.changed, of_narrow.changed);
}

TEST(Sensitivity, ShareStaysBelowWhatWasSeen) {
  Sensitivity found{State::measured, "", 1000, 100, 50};
  EXPECT_DOUBLE_EQ(found.share(), 0.08);
  EXPECT_DOUBLE_EQ(found.unseen(), std::pow(0.92, 50));
  found.changed = 3;
  EXPECT_EQ(found.share(), 0);
  EXPECT_EQ(found.unseen(), 1);
  EXPECT_FALSE(found.proves());
}

TEST(Sensitivity, ProofNeedsOneInABillion) {
  Sensitivity found{State::measured, "", 10000, 10000, 0};  // a share of 0.98
  found.compared = 5;
  EXPECT_FALSE(found.proves());
  found.compared = 6;
  EXPECT_TRUE(found.proves());
  found.state = State::not_measured;
  EXPECT_FALSE(found.proves());
}

TEST(Proof, RowsAreAddedUntilTheDataShowEnough) {
  const Case small = product(2, 64, 16, DType::bf16);
  const Case* const cases[] = {&small};
  Proof proof = find_proof(cases, 2);
  EXPECT_GT(row_count(proof.c), 1000);
  EXPECT_EQ(proof.c.dims.at("k_dim"), 64);
  proof.sensitivity[0].compared = elements_of_rows(proof.c, proof.c.pass->outputs[0].tensor);
  EXPECT_TRUE(proof.sensitivity[0].proves()) << proof.sensitivity[0].unseen();
}

TEST(Proof, CaseThatShowsEnoughStaysAsItIs) {
  const Case c = product(32, 256, 64);
  const Case* const cases[] = {&c};
  EXPECT_EQ(case_name(find_proof(cases, 1).c), case_name(c));
}

TEST(Proof, MostPromisingCaseIsChosen) {
  const Case none = product(0, 256, 64), thin = product(4, 3, 1), good = product(64, 256, 64);
  const Case* const cases[] = {&none, &thin, &good};
  EXPECT_EQ(find_proof(cases, 1).index, 2u);
}

// --- the result of a run

CaseRecord passing(const Case& c, int64_t changed) {
  CaseRecord record;
  record.c = c;
  record.candidate = "mine";
  record.device.kind = "cpu";
  record.judgment = {Verdict::pass, "", ""};
  record.run.status = RunStatus::ok;
  record.demands.resize(1);
  record.sensitivity = {{State::measured, "", 1000, changed, 100}};
  return record;
}

TEST(Insensitive, RunWhoseDataShowNothingIsVacuous) {
  Report report;
  report.records = {passing(product(2, 64, 16), 0)};
  mark_insensitive(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
  EXPECT_EQ(report.records[0].judgment.kind, "insensitive");
  EXPECT_EQ(report.records[0].judgment.reason,
            "c: another order of summation changes at best 0 of the elements in this run, so that all 100 compared "
            "elements stay the same with probability 1 and a changed order is missed; use more rows or longer sums");
}

TEST(Insensitive, OwnInputsCantGetMoreRows) {
  CheckFacts check;
  check.passes = check.has_own_inputs = true;
  check.outputs = {{"c", 100, 2, false, false, OutputFacts::Shown{true, false, 0.25, 0.5, 100, ""}}};
  EXPECT_EQ(find_insensitive({check})[0].value().reason,
            "c: another order of summation changes at best 0.25 of the elements in this run, so that all 100 compared "
            "elements stay the same with probability 0.5 and a changed order is missed; capture more rows, or leave "
            "--input out, so that rows can be added");
}

TEST(Insensitive, OneCaseOfTheSameKindIsEnough) {
  Report report;
  report.records = {passing(product(2, 64, 16), 0), passing(product(8, 64, 16), 900)};
  mark_insensitive(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::pass);
  report.records[1].c.dtype = DType::bf16;  // a different dtype proves nothing for this one
  mark_insensitive(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
  EXPECT_EQ(report.records[1].judgment.verdict, Verdict::pass);
}

TEST(Insensitive, WhatWasNotMeasuredIsVacuous) {
  Report report;
  report.records = {passing(product(2, 64, 16), 900)};
  report.records[0].sensitivity[0] = {State::not_measured, "too much work"};
  mark_insensitive(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::vacuous);
  EXPECT_EQ(report.records[0].judgment.reason,
            "c: whether the data would show another order of summation was not measured: too much work");
}

TEST(Insensitive, NothingIsAskedOfOutputsWithoutSumsOrDemands) {
  Report report;
  report.records = {passing(product(2, 64, 16), 0), passing(product(2, 64, 16), 0)};
  report.records[0].sensitivity[0].state = State::not_applicable;
  report.records[1].demands[0].batch_invariance = false;
  mark_insensitive(report);
  for (const CaseRecord& record : report.records) EXPECT_EQ(record.judgment.verdict, Verdict::pass);
}

TEST(PositiveControl, RunIsVoidWhereItWasNotCaught) {
  Report report;
  report.records = {passing(product(2, 64, 16), 900), passing(product(2, 64, 16), 900)};
  report.records[1].device.kind = "cuda";
  report.controls = {{"cpu", false, "its rows were the same"}, {"cuda:0", true, ""}};
  void_passes(report);
  EXPECT_EQ(report.records[0].judgment.verdict, Verdict::error);
  EXPECT_EQ(report.records[0].judgment.kind, "control");
  EXPECT_EQ(report.records[0].judgment.reason,
            "the positive control split_k_by_rows, whose bits depend on the number of rows, was not caught on cpu: its "
            "rows were the same");
  EXPECT_EQ(report.records[1].judgment.verdict, Verdict::pass);
}

// The positive control is in the program's folder, not in that of the tests.
TEST(PositiveControl, IsNotCaughtWhereItIsMissing) {
  const Control control = run_control("cpu", {});
  EXPECT_FALSE(control.caught);
  EXPECT_NE(control.reason.find("controls/cpu/split_k_by_rows.so"), std::string::npos) << control.reason;
}

TEST(PositiveControl, IsNotCaughtByAnAxisThatItKeeps) {
  set_program_folder(kBuildFolder);
  AxisPlan plan;
  plan.axes = {Axis::neighbours};
  const Control control = run_control("cpu", plan);
  set_program_folder("");
  EXPECT_FALSE(control.caught);
  EXPECT_EQ(control.reason, "the check found no batch dependence in it");
}

}  // namespace
}  // namespace checkop::sensitivity_test
