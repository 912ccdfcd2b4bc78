// SPDX-License-Identifier: Apache-2.0
// --sanitize with a fake compute-sanitizer, which is a short shell script, and the evaluation of its log.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "session/sanitizer_log.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::sanitize_test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// --- the log ---------------------------------------------------------------------------------------------------------

TEST(SanitizerLog, FirstLineOfTheFirstFindingAndTheSumOfErrors) {
  const SanitizerLog log = read_sanitizer_log(
      "========= COMPUTE-SANITIZER\n"
      "[       OK ] matmul/forward  cuda\n"
      "========= Invalid __global__ write of size 4 bytes\n"
      "=========     at store(float *, float)+0x70\n"
      "=========     by thread (0,0,0) in block (0,0,0)\n"
      "========= \n"
      "========= Invalid __shared__ read of size 2 bytes\n"
      "========= Target application returned an error\n"
      "========= ERROR SUMMARY: 2 errors\n");
  EXPECT_EQ(log.first, "Invalid __global__ write of size 4 bytes");
  EXPECT_EQ(log.errors, 2);
  EXPECT_EQ(log.summary, "ERROR SUMMARY: 2 errors");
}

TEST(SanitizerLog, RacecheckHasASummaryOfItsOwn) {
  const SanitizerLog log = read_sanitizer_log(
      "========= COMPUTE-SANITIZER\n"
      "========= Error: Race reported between Write access at a and Read access at b [64 hazards]\n"
      "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n");
  EXPECT_EQ(log.first.substr(0, 20), "Error: Race reported");
  EXPECT_EQ(log.errors, 1);
  EXPECT_EQ(read_sanitizer_log("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)").errors, 0);
}

TEST(SanitizerLog, NoSummaryIsNoCleanRun) {
  const SanitizerLog log = read_sanitizer_log(
      "========= COMPUTE-SANITIZER\n========= Error: Target application terminated before first instrumented API "
      "call\n");
  EXPECT_TRUE(log.summary.empty());
  EXPECT_NE(log.first, "");
}

TEST(SanitizerLog, SummaryThatCannotBeReadIsAnError) {
  EXPECT_EQ(read_sanitizer_log("========= ERROR SUMMARY: some errors").errors, 1);
}

TEST(SanitizerLog, LinesOfTheProgramAreNotItsOwn) {
  EXPECT_TRUE(read_sanitizer_log("the plugin says: ========= ERROR SUMMARY: 0 errors\n").summary.empty());
}

// --- through the whole program ---------------------------------------------------------------------------------------

/// Sets an environment variable for its lifetime.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Setting() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// A shell script in place of compute-sanitizer; it sees `text`, the output of the command that it was given.
class FakeSanitizer {
 public:
  /// `after` is shell code: it sees $text, $tool and $code, and ends with exit.
  explicit FakeSanitizer(const std::string& after) : folder_(fs::path(testing::TempDir()) / "sanitizer") {
    fs::create_directories(folder_);
    std::ofstream script(folder_ / "compute-sanitizer");
    script << "#!/bin/sh\n"
              "[ \"$1 $3 $4 $5 $6\" = '--tool --target-processes all --error-exitcode 86' ] || exit 99\n"
              "tool=$2\nshift 6\necho '========= COMPUTE-SANITIZER'\n"
              "text=$(\"$@\" 2>&1); code=$?\necho \"$text\"\n"
              "has() { case $text in *\"$1\"*) return 0 ;; *) return 1 ;; esac; }\n"
           << after << "\n";
    script.close();
    fs::permissions(folder_ / "compute-sanitizer", fs::perms::owner_all);
    path_.emplace("PATH", folder_.string() + ":" + std::getenv("PATH"));
  }
  ~FakeSanitizer() { fs::remove_all(folder_); }
  FakeSanitizer(const FakeSanitizer&) = delete;
  FakeSanitizer& operator=(const FakeSanitizer&) = delete;

 private:
  fs::path folder_;
  std::optional<Setting> path_;
};

constexpr const char* kClean = "echo '========= ERROR SUMMARY: 0 errors'; exit $code";

/// (verdict, kind, reason) of both cases, with seq 3 and 8, and the exit code.
struct Sanitized {
  int code;
  json three, eight, runs;
};

Sanitized sanitize(const std::string& tools) {
  const std::string file = testing::TempDir() + "sanitized.json";
  const ProcessResult process = run_program(
      fmt::format("--op silu --candidate native --device cpu --batch 1 --seq 3,8 --hidden 16 --sanitize {} --json {}",
                  tools, file));
  std::ifstream stream(file);
  const json report = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) return {process.code, {}, {}, {}};
  EXPECT_EQ(report.at("exit_code"), process.code) << process.text;
  const json& cases = report.at("candidates").at(0).at("cases");
  return {process.code, cases.at(0), cases.at(1), report.at("sanitizers")};
}

TEST(Sanitize, CleanRunKeepsVerdictsAndIsOnRecord) {
  const FakeSanitizer fake(kClean);
  const Sanitized result = sanitize("memcheck,racecheck");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.three.at("verdict"), "pass");
  ASSERT_EQ(result.runs.size(), 2u);
  EXPECT_EQ(result.runs.at(1).at("tool"), "racecheck");
  EXPECT_EQ(result.runs.at(1).at("checks"), 2);
  EXPECT_EQ(result.runs.at(1).at("summary"), "ERROR SUMMARY: 0 errors");
}

TEST(Sanitize, FindingBelongsToTheCaseThatShowsItAlone) {
  const FakeSanitizer fake(
      "has seq=3 || { echo '========= ERROR SUMMARY: 0 errors'; exit $code; }\n"
      "echo '========= Invalid __global__ write of size 4 bytes'\necho '=========     at silu'\n"
      "echo '========= ERROR SUMMARY: 7 errors'; exit 86");
  const Sanitized result = sanitize("memcheck");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.three.at("verdict"), "fail");
  EXPECT_EQ(result.three.at("kind"), "sanitizer");
  EXPECT_EQ(result.three.at("reason"), "memcheck: Invalid __global__ write of size 4 bytes; ERROR SUMMARY: 7 errors");
  EXPECT_EQ(result.eight.at("verdict"), "pass");
}

TEST(Sanitize, ShardRunsItsOwnChecksUnderIt) {
  const FakeSanitizer fake(
      "has seq=3 || { echo '========= ERROR SUMMARY: 0 errors'; exit $code; }\n"
      "echo '========= Invalid __global__ write of size 4 bytes'\n"
      "echo '========= ERROR SUMMARY: 7 errors'; exit 86");
  const std::string three = testing::TempDir() + "three.json";
  // Three cases in two shards: the costliest and the cheapest in one, 8 alone in the other.
  const std::string flags =
      "--op silu --candidate native --device cpu --batch 1 --seq 3,8,9 --hidden 16 --sanitize memcheck --total-shards "
      "2 ";
  EXPECT_EQ(run_program(flags + "--shard-index 0 --json " + three).code, 1);
  const json report = json::parse(std::ifstream(three)), &cases = report.at("candidates").at(0).at("cases");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases.at(0).at("case_name"), "silu-fp32-1x3x16");
  EXPECT_EQ(cases.at(0).at("kind"), "sanitizer");
  EXPECT_EQ(cases.at(1).at("verdict"), "pass") << cases.at(1).at("reason");
  EXPECT_EQ(report.at("sanitizers").at(0).at("checks"), 2);
  EXPECT_EQ(run_program(flags + "--shard-index 1").code, 0);
}

TEST(Sanitize, FindingOfAllTogetherIsEverybodys) {
  const FakeSanitizer fake(
      "if has seq=3 && has seq=8; then echo '========= Error: Race'; echo '========= RACECHECK SUMMARY: 1 hazard'; "
      "exit 86\n"
      "fi\necho '========= RACECHECK SUMMARY: 0 hazards'; exit $code");
  const Sanitized result = sanitize("racecheck");
  EXPECT_EQ(result.code, 1);
  for (const json& each : {result.three, result.eight}) {
    EXPECT_EQ(each.at("verdict"), "fail");
    EXPECT_EQ(each.at("reason"),
              "racecheck: Error: Race; RACECHECK SUMMARY: 1 hazard only when all checks run together, not in any "
              "single check");
  }
}

TEST(Sanitize, RunWithoutASummaryProvesNothing) {
  const FakeSanitizer fake("exit $code");
  const Sanitized result = sanitize("initcheck");
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(result.three.at("verdict"), "error");
  EXPECT_NE(result.three.at("reason").get<std::string>().find("initcheck wrote no summary"), std::string::npos);
}

TEST(Sanitize, SanitizerThatCrashesProvesNothing) {
  const FakeSanitizer fake("kill -SEGV $$");
  const Sanitized result = sanitize("synccheck");
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(result.eight.at("verdict"), "error");
  EXPECT_NE(result.eight.at("reason").get<std::string>().find("synccheck wrote no summary"), std::string::npos);
}

TEST(Sanitize, SummaryOfARunThatNeverCameToItsEndProvesNothing) {
  const FakeSanitizer fake("for a; do case $a in --json=*) rm -f \"${a#--json=}\" ;; esac; done; " +
                           std::string(kClean));
  const Sanitized result = sanitize("memcheck");
  EXPECT_EQ(result.code, 4);
  EXPECT_NE(result.three.at("reason").get<std::string>().find("the run under memcheck did not come to its end"),
            std::string::npos);
}

TEST(Sanitize, RunOfFewerChecksProvesNothing) {
  const FakeSanitizer fake("\"$@\" --filter='*-1x3x16' >/dev/null; " + std::string(kClean));
  const Sanitized result = sanitize("memcheck");
  EXPECT_EQ(result.code, 4);
  EXPECT_EQ(result.eight.at("reason"), "1 of 2 checks ran under memcheck");
}

TEST(Sanitize, SignalEndsTheSanitizerToo) {
  // The sanitizer asks for the signal itself: the program takes signals from then on, however slowly it started.
  const FakeSanitizer fake("kill -TERM $PPID; sleep 100");
  const auto start = std::chrono::steady_clock::now();
  const std::string command = fmt::format(
      "'{}' --op silu --candidate native --device cpu --batch 1 --seq 3 --hidden 16 --sanitize memcheck "
      ">{}sanitizer.txt 2>&1",
      kProgram, testing::TempDir());
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Sanitize, AbsentSanitizerIsExitCodeFiveWithTheLineThatInstallsIt) {
  // A machine that only has what run_program() itself needs.
  const fs::path tools = fs::path(testing::TempDir()) / "no_sanitizer";
  fs::remove_all(tools);
  fs::create_directories(tools / "bin");
  fs::create_symlink("/usr/bin/env", tools / "env");
  const Setting path("PATH", tools.string()), home("CUDA_HOME", tools.string());
  expect_exit(
      run_program("--op silu --candidate native --device cpu --sanitize memcheck"), 5,
      "--sanitize: compute-sanitizer was not found; install it with: sudo apt-get install cuda-sanitizer-13-0, or the "
      "package of your CUDA version; or put compute-sanitizer on PATH");
  fs::create_symlink("/usr/bin/env", tools / "bin" / "compute-sanitizer");
  EXPECT_EQ(find_sanitizer(), (tools / "bin" / "compute-sanitizer").string());
}

TEST(Sanitize, UnknownToolIsRefusedWithTheNearest) {
  expect_exit(run_program("--op silu --candidate native --device cpu --sanitize memchek"), 2,
              "did you mean 'memcheck'?");
}

}  // namespace
}  // namespace checkop::sanitize_test
