// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge of a GPU, through the whole program: none succeeds, and candidates that use the same features
// honestly pass. Needs a CUDA device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/attacks.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::attacks_test {
namespace {

std::map<std::string, json> run_all(const std::vector<std::string>& names, const std::string& file,
                                    const std::string& flags = "--timeout-s 30") {
  std::ofstream(file) << "intact";
  return run_beside(file, fmt::format("--device cuda --dtype fp32 {} --plugin {}/gpu_attacks.so --candidate {} {}",
                                      kCase, kPluginFolder, joined(names), flags));
}

TEST(GpuAttacks, NoneBySystemCallsSucceeds) {
  const std::string file = testing::TempDir() + "attacked_from_gpu.txt";
  expect_outcomes(system_attacks(), run_all(names_of(system_attacks()), file));
  EXPECT_EQ(content_of(file), "intact");
}

TEST(GpuAttacks, NoneOnMemorySucceeds) {
  const std::string file = testing::TempDir() + "attacked_from_gpu.txt";
  expect_outcomes(gpu_attacks(), run_all(names_of(gpu_attacks()), file));
}

TEST(GpuAttacks, HonestUseOfTheSameFeaturesPasses) {
  expect_passes(gpu_honest(), run_all(gpu_honest(), testing::TempDir() + "honest_gpu.txt"));
}

// A fault ends the process of the candidate; the next check starts a new one.
TEST(GpuAttacks, FaultsEndTheirOwnCheckAlone) {
  const ProcessResult run = run_program(
      fmt::format("--device cuda --dtype fp32 --op matmul --batch 2 --seq 3,5 --k-dim 8 --n-dim 16 --plugin "
                  "{}/gpu_attacks.so --candidate writes_far_past_output,honest_streams",
                  kPluginFolder));
  expect_exit(run, 4, "2 error");
  expect_exit(run, 4, "2 pass");
}

// Shows that the attacks work: with --no-isolate they succeed.
TEST(GpuAttacks, BySystemCallsSucceedWhereNothingIsDefended) {
  const std::string file = testing::TempDir() + "undefended_gpu.txt";
  for (const char* name : {"reads_parent_command", "rewrites_file", "remembers_in_shared_memory", "forks"})
    expect_passes({name}, run_all({name}, file, "--no-isolate --check accuracy"));
  std::filesystem::remove("/dev/shm/check_operator_attack");
}

}  // namespace
}  // namespace checkop::attacks_test
