// SPDX-License-Identifier: Apache-2.0
// The worker process as its parent sees it: fork without exec, one socket, death of the child as a result and not as an
// accident.
#include "worker/isolate.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/host_memory.hpp"
#include "base/interruption.hpp"
#include "base/text.hpp"
#include "run/invariance/invariance.hpp"
#include "run/memory_need.hpp"
#include "worker/isolate_child.hpp"
#include "worker/isolate_local.hpp"
#include "worker/wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;
/// Loading many CUDA plugins and opening a busy device takes seconds, not minutes.
constexpr std::chrono::seconds kStartLimit{120};
/// A process whose socket is closed is dying; a CUDA driver may take some time to clean up after it.
constexpr std::chrono::seconds kDeathLimit{20};

/// What was thrown while a worker was at work, by what has nothing to do with it.
struct OfMeanwhile {
  std::exception_ptr thrown;
};

/// Of this program; see Isolation.
bool isolates = true;

}  // namespace

Isolation::Isolation(bool on) : before_(isolates) { isolates = on; }

Isolation::~Isolation() { isolates = before_; }

bool Isolation::is_on() { return isolates; }

/// A live child. Its destruction ends it and everything it started.
struct Worker::Process {
  pid_t pid = -1;
  Descriptor socket;
  bool reaped = false;
  uint64_t allowed_bytes = 0;  ///< of memory, to the latest request; 0: unlimited
  uint64_t peak_bytes = 0;     ///< resident, once it has ended

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
    rusage usage{};
    while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    reaped = true;
    peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
    return status;
  }

  /// How it ended; kills it when it closed its socket and lives on.
  std::string bury() {
    for (const auto until = Clock::now() + kDeathLimit; is_alive();) {
      if (Clock::now() >= until) return "closed its connection but went on; killed";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill_all();
    const int status = wait();
    return describe_end(status) + (WIFEXITED(status) ? " before it answered" : "") + describe_memory(status);
  }

  /// Whether the end may have to do with memory.
  std::string describe_memory(int status) const {
    if (allowed_bytes > 0 && peak_bytes >= allowed_bytes / 4 * 3) {
      return fmt::format("; its memory had come to {} of the {} that it may have", format_bytes(peak_bytes),
                         format_bytes(allowed_bytes));
    }
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    return killed ? ", and not by this program: perhaps the system ran out of memory" : "";
  }
};

bool fits_side_by_side(const Case& c) {
  static const auto most = static_cast<int64_t>(std::max(uint64_t{256} << 20, available_memory().value_or(0) / 64));
  return tensor_bytes(c) <= most;
}

Worker::Worker(WorkerConfig config) : config_(std::move(config)) {
  if (config_.external) {
    folder_ = std::make_unique<TempFolder>();
    config_.external->folder = folder_->path();
  }
  if (isolates || config_.external) {  // a process by its nature
    start();
  } else {
    local_ = std::make_unique<LocalWorker>(config_);
    info_ = local_->info();
  }
}

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

  const std::string where =
      config_.external
          ? fmt::format("--exec '{}'", config_.external->command)
          : fmt::format("worker for {}",
                        config_.plugins.empty() ? "no plugin" : fmt::to_string(fmt::join(config_.plugins, ", ")));
  Message message;
  json answer;
  try {
    switch (receive_message(process->socket.get(), message, Clock::now() + kStartLimit,
                            [&] { return process->is_alive(); })) {
      case Received::message:
        answer = json::parse(message.body);
        break;
      case Received::end:
        throw InputError(where, process->bury(), "it crashes while it is loaded");
      case Received::late:
        throw InputError(where, fmt::format("not ready within {} s{}", kStartLimit.count(), words_of_external()),
                         "it blocks while it is loaded");
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

/// Throws WireError unless the result speaks of everything that was asked for.
void require_complete(const Case& c, const DeviceInfo& device, const RunChecks& checks, const RunResult& result) {
  if (result.status != RunStatus::ok) return;
  std::vector<Context> contexts = contexts_of(c, device, checks);
  // More may follow: launches beside the boundaries between variants.
  while (checks.plan.all && contexts.size() < result.contexts.size()) {
    const int64_t rows = result.contexts[contexts.size()].rows;
    if (rows < 1 || rows > row_count(c)) break;
    contexts.push_back(first_rows(rows));
  }
  bool complete = result.outputs.size() == c.pass->outputs.size() && result.contexts.size() == contexts.size();
  for (size_t k = 0; complete && k < contexts.size(); ++k) complete &= result.contexts[k].what == contexts[k].what;
  for (size_t i = 0; complete && i < result.outputs.size(); ++i) {
    const TensorSpec& spec = c.pass->outputs[i].tensor;
    if (!is_present(c, spec)) continue;
    const OutputRun& run = result.outputs[i];
    const int64_t count = element_count(shape_of(c, spec));
    if (checks.determinism) complete &= run.repeat.compared == count;
    complete &= run.contexts.size() == contexts.size();
    for (size_t k = 0; complete && k < contexts.size(); ++k) {
      const int64_t expected = result.contexts[k].supported ? compared_elements(c, spec, contexts[k]) : 0;
      complete &= run.contexts[k].bits.compared == expected;
    }
  }
  if (!complete) throw WireError("its answer leaves out checks that were asked for");
}

/// A process that wrote where it must not, or may hold on to what a failure left behind, runs no further case.
bool may_go_on(const RunResult& result) {
  const auto unwritten = [](const OutputRun& output) { return output.unwritten > 0; };
  return (result.status == RunStatus::ok || result.status == RunStatus::unsupported) && !result.device_lost &&
         result.guard_violations.empty() && result.modified_inputs.empty() &&
         std::none_of(result.outputs.begin(), result.outputs.end(), unwritten);
}

/// Throws WireError unless there are as many times as were asked for, and all are times.
void require_complete(size_t candidates, const BenchPlan& plan, const BenchResult& result) {
  if (result.status != RunStatus::ok) return;
  const auto are_times = [](const std::vector<double>& samples, size_t count) {
    const auto is_time = [](double ms) { return ms > 0 && std::isfinite(ms); };
    return samples.size() == count && std::all_of(samples.begin(), samples.end(), is_time);
  };
  bool complete = result.runs.size() == candidates && are_times({result.copy_gbps}, 1);
  for (const BenchRun& run : result.runs) {
    if (run.status != RunStatus::ok) continue;
    complete &= are_times(run.burst_ms, plan.burst ? static_cast<size_t>(plan.repeats) : 0);
    complete &= are_times(run.sustained_ms, plan.sustained ? static_cast<size_t>(kSustainedRounds) : 0);
  }
  if (!complete) throw WireError("its answer leaves out times that were asked for");
}

}  // namespace

std::string Worker::words_of_external() const {
  return config_.external ? last_words(stderr_file(*config_.external)) : "";
}

uint64_t Worker::allowed_bytes(const Case& c) const {
  if (config_.device != "cpu") return 0;  // a CUDA driver maps more than there is
  if (config_.memory_limit > 0) return config_.memory_limit;
  const uint64_t room = room_for_candidates(memory_need(c, /*on_cuda=*/false, 1).host);
  return fits_side_by_side(c) ? room / 2 : room;
}

size_t Worker::index_of(const std::string& candidate, const Case& c) const {
  std::vector<std::string> known;
  for (size_t i = 0; i < info_.candidates.size(); ++i) {
    const Candidate& each = info_.candidates[i];
    if (each.op != c.op->name || each.pass != c.pass->name) continue;
    if (each.name == candidate) return i;
    known.push_back(each.name);
  }
  throw InputError(fmt::format("{}/{}", c.op->name, c.pass->name), fmt::format("no candidate '{}'", candidate),
                   did_you_mean(candidate, known));
}

void Worker::ask(json request, const std::vector<int>& descriptors, std::chrono::seconds limit,
                 const std::function<bool(const json&)>& take, const Stop& stop,
                 const std::function<void()>& meanwhile) {
  const auto end = [&](RunStatus status, std::string message) {
    process_.reset();
    stop(status, std::move(message));
  };
  try {
    if (!process_) start();
    const auto deadline = Clock::now() + limit;
    const std::string number = unguessable();  // no earlier or made-up answer is taken for this request's
    request["request"] = number;
    process_->allowed_bytes = request.at("allowed_bytes").get<uint64_t>();
    if (!process_->is_alive()) {  // a thread of the candidate can outlive the answer, and then crash
      return end(RunStatus::crashed, "between two cases: " + process_->bury());
    }
    send_message(process_->socket.get(), request, descriptors, deadline);
    try {
      if (meanwhile) meanwhile();
    } catch (...) {  // it is not the worker's, whose answer nobody will take
      process_.reset();
      throw OfMeanwhile{std::current_exception()};
    }
    Message message;
    json answer;
    const auto goes_on = [&] {
      stop_if_interrupted();
      return process_->is_alive();
    };
    switch (receive_message(process_->socket.get(), message, deadline, goes_on)) {
      case Received::message:
        answer = json::parse(message.body);
        if (answer.contains("error")) throw InputError("", answer.at("text").get<std::string>());
        if (answer.at("request") != number) throw WireError("its answer is not to this request");
        if (!take(answer)) process_.reset();
        break;
      case Received::end:
        end(RunStatus::crashed, process_->bury());
        break;
      case Received::late:
        end(RunStatus::timeout, fmt::format("no answer within {} s; killed{}", limit.count(), words_of_external()));
        break;
    }
  } catch (const OfMeanwhile& e) {
    std::rethrow_exception(e.thrown);
  } catch (const EnvironmentError& e) {
    end(RunStatus::no_device, e.what());
  } catch (const WireError& e) {
    end(RunStatus::crashed, process_ && !process_->is_alive() ? process_->bury() : e.what());
  } catch (const json::exception& e) {
    end(RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what()));
  } catch (const InputError& e) {  // the plugins can't be loaded again, or the tensors not mapped
    end(RunStatus::crashed, e.what());
  }
}

RunResult Worker::run(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                      std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit,
                      const std::function<void()>& meanwhile) {
  if (local_) {
    if (meanwhile) meanwhile();
    return local_->run(index_of(candidate, c), c, inputs, outputs, checks);
  }
  for (const Tensor& input : inputs) input.bytes.keep_from_others();
  std::vector<int> descriptors;
  json request{
      {"candidate", index_of(candidate, c)},     {"case", encode(c)},        {"inputs", encode(inputs, descriptors)},
      {"outputs", encode(outputs, descriptors)}, {"checks", encode(checks)}, {"allowed_bytes", allowed_bytes(c)}};
  RunResult result;
  const auto take = [&](const json& answer) {
    result = decode_result(answer);
    require_complete(c, info_.device.value(), checks, result);
    if (result.status == RunStatus::no_memory && process_->allowed_bytes > 0)
      result.message += fmt::format("; it may have {}", format_bytes(process_->allowed_bytes));
    return config_.external ? !result.device_lost : may_go_on(result);  // a command has none of our memory
  };
  const auto stop = [&](RunStatus status, std::string message) {
    result = {};
    result.status = status;
    result.message = std::move(message);
  };
  ask(std::move(request), descriptors, limit, take, stop, meanwhile);
  return result;
}

BenchResult Worker::bench(const std::vector<std::string>& candidates, const Case& c, const std::vector<Tensor>& inputs,
                          const BenchPlan& plan, std::chrono::seconds limit) {
  std::vector<size_t> indices;
  for (const std::string& candidate : candidates) indices.push_back(index_of(candidate, c));
  if (local_) return local_->bench(indices, c, inputs, plan);
  for (const Tensor& input : inputs) input.bytes.keep_from_others();
  std::vector<int> descriptors;
  json request{{"candidates", indices},
               {"case", encode(c)},
               {"inputs", encode(inputs, descriptors)},
               {"bench", encode(plan)},
               {"allowed_bytes", allowed_bytes(c)}};
  BenchResult result;
  const auto take = [&](const json& answer) {
    result = decode_bench(answer);
    require_complete(candidates.size(), plan, result);
    return !result.device_lost;
  };
  ask(std::move(request), descriptors, limit, take, [&](RunStatus status, std::string message) {
    result = {};
    result.status = status;
    result.message = std::move(message);
  });
  return result;
}

}  // namespace checkop
