// SPDX-License-Identifier: Apache-2.0
// The worker process: fork without exec, one socket, death of the child as a result and not as an accident.
#include "isolate.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>

#include "error.hpp"
#include "text.hpp"
#include "wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kChildSocket = 3;
/// Loading many CUDA plugins and opening a busy device takes seconds, not minutes.
constexpr std::chrono::seconds kStartLimit{120};
/// A process whose socket is closed is dying; a CUDA driver may take some time to clean up after it.
constexpr std::chrono::seconds kDeathLimit{20};

const auto kAlwaysAlive = [] { return true; };

// --- the child
// ---------------------------------------------------------------------------------------------------------

/// Cuts the process loose from what it shares with its parent: signals, terminal, files.
void detach_from_parent(int socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  setpgid(0, 0);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};  // a crash is an expected result; it should not leave files about
  setrlimit(RLIMIT_CORE, &no_core);

  if (socket != kChildSocket) dup2(socket, kChildSocket);  // first: it may be 0 to 2 when the parent had closed those
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // what a plugin prints must not end up in a report on stdout
  fcntl(kChildSocket, F_SETFD, FD_CLOEXEC);
  // The parent's tensors and files; on kernels without the call they stay open, which does no harm.
  close_range(kChildSocket + 1, ~0u, 0);
}

std::unique_ptr<Device> open_device(const std::string& name) {
  if (name == "cpu") return open_cpu_device();
  int index = 0;
  if (name != "cuda") {
    const std::string_view prefix = "cuda:";
    const char* end = name.data() + name.size();
    const char* digits = name.data() + std::min(prefix.size(), name.size());
    const auto [rest, error] = std::from_chars(digits, end, index);
    if (!name.starts_with(prefix) || error != std::errc{} || rest != end || index < 0) {
      throw InputError("--device", fmt::format("unknown device '{}'", name), "use cpu, cuda or cuda:N");
    }
  }
  return open_cuda_device(index);
}

json hello(const std::vector<Candidate>& candidates, const Device& device, bool count_cuda_devices) {
  json list = json::array();
  for (const Candidate& candidate : candidates) {
    list.push_back({{"name", candidate.name},
                    {"op", candidate.op},
                    {"pass", candidate.pass},
                    {"path", candidate.path},
                    {"digest", candidate.digest},
                    {"device", candidate.kernel->device}});
  }
  return {{"candidates", list},
          {"device", encode(device.info())},
          {"cuda_devices", count_cuda_devices ? cuda_device_count() : 0}};
}

void say(const json& body) { send_message(kChildSocket, body, {}, Clock::now() + kStartLimit); }

/// Answers requests until the parent closes its end.
void serve(Device& device, const std::vector<Candidate>& candidates) {
  Message message;
  const pid_t own_pid = getpid();
  const auto never = Clock::now() + std::chrono::hours(24 * 365);
  while (receive_message(kChildSocket, message, never, kAlwaysAlive) == Received::message) {
    const json request = json::parse(message.body);
    size_t next = 0;
    const std::vector<Tensor> inputs =
        decode_tensors(request.at("inputs"), message.descriptors, next, /*writable=*/false);
    std::vector<Tensor> outputs = decode_tensors(request.at("outputs"), message.descriptors, next, /*writable=*/true);
    const json& checks = request.at("checks");
    const RunResult result =
        run_candidate(device, candidates.at(request.at("candidate").get<size_t>()), decode_case(request.at("case")),
                      inputs, outputs, {checks.at(0).get<bool>(), checks.at(1).get<bool>(), checks.at(2).get<bool>()});
    fflush(stdout);  // what the plugin printed belongs to this case
    // A candidate that forked came back twice; only the worker itself may answer.
    if (getpid() != own_pid) _exit(0);
    json answer = encode(result);
    answer["request"] = request.at("request");
    say(answer);
  }
}

[[noreturn]] void run_child(int socket, pid_t parent, const WorkerConfig& config) {
  // Whatever happens, the parent's destructors and atexit handlers must not run here.
  int code = 0;
  try {
    detach_from_parent(socket, parent);
    try {
      const std::vector<Candidate> candidates = load_plugins(config.plugins);
      const std::unique_ptr<Device> device = open_device(config.device);
      say(hello(candidates, *device, config.count_cuda_devices));
      serve(*device, candidates);
    } catch (const InputError& e) {
      say({{"error", "input"}, {"text", e.what()}});
    } catch (const EnvironmentError& e) {
      say({{"error", "environment"}, {"text", e.what()}});
    } catch (const DeviceError& e) {  // opening the device got half way
      say({{"error", "environment"}, {"text", e.what()}});
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "check_operator worker: {}\n", e.what());
    code = 1;
  }
  fflush(stdout);
  _exit(code);
}

// --- the parent
// --------------------------------------------------------------------------------------------------------

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("left with exit code {} before it answered", WEXITSTATUS(status));
}

}  // namespace

/// A live child. Its destruction ends it and everything it started.
struct Worker::Process {
  pid_t pid = -1;
  Descriptor socket;
  bool reaped = false;

  ~Process() {
    if (pid < 0 || reaped) return;
    kill_all();
    wait();
  }

  /// Only before wait(): until then no other process can have got its number.
  void kill_all() const {
    if (kill(-pid, SIGKILL) != 0) kill(pid, SIGKILL);  // it had no time to make its group
  }

  /// Leaves the process waitable, so that its number stays its own.
  bool is_alive() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  int wait() {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    reaped = true;
    return status;
  }

  /// How it ended; kills it when it closed its socket and lives on.
  std::string bury() {
    for (const auto until = Clock::now() + kDeathLimit; is_alive();) {
      if (Clock::now() >= until) return "closed its connection but went on; killed";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill_all();
    return describe_end(wait());
  }
};

Worker::Worker(WorkerConfig config) : config_(std::move(config)) { start(); }

Worker::~Worker() = default;

const WorkerInfo& Worker::info() const { return info_; }

void Worker::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw EnvironmentError(fmt::format("worker: socketpair: {}", std::strerror(errno)));
  }
  auto process = std::make_unique<Process>();
  process->socket = Descriptor(ends[0]);
  Descriptor childs_end(ends[1]);
  // A plugin that calls exit() would print again what is still in these buffers.
  std::cout.flush();
  fflush(stdout);
  fflush(stderr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw EnvironmentError(fmt::format("worker: fork: {}", std::strerror(errno)));
  if (pid == 0) run_child(ends[1], parent, config_);
  process->pid = pid;
  setpgid(pid, pid);  // in both processes: whoever comes first
  childs_end = Descriptor();

  const std::string where = fmt::format(
      "worker for {}", config_.plugins.empty() ? "no plugin" : fmt::to_string(fmt::join(config_.plugins, ", ")));
  Message message;
  json answer;
  try {
    switch (receive_message(process->socket.get(), message, Clock::now() + kStartLimit,
                            [&] { return process->is_alive(); })) {
      case Received::message:
        answer = json::parse(message.body);
        break;
      case Received::end:
        throw InputError(where, process->bury(), "one of them crashes while it is loaded");
      case Received::late:
        throw InputError(where, fmt::format("not ready within {} s", kStartLimit.count()),
                         "one of them blocks while it is loaded");
    }
    if (answer.contains("error")) {
      const auto text = answer.at("text").get<std::string>();
      if (answer.at("error") == "environment") throw EnvironmentError(text);
      throw InputError("", text);
    }
    WorkerInfo info;
    for (const json& item : answer.at("candidates")) {
      info.candidates.push_back({item.at("name").get<std::string>(), item.at("op").get<std::string>(),
                                 item.at("pass").get<std::string>(), item.at("path").get<std::string>(),
                                 item.at("digest").get<std::string>(), nullptr});
      info.candidate_device.push_back(item.at("device").get<int>());
    }
    info.device = decode_device(answer.at("device"));
    info.cuda_devices = answer.at("cuda_devices").get<int>();
    info_ = std::move(info);
  } catch (const json::exception& e) {
    throw InputError(where, fmt::format("said hello in a way that can't be read: {}", e.what()));
  } catch (const WireError& e) {
    throw InputError(where, e.what());
  }
  process_ = std::move(process);
}

namespace {

/// A number that a candidate can't guess, so that no earlier or made-up answer is taken for this request's.
std::string request_number() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// Throws WireError unless the result speaks of everything that was asked for.
void require_complete(const Case& c, const RunChecks& checks, const RunResult& result) {
  if (result.status != RunStatus::ok) return;
  bool complete = result.outputs.size() == c.pass->outputs.size();
  for (size_t i = 0; complete && i < result.outputs.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_present(c, spec)) continue;
    const OutputRun& run = result.outputs[i];
    const int64_t count = element_count(shape_of(c, spec));
    if (checks.determinism) complete &= run.repeat.compared == count;
    if (!checks.invariance || !is_per_row(*c.op, spec)) continue;
    const auto ranges = subset_ranges(row_count(c));
    complete &= run.subsets.size() == ranges.size();
    for (size_t k = 0; complete && k < ranges.size(); ++k) {
      const SubsetResult& subset = run.subsets[k];
      const int64_t expected = count / row_count(c) * (ranges[k].second - ranges[k].first);
      complete &= std::pair(subset.begin, subset.end) == ranges[k];
      complete &= subset.bits.compared == expected || subset.bits.compared == 0;  // 0: unsupported for so few rows
    }
  }
  if (!complete) throw WireError("its answer leaves out checks that were asked for");
}

}  // namespace

RunResult Worker::run(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                      std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit) {
  const auto found = std::find_if(info_.candidates.begin(), info_.candidates.end(), [&](const Candidate& each) {
    return each.name == candidate && each.op == c.op->name && each.pass == c.pass->name;
  });
  if (found == info_.candidates.end()) {
    std::vector<std::string> known;
    for (const Candidate& each : info_.candidates) {
      if (each.op == c.op->name && each.pass == c.pass->name) known.push_back(each.name);
    }
    throw InputError(fmt::format("{}/{}", c.op->name, c.pass->name), fmt::format("no candidate '{}'", candidate),
                     did_you_mean(candidate, known));
  }

  RunResult result;
  const auto stop = [&](RunStatus status, std::string message) {
    process_.reset();
    result = {};
    result.status = status;
    result.message = std::move(message);
  };
  try {
    const auto index = static_cast<size_t>(found - info_.candidates.begin());
    if (!process_) start();
    const auto deadline = Clock::now() + limit;
    std::vector<int> descriptors;
    const std::string number = request_number();
    json request{{"request", number},
                 {"candidate", index},
                 {"case", encode(c)},
                 {"inputs", encode(inputs, descriptors)},
                 {"outputs", encode(outputs, descriptors)},
                 {"checks", {checks.determinism, checks.invariance, checks.memory}}};
    if (!process_->is_alive()) {  // a thread of the candidate can outlive the answer, and then crash
      stop(RunStatus::crashed, "between two cases: " + process_->bury());
      return result;
    }
    send_message(process_->socket.get(), request, descriptors, deadline);
    Message message;
    json answer;
    switch (receive_message(process_->socket.get(), message, deadline, [&] { return process_->is_alive(); })) {
      case Received::message:
        answer = json::parse(message.body);
        if (answer.contains("error")) throw InputError("", answer.at("text").get<std::string>());
        if (answer.at("request") != number) throw WireError("its answer is not to this request");
        result = decode_result(answer);
        require_complete(c, checks, result);
        if (result.device_lost) process_.reset();
        break;
      case Received::end:
        stop(RunStatus::crashed, process_->bury());
        break;
      case Received::late:
        stop(RunStatus::timeout, fmt::format("no answer within {} s; killed", limit.count()));
        break;
    }
  } catch (const EnvironmentError& e) {
    stop(RunStatus::no_device, e.what());
  } catch (const WireError& e) {
    stop(RunStatus::crashed, process_ && !process_->is_alive() ? process_->bury() : e.what());
  } catch (const json::exception& e) {
    stop(RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what()));
  } catch (const InputError& e) {  // the plugins can't be loaded again, or the tensors not mapped
    stop(RunStatus::crashed, e.what());
  }
  return result;
}

}  // namespace checkop
