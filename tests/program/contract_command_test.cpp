// SPDX-License-Identifier: Apache-2.0
// Contracts for a user of the program: the output of a run about them, and the subcommands of `contract`.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/built.hpp"
#include "support/contract_helper.hpp"
#include "support/process.hpp"

namespace checkop::contract_command_test {
namespace {

using namespace contract_test;

const std::string kTiny = "--op logp --candidate native --device cpu --batch 1 --seq 2 --vocab 17 ";

/// Writes a contract for one test and returns its path.
std::string written(const std::string& text) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  static int count = 0;
  const std::string path = fmt::format("{}{}-{}.json", testing::TempDir(), test->name(), count++);
  std::ofstream(path) << text;
  return path;
}

TEST(ContractCommand, ARunSaysWhatHasExpired) {
  const std::string list = overlays({overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"lambda": 7})",
                                             R"("expires": "2020-01-31", "loosen": true)")});
  const std::string path = written(document({rule("{}")}, list));
  const std::string warning = path + ": overlays[0] of o expired on 2020-01-31: what it loosens no longer holds (r)";
  expect_exit(run_program(kTiny + "--contract " + path), 0, "[ WARNING  ] " + warning);
  expect_exit(run_program(kTiny + "--json --contract " + path), 0, "check_operator: " + warning);
  const std::string report = written("");
  expect_exit(run_program(kTiny + "--contract " + path + " --json " + report), 0, warning);
  std::ifstream file(report);
  EXPECT_EQ(nlohmann::json::parse(file)["warnings"], nlohmann::json::array({warning}));
}

std::string with_known(std::string_view match, std::string_view more = "") {
  return written(document({rule("{}")}, fmt::format(R"(, "known": [{{"match": {}, "expect": "fail", "reason": "why not",
    "owner": "me", "issue": "#12", "expires": "9999-12-31"{}}}])",
                                                    match, more)));
}

const std::string kZeros = fmt::format(
    "--op logp --device cpu --batch 1 --seq 2 --vocab 17 --plugin {}/mutants.so --candidate native,mutant-zeros ",
    kPluginFolder);

TEST(ContractCommand, AnExpectedFailureDoesNotFailTheRunAndIsShown) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "mutant-zeros"})");
  const std::string report = written("");
  const ProcessResult run = run_program(kZeros + "--contract " + path + " --json " + report);
  expect_exit(run, 0, "known[0] expects a failure until 9999-12-31: why not (#12; me)");
  EXPECT_NE(run.text.find("[    XFAIL ] 1 xfail"), std::string::npos) << run.text;
  std::ifstream file(report);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["passed_candidates"], 2);
  const auto& zeros = json["candidates"][1]["cases"][0];
  EXPECT_EQ(zeros["verdict"], "xfail");
  EXPECT_EQ(zeros["passed"], false);
  EXPECT_EQ(zeros["known"]["reason"], "why not");
  EXPECT_EQ(json["candidates"][0]["cases"][0]["known"], nullptr);
}

TEST(ContractCommand, AnUnexpectedPassFailsTheRun) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "native"})");
  expect_exit(run_program(kTiny + "--contract " + path), 1, "passes, although known[0] expects a failure; remove it");
}

TEST(ContractCommand, AFailureOfAnotherKindIsNotExpected) {
  const std::string path = with_known(R"({"op": "logp", "candidate": "mutant-*"})", R"(, "kinds": ["determinism"])");
  expect_exit(run_program(kZeros + "--contract " + path), 1, "[  FAILED  ] 1 fail");
}

// --- explain ---------------------------------------------------------------------------------------------------------

// 6*sqrt(1024) + 1*1024 units of 2^-24 of the magnitude, then half an ulp of bf16 at 1.
TEST(ContractCommand, ExplainGivesEveryNumberItsSourceAndAWorkedBound) {
  const std::string gate = R"({"metric": "bound_ratio", "limit": 1, "lambda": 6, "step": 8, "max_chain": 16384,
                               "bias_ulps": 1})";
  const std::string path = written(document(
      {rule(R"({"op": "logp"})"), fmt::format(R"({{"match": {{"op": "matmul"}}, "gates": [{}], "why": "w"}})", gate)},
      overlays({overlay(R"({"arch": "sm70"})", R"("bound_ratio": {"step": 4})")})));
  const ProcessResult result = run_program(
      "contract explain --op matmul --dtype bf16 --arch-key sm70 --batch 1 --seq 2 "
      "--k-dim 4096 --n-dim 8 --contract " +
      path);
  expect_exit(result, 0, "matmul/forward  matmul-bf16-1x2x4096x8  architecture sm70  candidate not named");
  for (const std::string& part :
       {"c  bf16, contraction, sums of 4096 terms; " + path + ": rules[1]",
        std::string("lambda         6          rules[1].gates[0]"),
        std::string("step           4          overlays[0]"),
        std::string("chain 1024, unit roundoff 5.96e-08 (fp32 arithmetic): growth 1.144e-05, bias 6.104e-05"),
        std::string("computed 7.248e-05, stored 0.003906, so up to 0.003979"),
        std::string("determinism, batch invariance"), path + ": overlays[0]: r\n", path + ": rules[1]: w\n",
        std::string("gold  all rows")})
    EXPECT_NE(result.text.find(part), std::string::npos) << "no '" << part << "' in: " << result.text;
}

TEST(ContractCommand, ExplainAppliesOverlaysOfTheCandidateAndShowsWhatIsExpectedAndWithheld) {
  const std::string dated = R"("expires": "2020-01-31", "loosen": true)";
  const std::string path = written(document(
      {rule("{}")},
      overlays({overlay(R"({"candidate": "cuda*"})", R"("bound_ratio": {"lambda": 5})", R"("expires": "never")"),
                overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"limit": 2})", dated)}) +
          R"(, "known": [{"match": {"op": "logp", "candidate": "cuda"}, "expect": "fail", "kinds": ["accuracy"],
             "reason": "slip", "owner": "o", "expires": "never"}])"));
  const std::string flags = "contract explain --op logp --contract " + path;
  expect_exit(run_program(flags + " --candidate cuda-2"), 0, "lambda         5          overlays[0]");
  expect_exit(run_program(flags), 0, "lambda         6          rules[0].gates[0]");
  expect_exit(run_program(flags + " --candidate cuda"), 0, "expected to fail by known[0] (accuracy) until never: slip");
  const ProcessResult withheld = run_program(flags + " --arch-key sm90");
  expect_exit(withheld, 0, "overlays[1] expired on 2020-01-31: bound_ratio limit stays 1, not 2");
  EXPECT_NE(withheld.text.find("warning: " + path + ": overlays[1] of o expired"), std::string::npos) << withheld.text;
}

TEST(ContractCommand, ExplainSpeaksJsonToo) {
  const std::string path = written(document({rule(R"({"pass": "forward"})"), rule(R"({"pass": "backward"})")}));
  const ProcessResult result = run_program(
      "contract explain --op logp --check-grad --dtype bf16 --batch 1 --seq 2 --vocab 151936 --arch-key none --json "
      "--contract " +
      path);
  ASSERT_EQ(result.code, 0) << result.text;
  const auto json = nlohmann::json::parse(result.text);
  ASSERT_EQ(json["cases"].size(), 2u);
  const auto& output = json["cases"][1]["outputs"][0];
  EXPECT_EQ(output["name"], "dlogits");
  EXPECT_EQ(output["rule"], path + ": rules[1]");
  EXPECT_EQ(output["gates"][0]["chain"], 1024);
  EXPECT_EQ(output["gates"][0]["numbers"][0], nlohmann::json::parse(R"({"key": "limit", "value": 1.0,
                                                                         "from": "rules[1].gates[0]"})"));
  EXPECT_DOUBLE_EQ(output["gates"][0]["growth"].get<double>(), 192 * 0x1p-24);
  EXPECT_EQ(json["cases"][0]["gold"]["rows"], "all");
}

TEST(ContractCommand, ExplainRefusesWhatItCannotKnow) {
  expect_exit(run_program("contract explain --op logp --arch-key auto"), 2,
              "'auto' is the architecture of a device, and this command uses none");
  expect_exit(run_program("contract explain --op logp --arch-key sm91"), 2, "unknown architecture 'sm91'");
  expect_exit(run_program("contract explain --op logp --device cpu"), 2, "--device");
  expect_exit(run_program("contract"), 2, "subcommand is required");
}

// --- lint ------------------------------------------------------------------------------------------------------------

TEST(ContractCommand, LintFindsLimitsThatATrivialAnswerMeets) {
  const std::string command = "contract lint contracts/rl_kernel.json --op logp --pass backward --dtype ";
  expect_exit(run_program(command + "bf16"), 1,
              "contracts/rl_kernel.json: accuracy.default.logprob.bfloat16: looser than the vacuity floor: only the "
              "largest element of every row would pass as logp/backward dlogits of "
              "logp-bf16-1x12x509+temperature=0.7+softcap=4");
  expect_exit(run_program(command + "fp32"), 0, "contracts/rl_kernel.json: clean");
  expect_exit(run_program(command + "bf16 --batch 2 --seq 4 --vocab 4099"), 1, "of logp-bf16-2x4x4099");
}

TEST(ContractCommand, DiffNamesTheMutantsThatOneContractLetsThrough) {
  const ProcessResult result = run_program(
      "contract diff contracts/default.json contracts/policies/kernelbench.json --suite mutation --op logp "
      "--pass backward --dtype bf16 --mutants");
  expect_exit(result, 1, "mutant one_element_doubled of dlogits of backward/logp-bf16-2x12x1021: rejected -> accepted");
  EXPECT_EQ(result.text.find("mutant zeros"), std::string::npos) << "both reject zeros";
  expect_exit(run_program("contract diff contracts/default.json contracts/default.json --suite mutation --op logp "
                          "--pass backward --dtype bf16 --mutants"),
              0, "mutants and controls tried by both: 0 change");
}

TEST(ContractCommand, LintExitsByWhatItFinds) {
  expect_exit(run_program("contract lint contracts/default.json"), 0, "contracts/default.json: clean");
  const std::string few = " --op logp --pass backward --dtype bf16";
  const std::string path = written(document(
      {rule("{}")},
      overlays({overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"lambda": 6})", R"("expires": "2020-01-31")")})));
  const ProcessResult found = run_program("contract lint contracts/default.json " + path + few);
  expect_exit(found, 1, path + ": overlays[0]: expired on 2020-01-31");
  EXPECT_NE(found.text.find(path + ": overlays[0].set.bound_ratio.lambda: has no effect"), std::string::npos)
      << found.text;
  const ProcessResult refused = run_program("contract lint missing.json " + path + few);
  expect_exit(refused, 2, "check_operator: missing.json: cannot be opened");
  EXPECT_NE(refused.text.find(path + ": overlays[0]: expired"), std::string::npos) << refused.text;
  expect_exit(run_program("contract lint"), 2, "argument 'file' is missing");
}

// --- diff ------------------------------------------------------------------------------------------------------------

TEST(ContractCommand, DiffOfAContractWithItselfIsEmptyAndExitsZero) {
  expect_exit(run_program("contract diff contracts/default.json contracts/default.json"), 0, ": 0 changes\n");
}

TEST(ContractCommand, DiffMakesOneLineOfManyEqualOnes) {
  const std::string a = written(document({rule("{}")})), b = written(document({rule("{}", 7)}));
  const ProcessResult result = run_program("contract diff " + a + " " + b + " --op logp --vocab 1:1000:1");
  expect_exit(result, 1,
              "looser   bound_ratio lambda       6 -> 7\n         6000 times: logp/backward dlogits, logp/forward");
  EXPECT_NE(result.text.find("6000 cases: 1 change\n"), std::string::npos) << result.text;
}

TEST(ContractCommand, DiffFindsOverlaysOfArchitecturesUnasked) {
  const std::string a = written(document({rule("{}")}));
  const std::string b =
      written(document({rule("{}")}, overlays({overlay(R"({"arch": "sm90"})", R"("bound_ratio": {"lambda": 7})")})));
  expect_exit(run_program("contract diff " + a + " " + b), 1, "; only for sm90");
  expect_exit(run_program("contract diff " + a + " " + b + " --arch-key none"), 0, "0 changes");
  expect_exit(run_program("contract diff " + a + " " + b + " --arch-key sm90"), 1, ": 1 change\n");
}

// With a tolerance of 5e-2 a gradient without its softmax term would pass, so a pass would prove nothing.
TEST(ContractCommand, DiffRunsCandidatesOnceAndShowsVerdictsThatChange) {
  const std::string flags = fmt::format(
      "contract diff contracts/default.json contracts/rl_kernel.json --op logp --pass backward --dtype bf16 --batch 1 "
      "--seq 2 --vocab 5000 --device cpu --plugin {}/mutants.so --candidate ",
      kPluginFolder);
  const ProcessResult result = run_program(flags + "mutant-zeros,mutant-softmax_term_dropped");
  expect_exit(result, 1, "2 checks judged by both: 1 verdict changes");
  EXPECT_NE(result.text.find("logp/backward/mutant-softmax_term_dropped/logp-bf16-1x2x5000\n  fail: dlogits"),
            std::string::npos)
      << result.text;
  EXPECT_NE(result.text.find("out of bound; passes under no recipe\n  vacuous: dlogits"), std::string::npos)
      << result.text;
  EXPECT_EQ(result.text.find("mutant-zeros/"), std::string::npos) << result.text;  // both contracts reject it
}

TEST(ContractCommand, DiffSaysWhatCannotBeCompared) {
  expect_exit(run_program("contract diff contracts/default.json"), 2, "contracts");
  expect_exit(run_program("contract diff contracts/default.json missing.json"), 2, "missing.json: cannot be opened");
  const std::string crashes = fmt::format(
      "contract diff contracts/default.json contracts/default.json --op matmul --pass forward --dtype fp32 --batch 1 "
      "--seq 2 --k-dim 2 --n-dim 4 --device cpu --plugin {}/crashes.so --candidate segfaults",
      kPluginFolder);
  expect_exit(run_program(crashes), 4, "error  matmul/forward/segfaults/");
}

// --- calibrate -------------------------------------------------------------------------------------------------------

TEST(ContractCommand, CalibrateGivesTheHeadroomOfEveryGateAndChangesNoFile) {
  const std::string text = document({rule("{}", 600)}), path = written(text);
  const ProcessResult result = run_program("contract calibrate " + kTiny + "--contract " + path);
  expect_exit(result, 0, path + ": rules[0].gates[0]  bound_ratio\n  limit 1, achieved 0.");
  EXPECT_NE(result.text.find("by logp/forward logp of native in logp-fp32-1x2x17; 1 output held to it"),
            std::string::npos)
      << result.text;
  EXPECT_NE(result.text.find("proposed 0.00"), std::string::npos) << result.text;
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
}

TEST(ContractCommand, CalibrateSaysThatALimitIsExceeded) {
  expect_exit(run_program("contract calibrate " + kZeros), 1, "EXCEEDED: look at the candidate first");
}

TEST(ContractCommand, CalibrateWithoutAComparisonExitsThree) {
  expect_exit(
      run_program("contract calibrate --op logp --candidate native --device cpu --dtype fp64 --batch 1 --seq 2"), 3,
      "unsupported  logp/forward/native/");
}

}  // namespace
}  // namespace checkop::contract_command_test
