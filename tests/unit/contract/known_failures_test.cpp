// SPDX-License-Identifier: Apache-2.0
// Expected failures in a contract: which checks an entry matches, and what it may and may not hide.
#include <gtest/gtest.h>

#include "support/clean_result.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"

namespace checkop::known_failures_test {
namespace {

using namespace contract_test;

std::string entry(std::string_view match, std::string_view more = "") {
  return fmt::format(R"({{"match": {}, "expect": "fail", "reason": "r", "owner": "o", "expires": "2027-01-31"{}}})",
                     match, more);
}

std::string known(const std::vector<std::string>& list) {
  return fmt::format(R"(, "known": [{}])", fmt::join(list, ", "));
}

const Date kToday = *parse_date("2026-10-01");

Case logp_case(std::string_view pass = "forward", DType dtype = DType::bf16) {
  return gold_case("logp", pass, dtype, {{"batch", 2}, {"seq", 3}, {"vocab", 7}});
}

size_t matches(std::string_view match, const Case& c = logp_case(), const Subject& subject = {"sm90", "cuda"}) {
  return parse({rule("{}")}, known({entry(match)}), kToday).known_for(c, subject).size();
}

std::string error(const std::string& text) { return rules_error({rule("{}")}, known({text})); }

/// A clean result that is judged by a contract with one entry, which expects failures of these kinds.
struct Clean : CleanResult {
  void nondeterministic() { run.outputs[0].repeat = {6, 1, 3, 0x3f800000, 0x3f800001}; }
  Judgment judged(std::string_view kinds = "") const {
    const std::string more = kinds.empty() ? "" : fmt::format(R"(, "kinds": [{}])", kinds);
    const Contract contract = parse({rule("{}")}, known({entry(R"({"op": "logp"})", more)}), kToday);
    return CleanResult::judged(contract.known_for(c, {}));
  }
};

// --- which checks ----------------------------------------------------------------------------------------------------

TEST(KnownFailure, EveryKeyOfTheMatchNarrows) {
  EXPECT_EQ(matches(R"({"op": "logp"})"), 1u);
  EXPECT_EQ(matches(R"({"op": "matmul"})"), 0u);
  EXPECT_EQ(matches(R"({"op": "logp", "pass": "forward"})"), 1u);
  EXPECT_EQ(matches(R"({"op": "logp", "pass": "backward"})"), 0u);
  EXPECT_EQ(matches(R"({"op": "logp", "arch": "sm90"})"), 1u);
  EXPECT_EQ(matches(R"({"op": "logp", "arch": "sm80"})"), 0u);
  EXPECT_EQ(matches(R"({"candidate": "cu*"})"), 1u);
  EXPECT_EQ(matches(R"({"candidate": "cublas"})"), 0u);
  EXPECT_EQ(matches(R"({"op": "logp", "case": "logp-bf16-2x3x*"})"), 1u);
  EXPECT_EQ(matches(R"({"op": "logp", "case": "logp-bf16-2x3"})"), 0u);
}

TEST(KnownFailure, DtypeIsThatOfTheCase) {
  EXPECT_EQ(matches(R"({"op": "logp", "dtype": "bf16"})"), 1u);
  EXPECT_EQ(matches(R"({"op": "logp", "dtype": ["fp16", "bf16"]})"), 1u);
  EXPECT_EQ(matches(R"({"op": "logp", "dtype": "fp32"})"), 0u);  // the output's dtype, not the case's
}

TEST(KnownFailure, ExpectsNothingPastItsDate) {
  const auto on = [](std::string_view date) {
    const Contract contract = parse({rule("{}")}, known({entry(R"({"op": "logp"})")}), *parse_date(date));
    return std::pair(contract.known_for(logp_case(), {}).size(), contract.warnings().size());
  };
  EXPECT_EQ(on("2027-01-31"), std::pair(size_t{1}, size_t{0}));
  EXPECT_EQ(on("2027-02-01"), std::pair(size_t{0}, size_t{1}));
}

// --- what it hides ---------------------------------------------------------------------------------------------------

TEST(KnownFailure, AFailureBecomesXfailAndKeepsItsReason) {
  Clean r;
  r.out_of_bound();
  const Judgment judgment = r.judged();
  EXPECT_EQ(judgment.verdict, Verdict::xfail);
  EXPECT_EQ(judgment.kind, "accuracy");
  EXPECT_NE(judgment.reason.find("2x the bound"), std::string::npos);
  ASSERT_TRUE(judgment.known);
  EXPECT_EQ(judgment.known->path, "known[0]");
  EXPECT_EQ(judgment.known->expires, "2027-01-31");
}

TEST(KnownFailure, APassBecomesXpass) {
  const Judgment judgment = Clean().judged();
  EXPECT_EQ(judgment.verdict, Verdict::xpass);
  EXPECT_EQ(judgment.reason, "passes, although known[0] expects a failure; remove it");
  EXPECT_TRUE(judgment.known);
  EXPECT_EQ(exit_code({Verdict::pass, judgment.verdict}), 1);
}

TEST(KnownFailure, OnlyTheKindsThatAreNamedAreHidden) {
  Clean r;
  r.out_of_bound();
  EXPECT_EQ(r.judged(R"("accuracy")").verdict, Verdict::xfail);
  EXPECT_EQ(r.judged(R"("determinism", "invariance")").verdict, Verdict::fail);
  EXPECT_EQ(r.judged(R"("determinism", "invariance")").kind, "accuracy");
}

TEST(KnownFailure, AnExpectedFailureDoesNotHideAnotherBehindIt) {
  Clean r;
  r.out_of_bound();
  r.nondeterministic();
  const Judgment judgment = r.judged(R"("accuracy")");
  EXPECT_EQ(judgment.verdict, Verdict::fail);
  EXPECT_EQ(judgment.kind, "determinism");
  EXPECT_EQ(r.judged(R"("accuracy", "determinism")").verdict, Verdict::xfail);
  EXPECT_EQ(r.judged().verdict, Verdict::xfail);
}

TEST(KnownFailure, FiniteElementsOutOfBoundAreNoNonfiniteOnes) {
  Clean r;
  r.not_finite(2, 2);
  EXPECT_EQ(r.judged(R"("nonfinite")").verdict, Verdict::xfail);
  r.not_finite(1, 2);
  EXPECT_EQ(r.judged(R"("nonfinite")").kind, "accuracy");
  EXPECT_EQ(r.judged(R"("nonfinite")").verdict, Verdict::fail);
  EXPECT_EQ(r.judged(R"("nonfinite")").reason, "logp: 1 finite element is out of bound, too");
}

TEST(KnownFailure, AGateOfTheWholeOutputIsAccuracy) {
  Clean r;
  r.out_of_bound();
  GateResult gate;
  gate.metric = Metric::bias_t;
  gate.holds = false;
  r.comparisons[0].out_of_bound = 0;
  r.comparisons[0].gates = {gate};
  EXPECT_EQ(r.judged(R"("accuracy")").verdict, Verdict::xfail);
  r.comparisons[0].identities = {IdentityResult{"row_sum", 3, 1, 2.0, 0, 1, 1}};
  EXPECT_EQ(r.judged(R"("accuracy")").kind, "identity");
  EXPECT_EQ(r.judged(R"("accuracy", "identity")").verdict, Verdict::xfail);
}

TEST(KnownFailure, CrashesGuardsAndForeignInputsAreNeverHidden) {
  for (const RunStatus status :
       {RunStatus::crashed, RunStatus::timeout, RunStatus::no_device, RunStatus::unsupported}) {
    Clean r;
    r.run.status = status;
    EXPECT_NE(r.judged().verdict, Verdict::xfail);
    EXPECT_NE(r.judged().verdict, Verdict::xpass);
  }
  Clean guard, input;
  guard.run.guard_violations = {"output 'logp': 1 element changed behind its end, first at +0"};
  EXPECT_EQ(guard.judged().verdict, Verdict::fail);
  guard.out_of_bound();
  EXPECT_EQ(guard.judged().kind, "guard");
  input.run.modified_inputs = {"logits: 1 element changed, first at index 0"};
  EXPECT_EQ(input.judged().verdict, Verdict::fail);
  EXPECT_NE(error(entry(R"({"op": "logp"})", R"(, "kinds": ["guard"])")).find("unknown kind 'guard'"),
            std::string::npos);
}

TEST(KnownFailure, VacuousStaysVacuous) {
  Clean r;
  r.comparisons[0].would_pass = {Trivial::zeros};
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
  r.comparisons[0].count = r.comparisons[0].expected = 0;
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
}

// The failure has the expected kind, but nothing that could have failed was observed.
TEST(KnownFailure, InvarianceThatCouldNotBeSeenStaysVacuous) {
  Clean r;
  r.run.contexts = {{Axis::batch, "the last row alone", true, ""}};
  r.run.outputs[0].contexts.resize(1);
  EXPECT_EQ(r.judged(R"("invariance")").kind, "invariance");
  EXPECT_EQ(r.judged(R"("invariance")").verdict, Verdict::vacuous);
  EXPECT_EQ(r.judged().verdict, Verdict::vacuous);
}

TEST(KnownFailure, APassIsUnexpectedOnlyWhereAllThatIsExpectedWasLookedFor) {
  Clean r;
  r.checks.invariance = false;
  EXPECT_EQ(r.judged(R"("accuracy")").verdict, Verdict::xpass);
  const Judgment judgment = r.judged(R"("accuracy", "invariance")");
  EXPECT_EQ(judgment.verdict, Verdict::pass);
  EXPECT_EQ(judgment.reason, "known[0] expects a failure of a kind that this run did not check");
  EXPECT_EQ(r.judged().verdict, Verdict::pass);
  r.checks = {false, true, true};
  EXPECT_EQ(r.judged(R"("determinism")").verdict, Verdict::pass);
  r.checks = {true, true, false};
  EXPECT_EQ(r.judged(R"("unwritten")").verdict, Verdict::pass);
  r.accuracy = false;
  for (const char* kind : {R"("accuracy")", R"("nonfinite")", R"("identity")"})
    EXPECT_EQ(r.judged(kind).verdict, Verdict::pass) << kind;
}

// --- refused entries -------------------------------------------------------------------------------------------------

TEST(KnownFailure, ErrorsNameFileAndPath) {
  EXPECT_EQ(error(entry(R"({"arch": "sm90"})")),
            "c.json: known[0].match: expected an operator or a candidate, got an object; add \"op\" or \"candidate\"; "
            "not every check is expected to fail");
  EXPECT_EQ(error(entry(R"({"op": "lgp"})")),
            "c.json: known[0].match.op: unknown operator 'lgp'; did you mean 'logp'?");
  EXPECT_EQ(error(entry(R"({"op": "logp", "output": "logp"})")).find("c.json: known[0].match: unknown key 'output'"),
            0u);
  EXPECT_EQ(
      error(entry(R"({"op": "logp"})", R"(, "kinds": [])")),
      "c.json: known[0].kinds: expected a kind of failure, got an empty array; remove the key to expect any of them");
  EXPECT_EQ(error(R"({"match": {"op": "logp"}, "expect": "pass", "reason": "r", "owner": "o", "expires": "never"})")
                .find("c.json: known[0].expect: unknown expectation 'pass'"),
            0u);
  EXPECT_EQ(error(R"({"match": {"op": "logp"}, "expect": "fail", "reason": "r", "owner": "o"})"),
            "c.json: known[0]: key 'expires' is missing; add it");
}

}  // namespace
}  // namespace checkop::known_failures_test
