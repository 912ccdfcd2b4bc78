// SPDX-License-Identifier: Apache-2.0
// Faults on a GPU, seen through the whole program. Needs a CUDA device: run by scripts/gpu.sh, not by CI.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/built.hpp"
#include "support/device_memory_helper.hpp"
#include "support/process.hpp"

namespace checkop {
namespace {

ProcessResult run(const std::string& candidates, const std::string& more = "") {
  return run_program(
      fmt::format("--op matmul --device cuda --dtype fp32 --batch 2 --seq 3 --k-dim 16 --n-dim 8 --plugin "
                  "{}/gpu_faults.so --candidate {} {}",
                  kPluginFolder, candidates, more));
}

TEST(Gpu, HonestKernelPasses) { expect_exit(run("honest"), 0, "1 pass"); }

TEST(Gpu, UnwrittenElementIsFound) { expect_exit(run("leaves_unwritten"), 1, "c[1,2,7]: 1 element was never written"); }

TEST(Gpu, WriteBehindAnOutputIsFound) { expect_exit(run("writes_behind"), 1, "behind its end, first at +2"); }

TEST(Gpu, ChangedInputIsFound) { expect_exit(run("changes_input"), 1, "changed an input: b"); }

TEST(Gpu, IllegalAddressBelongsToItsCaseAndTheNextOneIsUnharmed) {
  const ProcessResult result = run("illegal_address,honest");
  expect_exit(result, 4, "illegal memory access");
  expect_exit(result, 4, "1 pass");
}

TEST(Gpu, LaunchErrorThatTheKernelKeptQuietIsFound) { expect_exit(run("launch_error"), 1, "cudaErrorInvalid"); }

TEST(Gpu, EndlessKernelEndsAtTheTimeLimitAndTheNextOneIsUnharmed) {
  const ProcessResult result = run("endless,honest", "--timeout-s 5");
  expect_exit(result, 4, "1 timeout");
  expect_exit(result, 4, "1 pass");
}

TEST(Gpu, CandidateThatKeepsAllMemoryIsAnErrorAndTheNextOneIsUnharmed) {
  const ProcessResult result = run("out_of_memory,says_out_of_memory,honest");
  expect_exit(result, 4, "out of memory");
  expect_exit(result, 4, "2 error");
  expect_exit(result, 4, "(cudaErrorMemoryAllocation)");  // the candidate's own message
  expect_exit(result, 4, "1 pass");
}

TEST(Gpu, CandidateThatKeepsAllMemoryDoesNotMakeItsNextCasesSkipped) {
  const ProcessResult result =
      run_program(fmt::format("--op matmul --device cuda --batch 2 --seq 3,5,8 --k-dim 16 --n-dim 8 --plugin "
                              "{}/gpu_faults.so --candidate out_of_memory",
                              kPluginFolder));
  expect_exit(result, 4, "3 error");
}

TEST(Gpu, CaseThatDoesNotFitOnTheDeviceIsSkippedWithBothFigures) {
  const ProcessResult result = run_program(
      "--op silu --candidate cuda --device cuda --dtype bf16 --batch 1 --seq 8,8000000 --hidden 16384 "
      "--memory-limit 2000G --max-skip 0");
  expect_exit(result, 1, "of device memory, of which");
  expect_exit(result, 1, "1 skipped, more than the 0 that --max-skip allows");
}

TEST(Gpu, WorkOnAnotherStreamIsWaitedFor) { expect_exit(run("side_stream"), 0, "1 pass"); }

TEST(Gpu, FillRepeatsPatternsOfEveryWidth) { expect_fill_repeats(*open_cuda_device(0)); }

TEST(Gpu, ContentIsToldApart) { expect_content_is_told_apart(*open_cuda_device(0)); }

TEST(Gpu, RowsEqualTellsOneByte) { expect_rows_equal_tells(*open_cuda_device(0)); }

TEST(Gpu, RowsAreCopiedToTheirPlaces) { expect_rows_are_copied(*open_cuda_device(0)); }

// --- axes that only a GPU has, and cuBLAS

/// The report of a check of all axes.
nlohmann::json bits_of(const std::string& flags, int code) {
  const ProcessResult result =
      run_program(fmt::format("--op matmul --device cuda {} --check invariance,determinism --json", flags));
  EXPECT_EQ(result.code, code) << result.text;
  return nlohmann::json::parse(result.text, nullptr, /*allow_exceptions=*/false);
}

/// The report's entries for each axis of the first output.
nlohmann::json axes_in(const nlohmann::json& report) {
  nlohmann::json axes;
  for (const auto& axis : report["candidates"][0]["cases"][0]["bit_checks"][0]["axes"]) {
    axes[axis["axis"].get<std::string>()] = axis;
  }
  return axes;
}

nlohmann::json axes_of(const std::string& candidate, int code) {
  return axes_in(bits_of(fmt::format("--dtype fp32 --batch 2 --seq 40 --k-dim 256 --n-dim 64 --candidate {} --plugin "
                                     "{}/gpu_axis_faults.so",
                                     candidate, kPluginFolder),
                         code));
}

TEST(GpuAxes, AllAreRunAndTheControlIsCaught) {
  const nlohmann::json axes = axes_of("steady", 0);
  ASSERT_EQ(axes.size(), 16u);  // all but that of ranks
  for (const auto& [name, axis] : axes.items()) {
    EXPECT_EQ(axis["different"], 0) << name;
    EXPECT_TRUE(axis["unsupported"] == 0 || name == "row_stride" || name == "layout")
        << name << axis["why_unsupported"];
  }
}

TEST(GpuAxes, ContentionFindsAKernelThatNeedsEverySm) {
  const nlohmann::json axes = axes_of("needs_every_sm", 1);
  EXPECT_GT(axes["contention"]["different"], 0);
  EXPECT_EQ(axes["repetition"]["different"], 0);
}

TEST(GpuAxes, ReplayFindsAKernelThatDiffersInAGraph) {
  const nlohmann::json axes = axes_of("differs_in_a_graph", 1);
  EXPECT_GT(axes["graph"]["different"], 0);
  EXPECT_EQ(axes["repetition"]["different"], 0);
}

TEST(GpuAxes, WhatCannotBeRecordedIsUnsupportedWithTheReason) {
  const nlohmann::json axes = axes_of("waits_on_the_host", 0);
  EXPECT_EQ(axes["graph"]["unsupported"], axes["graph"]["contexts"]);
  EXPECT_NE(axes["graph"]["why_unsupported"].get<std::string>().find("can't be recorded"), std::string::npos);
  EXPECT_EQ(axes["contention"]["unsupported"], 0);
}

// 1024 columns are few tiles, so the default heuristics split k for few rows. They depend on alignment, too.
TEST(GpuAxes, CublasDependsOnTheRowsAndCublasInvariantDoesNot) {
  const std::string sizes = "--dtype bf16 --batch 1 --seq 512 --k-dim 4096 --n-dim 1024 --candidate ";
  const nlohmann::json with_default = bits_of(sizes + "cublas", 1), invariant = bits_of(sizes + "cublas-invariant", 0);
  EXPECT_GT(axes_in(with_default)["batch"]["different"], 0);
  EXPECT_EQ(invariant["candidates"][0]["cases"][0]["verdict"], "pass");
}

TEST(Gpu, ArchKeyOfAnotherDeviceIsRefused) {
  expect_exit(run("honest", "--arch-key sm70"), 2, "is not the architecture of");
}

}  // namespace
}  // namespace checkop
