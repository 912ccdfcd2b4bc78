// SPDX-License-Identifier: Apache-2.0
// What the runner observes of a candidate: memory it must not touch, bits that must not change, errors to survive.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "device/buffers.hpp"
#include "run/runner.hpp"
#include "support/device_helper.hpp"
#include "support/run_helper.hpp"

namespace checkop::runner_test {
namespace {

struct Ran {
  RunResult result;
  std::vector<Tensor> inputs, outputs;
};

/// Runs a candidate of tests/plugins in this process.
Ran run(std::string_view plugin, std::string_view candidate, const Case& c, const RunChecks& checks = {}) {
  Ran ran;
  ran.inputs = counting_inputs(c);
  ran.outputs = make_outputs(c);
  const auto device = open_cpu_device();
  ran.result =
      run_candidate(*device, find_candidate(plugin, candidate, c.pass->name), c, ran.inputs, ran.outputs, checks);
  return ran;
}

/// Expects status ok and no findings other than possible numerical errors.
void expect_clean(const RunResult& result) {
  EXPECT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_TRUE(result.guard_violations.empty()) << result.guard_violations.front();
  EXPECT_TRUE(result.modified_inputs.empty()) << result.modified_inputs.front();
  for (const OutputRun& output : result.outputs) {
    EXPECT_EQ(output.unwritten, 0);
    EXPECT_EQ(output.repeat.different, 0);
    for (const ContextBits& context : output.contexts) EXPECT_EQ(context.bits.different, 0);
  }
}

TEST(Runner, HonestCandidateIsCleanAndItsOutputIsReturned) {
  const Ran ran = run("honest", "honest", matmul_case());
  expect_clean(ran.result);
  for (int64_t i = 0; i < ran.outputs[0].count(); ++i) {
    EXPECT_EQ(ran.outputs[0].at(i), product(ran.inputs, i / 4, i % 4)) << i;
  }
  ASSERT_EQ(ran.result.outputs.size(), 1u);
  EXPECT_EQ(ran.result.outputs[0].repeat.compared, 24);
  EXPECT_GT(ran.result.run_ms, 0.0);
}

TEST(Runner, CallIsAsTheHeaderPromises) { expect_clean(run("honest", "inspects_call", matmul_case()).result); }

TEST(Runner, WorkspaceHasTheSizeThatWasAskedFor) {
  expect_clean(run("honest", "uses_workspace", matmul_case()).result);
}

TEST(Runner, MessageOfASuccessIsKept) {
  EXPECT_EQ(run("honest", "names_variant", matmul_case()).result.message, "plain loops");
}

// --- memory ----------------------------------------------------------------------------------------------------------

class RunnerMemory : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(EveryFloat, RunnerMemory, testing::Values(DType::f64, DType::f32, DType::f16, DType::bf16),
                         [](const auto& each) { return std::string(checkop::info(each.param).name); });

TEST_P(RunnerMemory, WriteBehindAnOutputIsFound) {
  const auto result = run("memory_faults", "writes_behind", matmul_case(2, 3, GetParam()), {true, false, true}).result;
  ASSERT_EQ(result.guard_violations.size(), 1u);
  EXPECT_EQ(result.guard_violations[0], "output 'c': 3 elements changed behind its end, first at +1");
}

TEST_P(RunnerMemory, WriteBeforeAnOutputIsFound) {
  const auto result = run("memory_faults", "writes_before", matmul_case(2, 3, GetParam()), {true, false, true}).result;
  ASSERT_EQ(result.guard_violations.size(), 1u);
  EXPECT_EQ(result.guard_violations[0], "output 'c': 1 element changed before its start, nearest at -2");
}

TEST_P(RunnerMemory, UnwrittenElementsAreCountedAndAreNoRepeatDifference) {
  const auto result = run("memory_faults", "leaves_unwritten", matmul_case(2, 3, GetParam())).result;
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_EQ(result.outputs[0].unwritten, 2);
  EXPECT_EQ(result.outputs[0].first_unwritten, 3);
  EXPECT_EQ(result.outputs[0].repeat.different, 0);
}

TEST_P(RunnerMemory, ChangedInputIsFoundAndTheHostsCopyIsNot) {
  const Case c = matmul_case(2, 3, GetParam());
  const Ran ran = run("memory_faults", "changes_input", c, {true, false, true});
  ASSERT_EQ(ran.result.modified_inputs.size(), 1u);
  EXPECT_EQ(ran.result.modified_inputs[0], "a: 2 elements changed, first at index 2");
  EXPECT_EQ(std::memcmp(ran.inputs[0].bytes.data(), counting_inputs(c)[0].bytes.data(), ran.inputs[0].bytes.size()), 0);
}

TEST(Runner, WriteBehindAnInputIsFound) {
  const auto result = run("memory_faults", "writes_behind_input", matmul_case(), {true, false, true}).result;
  ASSERT_EQ(result.guard_violations.size(), 1u);
  EXPECT_EQ(result.guard_violations[0], "input 'b': 1 element changed behind its end, first at +0");
}

TEST(Runner, WriteBehindTheWorkspaceIsFound) {
  const auto result = run("memory_faults", "overruns_workspace", matmul_case(), {true, false, true}).result;
  ASSERT_EQ(result.guard_violations.size(), 1u);
  EXPECT_EQ(result.guard_violations[0], "workspace: 2 bytes changed behind its end, first at +0");
}

TEST(Runner, WriteThatHappensOnlyForASingleRowIsFound) {
  const auto result = run("memory_faults", "single_row_overrun", matmul_case()).result;
  ASSERT_EQ(result.guard_violations.size(), 1u);
  EXPECT_EQ(result.guard_violations[0],
            "output 'c' (batch: the last row alone): 4 elements changed behind its end, first at +0");
}

TEST(Runner, OneFaultOfASharedInputIsReportedOnce) {
  const auto result = run("memory_faults", "writes_behind_input", matmul_case()).result;
  EXPECT_EQ(result.guard_violations.size(), 1u);
}

TEST(Runner, CandidateCanNotAlterShapesOrStridesOfTheHost) {
  expect_clean(run("memory_faults", "scribbles_on_call", matmul_case()).result);
}

TEST(Runner, MemoryIsNotJudgedWhenNotAskedFor) {
  const auto result = run("memory_faults", "writes_behind", matmul_case(), {true, true, false}).result;
  EXPECT_EQ(result.status, RunStatus::ok);
  EXPECT_TRUE(result.guard_violations.empty());
}

TEST(Poison, PatternsOfATypeAllDiffer) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    const Poison& poison = poison_of(dtype);
    EXPECT_NE(poison.output[0], poison.output[1]);
    EXPECT_NE(poison.output[0], poison.guard);
    EXPECT_NE(poison.output[1], poison.guard);
  }
}

TEST(Poison, FloatPatternsAreNaNButForTheSecondLaunch) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const uint64_t bits : {poison_of(dtype).output[0], poison_of(dtype).output[1], poison_of(dtype).guard}) {
      double value = 0;
      info(dtype).decode(reinterpret_cast<const std::byte*>(&bits), &value, 1);
      const bool is_second = bits == poison_of(dtype).output[1];
      EXPECT_EQ(std::isnan(value), !is_second) << info(dtype).name << " " << bits;
      EXPECT_TRUE(!is_second || (std::abs(value) > 0.05 && std::abs(value) < 4)) << value;
    }
  }
}

// --- bits ------------------------------------------------------------------------------------------------------------

TEST(Runner, DifferenceBetweenTwoRunsIsFoundWithItsPlace) {
  const auto result = run("changing_bits", "differs_each_run", matmul_case(), {true, false, true}).result;
  EXPECT_EQ(result.outputs[0].repeat.different, 1);
  EXPECT_EQ(result.outputs[0].repeat.first_index, 4);
  EXPECT_NE(result.outputs[0].repeat.a_bits, result.outputs[0].repeat.b_bits);
  EXPECT_EQ(result.outputs[0].unwritten, 0);
}

TEST(Runner, CandidateThatReadsItsWorkspaceDisagreesWithItself) {
  EXPECT_EQ(run("changing_bits", "reads_workspace", matmul_case()).result.outputs[0].repeat.different, 1);
}

TEST(Runner, RowWhoseBitsDependOnTheBatchIsFoundWithItsPlace) {
  const auto result = run("changing_bits", "depends_on_batch", matmul_case()).result;
  EXPECT_EQ(result.outputs[0].repeat.different, 0);
  ASSERT_EQ(result.contexts.size(), 4u);
  EXPECT_EQ(result.contexts[2].what, "the last row alone");
  // The candidate writes the number of rows to the last row: 1 alone, 6 in the full batch.
  const ContextBits& alone = result.outputs[0].contexts[2];
  EXPECT_EQ(alone.bits.compared, 4);
  EXPECT_EQ(alone.bits.different, 1);
  EXPECT_EQ(alone.bits.first_index, 23);
  EXPECT_EQ(result.outputs[0].smallest_rows, 2);
}

TEST(Runner, ContextThatACandidateDoesNotSupportIsNotCompared) {
  const auto result = run("honest", "even_rows", matmul_case()).result;
  ASSERT_EQ(result.status, RunStatus::ok);
  ASSERT_EQ(result.contexts.size(), 4u);
  EXPECT_FALSE(result.contexts[2].supported);  // the last row alone
  EXPECT_EQ(result.outputs[0].contexts[2].bits.compared, 0);
  EXPECT_TRUE(result.contexts[1].supported);  // all rows in reverse
  EXPECT_EQ(result.outputs[0].contexts[1].bits.compared, 20);
}

TEST(Runner, ContextsAreSkippedWhenNotAskedFor) {
  const auto result = run("honest", "honest", matmul_case(), {true, false, true}).result;
  EXPECT_TRUE(result.contexts.empty());
  EXPECT_TRUE(result.outputs[0].contexts.empty());
}

TEST(Runner, OutputsThatAreNotPerRowAreNotComparedRowByRow) {
  const auto result = run("honest", "tells_bias", linear_logp_case("backward", true)).result;
  ASSERT_EQ(result.outputs.size(), 3u);
  EXPECT_GT(result.outputs[0].contexts[0].bits.compared, 0);  // dhidden
  EXPECT_EQ(result.outputs[1].contexts[0].bits.compared, 0);  // dlm_head_weight
  EXPECT_EQ(result.outputs[2].contexts[0].bits.compared, 0);  // dbias
}

// --- optional tensors ------------------------------------------------------------------------------------------------

TEST(Runner, AbsentInputIsNullAndPresentOneIsNot) {
  const Ran without = run("honest", "tells_bias", linear_logp_case("forward", false));
  expect_clean(without.result);
  EXPECT_EQ(without.outputs[0].at(0), 0.0);
  const Ran with = run("honest", "tells_bias", linear_logp_case("forward", true));
  expect_clean(with.result);
  EXPECT_EQ(with.outputs[0].at(0), 1.0);
}

TEST(Runner, OptionalGradientFollowsItsInput) {
  const Ran without = run("honest", "tells_bias", linear_logp_case("backward", false));
  expect_clean(without.result);
  EXPECT_TRUE(without.outputs[2].name.empty());
  EXPECT_EQ(without.result.outputs[2].repeat.compared, 0);
  const Ran with = run("honest", "tells_bias", linear_logp_case("backward", true));
  expect_clean(with.result);
  EXPECT_EQ(with.outputs[2].at(4), 1.0);
}

// --- failures --------------------------------------------------------------------------------------------------------

void expect_stopped(std::string_view plugin, std::string_view candidate, RunStatus status, const std::string& message) {
  const RunResult result = run(plugin, candidate, matmul_case()).result;
  EXPECT_EQ(to_string(result.status), to_string(status));
  EXPECT_EQ(result.message, message);
  EXPECT_TRUE(result.outputs.empty());
  EXPECT_FALSE(result.device_lost);
}

TEST(Runner, ExceptionIsAFailureWithItsText) {
  expect_stopped("failures", "throws_exception", RunStatus::failed, "launch threw: no such tile");
}

TEST(Runner, ThrownNumberIsAFailure) {
  expect_stopped("failures", "throws_number", RunStatus::failed, "launch threw something that is no std::exception");
}

TEST(Runner, FailedStatusIsAFailureWithTheCandidatesWords) {
  expect_stopped("failures", "fails", RunStatus::failed, "id 9 is out of range");
}

TEST(Runner, UnknownStatusIsAFailure) {
  expect_stopped("failures", "unknown_status", RunStatus::failed, "launch returned 3, which is no checkop_status");
}

TEST(Runner, UnsupportedIsNoFailure) {
  expect_stopped("honest", "unsupported", RunStatus::unsupported, "k_dim must be a multiple of 64");
}

TEST(Runner, MessageWithoutEndIsCutOff) {
  expect_stopped("failures", "endless_message", RunStatus::failed, std::string(512, 'x'));
}

TEST(Runner, FailureOfTheSecondRunIsAFailure) {
  expect_stopped("failures", "fails_second_time", RunStatus::failed, "second run: returned CHECKOP_FAILED, no reason");
}

TEST(Runner, ExceptionOfWorkspaceBytesIsAFailure) {
  expect_stopped("failures", "throwing_workspace", RunStatus::failed, "workspace_bytes threw: no size");
}

TEST(Runner, AbsurdWorkspaceIsAFailure) {
  expect_stopped("failures", "absurd_workspace", RunStatus::failed,
                 "workspace_bytes asked for 18446744073709551610 bytes");
}

TEST(Runner, KernelForAnotherDeviceIsUnsupported) {
  expect_stopped("honest", "for_gpus", RunStatus::unsupported,
                 "runs on a CUDA device, not on 'cpu'; use --device cuda");
}

// --- devices ---------------------------------------------------------------------------------------------------------

/// A CPU device under another name, which fails like a GPU: late, in synchronize().
class FailingDevice : public DelegatingDevice {
 public:
  FailingDevice(int arch, int fail_at, bool sticky) : arch_(arch), fail_at_(fail_at), sticky_(sticky) {}
  ~FailingDevice() override { EXPECT_EQ(blocks, 0) << "memory was not freed"; }

  DeviceInfo info() const override {
    DeviceInfo info = DelegatingDevice::info();
    info.kind = "cuda";
    info.arch = arch_;
    return info;
  }
  std::byte* allocate(size_t bytes, const std::string& what) override {
    ++blocks;
    return DelegatingDevice::allocate(bytes, what);
  }
  std::byte* allocate_shared(size_t bytes, const std::string& what, Access access) override {
    ++blocks;
    return DelegatingDevice::allocate_shared(bytes, what, access);
  }
  void free(std::byte* memory) noexcept override {
    --blocks;
    DelegatingDevice::free(memory);
  }
  void synchronize(const std::string& what) override {
    if (++synchronized == fail_at_) throw DeviceError(what + ": illegal memory access", sticky_);
  }

  int blocks = 0, synchronized = 0;

 private:
  int arch_, fail_at_;
  bool sticky_;
};

RunResult run_on(FailingDevice& device, std::string_view candidate) {
  const Case c = matmul_case();
  const auto inputs = counting_inputs(c);
  auto outputs = make_outputs(c);
  return run_candidate(device, find_candidate("honest", candidate), c, inputs, outputs, {});
}

TEST(Runner, KernelForAnotherArchitectureIsUnsupported) {
  FailingDevice older(80, 0, false), newer(100, 0, false), fitting(90, 0, false);
  EXPECT_EQ(run_on(older, "for_gpus").message, "needs sm_90, device is sm_80");
  EXPECT_EQ(run_on(newer, "for_gpus").message, "runs up to sm_90, device is sm_100");
  EXPECT_EQ(run_on(older, "for_gpus").status, RunStatus::unsupported);
  EXPECT_EQ(run_on(fitting, "for_gpus").status, RunStatus::ok);
  EXPECT_EQ(run_on(fitting, "honest").message, "runs on the CPU, not on 'cuda'; use --device cpu");
}

TEST(Runner, AsynchronousErrorBelongsToTheCaseThatCausedIt) {
  FailingDevice device(90, /*fail_at=*/2, /*sticky=*/true);  // after the first launch
  const RunResult result = run_on(device, "for_gpus");
  EXPECT_EQ(result.status, RunStatus::failed);
  EXPECT_EQ(result.message, "run 1 of 'for_gpus': illegal memory access");
  EXPECT_TRUE(result.device_lost);
  EXPECT_TRUE(result.outputs.empty());
}

TEST(Runner, ErrorThatIsNotStickyLeavesTheDevice) {
  FailingDevice device(90, /*fail_at=*/4, /*sticky=*/false);  // after the second launch
  const RunResult result = run_on(device, "for_gpus");
  EXPECT_EQ(result.message, "run 2 of 'for_gpus': illegal memory access");
  EXPECT_FALSE(result.device_lost);
}

}  // namespace
}  // namespace checkop::runner_test
