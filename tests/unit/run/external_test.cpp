// SPDX-License-Identifier: Apache-2.0
// External processes as candidates: their results are checked like a plugin's, and every failure ends in a verdict.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "run/external.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::external_test {
namespace {

using contract_test::error_of;
using namespace std::chrono_literals;

namespace fs = std::filesystem;

std::string faulty(const std::string& mode) {
  return std::string(CHECKOP_PYTHON) + " " + CHECKOP_SOURCE_DIR + "/tests/plugins/exec/faulty.py " + mode;
}

Worker make_worker(const std::string& mode, const std::string& device = "auto") {
  return Worker({{}, "cpu", false, {{"mine", faulty(mode), device}}});
}

RunResult run(Worker& worker, std::chrono::seconds limit = 60s) {
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  return worker.run("mine", c, inputs, outputs, {}, limit);
}

RunResult run(const std::string& mode, std::chrono::seconds limit = 60s) {
  Worker worker = make_worker(mode);
  return run(worker, limit);
}

void expect_result(const std::string& mode, const std::string& status, const std::string& message) {
  const RunResult result = run(mode);
  EXPECT_EQ(to_string(result.status), status) << mode << ": " << result.message;
  EXPECT_NE(result.message.find(message), std::string::npos) << mode << ": " << result.message;
}

/// A file to which the process may write, as to each cache that the user names.
std::string scratch(const std::string& name) {
  const std::string cache = testing::TempDir() + "external";
  fs::create_directories(cache);
  setenv("NUMBA_CACHE_DIR", cache.c_str(), 1);
  std::string path = cache + "/" + name;
  fs::remove_all(path);
  return path;
}

int64_t lines_of(const std::string& path) {
  std::ifstream file(path);
  int64_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

// --- results ---------------------------------------------------------------------------------------------------------

TEST(External, GivesTheOutputAndBitsOfACleanRun) {
  Worker worker = make_worker("honest");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  const RunResult result = worker.run("mine", c, inputs, outputs, {}, 60s);
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.message, "plain loops");
  for (int64_t i = 0; i < outputs[0].count(); ++i) EXPECT_EQ(outputs[0].at(i), product(inputs, i / 4, i % 4)) << i;
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.outputs[0].repeat.compared, 24);
  EXPECT_EQ(result.outputs[0].repeat.different, 0);
  EXPECT_EQ(result.outputs[0].unwritten, 0);
}

TEST(External, TellsWhatItCanDo) {
  const Worker worker = make_worker("honest");
  const WorkerInfo& info = worker.info();
  ASSERT_EQ(info.candidates.size(), 1u);
  EXPECT_EQ(info.candidates[0].name, "mine");
  EXPECT_EQ(info.candidates[0].op, "matmul");
  EXPECT_EQ(info.candidates[0].pass, "forward");
  EXPECT_EQ(info.candidates[0].path, faulty("honest"));
  EXPECT_EQ(info.candidate_device[0], CHECKOP_CPU);
  EXPECT_EQ(info.device->kind, "cpu");
}

TEST(External, DeclaresRecipesOfItsOperators) {
  EXPECT_EQ(make_worker("declares").info().candidates[0].recipes, std::vector<std::string>{"tf32_operands"});
  EXPECT_EQ(make_worker("honest").info().candidates[0].recipes, std::vector<std::string>{});
  const std::string error = error_of([] { make_worker("hello_unknown_recipe"); });
  EXPECT_NE(error.find("kernels[0].recipes: operator 'matmul' has no recipe 'tf32_operand'; did you mean"),
            std::string::npos)
      << error;
}

TEST(External, DigestIsThatOfTheProcess) {
  EXPECT_EQ(make_worker("hello_digest").info().candidates[0].digest, "0123456789abcdef");
  EXPECT_NE(make_worker("honest").info().candidates[0].digest, "0123456789abcdef");
  EXPECT_NE(error_of([] { make_worker("hello_digest_wrong"); }).find("digest: expected 16 hex digits"),
            std::string::npos);
}

TEST(External, DeviceIsThatOfTheProcess) {
  Worker worker = make_worker("accelerator");
  EXPECT_EQ(worker.info().candidate_device[0], CHECKOP_CUDA);
  EXPECT_EQ(worker.info().device->name, "Some GPU");
  EXPECT_EQ(worker.info().device->arch_key, "sm90");
  EXPECT_EQ(to_string(run(worker).status), "ok");
}

TEST(External, DeviceThatWasNotAskedForIsRefused) {
  EXPECT_NE(error_of([] { make_worker("honest", "cuda:0"); }).find("computes on 'cpu', and 'cuda:0' was asked for"),
            std::string::npos);
  EXPECT_NE(error_of([] { make_worker("accelerator", "cpu"); }).find("computes on 'cuda:0'"), std::string::npos);
  EXPECT_EQ(make_worker("accelerator", "cuda:0").info().device->kind, "cuda");
}

TEST(External, SecondRunThatDiffersIsSeen) {
  const RunResult result = run("changes_with_time");
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.outputs[0].repeat.different, 1);
}

TEST(External, StartsOnceForManyCases) {
  const std::string starts = scratch("starts");
  Worker worker = make_worker("honest " + starts);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(to_string(run(worker).status), "ok");
  EXPECT_EQ(lines_of(starts), 1);
}

TEST(External, FailureIsNoReasonToStartItAgain) {
  const std::string starts = scratch("starts_of_failed");
  Worker worker = make_worker("failed " + starts);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(to_string(run(worker).status), "failed");
  EXPECT_EQ(lines_of(starts), 1);
}

// --- failures --------------------------------------------------------------------------------------------------------

TEST(External, DeathIsACrashWithItsLastWords) {
  const RunResult result = run("exits");
  EXPECT_EQ(to_string(result.status), "crashed");
  EXPECT_EQ(result.message, "exited with code 7 before it answered; it wrote: 'about to leave | the reason is this'");
}

TEST(External, SignalIsACrash) {
  expect_result("segfaults", "crashed", "killed by signal 11 (Segmentation fault) before it answered");
}

TEST(External, CommandsOfAShellWork) {
  for (const std::string& command : {"cd / && " + faulty("honest"), "MODE=1 " + faulty("honest"),
                                     faulty("honest") + " 2>&1", "exec " + faulty("honest")}) {
    Worker worker({{}, "cpu", false, {{"mine", command}}});
    EXPECT_EQ(to_string(run(worker).status), "ok") << command;
  }
}

TEST(External, DeathAfterAnAnswerIsACrash) { expect_result("leaves_between", "crashed", "exited with code 5"); }

TEST(External, FreshProcessFollowsACrash) {
  const std::string starts = scratch("restarts");
  Worker worker = make_worker("exits_once " + starts);
  EXPECT_EQ(to_string(run(worker).status), "crashed");
  EXPECT_EQ(to_string(run(worker).status), "ok");
  EXPECT_EQ(lines_of(starts), 2);
}

TEST(External, SilenceIsATimeOutWithItsLastWords) {
  Worker worker = make_worker("hangs");
  const RunResult result = run(worker, 1s);
  EXPECT_EQ(to_string(result.status), "timeout");
  EXPECT_EQ(result.message, "no answer within 1 s; killed; it wrote: 'waiting for the lock'");
}

TEST(External, ClosedOutputIsACrash) { expect_result("closes_output", "crashed", "closed its standard output"); }

TEST(External, GarbageIsACrash) {
  expect_result("garbage", "crashed", "'hello, world'");
  expect_result("endless_line", "crashed", "a line of more than 1048576 bytes");
  expect_result("odd_status", "crashed", "unknown status 'fine'");
}

TEST(External, AnswerToAnEarlierRequestIsACrash) {
  // The first answer has the right form, but there is no output file.
  expect_result("no_file", "failed", "its outputs can't be read");
  Worker worker = make_worker("answers_too_early");
  EXPECT_EQ(to_string(run(worker).status), "failed");
  const RunResult second = run(worker);
  EXPECT_EQ(to_string(second.status), "crashed");
  EXPECT_NE(second.message.find("its answer: id: expected 2, got 1"), std::string::npos) << second.message;
}

TEST(External, RefusalIsUnsupported) { expect_result("unsupported", "unsupported", "as it likes"); }

TEST(External, FailureIsItsOwnWord) { expect_result("failed", "failed", "as it likes"); }

TEST(External, OutputsThatAreNotTheWantedOnesAreAFailure) {
  expect_result("no_output", "failed", "it wrote no output 'c'");
  expect_result("wrong_shape", "failed", "its output 'c' is fp32 [2, 3, 1, 4], expected fp32 [2, 3, 4]");
  expect_result("wrong_dtype", "failed", "its output 'c' is int32 [2, 3, 4], expected fp32 [2, 3, 4]");
  expect_result("truncated", "failed", "its outputs can't be read");
}

// --- shared memory ---------------------------------------------------------------------------------------------------

/// The one sentence of guard violations and changed inputs; "" if there is none.
std::string memory_of(const std::string& mode) {
  const RunResult result = run(mode);
  EXPECT_EQ(result.status, RunStatus::ok) << mode << ": " << result.message;
  std::vector<std::string> all = result.guard_violations;
  all.insert(all.end(), result.modified_inputs.begin(), result.modified_inputs.end());
  return all.empty() ? "" : all.front();
}

TEST(External, TensorsLieInMemoryOfThisProgram) {
  Worker worker = make_worker("shared_honest");
  EXPECT_EQ(worker.info().device->transport, "memfd");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  const RunResult result = worker.run("mine", c, inputs, outputs, {}, 60s);
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  for (int64_t i = 0; i < outputs[0].count(); ++i) EXPECT_EQ(outputs[0].at(i), product(inputs, i / 4, i % 4)) << i;
  EXPECT_EQ(result.outputs[0].unwritten, 0);
  EXPECT_EQ(result.unobserved, "");
  EXPECT_TRUE(result.guard_violations.empty());
  EXPECT_TRUE(result.modified_inputs.empty());
}

TEST(External, InputsAreReadOnlyForProcessesThatAskForIt) { EXPECT_EQ(run("shared_sealed").message, "a r b r c rw"); }

TEST(External, WritesBeyondAnOutputAreSeen) {
  EXPECT_EQ(memory_of("shared_writes_past"), "output 'c': 1 element changed behind its end, first at +0");
  EXPECT_EQ(memory_of("shared_writes_before"), "output 'c': 2 elements changed before its start, nearest at -1");
}

TEST(External, WritesToAnInputAreSeen) {
  EXPECT_EQ(memory_of("shared_writes_input"), "a: 1 element changed, first at index 1");
}

TEST(External, ElementsThatAreNotWrittenAreSeen) {
  const RunResult result = run("shared_leaves_out");
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.outputs[0].unwritten, 1);
  EXPECT_EQ(result.outputs[0].first_unwritten, 23);
}

TEST(External, ResultTellsWhatWasNotObserved) {
  EXPECT_EQ(run("shared_returns").unobserved, "the function returns c");
  EXPECT_EQ(run("honest").unobserved, "tensors go through files");
}

TEST(External, RefusedMemoryLeavesFilesAndASentence) {
  Worker worker = make_worker("shared_refuses");
  EXPECT_EQ(worker.info().device->transport, "files; no memfd: no room for more");
  EXPECT_EQ(make_worker("honest").info().device->transport, "files; the process speaks protocol 1");
  EXPECT_EQ(to_string(run(worker).status), "ok");
  expect_result("shared_refuses_later", "failed", "its process can't map memory: no room for more");
}

TEST(External, OddAnswersAboutMemoryAreErrors) {
  const auto error = [](const std::string& mode) { return error_of([&] { make_worker(mode); }); };
  EXPECT_NE(error("shared_other_arena").find("its answer: arena: expected 1, got 2"), std::string::npos);
  EXPECT_NE(error("shared_odd_status").find("unknown status 'fine'"), std::string::npos);
  EXPECT_NE(error("shared_no_object").find("'[1]'"), std::string::npos);
  expect_result("shared_returns_another", "crashed", "unknown output 'd'");
}

TEST(External, DeathWithMappedMemoryIsACrashAndTheNextProcessGoesOn) {
  Worker worker = make_worker("shared_dies");
  for (int i = 0; i < 2; ++i) {
    const RunResult result = run(worker);
    EXPECT_EQ(to_string(result.status), "crashed");
    EXPECT_NE(result.message.find("killed by signal 9"), std::string::npos) << result.message;
  }
}

TEST(External, ThousandLaunchesLeaveNoDescriptorAndNoArenaBehind) {
  Worker worker = make_worker("shared_counts");
  std::string first, last;
  for (int i = 0; i < 300; ++i) {  // at least four launches each
    const RunResult result = run(worker);
    ASSERT_EQ(result.status, RunStatus::ok) << result.message;
    last = result.message;
    if (i == 0) first = last;
  }
  EXPECT_EQ(first, last);
  EXPECT_NE(last.find("2 arenas"), std::string::npos) << last;
}

// --- what a request says ---------------------------------------------------------------------------------------------

/// What a request for this case says of outputs.
std::string outputs_in_request(const std::string& op, const std::string& pass, const Dims& dims,
                               const std::set<std::string, std::less<>>& optionals) {
  const std::string command =
      fmt::format("{} {}/tests/plugins/exec/tells_outputs.py {} {}", CHECKOP_PYTHON, CHECKOP_SOURCE_DIR, op, pass);
  Worker worker({{}, "cpu", false, {{"mine", command, "auto"}}});
  const Case c = gold_case(op, pass, DType::f32, dims, optionals);
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  const RunResult result = worker.run("mine", c, inputs, outputs, {}, 60s);
  EXPECT_EQ(result.status, RunStatus::unsupported);
  return result.message;
}

TEST(External, RequestNamesTheOptionalOutputs) {
  const Dims sizes{{"batch", 1},  {"q_heads", 2},  {"kv_heads", 1}, {"q_seq", 3},
                   {"kv_seq", 3}, {"head_dim", 4}, {"v_dim", 4}};
  const auto of_attention = [&](const std::string& pass, const std::set<std::string, std::less<>>& optionals) {
    return outputs_in_request("attention", pass, sizes, optionals);
  };
  EXPECT_EQ(of_attention("forward", {}), "wanted: o; forward: o; optional: ");
  EXPECT_EQ(of_attention("forward", {"lse", "sinks"}), "wanted: o lse; forward: o lse; optional: lse");
  EXPECT_EQ(of_attention("backward", {}), "wanted: dq dk dv; forward: o; optional: ");
  EXPECT_EQ(of_attention("backward", {"sinks"}), "wanted: dq dk dv dsinks; forward: o; optional: ");
  EXPECT_EQ(of_attention("backward", {"lse", "sinks"}), "wanted: dq dk dv dsinks; forward: o lse; optional: lse");
}

TEST(External, WhatBelongsToAnInputIsNotOptional) {
  EXPECT_EQ(outputs_in_request("policy_loss", "forward", {{"batch", 2}, {"seq", 3}}, {"ref_logps"}),
            "wanted: loss policy_loss kl clip_fraction; forward: loss policy_loss kl clip_fraction; optional: ");
}

TEST(External, OptionalOutputsFollowWhatTheyBelongTo) {
  const Dims sizes{{"tokens", 2}, {"parts", 2}, {"heads", 1}, {"head_dim", 4}};
  EXPECT_EQ(outputs_in_request("attention_merge_state", "backward", sizes, {}),
            "wanted: dpart_o dpart_lse; forward: o; optional: ");
  EXPECT_EQ(outputs_in_request("attention_merge_state", "backward", sizes, {"grad_lse"}),
            "wanted: dpart_o dpart_lse; forward: o lse; optional: lse");
  EXPECT_EQ(
      outputs_in_request("quant_fp8_block", "forward", {{"batch", 1}, {"seq", 128}, {"hidden", 128}}, {"codes_t"}),
      "wanted: codes scales codes_t scales_t; forward: codes scales codes_t scales_t; optional: codes_t scales_t");
}

// --- its first answer ------------------------------------------------------------------------------------------------

TEST(External, CommandThatCannotServeIsAnInputError) {
  const auto error = [](const std::string& mode) { return error_of([&] { make_worker(mode); }); };
  EXPECT_NE(error("hello_exits").find("exited with code 1 before it answered; it wrote: 'no such module'"),
            std::string::npos);
  EXPECT_NE(error("hello_garbage").find("--exec"), std::string::npos);
  EXPECT_NE(error("hello_unknown_operator").find("unknown operator 'matmull'; did you mean 'matmul'?"),
            std::string::npos);
  EXPECT_NE(error("hello_nothing").find("reports no kernels"), std::string::npos);
  EXPECT_NE(error("hello_other_protocol").find("protocol: expected"), std::string::npos);
  EXPECT_NE(error("hello_twice").find("expected each operator and pass once"), std::string::npos);
  EXPECT_NE(error_of([] {
              Worker({{}, "cpu", false, {{"mine", "/nowhere/at/all"}}});
            }).find("with code 127"),
            std::string::npos);
}

TEST(External, DeviceThatIsNotThereIsAnEnvironmentError) {
  EXPECT_THROW(make_worker("hello_no_device"), EnvironmentError);
}

TEST(External, DigestChangesWithTheScript) {
  const std::string script = scratch("script.py"), command = "python3 '" + script + "' --flag";
  std::ofstream(script) << "one";
  const std::string digest = command_digest(command);
  EXPECT_EQ(command_digest(command), digest);
  std::ofstream(script) << "two";
  EXPECT_NE(command_digest(command), digest);
  EXPECT_NE(command_digest("python3"), command_digest("python4"));
}

TEST(External, FolderIsGoneAfterwards) {
  const std::string parent = scratch("folders");
  fs::create_directories(parent);
  const char* before = std::getenv("TMPDIR");
  const std::string saved = before == nullptr ? "" : before;
  setenv("TMPDIR", parent.c_str(), 1);
  {
    Worker worker = make_worker("hangs");
    EXPECT_EQ(to_string(run(worker, 1s).status), "timeout");
    EXPECT_FALSE(fs::is_empty(parent));
  }
  saved.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", saved.c_str(), 1);
  EXPECT_TRUE(fs::is_empty(parent));
}

// --- the whole program -----------------------------------------------------------------------------------------------

constexpr char kMatmul[] = "--op matmul --dtype fp32 --device cpu --batch 2 --seq 3 --k-dim 5 ";

ProcessResult run_faulty(const std::string& mode, const std::string& more = "--n-dim 4 --candidate exec") {
  return run_program(kMatmul + ("--exec '" + faulty(mode) + "' ") + more);
}

TEST(External, HonestProcessPasses) { expect_exit(run_faulty("honest"), 0, "matmul/forward  exec  fp32"); }

TEST(External, WrongNumbersFail) { expect_exit(run_faulty("wrong"), 1, "c[0,0,0] = "); }

TEST(External, RowsThatDependOnTheirBatchFail) {
  expect_exit(run_faulty("changes_with_rows", "--n-dim 4 --candidate exec --check invariance"), 1, "elements differ");
}

TEST(External, CrashLeavesTheOtherChecksAlone) {
  const std::string starts = scratch("cli_starts");
  const ProcessResult result = run_faulty("exits_once " + starts, "--n-dim 4,6,8 --candidate exec");
  expect_exit(result, 4, "exited with code 7 before it answered");
  expect_exit(result, 4, "2 pass");
  EXPECT_EQ(lines_of(starts), 2);
}

TEST(External, RunStartsTheProcessOnce) {
  const std::string starts = scratch("cli_once");
  expect_exit(run_faulty("honest " + starts, "--n-dim 4,6,8 --candidate exec"), 0, "3 pass");
  EXPECT_EQ(lines_of(starts), 1);
}

TEST(External, RepeatLineNamesTheCommand) {
  expect_exit(run_faulty("wrong", "--n-dim 4 --exec-name slow --candidate slow"), 1,
              "--candidate slow --device cpu --contract contracts/default.json --exec '" + faulty("wrong") +
                  "' --exec-name slow");
}

TEST(External, NamesAreChecked) {
  expect_exit(run_faulty("honest", "--exec-name native"), 2, "there is a candidate 'native' already");
  expect_exit(run_faulty("honest", "--exec-name 'a b'"), 2, "'a b' is no candidate name");
  expect_exit(run_faulty("honest", "--exec-name a,b"), 2, "2 names for 1 commands");
  expect_exit(run_program("--op matmul --exec-name a"), 2, "--exec-name: has no effect alone");
  expect_exit(run_program("bench --op matmul --exec a"), 2, "unknown flag '--exec'");
}

TEST(External, TwoCommandsAreTwoCandidates) {
  const std::string two = kMatmul + ("--n-dim 4 --exec '" + faulty("honest")) + "' --exec '" + faulty("wrong") + "' ";
  expect_exit(run_program(two + "--candidate exec,exec2"), 1, "matmul/forward  exec2  fp32");
  expect_exit(run_program(two + "--candidate good --exec-name good,bad"), 0, "matmul/forward  good  fp32");
}

TEST(External, OneThatComputesOnAnAcceleratorNeedsNoneInThisBuild) {
  const ProcessResult result = run_program(
      "--op matmul --dtype fp32 --device cuda --batch 2 --seq 3 --k-dim 5 --n-dim 4 --candidate exec --exec '" +
      faulty("accelerator") + "' --json");
  expect_exit(result, 0, "\"Some GPU\"");
}

TEST(External, NumpyExamplePassesForwardAndBackward) {
  expect_exit(
      run_program("--op rms_norm --dtype fp32,bf16,fp16 --check-grad --device cpu --batch 3 --seq 5 --hidden 1,67,512 "
                  "--with none,mask --candidate exec --exec '" CHECKOP_PYTHON " docs/exec/rms_norm_numpy.py'"),
      0, "27 pass");
}

/// A run of tests/plugins/exec/attention.py, which returns `outputs`.
ProcessResult run_attention(const std::string& outputs, const std::string& with) {
  return run_program(fmt::format(
      "--op attention --device cpu --batch 1 --q-heads 2 --kv-heads 1 --q-seq 5 --kv-seq 5 --head-dim 8 --with {} "
      "--candidate exec --exec '{} tests/plugins/exec/attention.py \"{}\"'",
      with, CHECKOP_PYTHON, outputs));
}

TEST(External, CasesOfAnOptionalOutputThatTheFunctionLacksAreUnsupported) {
  expect_exit(run_attention("o lse", "none,lse"), 0, "2 pass");
  for (const char* outputs : {"o", "o as it is"}) {
    const ProcessResult result = run_attention(outputs, "none,lse");
    expect_exit(result, 3, " +lse seed=123");
    expect_exit(result, 3, "\n             the function returns o alone; this case asks for lse too\n");
    expect_exit(result, 3, "[  PASSED  ] 1 pass\n[   UNSUP. ] 1 unsupported\n");
  }
}

TEST(External, RequiredOutputThatTheFunctionLeavesOutIsAFailure) {
  for (const char* with : {"none", "lse"}) {
    expect_exit(run_attention("lse", with), 1,
                "\n             the candidate failed: the function returned no 'o', only 'lse'\n");
  }
}

}  // namespace
}  // namespace checkop::external_test
