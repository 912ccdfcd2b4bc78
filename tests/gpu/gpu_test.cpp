// SPDX-License-Identifier: Apache-2.0
// What a GPU does wrong, seen through the whole program. Needs a CUDA device: run by scripts/gpu.sh, not by CI.
#include <gtest/gtest.h>

#include <string>

#include "process.hpp"

namespace checkop {
namespace {

ProcessResult run(const std::string& candidates, const std::string& more = "") {
  return run_program(
      fmt::format("--op matmul --device cuda --dtype fp32 --batch 2 --seq 3 --k-dim 16 --n-dim 8 --plugin "
                  "{}/gpu_faults.so --candidate {} {}",
                  CHECKOP_TEST_PLUGIN_DIR, candidates, more));
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

TEST(Gpu, WorkOnAnotherStreamIsWaitedFor) { expect_exit(run("side_stream"), 0, "1 pass"); }

TEST(Gpu, ArchKeyOfAnotherDeviceIsRefused) {
  expect_exit(run("honest", "--arch-key sm70"), 2, "is not the architecture of");
}

}  // namespace
}  // namespace checkop
