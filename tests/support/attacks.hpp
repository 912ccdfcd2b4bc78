// SPDX-License-Identifier: Apache-2.0
// Attacks by name, with the verdicts that they must get, and runs of candidates that make them.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.hpp"

namespace checkop::attacks_test {

using nlohmann::json;

struct Attack {
  std::string name;
  std::vector<std::string> outcomes;  ///< any one of them, for attacks that race with the judge
  std::string tries, stopped_by;      ///< in the document's table
  bool shown = true;                  ///< succeeds where nothing is defended, on every machine
};

constexpr const char* kCase = "--op matmul --batch 2 --seq 3 --k-dim 8 --n-dim 16";

/// The cases of each candidate, after a run with `flags` beside a file that attacks are after.
inline std::map<std::string, json> run_beside(const std::string& file, const std::string& flags) {
  const std::string report = testing::TempDir() + "attacks.json";
  std::remove(report.c_str());  // not that of an earlier run, where this one is refused
  setenv("CHECKOP_ATTACKED", file.c_str(), 1);
  const ProcessResult run = run_program(fmt::format("{} --json {}", flags, report));
  unsetenv("CHECKOP_ATTACKED");
  std::map<std::string, json> cases;
  const json read = json::parse(std::ifstream(report), nullptr, /*allow_exceptions=*/false);
  if (!read.is_object()) {
    ADD_FAILURE() << run.text;
    return cases;
  }
  EXPECT_TRUE(read.at("complete"));
  for (const json& candidate : read.at("candidates"))
    cases[candidate.at("backend").get<std::string>()] = candidate.at("cases").at(0);
  return cases;
}

inline std::vector<std::string> names_of(const std::vector<Attack>& attacks, bool shown_alone = false) {
  std::vector<std::string> names;
  for (const Attack& attack : attacks)
    if (attack.shown || !shown_alone) names.push_back(attack.name);
  return names;
}

inline std::string content_of(const std::string& file) {
  std::stringstream content;
  content << std::ifstream(file).rdbuf();
  return content.str();
}

inline std::string joined(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ",")); }

inline void expect_outcomes(const std::vector<Attack>& attacks, const std::map<std::string, json>& cases) {
  for (const Attack& attack : attacks) {
    ASSERT_TRUE(cases.contains(attack.name)) << attack.name;
    const json& c = cases.at(attack.name);
    const std::string outcome =
        fmt::format("{}: {}", c.at("verdict").get<std::string>(), c.at("kind").get<std::string>());
    EXPECT_EQ(std::ranges::count(attack.outcomes, outcome), 1)
        << attack.name << ": " << outcome << ": " << c.at("reason");
  }
}

inline void expect_passes(const std::vector<std::string>& names, const std::map<std::string, json>& cases) {
  for (const std::string& name : names) {
    ASSERT_TRUE(cases.contains(name)) << name;
    EXPECT_EQ(cases.at(name).at("verdict"), "pass") << name << ": " << cases.at(name).at("reason");
  }
}

inline std::string table_of(const std::vector<Attack>& attacks) {
  std::string table = "| attack | verdict | what it tries | what stops it |\n|---|---|---|---|\n";
  for (const Attack& attack : attacks)
    table += fmt::format("| `{}` | {} | {} | {} |\n", attack.name, fmt::join(attack.outcomes, " or "), attack.tries,
                         attack.stopped_by);
  return table + "\n";
}

/// Attacks by system calls: the same on the CPU and on a GPU.
inline const std::vector<Attack>& system_attacks() {
  static const std::vector<Attack> all{
      {"signals_parent", {"fail: accuracy"}, "`kill` of the judge", "seccomp"},
      {"signals_group", {"fail: accuracy"}, "`kill` of its process group", "seccomp"},
      {"signals_everyone", {"fail: accuracy"}, "`kill` of all processes", "seccomp"},
      {"signals_by_descriptor", {"fail: accuracy"}, "`pidfd_open` of the judge", "seccomp"},
      {"queues_signal", {"fail: accuracy"}, "`sigqueue` to the judge", "seccomp"},
      {"ptraces_parent", {"fail: accuracy"}, "`ptrace` of the judge", "seccomp", false},
      {"reads_parent_memory", {"fail: accuracy"}, "`process_vm_readv`", "seccomp", false},
      {"opens_parent_memory", {"fail: accuracy"}, "`/proc/PARENT/mem`", "Landlock", false},
      {"reads_parent_command", {"fail: accuracy"}, "the seed in `/proc/PARENT/cmdline`", "Landlock"},
      {"limits_parent", {"fail: accuracy"}, "`prlimit` of the judge", "seccomp", false},
      {"forks", {"fail: accuracy"}, "a child", "seccomp"},
      {"becomes_daemon", {"fail: accuracy"}, "double fork and `setsid`", "seccomp: threads alone"},
      {"leaves_group", {"fail: accuracy"}, "`setpgid`", "seccomp: it stays in the group, which ends as a whole"},
      {"starts_a_program", {"fail: accuracy"}, "`system`", "seccomp"},
      {"becomes_a_program", {"fail: accuracy"}, "`execve` in its own place", "seccomp"},
      {"rewrites_file", {"fail: accuracy"}, "rewrites a report", "Landlock"},
      {"reads_file", {"fail: accuracy"}, "reads a file of the user, such as a gold", "Landlock"},
      {"removes_file", {"fail: accuracy"}, "removes a report", "Landlock"},
      {"rewrites_itself", {"fail: accuracy"}, "opens its own library for writing", "Landlock"},
      {"remembers_on_disk", {"fail: accuracy"}, "leaves answers in `/tmp`", "Landlock"},
      {"remembers_in_shared_memory", {"fail: accuracy"}, "leaves answers in `/dev/shm`", "Landlock"},
      {"remembers_in_system_v", {"fail: accuracy"}, "leaves answers in System V memory", "seccomp"},
      {"changes_a_mode", {"fail: accuracy"}, "marks a file by its mode", "seccomp: `chmod` has no effect"},
      {"sets_a_time", {"fail: accuracy"}, "marks a file by its time", "seccomp: `utimensat` has no effect"},
      {"leaves_an_attribute", {"fail: accuracy"}, "marks its own library by an attribute", "seccomp", false},
      {"locks_a_file", {"fail: accuracy"}, "tells its other process something by a lock", "seccomp"},
      {"schedules_the_judge", {"fail: accuracy"}, "`sched_setscheduler` of the judge", "seccomp: no effect", false},
      {"outlives_the_judge", {"fail: accuracy"}, "goes on when the judge is killed", "seccomp", false},
      {"forges_lines",
       {"fail: accuracy"},
       "empties the log that the run is printed to, and prints lines that look like the judge's",
       "a pipe of its own; each line is marked, messages have one line",
       false},
      {"asks_the_network", {"fail: accuracy"}, "a TCP socket", "seccomp"},
      {"asks_a_local_socket", {"fail: accuracy"}, "a local socket", "seccomp"},
      {"traces_events", {"fail: accuracy"}, "`io_uring`, which makes calls past a filter", "seccomp", false},
      {"raises_its_limit", {"fail: accuracy"}, "`setrlimit` of its memory", "seccomp"},
      {"forges_done",
       {"error: crash"},
       "answers for itself on the connection",
       "answers nobody asked for end the process; no answer is evidence",
       false},
      {"closes_descriptors",
       {"error: crash"},
       "closes the connections to the judge",
       "the end of a connection is the end of the process, and of no other check",
       false},
      {"floods_channel", {"error: crash"}, "answers with 2^40 bytes", "the length of an answer is limited", false}};
  return all;
}

/// Attacks on the memory and the streams of a GPU, by the plugin gpu_attacks.
inline const std::vector<Attack>& gpu_attacks() {
  static const std::vector<Attack> all{
      {"writes_input", {"fail: input"}, "a kernel stores to an input", "the mapping is read-only"},
      {"remaps_input_writable",
       {"fail: input"},
       "gives itself the right to write, and stores to an input",
       "the owner compares inputs with what it made"},
      {"writes_slack", {"fail: guard"}, "writes in front of its output", "guard bands, read by the owner"},
      {"writes_far_slack",
       {"fail: guard"},
       "writes 512 KiB in front of it, within the same page of the GPU",
       "the band takes the whole page"},
      {"reads_past_input", {"fail: nonfinite"}, "uses what lies behind an input", "guard bands are NaN"},
      {"reads_far_past_input",
       {"error: crash"},
       "uses what lies 1 MiB behind it",
       "pages around buffers can't be touched"},
      {"writes_far_past_output",
       {"error: crash"},
       "writes 16 MiB behind its output",
       "pages around buffers can't be touched"},
      {"writes_after_done",
       {"error: crash", "fail: guard", "fail: accuracy"},
       "a thread launches on after the call, on a stream of its own",
       "private copies are judged; the memory goes"},
      {"writes_over_nan_alone",
       {"fail: unwritten"},
       "computes only where the output holds NaN",
       "the poison of the second launch is no NaN"},
      {"writes_over_known_poison",
       {"fail: invariance"},
       "computes only over the poison of its first two launches",
       "poison has another value in each launch"},
      {"scans_device_memory",
       {"fail: accuracy"},
       "looks for the case in memory of the GPU that others had",
       "the driver clears it"}};
  return all;
}

/// Attacks on the times of a GPU, by the plugin gpu_bench_attacks. Those that get a time take a fifth of a millisecond,
/// or as long as a small product.
inline const std::vector<Attack>& gpu_bench_attacks() {
  static const std::vector<Attack> all{
      {"patches_event_elapsed",
       {"the time of its work"},
       "rewrites `cudaEventElapsedTime` in its process",
       "the judge's clock bounds the time"},
      {"patches_event_elapsed_of_short",
       {"half the time of its work, or more"},
       "the same for a launch of 10 microseconds",
       "many launches in one pass of the judge's clock"},
      {"claims_zero_ms",
       {"the time of its work"},
       "a thread writes over the time that its process tells",
       "the judge's clock bounds the time"},
      {"other_stream",
       {"the time of its work"},
       "works on a stream without events",
       "the judge's clock, which runs until the device is idle"},
      {"replays_by_content",
       {"the time of its work"},
       "gives an answer again where it knows the data",
       "launches that bound times have data that none had before"},
      {"says_done_early",
       {"the time of its work", "failed"},
       "writes the end of the launch to the judge's page when the work has begun",
       "the judge's clock runs until the device is idle; outputs are poisoned"},
      {"detached_thread",
       {"failed", "crashed"},
       "returns, and launches later from a thread",
       "outputs are poisoned; its process is stopped"},
      {"returns_at_once", {"failed"}, "launches nothing", "outputs are poisoned"},
      {"graph_runs_first_only", {"failed"}, "launches in its first call only", "outputs are poisoned"},
      {"memo_by_pointer",
       {"failed"},
       "gives the first answer of an address again",
       "other data come to the same address"},
      {"leaves_work_for_the_rival",
       {"failed"},
       "leaves a kernel running when others are timed",
       "a process whose work does not end is ended"}};
  return all;
}

inline const std::vector<std::string>& gpu_bench_honest() {
  static const std::vector<std::string> all{"honest_timed", "honest_short", "honest_two_streams_joined",
                                            "honest_graph_of_its_own", "honest_cached_maps"};
  return all;
}

inline const std::vector<std::string>& gpu_honest() {
  static const std::vector<std::string> all{"honest_graph", "honest_streams", "honest_cached_maps", "honest_memory",
                                            "honest_workspace"};
  return all;
}

}  // namespace checkop::attacks_test
