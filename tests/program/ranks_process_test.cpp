// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: the same results as with threads, and no way for one rank to hang the others.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/frame.hpp"
#include "support/built.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::ranks_process_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

/// A port that nobody listens on.
int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

/// A socket connected to `port`, as soon as somebody listens there.
Descriptor connected_to(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  for (const auto until = Clock::now() + 60s; Clock::now() < until; std::this_thread::sleep_for(20ms)) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return socket;
  }
  ADD_FAILURE() << "nobody listens at " << port;
  return Descriptor();
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The processes of one run. None outlives the test.
class Processes {
 public:
  Processes()
      : folder_(testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "/"),
        port_(free_port()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Processes() {
    for (auto& [name, pid] : pids_)
      if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
  }
  Processes(const Processes&) = delete;

  int port() const { return port_; }
  std::string report() const { return folder_ + "report.json"; }

  /// Starts the program with these environment variables and arguments.
  void start(int name, const std::string& variables, const std::string& arguments) {
    const std::string command = fmt::format("cd '{}' && exec env -u GITHUB_ACTIONS {} '{}' {} > '{}{}' 2>&1",
                                            CHECKOP_SOURCE_DIR, variables, kProgram, arguments, folder_, name);
    const pid_t pid = fork();
    if (pid == 0) execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    pids_[name] = pid;
  }

  /// Starts rank `rank` of `n`, given by flags. Rank 0 writes the report.
  void start_rank(int rank, int n, const std::string& arguments) {
    start(rank, "",
          fmt::format("--rank {} --world-size {} --master 127.0.0.1:{} {} {}", rank, n, port_, arguments,
                      rank == 0 ? "--json " + report() : ""));
  }
  Processes& start_all(int n, const std::string& arguments) {
    for (int rank = 0; rank < n; ++rank) start_rank(rank, n, arguments);
    return *this;
  }

  void kill_one(int name, int signal = SIGKILL) { kill(pids_.at(name), signal); }

  /// Waits until the child of process `name` has a thread for the candidate.
  void wait_for_launch(int name) {
    const std::string children = fmt::format("/proc/{0}/task/{0}/children", pids_.at(name));
    for (const auto until = Clock::now() + 60s; Clock::now() < until; std::this_thread::sleep_for(2ms)) {
      const int child = std::atoi(content(children).c_str());
      if (child > 0 && threads_of(child) > 1) return;
    }
    ADD_FAILURE() << "process " << name << " launches nothing: " << content(folder_ + std::to_string(name));
  }

  /// The exit code, or minus the signal that killed it, and the output. -SIGKILL if it took too long.
  ProcessResult end_of(int name) {
    pid_t& pid = pids_.at(name);
    int status = 0;
    for (const auto until = Clock::now() + 120s; waitpid(pid, &status, WNOHANG) == 0;) {
      if (Clock::now() > until) kill(pid, SIGKILL);
      std::this_thread::sleep_for(5ms);
    }
    pid = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), content(folder_ + std::to_string(name))};
  }

  static int64_t threads_of(int pid) {
    std::error_code error;  // the process may have ended
    const std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid), error);
    return error ? 0 : std::distance(begin(tasks), end(tasks));
  }

  void expect_all(int code, const std::string& part_of_rank_0, const std::string& part_of_others = "") {
    for (auto& [name, pid] : pids_)
      if (pid > 0) expect_exit(end_of(name), code, name == 0 ? part_of_rank_0 : part_of_others);
  }

 private:
  std::string folder_;
  int port_;
  std::map<int, pid_t> pids_;
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
    Processes ranks;
    ranks.start_all(n, kNative + "--hidden 9 --check-grad").expect_all(0, "4 checks ran");
    const auto threads = run_program(kNative + fmt::format("--hidden 9 --check-grad --world-size {} --json", n));
    ASSERT_EQ(threads.code, 0) << threads.text;
    const json report = json::parse(content(ranks.report()));
    EXPECT_EQ(comparable(report), comparable(json::parse(threads.text)));
    std::set<int64_t> processes;
    for (const json& rank : report.at("volatile").at("timings").at(0).at("ranks"))
      processes.insert(rank.at("process").get<int64_t>());
    EXPECT_EQ(processes.size(), static_cast<size_t>(n));
  }
}

TEST(RankProcesses, BadRanksAreFoundAsThreadsFindThem) {
  const std::string arguments =
      kBad +
      "--check-grad --candidate gap,overlap,empty,other_total,ends_early,other_rows,other_dtype,other_ids,id_of_nobody,"
      "refuses_early,throws_early,exchanges_more,changes_a_copy,leaves_an_element,changes_an_input,writes_behind";
  Processes ranks;
  ranks.start_all(4, arguments).expect_all(1, "32 checks ran");
  const auto threads = run_program(arguments + " --json");
  ASSERT_EQ(threads.code, 1) << threads.text;
  EXPECT_EQ(comparable(json::parse(content(ranks.report()))), comparable(json::parse(threads.text)));
}

TEST(RankProcesses, NumberOfRanksIsAnAxisUpToTheirNumber) {
  Processes ranks;
  ranks
      .start_all(4,
                 "--op tp_logp --candidate native --device cpu --batch 1 --seq 12 --vocab 1031 "
                 "--canonical-segments 8 --check invariance")
      .expect_all(0, "1 pass");
  const json report = json::parse(content(ranks.report()));
  const json& axis = report.at("candidates").at(0).at("cases").at(0).at("bit_checks").at(0).at("axes").at(0);
  EXPECT_EQ(axis.at("axis"), "ranks");
  EXPECT_EQ(axis.at("contexts"), 3);  // 1, 2 and 3 ranks instead of 4; with threads also 8
  EXPECT_EQ(axis.at("unsupported"), 0);
  Processes wrong;
  wrong
      .start_all(4,
                 "--op tp_linear_logp --device cpu --batch 2 --seq 8 --hidden 32 --vocab 203 --check invariance "
                 "--canonical-segments 8 --candidate ignores_segments --plugin " +
                     test_plugin("bad_ranks"))
      .expect_all(1, "the result depends on the number of ranks (ranks: 1 rank in place of 4)");
}

TEST(RankProcesses, OneThatDiesEndsTheRun) {
  Processes ranks;
  ranks.start_all(4, kBad + "--candidate dies")
      .expect_all(4,
                  "ranks 0, 1, 3: rank 2 has returned and takes part in no further exchange; rank 2: killed by signal "
                  "11 (Segmentation fault)");
  const json report = json::parse(content(ranks.report()));
  EXPECT_EQ(report.at("complete"), true);
  EXPECT_EQ(report.at("candidates").at(0).at("cases").at(0).at("verdict"), "error");
}

TEST(RankProcesses, OneThatStallsEndsTheRun) {
  Processes ranks;
  ranks.start_all(4, kBad + "--candidate stalls,stalls_in_the_end --timeout-s 40")
      .expect_all(4, "ranks 0, 1, 3: rank 2 did not come to an exchange within 10 s; rank 2: did not return");
  const json report = json::parse(content(ranks.report()));
  EXPECT_EQ(report.at("complete"), true);
  for (const json& candidate : report.at("candidates")) EXPECT_EQ(candidate.at("cases").at(0).at("verdict"), "timeout");
}

TEST(RankProcesses, OneThatIsKilledEndsTheRun) {
  Processes ranks;
  ranks.start_all(4, kBad + "--candidate stalls --check-grad");
  ranks.wait_for_launch(2);
  ranks.kill_one(2);
  EXPECT_EQ(ranks.end_of(2).code, -SIGKILL);
  ranks.expect_all(4, "2 error");
  const json report = json::parse(content(ranks.report()));
  EXPECT_EQ(report.at("complete"), true);
  const json& cases = report.at("candidates").at(0).at("cases");
  EXPECT_NE(cases.at(0).at("reason").get<std::string>().find("rank 2"), std::string::npos);
  EXPECT_EQ(cases.at(1).at("reason"), "the process of rank 2 is gone");
}

TEST(RankProcesses, OneThatIsStoppedEndsTheRun) {
  Processes ranks;
  ranks.start_all(4, kBad + "--candidate stalls --check-grad --timeout-s 40");
  ranks.wait_for_launch(2);
  ranks.kill_one(2, SIGSTOP);  // it does not start a process for the next checks
  const ProcessResult end = ranks.end_of(0);
  EXPECT_EQ(end.code, 4) << end.text;
  EXPECT_EQ(end.text.find("signal"), std::string::npos) << end.text;
  ranks.kill_one(2);
  const json cases = json::parse(content(ranks.report())).at("candidates").at(0).at("cases");
  EXPECT_EQ(cases.at(0).at("verdict"), "timeout");
  EXPECT_EQ(cases.at(1).at("reason"), "rank 2 did not come within 10 s");
}

TEST(RankProcesses, NoneOutlivesRankZero) {
  Processes ranks;
  ranks.start_all(4, kBad + "--candidate stalls");
  ranks.wait_for_launch(2);
  ranks.kill_one(0);
  EXPECT_EQ(ranks.end_of(0).code, -SIGKILL);
  ranks.expect_all(4, "", fmt::format("rank 0 at 127.0.0.1:{} is gone", ranks.port()));
}

TEST(RankProcesses, OneThatNeverComesIsNamed) {
  Processes ranks;
  ranks.start_rank(0, 3, kNative + "--timeout-s 20");
  ranks.start_rank(2, 3, kNative + "--timeout-s 20");
  ranks.expect_all(5, "rank 1 of 3 did not come to", "rank 1 of 3 did not come to");
}

TEST(RankProcesses, RankZeroThatNeverComesIsMissed) {
  Processes ranks;
  ranks.start_rank(1, 2, kNative + "--timeout-s 8");
  ranks.expect_all(5, "", fmt::format("rank 1: rank 0 is not at 127.0.0.1:{} within 2 s", ranks.port()));
}

TEST(RankProcesses, AllMustBeOfOneRun) {
  const std::string plugin = " --plugin " + test_plugin("bad_ranks");
  Processes others;
  others.start_rank(0, 2, kNative);
  others.start_rank(1, 2, kNative + plugin);
  others.expect_all(2, "has other plugins than rank 0", "has other plugins than rank 0");
  Processes sizes;
  sizes.start_rank(0, 2, kNative);
  sizes.start_rank(1, 3, kNative);
  sizes.expect_all(2, "is one of 3 ranks, rank 0 one of 2", "is one of 3 ranks, rank 0 one of 2");
  Processes twice;
  twice.start_rank(0, 3, kNative);
  twice.start_rank(1, 3, kNative);
  const std::string same = fmt::format("--rank 1 --world-size 3 --master 127.0.0.1:{} {}", twice.port(), kNative);
  twice.start(3, "", same);
  twice.expect_all(2, "is there already, as process", "is there already, as process");
}

TEST(RankProcesses, StrangersAreDropped) {
  Processes ranks;
  ranks.start_rank(0, 2, kNative);
  const Descriptor silent = connected_to(ranks.port()), web = connected_to(ranks.port()),
                   other = connected_to(ranks.port()), liar = connected_to(ranks.port());
  const std::string request = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  send_bytes(web.get(), request.data(), request.size(), Clock::now() + 10s);
  send_message(other.get(), {{"rank", "one"}}, {}, Clock::now() + 10s);
  send_message(liar.get(), std::string(200'000, 'x'), {}, Clock::now() + 10s);
  ranks.start_rank(1, 2, kNative);
  ranks.expect_all(0, "2 checks ran");
}

TEST(RankProcesses, FewerRanksThanProcessesWillDoAndMoreWillNot) {
  const auto start = [](Processes& ranks, const std::string& arguments) {
    for (int rank = 0; rank < 3; ++rank)
      ranks.start(rank, fmt::format("RANK={} WORLD_SIZE=3 MASTER_PORT={}", rank, ranks.port()), arguments);
  };
  Processes fewer;
  start(fewer, kNative + "--world-size 1,2");
  fewer.expect_all(0, "4 checks ran");
  Processes more;
  start(more, kNative + "--world-size 2,4");
  more.expect_all(2, "tp_logp-fp32-1x6x37@4 has 4 ranks, and 3 processes run it",
                  "has 4 ranks, and 3 processes run it");
}

TEST(RankProcesses, LaunchersTellOfThemselves) {
  const std::string torchrun = "RANK={0} WORLD_SIZE=2 LOCAL_RANK={0} MASTER_ADDR=127.0.0.1 MASTER_PORT={1}";
  for (const std::string& variables :
       {torchrun, torchrun + " TORCHELASTIC_USE_AGENT_STORE=True",
        std::string("OMPI_COMM_WORLD_RANK={0} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK={0} MASTER_PORT={1}"),
        std::string("SLURM_PROCID={0} SLURM_NTASKS=2 SLURM_LOCALID={0} SLURM_STEP_ID=0 SLURM_JOB_ID=7 "
                    "MASTER_PORT={1}")}) {
    Processes ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.start(rank, fmt::format(fmt::runtime(variables), rank, ranks.port()), kNative);
    ranks.expect_all(0, "world_size=2");
  }
}

TEST(RankProcesses, LeaveTorchrunsPortToItsStore) {
  Processes ranks;
  const std::string variables = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 TORCHELASTIC_USE_AGENT_STORE=True ";
  ranks.start(0, variables + fmt::format("MASTER_PORT={}", ranks.port()), kNative + "--timeout-s 4");
  ranks.expect_all(5, fmt::format("did not come to 127.0.0.1:{}", ranks.port() + 1));
}

TEST(RankProcesses, BatchScriptsAndOtherOperatorsAreOneProcess) {
  Processes alone;
  alone.start(0, "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", kNative);
  alone.start(1, "RANK=0 WORLD_SIZE=2", "--op logp --candidate native --device cpu");
  alone.start(2, "RANK=0 WORLD_SIZE=1", kNative);
  alone.expect_all(0, "world_size=1", "ran (");
}

TEST(RankProcesses, FlagsAndVariablesThatMakeNoSenseAreRefused) {
  const auto refused = [](const std::string& variables, const std::string& arguments, const std::string& part) {
    Processes one;
    one.start(0, variables, arguments);
    one.expect_all(2, part);
  };
  refused("", kNative + "--rank 0", "--rank: says which process this is, and not of how many; add --world-size N");
  refused("", kNative + "--rank 2 --world-size 2", "--rank: expected a number from 0 to 1, got '2'");
  refused("", kNative + "--rank -1 --world-size 2", "got '-1'");
  refused("", kNative + "--rank 0 --world-size 2,4", "--world-size: expected a number from 1 to 64, got '2,4'");
  refused("", kNative + "--rank 0 --world-size 2 --master here", "expected HOST:PORT, got 'here'");
  refused("", kNative + "--rank 0 --world-size 2 --master 127.0.0.1:x", "expected a number from 1 to 65535, got 'x'");
  refused("", kNative + "--rank 0 --world-size 2 --master 192.0.2.1:29500", "rank 0 can't listen at 192.0.2.1:29500");
  refused("", kNative + "--rank 0 --world-size 2 --no-isolate", "is for one process, and this is one of several");
  refused("", kNative + "--master 127.0.0.1:29500", "has no effect on one process");
  refused("", "--op logp --rank 0 --world-size 2", "no selected operator has");
  refused("RANK=x WORLD_SIZE=2", kNative, "RANK: expected a number from 0 to 1, got 'x'");
  refused("RANK=0", kNative, "set WORLD_SIZE too");
  refused("RANK=0 WORLD_SIZE=many", kNative, "WORLD_SIZE: expected a number from 1 to 64, got 'many'");
  refused("", kNative + "--rnak 0", "did you mean '--rank'?");
}

}  // namespace
}  // namespace checkop::ranks_process_test
