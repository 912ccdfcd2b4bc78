// SPDX-License-Identifier: Apache-2.0
// What the cases of one output and dtype have in common.
#include <gtest/gtest.h>

#include "session/recipe_table.hpp"
#include "support/contract_helper.hpp"

namespace checkop::recipe_table_test {
namespace {

using Names = std::vector<std::string>;

/// A judged case of attention backward: dq fails unless `passes`, and then passes under each of `ways`.
CaseRecord record(bool passes, const std::vector<Names>& ways = {}, DType dtype = DType::bf16) {
  CaseRecord record;
  record.c = contract_test::judged("attention", "backward", "dq", dtype).c;
  record.c.dims = {{"batch", 1}, {"q_heads", 1}, {"kv_heads", 1}, {"q_seq", 2}, {"kv_seq", 2}, {"head_dim", 4}};
  record.c.attrs = {1, -1};  // causal, scale
  record.candidate = "mine";
  record.run.status = RunStatus::ok;
  record.judgment = {passes ? Verdict::pass : Verdict::fail, passes ? "" : "accuracy", "dq is off"};
  record.repeat = "check_operator again";
  record.comparisons.resize(record.c.pass->outputs.size());
  for (Comparison& comparison : record.comparisons) comparison.count = comparison.expected = 8;
  record.demands.resize(record.comparisons.size());
  record.comparisons[0].out_of_bound = passes ? 0 : 3;
  record.comparisons[0].worst = ElementReport{1, -1.5, -1.25, 0.25, 0.125, 2, "bound_ratio"};
  record.comparisons[0].every_set = ways;
  return record;
}

CaseRecord unjudged(RunStatus status, Verdict verdict) {
  CaseRecord record = recipe_table_test::record(true);
  record.comparisons.clear();
  record.run.status = status;
  record.judgment = {verdict, "candidate", "so it is"};
  return record;
}

/// The cell of dq in bf16.
RecipeCell cell_of(const std::vector<CaseRecord>& records) {
  RecipeTable table;
  for (const CaseRecord& each : records) table.add(each);
  return table.rows().front().cells.at(DType::bf16);
}

RecipeAnswer answer_of(const std::vector<CaseRecord>& records) { return cell_of(records).answer(); }

int exit_code_of(const std::vector<CaseRecord>& records) {
  RecipeTable table;
  for (const CaseRecord& each : records) table.add(each);
  return table.exit_code();
}

TEST(RecipeTable, ARowIsAnOutputOfAPassOfACandidateAndACellADtype) {
  RecipeTable table;
  CaseRecord other = record(true, {}, DType::f32);
  other.candidate = "other";
  for (const CaseRecord& each : {record(true), record(true, {}, DType::f32), other}) table.add(each);
  ASSERT_EQ(table.rows().size(), 6u);  // dq, dk and dv of both
  EXPECT_EQ(table.rows()[0].candidate, "mine");
  EXPECT_EQ(table.rows()[0].output, "dq");
  EXPECT_EQ(table.rows()[0].cells.size(), 2u);
  EXPECT_EQ(table.rows()[3].candidate, "other");
  EXPECT_EQ(table.rows()[3].output, "dq");
  EXPECT_EQ(table.rows()[3].cells.size(), 1u);
}

TEST(RecipeTable, PlainWhereEveryCasePassesWithoutRecipes) {
  EXPECT_EQ(answer_of({record(true), record(true)}), RecipeAnswer::plain);
  EXPECT_EQ(cell_of({record(true), record(true)}).judged(), 2);
}

TEST(RecipeTable, TheSetServesEveryCase) {
  const Names ds{"ds_in_16_bit"}, o{"o_in_16_bit"}, both{"o_in_16_bit", "ds_in_16_bit"};
  const RecipeCell cell = cell_of({record(true), record(false, {ds, o}), record(false, {o}), record(true)});
  EXPECT_EQ(cell.answer(), RecipeAnswer::recipes);
  EXPECT_EQ(cell.recipes(), RecipeSet{"o_in_16_bit"});
  EXPECT_EQ(cell_of({record(false, {ds}), record(false, {both})}).recipes(),
            (RecipeSet{"ds_in_16_bit", "o_in_16_bit"}));
  EXPECT_EQ(exit_code_of({record(false, {ds})}), 0);
}

TEST(RecipeTable, CasesWhoseSetsExcludeEachOtherHaveNone) {
  const RecipeCell cell = cell_of({record(false, {{"o_in_16_bit"}}), record(false, {{"scores_in_16_bit"}})});
  EXPECT_EQ(cell.answer(), RecipeAnswer::none);
  EXPECT_EQ(cell.recipes(), RecipeSet());
  EXPECT_FALSE(cell.reason().empty());
}

TEST(RecipeTable, OneCaseThatFailsUnderEverySetIsTold) {
  const RecipeCell cell = cell_of({record(false, {{"o_in_16_bit"}}), record(false), record(true)});
  EXPECT_EQ(cell.answer(), RecipeAnswer::none);
  EXPECT_EQ(cell.recipes(), RecipeSet());
  EXPECT_NE(cell.reason().find("dq[0,0,0,1] = -1.5, gold -1.25"), std::string::npos) << cell.reason();
  EXPECT_EQ(cell.repeat(), "check_operator again");
  EXPECT_EQ(exit_code_of({record(false), record(true)}), 1);
}

TEST(RecipeTable, AReasonIsOfItsOwnOutput) {
  CaseRecord both = record(false);
  both.comparisons[1] = both.comparisons[0];
  RecipeTable table;
  table.add(both);
  const std::string& reason = table.rows()[1].cells.at(DType::bf16).reason();
  EXPECT_NE(reason.find(": dk[0,0,0,1] = -1.5"), std::string::npos) << reason;
}

TEST(RecipeTable, AnOutputThatIsFineKeepsItsAnswerBesideOneThatIsNot) {
  RecipeTable table;
  table.add(record(false));
  EXPECT_EQ(table.rows()[0].cells.at(DType::bf16).answer(), RecipeAnswer::none);
  EXPECT_EQ(table.rows()[1].cells.at(DType::bf16).answer(), RecipeAnswer::plain);
}

TEST(RecipeTable, CasesThatTheKernelDeclinesDoNotCountBesideOthers) {
  const CaseRecord declined = unjudged(RunStatus::unsupported, Verdict::unsupported);
  EXPECT_EQ(answer_of({declined, record(true)}), RecipeAnswer::plain);
  EXPECT_EQ(cell_of({declined, record(true)}).unjudged(), 1);
  EXPECT_EQ(answer_of({declined}), RecipeAnswer::unsupported);
  EXPECT_EQ(answer_of({declined, unjudged(RunStatus::skipped, Verdict::skipped)}), RecipeAnswer::skipped);
  EXPECT_EQ(exit_code_of({declined}), 3);
  EXPECT_EQ(exit_code_of({declined, record(true)}), 0);
}

TEST(RecipeTable, AKernelThatCrashesHasNoAnswerAndOneThatFailsHasNone) {
  const CaseRecord crashed = unjudged(RunStatus::crashed, Verdict::error);
  EXPECT_EQ(answer_of({record(true), crashed}), RecipeAnswer::error);
  EXPECT_EQ(exit_code_of({record(false), crashed}), 4);
  EXPECT_EQ(answer_of({record(true), unjudged(RunStatus::failed, Verdict::fail)}), RecipeAnswer::none);
}

TEST(RecipeTable, AnOutputWithoutElementsIsEmpty) {
  CaseRecord empty = record(true);
  empty.comparisons[0].count = empty.comparisons[0].expected = 0;
  EXPECT_EQ(answer_of({empty}), RecipeAnswer::empty);
  EXPECT_EQ(answer_of({empty, record(true)}), RecipeAnswer::plain);
}

}  // namespace
}  // namespace checkop::recipe_table_test
