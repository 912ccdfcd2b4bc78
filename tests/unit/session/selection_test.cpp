// SPDX-License-Identifier: Apache-2.0
// From options to checks: which cases, which candidates, which device, and the messages about excluded ones.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "session/selection.hpp"
#include "support/run_helper.hpp"
#include "support/source_tree.hpp"

namespace checkop::selection_test {
namespace {

namespace fs = std::filesystem;

// There are no kernels beside this test's executable: all candidates come from plugins named in the options.

/// A small matmul on the CPU with candidates of honest.cpp.
RunOptions small_matmul(std::vector<std::string> candidates = {"honest"}) {
  RunOptions options;
  options.ops = {"matmul"};
  options.candidates = std::move(candidates);
  options.device = "cpu";
  options.dims = {{"batch", "1"}, {"seq", "3"}, {"k_dim", "2"}, {"n_dim", "4"}};
  options.plugins = {test_plugin("honest")};
  return options;
}

std::vector<std::string> names_of(const Selection& selection) {
  std::vector<std::string> names;
  for (const Check& check : selection.checks) names.push_back(check_name(check));
  return names;
}

std::vector<std::string> selected(const RunOptions& options) { return names_of(select_checks(options)); }

using Names = std::vector<std::string>;

/// The message of the `Error` thrown by the selection.
template <class Error = InputError>
std::string error_of(const RunOptions& options) {
  try {
    select_checks(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string written(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "selection_" + name;
  std::ofstream(path) << text;
  return path;
}

// --- names

TEST(Selection, NameIsOperatorPassCandidateCase) {
  EXPECT_EQ(selected(small_matmul()), Names{"matmul/forward/honest/matmul-fp32-1x3x2x4"});
}

TEST(Selection, NameTellsOptionalsAndInputMode) {
  RunOptions options = small_matmul({"tells_bias"});
  options.ops = {"linear_logp"};
  options.dims = {{"batch", "1"}, {"seq", "2"}, {"hidden", "3"}, {"vocab", "5"}};
  options.with = {"bias"};
  options.input_mode = "peaked";
  EXPECT_EQ(selected(options), Names{"linear_logp/forward/tells_bias/linear_logp-fp32-1x2x3x5+bias~peaked"});
}

// --- sweeps

TEST(Selection, SizesAndTypesAreSweptSizesFastest) {
  RunOptions options = small_matmul();
  options.dims["seq"] = "1,3";
  options.dtypes = {"fp32", "bf16"};
  EXPECT_EQ(selected(options),
            (Names{"matmul/forward/honest/matmul-fp32-1x1x2x4", "matmul/forward/honest/matmul-fp32-1x3x2x4",
                   "matmul/forward/honest/matmul-bf16-1x1x2x4", "matmul/forward/honest/matmul-bf16-1x3x2x4"}));
}

TEST(Selection, WhatAListNamesTwiceIsCheckedOnce) {
  RunOptions options = small_matmul({"honest", "honest"});
  options.ops = {"matmul", "matmul"};
  options.dims["seq"] = "3,4,3";
  options.dtypes = {"fp32", "bf16", "fp32"};
  EXPECT_EQ(selected(options).size(), 4u);
}

TEST(Selection, ChecksComeCandidateByCandidateInTheOrderGiven) {
  RunOptions options = small_matmul({"uses_workspace", "honest"});
  options.dims["seq"] = "1,3";
  const Selection selection = select_checks(options);
  ASSERT_EQ(selection.checks.size(), 4u);
  const char* expected[] = {"uses_workspace", "uses_workspace", "honest", "honest"};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(selection.checks[i].candidate.name, expected[i]) << i;
}

TEST(Selection, SizesThatAreNotGivenHaveADefault) {
  RunOptions options = small_matmul();
  options.dims.clear();
  EXPECT_EQ(selected(options), Names{"matmul/forward/honest/matmul-fp32-2x16x4096x4096"});
}

TEST(Selection, DataOptionsReachTheCase) {
  RunOptions options = small_matmul();
  options.input_mode = "constant";
  options.grad_mode = "ones";
  options.constant_value = 2.5;
  options.token_value = 3;
  options.seed = 7;
  options.grad_seed = 8;
  const Selection selection = select_checks(options);
  ASSERT_EQ(selection.checks.size(), 1u);
  const Case& c = selection.checks[0].c;
  EXPECT_EQ(c.input_mode, InputMode::constant);
  EXPECT_EQ(c.grad_mode, GradMode::ones);
  EXPECT_EQ(c.constant_value, 2.5);
  EXPECT_EQ(c.token_value, 3);
  EXPECT_EQ(c.seed, 7u);
  EXPECT_EQ(c.grad_seed, 8u);
}

TEST(Selection, SizeThatNoOperatorHasIsAnError) {
  RunOptions options = small_matmul();
  options.dims["vocab"] = "17";
  EXPECT_EQ(error_of(options), "size 'vocab': no selected operator has it (value 17); see 'check_operator show OP'");
}

TEST(Selection, SizeThatOneOfTheOperatorsHasIsNoError) {
  RunOptions options = small_matmul({"all"});
  options.ops = {"matmul", "logp"};
  options.dims["vocab"] = "17";
  EXPECT_EQ(error_of(options), "no error");
}

TEST(Selection, SizeIsJudgedUnderItsFlagsName) {
  RunOptions options = small_matmul();
  options.dims["k_dim"] = "0";
  EXPECT_EQ(error_of(options).find("--k-dim: expected an integer >= 1, got 0"), 0u);
}

TEST(Selection, OptionalThatNoOperatorHasIsAnError) {
  RunOptions options = small_matmul();
  options.with = {"none", "bias"};
  EXPECT_EQ(error_of(options).find("--with: no selected operator has an optional input 'bias'; "), 0u);
}

TEST(Selection, EveryPartOfASettingOfOptionalsMustBeKnown) {
  RunOptions options = small_matmul({"tells_bias"});
  options.ops = {"linear_logp"};
  options.dims.clear();
  options.with = {"bias+biass"};
  EXPECT_EQ(error_of(options).find("--with: no selected operator has an optional input 'biass'; "), 0u);
}

TEST(Selection, PeakedDataNeedAnOperatorWithTargets) {
  RunOptions options = small_matmul();
  options.input_mode = "peaked";
  EXPECT_EQ(
      error_of(options).find("--input-mode: peaked is for operators with target ids, and no selected operator has any"),
      0u);
}

TEST(Selection, PeakedDataOfAnOperatorWithoutTargetsAreCalledRandom) {
  RunOptions options = small_matmul({"honest"});
  options.ops = {"matmul", "logp"};
  options.input_mode = "peaked";
  options.filter = "matmul/*";
  EXPECT_EQ(selected(options), Names{"matmul/forward/honest/matmul-fp32-1x3x2x4"});
}

// --- candidates

TEST(Selection, UnknownCandidateIsAnErrorWithTheNearestAndAllKnown) {
  EXPECT_EQ(error_of(small_matmul({"honest", "honesst"})),
            "--candidate: no candidate 'honesst' for matmul; did you mean 'honest'? known: honest, uses_workspace, "
            "names_variant, unsupported, even_rows, inspects_call, for_gpus");
}

TEST(Selection, UnknownCandidateNearToNoneHasNoSuggestion) {
  EXPECT_EQ(error_of(small_matmul({"zzz"})).find("--candidate: no candidate 'zzz' for matmul; known: honest, "), 0u);
}

TEST(Selection, CandidateOfOtherOperatorsAloneIsUnsupportedAndBesideOneThatRunsAnError) {
  const Selection selection = select_checks(small_matmul({"tells_bias"}));
  ASSERT_EQ(selection.checks.size(), 1u);
  EXPECT_FALSE(selection.checks[0].candidate.has_kernel);
  EXPECT_EQ(error_of(small_matmul({"honest", "tells_bias"})).find("--candidate: no candidate 'tells_bias' for matmul"),
            0u);
}

/// A case file with both passes of a matmul and of a linear_logp.
RunOptions with_two_operators(std::vector<std::string> candidates) {
  RunOptions options = small_matmul(std::move(candidates));
  options.dims.clear();
  options.cases = {written("two.json", R"({"format": "check_operator/cases-1", "cases": [
      {"op": "matmul", "dtype": "fp32", "dims": {"batch": 1, "seq": 1, "k_dim": 6, "n_dim": 7}},
      {"op": "linear_logp", "dtype": "fp32", "dims": {"batch": 1, "seq": 1, "hidden": 6, "vocab": 7}}]})")};
  return options;
}

TEST(Selection, CandidatesAreAskedOnlyForWhatTheyHaveAKernelFor) {
  EXPECT_EQ(
      selected(with_two_operators({"honest", "tells_bias"})),
      (Names{"matmul/forward/honest/matmul-fp32-1x1x6x7", "linear_logp/forward/tells_bias/linear_logp-fp32-1x1x6x7",
             "linear_logp/backward/tells_bias/linear_logp-fp32-1x1x6x7"}));
}

TEST(Selection, OperatorThatWasNamedAndNoCandidateHasIsUnsupportedOnce) {
  RunOptions options = with_two_operators({"honest", "uses_workspace"});
  options.ops = {"matmul", "linear_logp"};
  options.given = {"--op"};
  EXPECT_EQ(selected(options),
            (Names{"matmul/forward/honest/matmul-fp32-1x1x6x7", "matmul/backward/honest/matmul-fp32-1x1x6x7",
                   "linear_logp/forward/honest/linear_logp-fp32-1x1x6x7",
                   "linear_logp/backward/honest/linear_logp-fp32-1x1x6x7",
                   "matmul/forward/uses_workspace/matmul-fp32-1x1x6x7"}));
}

TEST(Selection, AllAreThoseThatRunOnTheDevice) {
  const Selection selection = select_checks(small_matmul({"all"}));
  std::vector<std::string> names;
  for (const Check& check : selection.checks) names.push_back(check.candidate.name);
  EXPECT_EQ(names, (Names{"honest", "uses_workspace", "names_variant", "unsupported", "even_rows", "inspects_call"}));
}

TEST(Selection, NamedCandidateWithoutAKernelForThePassStays) {
  RunOptions options = small_matmul();
  options.passes = {"forward", "backward"};
  const Selection selection = select_checks(options);
  ASSERT_EQ(selection.checks.size(), 2u);
  EXPECT_TRUE(selection.checks[0].candidate.has_kernel);
  EXPECT_FALSE(selection.checks[1].candidate.has_kernel);
  EXPECT_EQ(selection.checks[1].candidate.plugin_path, "");
  EXPECT_EQ(check_name(selection.checks[1]), "matmul/backward/honest/matmul-fp32-1x3x2x4");
}

TEST(Selection, PassThatNoSelectedCandidateHasStays) {
  RunOptions options = small_matmul({"all"});
  options.passes = {"backward"};
  options.filter = "*/honest/*";
  const Selection selection = select_checks(options);
  ASSERT_EQ(selection.checks.size(), 1u);
  EXPECT_FALSE(selection.checks[0].candidate.has_kernel);
}

TEST(Selection, OfAllCandidatesOneThatDoesNotKnowTheOperatorIsLeftOut) {
  RunOptions options = small_matmul({"all"});
  options.ops = {"matmul", "linear_logp"};
  options.filter = "*/tells_bias/*";
  const Selection selection = select_checks(options);
  ASSERT_EQ(selection.checks.size(), 1u);
  EXPECT_EQ(selection.checks[0].c.op->name, "linear_logp");
}

TEST(Selection, CandidateKnowsItsPluginAndDigest) {
  const ChosenCandidate candidate = select_checks(small_matmul()).checks.at(0).candidate;
  EXPECT_EQ(candidate.plugin_path, test_plugin("honest"));
  EXPECT_EQ(candidate.plugin_digest, file_digest(test_plugin("honest")));
}

TEST(Selection, CandidateOfTwoPluginsIsAnError) {
  RunOptions options = small_matmul();
  options.plugins.push_back(test_plugin("same_as_honest"));
  EXPECT_NE(error_of(options).find("same_as_honest.so: brings matmul/forward 'honest', which "), std::string::npos);
}

TEST(Selection, PluginsAreThoseOfTheCandidatesChecksOnItsDeviceEachOnce) {
  Selection selection;
  const auto add = [&](const char* name, const char* path, const char* device) {
    selection.checks.push_back({{}, {name, path, "", device, *path != '\0'}});
  };
  add("mine", "a.so", "cpu");
  add("mine", "b.so", "cpu");
  add("mine", "a.so", "cpu");
  add("mine", "", "cpu");
  add("mine", "c.so", "cuda:0");
  add("other", "d.so", "cpu");
  EXPECT_EQ(selection.plugins_of(selection.checks[0].candidate), (Names{"a.so", "b.so"}));
  EXPECT_EQ(selection.plugins_of(selection.checks[4].candidate), Names{"c.so"});
  EXPECT_EQ(selection.candidate_count(), 2u);
}

TEST(Selection, ProbingNamesTheCandidatesAndCountsNoGpuUnasked) {
  const WorkerInfo info = probe_candidates({"matmul"}, {test_plugin("same_as_honest")});
  ASSERT_EQ(info.candidates.size(), 1u);
  EXPECT_EQ(info.candidates[0].name, "honest");
  EXPECT_EQ(info.cuda_devices, 0);
}

// --- the filter

TEST(Selection, FilterIsAGlobOnTheWholeName) {
  RunOptions options = small_matmul({"all"});
  options.filter = "matmul/*/uses_*/*-1x3x2x4";
  EXPECT_EQ(selected(options), Names{"matmul/forward/uses_workspace/matmul-fp32-1x3x2x4"});
  options.filter = "uses_workspace";
  EXPECT_TRUE(selected(options).empty());
}

// --- devices

TEST(Selection, DeviceIsWhereTheCandidateRuns) {
  RunOptions options = small_matmul();
  EXPECT_EQ(select_checks(options).checks.at(0).candidate.device, "cpu");
  options.device = "auto";
  EXPECT_EQ(select_checks(options).checks.at(0).candidate.device, "cpu");
}

TEST(Selection, UnknownDeviceIsAnErrorBeforeAnythingElse) {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "CPU", ""}) {
    RunOptions options = small_matmul();
    options.ops = {"unknown too"};
    options.device = name;
    EXPECT_EQ(error_of(options), "--device: unknown device '" + std::string(name) + "'; use auto, cpu, cuda or cuda:N");
  }
}

TEST(Selection, DeviceThatIsNotThereIsAnEnvironmentError) {
  RunOptions options = small_matmul();
  options.device = "cuda:99";
  EXPECT_EQ(error_of<EnvironmentError>(options).find("--device cuda:99: "), 0u);
}

TEST(Selection, CandidateForAGpuRunsOnTheFirstOneOrIsAnEnvironmentError) {
  RunOptions options = small_matmul({"for_gpus"});
  options.device = "auto";
  if (probe_candidates({}, {}, true).cuda_devices > 0) {
    EXPECT_EQ(select_checks(options).checks.at(0).candidate.device, "cuda:0");
  } else {
    EXPECT_EQ(error_of<EnvironmentError>(options),
              "--candidate for_gpus: needs a CUDA device and none was found; run on a machine with a GPU and its "
              "driver");
  }
}

// --- case files

/// A case file with both passes of a matmul, each in fp32 and bf16, and nothing else.
RunOptions with_case_file() {
  RunOptions options = small_matmul();
  options.cases = {written("cases.json", R"({"format": "check_operator/cases-1", "cases": [{"op": "matmul",
      "dtype": ["fp32", "bf16"], "dims": {"batch": 1, "seq": 1, "k_dim": 6, "n_dim": 7}}]})")};
  return options;
}

TEST(Selection, CaseFilesTakeThePlaceOfTheFlags) {
  RunOptions options = with_case_file();
  options.ops = {"logp"};  // the default without --op
  EXPECT_EQ(selected(options),
            (Names{"matmul/forward/honest/matmul-fp32-1x1x6x7", "matmul/forward/honest/matmul-bf16-1x1x6x7"}));
}

TEST(Selection, TypeAndPassThatWereGivenKeepTheirCasesOfTheFiles) {
  RunOptions options = with_case_file();
  options.given = {"--dtype", "--pass"};
  options.dtypes = {"bf16"};
  options.passes = {"forward"};
  EXPECT_EQ(selected(options), Names{"matmul/forward/honest/matmul-bf16-1x1x6x7"});
  options.passes = {"backward"};  // honest has none, and no operator was named
  EXPECT_TRUE(selected(options).empty());
}

TEST(Selection, OperatorThatWasGivenKeepsItsCasesOfTheFiles) {
  RunOptions options = with_case_file();
  options.given = {"--op"};
  EXPECT_EQ(selected(options).size(), 3u);  // backward, which honest has not, once
  options.ops = {"logp"};
  options.candidates = {"all"};
  EXPECT_TRUE(selected(options).empty());
}

TEST(Selection, SeedsOnTheCommandLineReseedCasesOfFiles) {
  RunOptions options = with_case_file();
  options.cases = {written("seeds.json", R"({"format": "check_operator/cases-1", "cases": [
      {"op": "matmul", "pass": "forward", "dtype": "fp32", "dims": {"batch": 1, "seq": 1, "k_dim": 6, "n_dim": 7}},
      {"op": "matmul", "pass": "forward", "dtype": "fp32", "dims": {"batch": 1, "seq": 1, "k_dim": 6, "n_dim": 7},
       "seed": 7, "grad_seed": 9},
      {"op": "matmul", "pass": "forward", "dtype": "fp32", "dims": {"batch": 1, "seq": 1, "k_dim": 6, "n_dim": 7},
       "seed": 8, "grad_seed": 10}]})")};
  const auto seeds = [&] {
    std::vector<uint64_t> found;
    for (const Case& c : select_cases(options)) found.push_back(c.seed), found.push_back(c.grad_seed);
    return found;
  };
  options.seed = 5, options.grad_seed = 6;
  EXPECT_EQ(seeds(), (std::vector<uint64_t>{123, 123, 7, 9, 8, 10})) << "not given";
  options.given = {"--seed"};
  const auto reseeded = seeds();
  EXPECT_EQ(reseeded[0], 5u);
  EXPECT_NE(reseeded[2], 7u);
  EXPECT_NE(reseeded[4], 8u);
  EXPECT_NE(reseeded[2], reseeded[4]);
  EXPECT_EQ(reseeded[5], 10u) << "of upstream gradients, which --grad-seed alone changes";
  EXPECT_EQ(seeds(), reseeded);
  options.given = {"--grad-seed"};
  EXPECT_EQ(seeds()[0], 123u);
  EXPECT_EQ(seeds()[1], 6u);
  EXPECT_NE(seeds()[3], 9u);
  EXPECT_NE(seeds()[3], seeds()[5]);
  options.given = {"--seed"}, options.seed = 6;
  EXPECT_NE(seeds()[2], reseeded[2]);
}

TEST(Selection, RandomCasesOfARunAreLimited) {
  RunOptions options = small_matmul({"all"});
  options.ops = {"all"};
  options.dims.clear();
  options.random_cases = 1'000'000;
  EXPECT_EQ(
      error_of(options),
      fmt::format("--random-cases: 1000000 cases of each of {} operators are more than the 2000000 that a run may "
                  "have; give up to {}, or fewer operators",
                  operators().size(), 2'000'000 / operators().size()));
}

TEST(Selection, SuiteTakesItsCasesOfTheShippedFiles) {
  const InSourceTree here;
  RunOptions options = small_matmul();
  options.suite = "smoke";
  options.filter = "matmul/*";
  const size_t smoke = select_checks(options).checks.size();
  options.suite = "";
  options.cases = {"cases"};
  EXPECT_GT(smoke, 0u);
  EXPECT_GT(select_checks(options).checks.size(), smoke);
}

TEST(Selection, SuiteWithoutCasesIsAnError) {
  const InSourceTree here;
  RunOptions options = small_matmul();
  options.suite = "smok";
  EXPECT_EQ(error_of(options).find("--suite: no case of cases is in suite 'smok'; "), 0u);
}

TEST(Selection, PresetsGiveSizesAndFlagsWin) {
  const InSourceTree here;
  RunOptions options = small_matmul();
  options.dims = {{"batch", "1"}, {"seq", "3"}, {"n_dim", "4"}};
  options.presets = {"qwen3-8b"};
  EXPECT_EQ(selected(options),
            (Names{"matmul/forward/honest/matmul-fp32-1x3x4096x4", "matmul/forward/honest/matmul-fp32-1x3x12288x4"}));
}

// --- the contract

TEST(Selection, ContractIsTheShippedOneUnlessAnotherIsGiven) {
  const InSourceTree here;
  RunOptions options;
  EXPECT_EQ(load_contract(options).path(), "contracts/default.json");
  options.contract = "contracts/rl_kernel.json";
  EXPECT_EQ(load_contract(options).path(), "contracts/rl_kernel.json");
}

TEST(Selection, MissingContractIsAnError) {
  RunOptions options;
  options.contract = "missing.json";
  EXPECT_THROW(load_contract(options), InputError);
}

TEST(Selection, ArchKeyMustBeKnown) {
  RunOptions options;
  options.contract = std::string(CHECKOP_SOURCE_DIR) + "/contracts/default.json";
  for (const char* key : {"auto", "none", "sm90"}) {
    options.arch_key = key;
    EXPECT_NO_THROW(load_contract(options)) << key;
  }
  options.arch_key = "sm91";
  try {
    load_contract(options);
    FAIL() << "no exception";
  } catch (const InputError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with(
        "--arch-key: unknown architecture 'sm91'; did you mean 'sm90'? or use auto, none or one of "))
        << e.what();
  }
}

}  // namespace
}  // namespace checkop::selection_test
