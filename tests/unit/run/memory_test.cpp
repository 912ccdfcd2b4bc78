// SPDX-License-Identifier: Apache-2.0
// Memory: what the machine has, what a check needs, and what happens if it is not enough.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "base/host_memory.hpp"
#include "judge/verdict.hpp"
#include "run/memory_need.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::memory_test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;

/// A simulated /proc and /sys/fs/cgroup.
class Machine {
 public:
  explicit Machine(const std::string& name) : root_(fs::path(testing::TempDir()) / name) { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::optional<uint64_t> available() const {
    return available_memory((root_ / "proc").string(), (root_ / "cgroup").string());
  }

 private:
  fs::path root_;
};

TEST(AvailableMemory, IsTheKernelsWord) {
  const Machine machine("kernel");
  machine.write("proc/meminfo", "MemTotal:  2048 kB\nMemFree:  12 kB\nMemAvailable:   1024 kB\n");
  EXPECT_EQ(machine.available(), kMiB);
}

TEST(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  const Machine machine("groups");
  machine.write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  machine.write("proc/self/cgroup", "0::/a/b\n");
  machine.write("cgroup/a/memory.max", "104857600\n");
  machine.write("cgroup/a/memory.current", "62914560\n");
  machine.write("cgroup/a/memory.stat", "anon 5\ninactive_file 10485760\n");
  machine.write("cgroup/a/b/memory.max", "max\n");
  machine.write("cgroup/a/b/memory.current", "1\n");
  EXPECT_EQ(machine.available(), 50 * kMiB);
}

TEST(AvailableMemory, KnowsGroupsOfVersionOne) {
  const Machine machine("version1");
  machine.write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  machine.write("proc/self/cgroup", "9:cpu:/x\n4:memory:/docker/1f\n");
  machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.write("cgroup/memory/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(machine.available(), 1024 * kMiB);
  machine.write("cgroup/memory/docker/1f/memory.limit_in_bytes", "20971520\n");
  machine.write("cgroup/memory/docker/1f/memory.usage_in_bytes", "31457280\n");
  EXPECT_EQ(machine.available(), 0u);
}

TEST(AvailableMemory, IsUnknownWhereNothingTells) { EXPECT_FALSE(Machine("nothing").available()); }

TEST(AvailableMemory, OfThisMachineIsMoreThanNothing) { EXPECT_GT(available_memory().value_or(0), 0u); }

TEST(MapApart, NothingLiesNearABlock) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'000}}) {
    std::byte* memory = map_apart(bytes);
    ASSERT_NE(memory, nullptr);
    std::memset(memory, 1, bytes);
    EXPECT_DEATH(*static_cast<volatile char*>(static_cast<void*>(memory - 1)) = 1, "");
    EXPECT_DEATH(*static_cast<volatile char*>(static_cast<void*>(memory + bytes + 4096)) = 1, "");
    EXPECT_DEATH(*static_cast<volatile char*>(static_cast<void*>(memory + kApartBytes)) = 1, "");
    unmap_apart(memory, bytes);
  }
}

TEST(MapApart, WhatWasFreedCannotBeReadNorComesBack) {
  std::byte* memory = map_apart(5000);
  unmap_apart(memory, 5000);
  EXPECT_DEATH(std::ignore = static_cast<char>(*static_cast<volatile char*>(static_cast<void*>(memory))), "");
  for (int i = 0; i < 1000; ++i) {  // more than are kept
    std::byte* other = map_apart(5000);
    ASSERT_NE(other, nullptr);
    EXPECT_TRUE(other != memory || i >= 200) << i;
    unmap_apart(other, 5000);
  }
}

TEST(MapApart, ABlockThatComesBackIsEmptyAndStandsAlone) {
  constexpr size_t kSmall = 8192, kLarge = 200'000;
  std::set<std::byte*> seen;
  int came_back = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = i % 3 == 2 ? kLarge : kSmall + i % 3 * 4096;
    std::byte* memory = map_apart(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(std::count(memory, memory + bytes, std::byte{0}), bytes) << i;
    std::memset(memory, 1, bytes);
    if (!seen.insert(memory).second && bytes == kSmall && ++came_back == 1) {
      EXPECT_DEATH(*static_cast<volatile char*>(static_cast<void*>(memory - 1)) = 1, "");
      EXPECT_DEATH(*static_cast<volatile char*>(static_cast<void*>(memory + bytes)) = 1, "");
    }
    unmap_apart(memory, bytes);
    if (bytes == kLarge && i < 3) {
      EXPECT_DEATH(std::ignore = static_cast<char>(*static_cast<volatile char*>(static_cast<void*>(memory))), "");
    }
  }
  EXPECT_GT(came_back, 300);
}

TEST(MapApart, MoreSizesThanAreKept) {
  for (size_t round = 0; round < 3; ++round) {
    for (size_t pages = 1; pages <= 16; ++pages) {
      std::vector<std::byte*> blocks;
      for (int i = 0; i < 40; ++i) {
        blocks.push_back(map_apart(pages * 4096));
        ASSERT_NE(blocks.back(), nullptr);
        EXPECT_EQ(blocks.back()[pages * 4096 - 1], std::byte{0});
        blocks.back()[pages * 4096 - 1] = std::byte{1};
      }
      EXPECT_EQ(std::set(blocks.begin(), blocks.end()).size(), blocks.size());
      for (std::byte* block : blocks) unmap_apart(block, pages * 4096);
    }
  }
}

TEST(MapApart, TooMuchIsNull) { EXPECT_EQ(map_apart(~size_t{0} - 5), nullptr); }

// --- memory of a check -----------------------------------------------------------------------------------------------

Case large_matmul(int64_t rows) {
  Case c = matmul_case(1, rows);
  c.dims["k_dim"] = 1024;
  c.dims["n_dim"] = 2048;
  return c;
}

TEST(MemoryNeed, HoldsTensorsTwiceOnTheCpuAndOnceOnADevice) {
  const Case c = large_matmul(100'000);
  const auto tensors = static_cast<uint64_t>(tensor_bytes(c));
  const MemoryNeed cpu = memory_need(c, /*on_cuda=*/false, 2), cuda = memory_need(c, /*on_cuda=*/true, 2);
  EXPECT_GT(cpu.host, 2 * tensors);
  EXPECT_LT(cpu.host, 4 * tensors);
  EXPECT_EQ(cpu.device, 0u);
  EXPECT_GT(cuda.device, tensors);
  EXPECT_LT(cuda.host, cpu.host);
  EXPECT_GT(memory_need(large_matmul(200'000), false, 2).host, cpu.host + tensors);
}

TEST(MemoryNeed, OtherDataNeedRoomOfTheirOwn) {
  const Case c = large_matmul(100'000);
  DeviceInfo cpu;
  cpu.kind = "cpu";
  const uint64_t need = memory_need(c, /*on_cuda=*/false, 2).host, other = static_cast<uint64_t>(tensor_bytes(c));
  EXPECT_EQ(why_no_room(c, cpu, 2, need), "");
  EXPECT_FALSE(has_room_for_other_data(c, cpu, 2, need + other - 1));
  EXPECT_TRUE(has_room_for_other_data(c, cpu, 2, need + other));
}

TEST(MemoryNeed, WhatDoesNotFitOnADeviceIsSaidWithBothFigures) {
  DeviceInfo device;
  device.kind = "cuda";
  device.free_bytes = 512 * kMiB;
  EXPECT_NE(why_no_room(large_matmul(1000), device, 2, 0).find("of device memory, of which 512.0 MiB are free"),
            std::string::npos);
  device.free_bytes = 4096 * kMiB;
  EXPECT_EQ(why_no_room(large_matmul(1000), device, 2, 0), "");
}

// --- through the whole program ---------------------------------------------------------------------------------------

/// One case that fits into 512 MiB and one that does not.
constexpr const char* kSmallAndLarge =
    "--op silu --candidate native --device cpu --batch 1 --seq 4,40000 --hidden 4096 --threads 1 --memory-limit 512M ";

TEST(Skipped, CaseThatDoesNotFitIsSkippedWithBothFiguresAndIsNoFailure) {
  const ProcessResult result = run_program(kSmallAndLarge);
  expect_exit(result, 0, "[  SKIPPED ] silu/forward  native  fp32  batch=1 seq=40000 hidden=4096");
  expect_exit(result, 0, "of the host's memory, of which 512.0 MiB may be used");
  EXPECT_NE(result.text.find("[       OK ] silu/forward"), std::string::npos) << result.text;
}

TEST(Skipped, MaxSkipMakesItAFailureInEveryReport) {
  const std::string file = testing::TempDir() + "skipped";
  const std::string reports = fmt::format("--json {0}.json --junit {0}.xml --markdown {0}.md --html {0}.html", file);
  const auto text_of = [&](const char* ending) {
    std::ifstream stream(file + ending);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  expect_exit(run_program(fmt::format("{} --max-skip 1 {}", kSmallAndLarge, reports)), 0, "1 skipped");
  EXPECT_EQ(json::parse(text_of(".json")).at("max_skip"), 1);
  EXPECT_NE(text_of(".xml").find("failures=\"0\""), std::string::npos);
  expect_exit(run_program(fmt::format("{} --max-skip 0 --github {}", kSmallAndLarge, reports)), 1,
              "1 skipped, more than the 0 that --max-skip allows");
  const json report = json::parse(text_of(".json"));
  EXPECT_EQ(report.at("max_skip"), 0);
  EXPECT_EQ(report.at("exit_code"), 1);
  EXPECT_EQ(report.at("passed"), false);
  EXPECT_NE(text_of(".xml").find("failures=\"1\""), std::string::npos);
  EXPECT_NE(text_of(".xml").find("--max-skip allows 0 to be skipped"), std::string::npos);
  EXPECT_NE(text_of(".md").find("not passed, exit code 1"), std::string::npos);
  EXPECT_NE(text_of(".html").find("Not passed: 1 of 2 checks did not pass: 1 skipped"), std::string::npos);
  expect_exit(run_program(fmt::format("{} --max-skip 0 --github", kSmallAndLarge)), 1,
              "::error title=check_operator::");
}

TEST(Skipped, RunOfNothingButSkippedChecksIsNoPass) {
  expect_exit(run_program("--op silu --candidate native --device cpu --batch 1 --seq 40000 --hidden 4096 "
                          "--memory-limit 512M"),
              3, "Some requested checks are unsupported, or all were skipped (exit code 3)");
}

TEST(Skipped, LimitIsReadWithItsUnit) {
  expect_exit(run_program("--op silu --candidate native --device cpu --memory-limit lots"), 2, "--memory-limit");
  expect_exit(run_program("--op silu --candidate native --device cpu --max-skip -1"), 2, "--max-skip");
}

TEST(Skipped, ExitCodeCountsThem) {
  const std::vector<Verdict> verdicts{Verdict::pass, Verdict::skipped, Verdict::skipped};
  EXPECT_EQ(exit_code(verdicts), 0);
  EXPECT_EQ(exit_code(verdicts, 2), 0);
  EXPECT_EQ(exit_code(verdicts, 1), 1);
  EXPECT_EQ(exit_code({Verdict::skipped}, 0), 1);
  EXPECT_EQ(exit_code({Verdict::skipped}), 3);
}

}  // namespace
}  // namespace checkop::memory_test
