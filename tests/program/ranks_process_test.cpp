// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes of MPI: the same answers as threads give, and no way for one of them to hang the others.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "support/built.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::ranks_process_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<int> children_of(int pid) {
  std::istringstream text(content(fmt::format("/proc/{0}/task/{0}/children", pid)));
  return {std::istream_iterator<int>(text), std::istream_iterator<int>()};
}

/// Whether the process was started with that variable, "NAME=VALUE".
bool has_variable(const std::string& pid, const std::string& variable) {
  return ('\0' + content("/proc/" + pid + "/environ")).find('\0' + variable + '\0') != std::string::npos;
}

int64_t threads_of(int pid) {
  std::error_code error;  // it may have ended
  const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), error);
  return error ? 0 : std::distance(begin(tasks), end(tasks));
}

/// Calls body() until it returns something other than 0 or false, for a minute at most.
template <class Body>
auto wait_for(const Body& body, const std::string& what) {
  auto found = body();
  for (const auto until = Clock::now() + 60s; !found && Clock::now() < until; found = body())
    std::this_thread::sleep_for(2ms);
  EXPECT_TRUE(found) << "waited for " << what;
  return found;
}

/// Sends a signal to a process that was found: 0 would name this test and all that run beside it.
void send_to(int pid, int number) {
  ASSERT_GT(pid, 0);
  kill(pid, number);
}

/// A run under mpirun. No process of it outlives the test.
class Job {
 public:
  /// Of `n` processes that all have these arguments; rank 0 writes report().
  Job(int n, const std::string& arguments) : Job(fmt::format("-np {} {}", n, program(arguments)), Raw{}) {}

  /// mpirun is given `command`.
  struct Raw {};
  Job(const std::string& command, Raw)
      : folder_(folder()), mark_(fmt::format("CHECK_OPERATOR_TEST_JOB={}-{}", getpid(), count_++)) {
    std::filesystem::create_directories(folder_);
    // What Open MPI's mpirun wants to be told by root, on a machine with few cores; other launchers do not read it.
    const std::string line = fmt::format(
        "cd '{}' && exec env -u GITHUB_ACTIONS {} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none '{}' {} > '{}' 2>&1",
        CHECKOP_SOURCE_DIR, mark_, CHECKOP_MPIRUN, command, text_file());
    pid_ = fork();
    if (pid_ == 0) execl("/bin/sh", "sh", "-c", line.c_str(), static_cast<char*>(nullptr));
  }
  ~Job() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    for (const int pid : left()) kill(pid, SIGKILL);
  }
  Job(const Job&) = delete;

  static std::string folder() {
    return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "/";
  }
  static std::string report_file() { return folder() + "report.json"; }
  /// The program with these arguments.
  static std::string program(const std::string& arguments) {
    return fmt::format("'{}' {} --json {}", kProgram, arguments, report_file());
  }
  static json report() { return json::parse(content(report_file())); }
  static json cases() { return report().at("candidates").at(0).at("cases"); }

  void signal_mpirun(int number) const { kill(pid_, number); }

  /// The process that mpirun started as that rank: it relays.
  int relay_of(int rank) const {
    const std::string variable = fmt::format("OMPI_COMM_WORLD_RANK={}", rank);
    const auto find = [&] {
      for (const int pid : children_of(pid_))
        if (has_variable(std::to_string(pid), variable)) return pid;
      return 0;
    };
    return wait_for(find, variable);
  }
  /// The child of relay_of(): runs the checks, or holds the rank.
  int working_of(int rank) const {
    const int relay = relay_of(rank);
    const auto find = [&] {
      const std::vector<int> children = children_of(relay);
      return children.empty() ? 0 : children.front();
    };
    return wait_for(find, fmt::format("the child of rank {}", rank));
  }
  /// Waits until a candidate runs on that rank, which is not 0.
  void wait_for_launch(int rank) const {
    const int working = working_of(rank);
    const auto runs = [&] {
      const std::vector<int> children = children_of(working);
      return !children.empty() && threads_of(children.front()) > 1;
    };
    wait_for(runs, fmt::format("a launch on rank {}: {}", rank, content(text_file())));
  }

  /// The exit code of mpirun, -SIGKILL if it took too long, and what it and the program wrote.
  ProcessResult end() {
    int status = 0;
    for (const auto until = Clock::now() + 120s; waitpid(pid_, &status, WNOHANG) == 0;) {
      if (Clock::now() > until) kill(pid_, SIGKILL);
      std::this_thread::sleep_for(5ms);
    }
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), content(text_file())};
  }
  void expect_end(int code, const std::string& part) {
    expect_exit(end(), code, part);
    expect_nobody_left();
  }
  /// Waits for a complete report, and not for mpirun: Open MPI 4.1 now and then crashes or hangs where it ends a job of
  /// which it can't end a process, and the text comes through it.
  void expect_complete_report(int code, const std::string& part) const {
    const auto complete = [] {
      const json so_far = json::parse(content(report_file()), nullptr, /*allow_exceptions=*/false);
      return so_far.is_object() && so_far.value("complete", false);
    };
    wait_for(complete, "a complete report");
    EXPECT_EQ(report().at("exit_code"), code);
    EXPECT_NE(report().dump().find(part), std::string::npos) << report().dump(1);
  }
  /// A process that mpirun no longer waits for may still finish a report.
  void expect_nobody_left() const {
    for (const auto until = Clock::now() + 20s; !left().empty() && Clock::now() < until;)
      std::this_thread::sleep_for(20ms);
    EXPECT_EQ(left(), std::vector<int>());
  }

 private:
  std::string text_file() const { return folder_ + "text"; }

  std::vector<int> left() const {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const int pid = std::atoi(entry.path().filename().c_str());
      if (pid > 0 && pid != pid_ && has_variable(std::to_string(pid), mark_)) found.push_back(pid);
    }
    return found;
  }

  static inline int count_ = 0;
  std::string folder_, mark_;
  pid_t pid_ = -1;
};

/// A report without the fields that say when, where and how it was made.
json comparable(json report) {
  report.erase("volatile");
  report.erase("command");
  return report;
}

const std::string kNative = "--op tp_logp,tp_linear_logp --candidate native --device cpu --batch 1 --seq 6 --vocab 37 ";
const std::string kBad = fmt::format(
    "--op tp_linear_logp --device cpu --batch 1 --seq 8 --hidden 5 --vocab 16 --shard-bounds 0,3,7,12,16 --plugin {} ",
    test_plugin("bad_ranks"));

TEST(RankProcesses, ReportWhatThreadsReport) {
  for (const int n : {2, 4}) {
    Job job(n, kNative + "--hidden 9 --check-grad");
    job.expect_end(0, "4 checks ran");
    const auto threads = run_program(kNative + fmt::format("--hidden 9 --check-grad --world-size {} --json", n));
    ASSERT_EQ(threads.code, 0) << threads.text;
    EXPECT_EQ(comparable(Job::report()), comparable(json::parse(threads.text)));
    std::set<int64_t> processes;
    const json report = Job::report();
    for (const json& rank : report.at("volatile").at("timings").at(0).at("ranks"))
      processes.insert(rank.at("process").get<int64_t>());
    EXPECT_EQ(processes.size(), static_cast<size_t>(n));
  }
}

TEST(RankProcesses, MessagesAreThoseOfThreads) {
  // Of 5 elements on 4 ranks one part is longer, and of 3 elements one is empty.
  for (const char* numel : {"5", "3"}) {
    const std::string arguments =
        "--op all_reduce,reduce_scatter,all_gather --candidate native --device cpu --leaves 7 --order 1 --check-grad "
        "--numel ";
    Job job(4, arguments + numel);
    job.expect_end(0, "6 pass");
    const auto threads = run_program(arguments + numel + " --world-size 4 --json");
    ASSERT_EQ(threads.code, 0) << threads.text;
    EXPECT_EQ(comparable(Job::report()), comparable(json::parse(threads.text)));
  }
}

TEST(RankProcesses, RankZeroAlonePrints) {
  Job job(3, kNative);
  const ProcessResult end = job.end();
  EXPECT_EQ(end.code, 0) << end.text;
  const size_t first = end.text.find("checks ran");
  EXPECT_NE(first, std::string::npos) << end.text;
  EXPECT_EQ(end.text.find("checks ran", first + 1), std::string::npos) << end.text;
}

TEST(RankProcesses, BadRanksAreFoundAsThreadsFindThem) {
  const std::string arguments =
      kBad +
      "--check-grad --candidate gap,overlap,empty,other_total,ends_early,other_rows,other_dtype,other_ids,id_of_nobody,"
      "refuses_early,throws_early,exchanges_more,changes_a_copy,leaves_an_element,writes_behind";
  Job job(4, arguments);
  job.expect_end(1, "30 checks ran");
  const auto threads = run_program(arguments + " --json");
  ASSERT_EQ(threads.code, 1) << threads.text;
  EXPECT_EQ(comparable(Job::report()), comparable(json::parse(threads.text)));
}

TEST(RankProcesses, NumberOfRanksIsAnAxisUpToTheirNumber) {
  Job job(4,
          "--op tp_logp --candidate native --device cpu --batch 1 --seq 12 --vocab 1031 "
          "--canonical-segments 8 --check invariance");
  job.expect_end(0, "1 pass");
  const json axis = Job::cases().at(0).at("bit_checks").at(0).at("axes").at(0);
  EXPECT_EQ(axis.at("axis"), "ranks");
  EXPECT_EQ(axis.at("contexts"), 3);  // 1, 2 and 3 ranks instead of 4; with threads also 8
  EXPECT_EQ(axis.at("unsupported"), 0);
  Job wrong(4,
            "--op tp_linear_logp --device cpu --batch 2 --seq 8 --hidden 32 --vocab 203 --check invariance "
            "--canonical-segments 8 --candidate ignores_segments --plugin " +
                test_plugin("bad_ranks"));
  wrong.expect_end(1, "the result depends on the number of ranks (ranks: 1 rank in place of 4)");
}

TEST(RankProcesses, ACandidateThatDiesEndsTheRun) {
  Job job(4, kBad + "--candidate dies");
  job.expect_end(4,
                 "ranks 0, 1, 3: rank 2 has returned and takes part in no further exchange; rank 2: killed by signal "
                 "11 (Segmentation fault)");
  EXPECT_EQ(Job::report().at("complete"), true);
  EXPECT_EQ(Job::cases().at(0).at("verdict"), "error");
}

TEST(RankProcesses, ACandidateThatStallsEndsTheRun) {
  Job job(4, kBad + "--candidate stalls,stalls_in_the_end --timeout-s 20");
  job.expect_end(4, "ranks 0, 1, 3: rank 2 did not come to an exchange within 5 s; rank 2: did not return");
  const json report = Job::report();
  EXPECT_EQ(report.at("complete"), true);
  for (const json& candidate : report.at("candidates")) EXPECT_EQ(candidate.at("cases").at(0).at("verdict"), "timeout");
}

/// The report names the check that was under way, and is complete up to it. Its process learns of the end from SIGTERM,
/// or from its worker, whose connections to other ranks end: then it may get as far as the next check, and to its end.
void expect_cut_off() {
  EXPECT_EQ(Job::report().at("exit_code"), 4);
  const json cases = Job::cases();
  ASSERT_GE(cases.size(), 1u);
  EXPECT_TRUE(cases.size() == 2 || Job::report().at("complete") == false) << cases.size();
  for (const json& one : cases) {
    EXPECT_EQ(one.at("verdict"), "error");
    const auto reason = one.at("reason").get<std::string>();
    EXPECT_TRUE(reason.starts_with("the launcher ended the job with SIGTERM") || reason.find("is gone") != reason.npos)
        << reason;
  }
}

TEST(RankProcesses, AKilledProcessEndsTheJob) {
  Job job(4, kBad + "--candidate stalls --check-grad");
  job.wait_for_launch(2);
  send_to(job.relay_of(2), SIGKILL);
  const ProcessResult end = job.end();
  EXPECT_EQ(end.code, 128 + SIGKILL) << end.text;  // as mpirun counts it, whatever rank 0 says
  job.expect_nobody_left();
  expect_cut_off();
}

TEST(RankProcesses, AKilledWorkingHalfEndsTheJob) {
  Job job(4, kBad + "--candidate stalls --check-grad");
  job.wait_for_launch(2);
  send_to(job.working_of(2), SIGKILL);
  job.expect_end(4, "rank 2: its process was killed by signal 9");
  expect_cut_off();
}

TEST(RankProcesses, ReportIsFinishedWithoutTheProcessThatRelays) {
  Job job(4, kBad + "--candidate stalls --check-grad");
  job.wait_for_launch(2);
  send_to(job.relay_of(0), SIGKILL);
  const ProcessResult end = job.end();
  EXPECT_EQ(end.code, 128 + SIGKILL) << end.text;
  job.expect_nobody_left();
  expect_cut_off();
}

TEST(RankProcesses, AKilledReporterEndsTheJob) {
  Job job(4, kBad + "--candidate stalls");
  job.wait_for_launch(2);
  send_to(job.working_of(0), SIGKILL);
  job.expect_end(4, "the process that runs the checks was killed by signal 9");
}

TEST(RankProcesses, ASignalToTheLauncherEndsTheJob) {
  for (const int number : {SIGTERM, SIGINT}) {
    Job job(4, kBad + "--candidate stalls --check-grad");
    job.wait_for_launch(2);
    job.signal_mpirun(number);
    EXPECT_NE(job.end().code, 0);
    job.expect_nobody_left();
    expect_cut_off();
  }
}

/// Stops a process of rank 2: the one that relays, or the one that works.
void expect_that_a_stopped_process_is_not_waited_for(bool relays) {
  Job job(4, kBad + "--candidate stalls --check-grad --timeout-s 16");
  job.wait_for_launch(2);
  send_to(relays ? job.relay_of(2) : job.working_of(2), SIGSTOP);  // nothing comes of it for what follows
  const std::string reason = "rank 2 did not come within 10 s";
  relays ? job.expect_complete_report(4, reason) : job.expect_end(4, reason);
  EXPECT_EQ(Job::report().at("complete"), true);
  EXPECT_EQ(Job::report().at("exit_code"), 4);
  EXPECT_EQ(Job::cases().at(0).at("verdict"), "timeout");
  EXPECT_EQ(Job::cases().at(1).at("reason"), reason);
}

TEST(RankProcesses, AStoppedRelayIsNotWaitedFor) { expect_that_a_stopped_process_is_not_waited_for(true); }
TEST(RankProcesses, AStoppedWorkingHalfIsNotWaitedFor) { expect_that_a_stopped_process_is_not_waited_for(false); }

TEST(RankProcesses, AProcessThatDoesNotStartMpiIsNotWaitedFor) {
  Job job(fmt::format("-np 1 {} : -np 1 sleep 100", Job::program(kNative + "--timeout-s 8")), Job::Raw{});
  const auto start = Clock::now();
  job.expect_end(5,
                 "check_operator: the processes of this job did not all start MPI in time, which is a quarter of "
                 "--timeout-s; start "
                 "check_operator in each of them, and nothing else");
  EXPECT_LT(Clock::now() - start, 30s);
}

TEST(RankProcesses, AllMustBeOfOneRun) {
  Job others(fmt::format("-np 2 {} : -np 1 {}", Job::program(kNative), Job::program(kNative + "--seed 7")), Job::Raw{});
  others.expect_end(2, "give all ranks the same arguments");
  const std::string folder = Job::folder();
  for (const auto& [name, plugin] : {std::pair{"a", "bad_ranks"}, {"b", "honest"}}) {
    std::filesystem::create_directories(folder + name);
    std::filesystem::copy_file(test_plugin(plugin), folder + name + "/one.so",
                               std::filesystem::copy_options::overwrite_existing);
  }
  const std::string same = Job::program(kNative + "--plugin ./one.so");
  Job plugins(fmt::format("-np 1 -wdir '{0}a' {1} : -np 1 -wdir '{0}b' {1}", folder, same), Job::Raw{});
  plugins.expect_end(2, "has other plugins than rank 0");
  Job missing(fmt::format("-np 1 -wdir '{0}a' {1} : -np 1 -wdir '{0}' {1}", folder, same), Job::Raw{});
  missing.expect_end(2, "rank 1 (");
}

TEST(RankProcesses, FewerRanksThanProcessesWillDoAndMoreWillNot) {
  Job fewer(3, kNative + "--world-size 1,2");
  fewer.expect_end(0, "4 checks ran");
  Job more(3, kNative + "--world-size 2,4");
  more.expect_end(2,
                  "ranks: tp_logp-fp32-1x6x37@4 has 4 ranks, and 3 processes run it; start as many processes, or give "
                  "--world-size or --filter");
}

TEST(RankProcesses, ALauncherOfAnotherMpiIsRefused) {
  setenv("PMI_SIZE", "4", 1);
  const ProcessResult ran = run_program(kNative);
  unsetenv("PMI_SIZE");
  expect_exit(ran, 5,
              "ranks: PMI_SIZE says that there are 4 processes, and MPI connects 1; start them with the launcher of "
              "the MPI that "
              "this program was built with, or srun --mpi=pmix");
}

}  // namespace
}  // namespace checkop::ranks_process_test
