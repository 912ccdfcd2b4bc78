// SPDX-License-Identifier: Apache-2.0
// Whatever a candidate does to its process, the parent gets a result and the next run works.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"
#include "base/heap.hpp"
#include "case/inputs.hpp"
#include "support/message_of.hpp"
#include "support/run_helper.hpp"
#include "worker/child.hpp"
#include "worker/rank_job.hpp"
#include "worker/wire.hpp"
#include "worker/worker.hpp"

namespace checkop::worker_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

Worker make_worker(std::string_view plugin) { return Worker({{test_plugin(plugin)}, "cpu"}); }

RunResult run(Worker& worker, const std::string& candidate, std::chrono::seconds limit = 60s) {
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  return worker.run(candidate, c, inputs, outputs, {}, limit);
}

/// Expects that `candidate` of crashes.cpp crashes with `message`, and that the same worker can then run an honest one.
void expect_crash(const std::string& candidate, const std::string& message) {
  Worker worker = make_worker("crashes");
  const RunResult result = run(worker, candidate);
  EXPECT_EQ(to_string(result.status), "crashed");
  EXPECT_EQ(result.message, message);
  EXPECT_TRUE(result.outputs.empty());
  EXPECT_EQ(to_string(run(worker, "honest").status), "ok");
}

TEST(Worker, TellsWhatItLoadedAndWhereItRuns) {
  const Worker worker({{test_plugin("honest"), test_plugin("failures")}, "cpu"});
  const WorkerInfo& info = worker.info();
  ASSERT_GT(info.candidates.size(), 9u);
  EXPECT_EQ(info.candidates[0].name, "honest");
  EXPECT_EQ(info.candidates[0].digest, file_digest(test_plugin("honest")));
  EXPECT_EQ(info.candidates[0].kernel, nullptr);
  EXPECT_EQ(info.candidate_device.size(), info.candidates.size());
  EXPECT_EQ(info.candidate_device[8], CHECKOP_CUDA);
  ASSERT_TRUE(info.device.has_value());
  EXPECT_EQ(info.device->kind, "cpu");
}

TEST(Worker, GivesTheOutputAndResultOfACleanRun) {
  Worker worker = make_worker("honest");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  const RunResult result = worker.run("names_variant", c, inputs, outputs, {}, 60s);
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.message, "plain loops");
  for (int64_t i = 0; i < outputs[0].count(); ++i) EXPECT_EQ(outputs[0].at(i), product(inputs, i / 4, i % 4)) << i;
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.outputs[0].repeat.compared, 24);
  ASSERT_EQ(result.contexts.size(), 4u);
  EXPECT_EQ(result.contexts[2].what, "the last row alone");
  ASSERT_EQ(result.outputs[0].contexts.size(), 4u);
  EXPECT_EQ(result.outputs[0].contexts[2].bits.compared, 4);
}

TEST(Worker, TwoWorkersWorkAtOnce) {
  Worker worker = make_worker("honest"), other = make_worker("honest");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c), others = make_outputs(c);
  worker.begin("honest", c, inputs, outputs, {}, 60s);
  other.begin("honest", c, inputs, others, {}, 60s);
  EXPECT_EQ(to_string(other.finish().status), "ok");
  EXPECT_EQ(to_string(worker.finish().status), "ok");
  EXPECT_EQ(outputs[0].at(5), product(inputs, 1, 1));
  EXPECT_EQ(others[0].at(5), product(inputs, 1, 1));
}

// As when judging the check before ends in an exception.
TEST(Worker, RunThatNobodyFinishedIsNotTakenForTheNextOne) {
  Worker worker = make_worker("honest");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  worker.begin("honest", c, inputs, outputs, {}, 60s);
  EXPECT_EQ(to_string(run(worker, "honest").status), "ok");
}

// The answer arrived in time, but was read late.
TEST(Worker, AnswerIsTakenWhenItIsLookedForAfterTheLimit) {
  Worker worker = make_worker("honest");
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  worker.begin("honest", c, inputs, outputs, {}, 1s);
  std::this_thread::sleep_for(1500ms);
  const RunResult result = worker.finish();
  EXPECT_EQ(to_string(result.status), "ok") << result.message;
}

// Of outputs that do not fit into the socket's buffer, the worker could not send the whole answer before it is read.
TEST(Worker, LargeAnswerIsTakenWhenItIsLookedForAfterTheLimit) {
  Worker worker = make_worker("honest");
  const Case c = matmul_case(1, 1 << 15);
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  outputs[0].bytes = Bytes::of_own(outputs[0].bytes.size());
  ASSERT_GT(outputs[0].bytes.size(), size_t{256} << 10);
  worker.begin("honest", c, inputs, outputs, {}, 3s);
  std::this_thread::sleep_for(3500ms);
  const RunResult result = worker.finish();
  EXPECT_EQ(to_string(result.status), "ok") << result.message;
  EXPECT_EQ(outputs[0].at(7), product(inputs, 1, 3));
}

TEST(Worker, PassesAbsentTensorsOn) {
  Worker worker = make_worker("honest");
  for (const bool bias : {false, true}) {
    const Case c = linear_logp_case("backward", bias);
    const auto inputs = counting_inputs(c);
    auto outputs = make_outputs(c);
    EXPECT_EQ(worker.run("tells_bias", c, inputs, outputs, {}, 60s).status, RunStatus::ok);
    EXPECT_EQ(outputs[0].at(0), 1.0);
  }
}

TEST(Worker, ReportsWhatTheRunnerFound) {
  Worker worker = make_worker("memory_faults");
  const RunResult result = run(worker, "changes_input");
  ASSERT_EQ(result.modified_inputs.size(), 1u);
  EXPECT_EQ(result.modified_inputs[0], "a: written to, first at index 2");
}

TEST(Worker, FailureIsNoCrash) {
  Worker worker = make_worker("failures");
  EXPECT_EQ(to_string(run(worker, "throws_exception").status), "failed");
  EXPECT_EQ(run(worker, "fails").message, "id 9 is out of range");
}

TEST(Worker, MessageThatIsNoUtf8IsRepaired) {
  Worker worker = make_worker("failures");
  const RunResult result = run(worker, "message_is_no_utf8");
  EXPECT_EQ(result.status, RunStatus::failed);
  EXPECT_EQ(result.message, "bad \xef\xbf\xbd byte");
}

// --- death -----------------------------------------------------------------------------------------------------------

TEST(Worker, SegmentationFaultIsACrashAndTheNextRunWorks) {
  expect_crash("segfaults", "killed by signal 11 (Segmentation fault)");
}

TEST(Worker, AbortIsACrash) { expect_crash("aborts", "killed by signal 6 (Aborted)"); }

#if !defined(CHECKOP_SANITIZED)  // a sanitizer's allocator ends the process in its own way
TEST(Worker, UseOfFreedMemoryIsACrash) {
  expect_crash("uses_freed_memory", "killed by signal 11 (Segmentation fault)");
}

TEST(Worker, UseOfFreedMemoryIsACrashBesideAProcessThatKeepsIt) {
  keep_freed_memory();
  WorkerConfig config{{test_plugin("crashes")}, "cpu"};
  config.in_worker = true;
  Worker worker(config);
  return_freed_memory();
  EXPECT_EQ(run(worker, "uses_freed_memory").message, "killed by signal 11 (Segmentation fault)");
}
#endif

TEST(Worker, ExitWithCodeZeroIsACrashAndNeverAPass) { expect_crash("exits", "exited with code 0 before it answered"); }

TEST(Worker, ExitAfterClosingEveryFileIsACrash) {
  expect_crash("closes_everything", "exited with code 3 before it answered");
}

TEST(Worker, CrashIsSeenAlthoughAGrandchildHoldsTheSocket) {
  const auto start = Clock::now();
  expect_crash("leaves_child_and_dies", "killed by signal 11 (Segmentation fault)");
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(Worker, HasAnsweredOnceItHasEndedAlthoughAGrandchildHoldsTheSocket) {
  WorkerConfig config{{test_plugin("crashes")}, "cpu"};
  config.in_worker = true;
  Worker worker(config);
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  worker.begin("leaves_child_and_dies", c, inputs, outputs, {}, 60s);
  for (const auto until = Clock::now() + 10s; !worker.has_answered() && Clock::now() < until;)
    std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(worker.has_answered());
  EXPECT_EQ(worker.awaited(), -1);
  EXPECT_EQ(worker.finish().message, "killed by signal 11 (Segmentation fault)");
}

TEST(Worker, CrashAfterTheAnswerIsReportedWithTheNextRun) {
  Worker worker = make_worker("crashes");
  EXPECT_EQ(run(worker, "crashes_later").status, RunStatus::ok);
  std::this_thread::sleep_for(500ms);
  const RunResult result = run(worker, "honest");
  EXPECT_EQ(result.status, RunStatus::crashed);
  EXPECT_EQ(result.message, "between two cases: killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(run(worker, "honest").status, RunStatus::ok);
}

TEST(Worker, TimeOutKillsAndNamesTheLimitAndTheNextRunWorks) {
  Worker worker = make_worker("crashes");
  const auto start = Clock::now();
  const RunResult result = run(worker, "sleeps", 1s);
  EXPECT_LT(Clock::now() - start, 10s);
  EXPECT_EQ(result.status, RunStatus::timeout);
  EXPECT_EQ(result.message, "no answer within 1 s; killed");
  EXPECT_EQ(run(worker, "honest").status, RunStatus::ok);
}

TEST(Worker, LeavesNoProcessBehind) {
  { const Worker worker = make_worker("honest"); }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(Worker, DiesWithItsParentEvenInTheMiddleOfARun) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // the orphan becomes a child of this process
  const pid_t parent = fork();
  if (parent == 0) {
    Worker worker = make_worker("crashes");
    run(worker, "sleeps", 3600s);
    _exit(0);
  }
  std::this_thread::sleep_for(300ms);
  kill(parent, SIGKILL);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  int status = 0;
  pid_t orphan = 0;
  for (const auto until = Clock::now() + 10s; orphan == 0 && Clock::now() < until;) {
    orphan = waitpid(-1, &status, WNOHANG);
    std::this_thread::sleep_for(1ms);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  ASSERT_GT(orphan, 0) << "the worker outlived its parent";
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST(Worker, PluginsPrintsGoToStderrAndNeverToStdout) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    Worker worker = make_worker("crashes");
    EXPECT_EQ(run(worker, "prints").status, RunStatus::ok);
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("hello from the plugin"), std::string::npos);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Worker, TextThatTheParentHasNotWrittenYetIsWrittenOnce) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::printf("half a line");
  {
    Worker worker = make_worker("crashes");
    EXPECT_EQ(run(worker, "exits").status, RunStatus::crashed);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "half a line");
}

// --- invalid requests ------------------------------------------------------------------------------------------------

TEST(Worker, BadPluginIsTheSameInputErrorAsInThisProcess) {
  try {
    make_worker("null_launch");
    FAIL() << "no exception";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("'null_launch': launch is NULL"), std::string::npos) << e.what();
  }
}

TEST(Worker, PluginThatCrashesWhileItIsLoadedIsAnInputErrorWithTheSignal) {
  try {
    make_worker("crashes_at_load");
    FAIL() << "no exception";
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("crashes_at_load.so: killed by signal 11"), std::string::npos) << e.what();
  }
}

// Such a tool would not see kernels that another process launches.
TEST(Worker, LaunchesOnAGpuItselfUnderAToolOfNvidia) {
  const WorkerConfig cpu{{"a.so"}, "cpu"}, gpu{{"a.so"}, "cuda:0"};
  EXPECT_TRUE(has_plugin_host(cpu));
  EXPECT_TRUE(has_plugin_host(gpu));
  for (const char* variable : {"NV_SANITIZER_INJECTION_PORT_BASE", "NSYS_PROFILING_SESSION_ID"}) {
    setenv(variable, "1", 1);
    EXPECT_TRUE(has_plugin_host(cpu)) << variable;
    EXPECT_FALSE(has_plugin_host(gpu)) << variable;
    unsetenv(variable);
  }
  WorkerConfig at_home = gpu;
  at_home.in_worker = true;
  EXPECT_FALSE(has_plugin_host(at_home));
}

TEST(Worker, MissingDeviceIsAnEnvironmentError) {
  EXPECT_THROW(Worker({{test_plugin("honest")}, "cuda:99"}), EnvironmentError);
}

TEST(Worker, UnknownDeviceIsAnInputError) {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0x", "cpu:0", ""}) {
    EXPECT_EQ(message_of([&] {
                Worker({{}, name});
              }),
              fmt::format("--device: unknown device '{}'; use cpu, cuda or cuda:N", name));
  }
}

TEST(Worker, UnknownCandidateIsAnInputErrorWithTheNearestName) {
  Worker worker = make_worker("honest");
  try {
    run(worker, "honesst");
    FAIL() << "no exception";
  } catch (const InputError& e) {
    EXPECT_STREQ(e.what(), "matmul/forward: no candidate 'honesst'; did you mean 'honest'?");
  }
}

// --- processes of ranks

TEST(RankJob, ProcessesThatWereStartedDifferentlyAreRefused) {
  const auto complaint = [](auto change) {
    std::vector<Introduction> members(2, {"1.0", "--op tp_logp", {"aa", "bb"}, "node", 41, ""});
    members[1].process = 42;
    change(members[1]);
    return message_of([&] { require_same(members); });
  };
  EXPECT_EQ(complaint([](Introduction&) {}), "no error");
  EXPECT_EQ(complaint([](Introduction& i) { i.error = "mine.so: no such file"; }),
            "rank 1 (node, process 42): mine.so: no such file");
  EXPECT_EQ(complaint([](Introduction& i) { i.version = "1.1"; }),
            "rank 1 (node, process 42): is of version 1.1, rank 0 of 1.0; start the same program for all ranks");
  EXPECT_EQ(
      complaint([](Introduction& i) { i.arguments = "--op logp"; }),
      "rank 1 (node, process 42): was asked '--op logp', rank 0 '--op tp_logp'; give all ranks the same arguments");
  EXPECT_EQ(
      complaint([](Introduction& i) {
        i.plugins = {"aa", "cc"};
      }),
      "rank 1 (node, process 42): has other plugins than rank 0: digests aa, cc and aa, bb; give all ranks the same "
      "files");
}

// --- the wire --------------------------------------------------------------------------------------------------------

TEST(Wire, CaseSurvivesTheWayThereAndBack) {
  Case c = linear_logp_case("backward", true);
  c.dtype = DType::bf16;
  c.attrs = {0.1, -std::numeric_limits<double>::infinity()};
  c.input_mode = InputMode::peaked;
  c.constant_value = 1e-300;
  c.token_value = -7;
  c.grad_mode = GradMode::ones;
  c.seed = ~uint64_t{0};
  c.grad_seed = 5;
  const Case back = decode_case(nlohmann::json::parse(dump(encode(c))));
  EXPECT_EQ(back.op, c.op);
  EXPECT_EQ(back.pass, c.pass);
  EXPECT_EQ(back.dtype, c.dtype);
  EXPECT_EQ(back.dims, c.dims);
  EXPECT_EQ(back.attrs, c.attrs);
  EXPECT_EQ(back.optionals, c.optionals);
  EXPECT_EQ(back.input_mode, c.input_mode);
  EXPECT_EQ(back.constant_value, c.constant_value);
  EXPECT_EQ(back.token_value, c.token_value);
  EXPECT_EQ(back.grad_mode, c.grad_mode);
  EXPECT_EQ(back.seed, c.seed);
  EXPECT_EQ(back.grad_seed, c.grad_seed);
}

TEST(Wire, ResultSurvivesTheWayThereAndBack) {
  RunResult result;
  result.status = RunStatus::timeout;
  result.message = "text";
  result.outputs = {{3, 9, {10, 2, 4, ~uint64_t{0}, 1}, {{{1, 1, 0, 2, 3}, 4}}, 17}};
  result.contexts = {{Axis::padding, "one row", false, "no"}};
  result.guard_violations = {"g"};
  result.modified_inputs = {"m"};
  result.device_lost = true;
  result.transfer_ms = 0.125;
  result.run_ms = 1.0 / 3;
  const RunResult back = decode_result(nlohmann::json::parse(dump(encode(result))));
  EXPECT_EQ(encode(back), encode(result));
  EXPECT_EQ(back.status, result.status);
  EXPECT_EQ(back.outputs[0].repeat.a_bits, ~uint64_t{0});
  EXPECT_EQ(back.outputs[0].contexts[0].bits.b_bits, 3u);
  EXPECT_EQ(back.outputs[0].contexts[0].row_zero_different, 4);
  EXPECT_EQ(back.outputs[0].smallest_rows, 17);
  EXPECT_EQ(back.contexts[0].axis, Axis::padding);
  EXPECT_EQ(back.contexts[0].message, "no");
  EXPECT_EQ(back.run_ms, result.run_ms);
}

}  // namespace
}  // namespace checkop::worker_test
