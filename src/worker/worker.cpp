// SPDX-License-Identifier: Apache-2.0
// The worker process as its parent sees it: fork without exec, one socket; the child's death is a result, not an error
// of this program. child.cpp is what runs in it.
#include "worker/worker.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/child_process.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/host_memory.hpp"
#include "base/interruption.hpp"
#include "base/sandbox.hpp"
#include "base/text.hpp"
#include "run/invariance/contexts.hpp"
#include "run/memory_need.hpp"
#include "run/runner.hpp"
#include "worker/child.hpp"
#include "worker/wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;
/// Loading many CUDA plugins and opening a busy device takes seconds, not minutes.
constexpr std::chrono::seconds kStartLimit{120};

/// Whether workers are processes of their own; see Isolation.
bool isolates = true;

}  // namespace

Isolation::Isolation(bool on) : before_(isolates) { isolates = on; }

Isolation::~Isolation() { isolates = before_; }

bool Isolation::is_on() { return isolates; }

/// A live child and the parent's end of the connection to it.
struct Worker::Process {
  ChildProcess child;
  Descriptor socket;
  uint64_t allowed_bytes = 0;  ///< memory that the latest request allows; 0: unlimited
  bool ends_in_order = false;  ///< it waits for requests, and its child holds memory of a GPU

  ~Process() {
    if (ends_in_order) end();
  }

  /// Lets the process end by itself, and with it its own child. The next one finds the memory of both free.
  void end() {
    constexpr std::chrono::seconds kLimit{5};
    socket = Descriptor();
    for (const auto until = Clock::now() + kLimit; child.is_alive() && Clock::now() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::string bury() { return checkop::bury(child, allowed_bytes); }
};

/// Why a request has no answer.
struct Worker::Failure {
  RunStatus status;
  std::string message;
};

/// A run that was begun and is not finished.
struct Worker::Pending {
  size_t candidate;  ///< index into WorkerInfo::candidates
  const Case* c;
  const std::vector<Tensor>* inputs;
  std::vector<Tensor>* outputs;
  RunChecks checks;
  std::optional<Failure> failure = {};  ///< already known when the request was sent
};

/// A worker without a process of its own: loads plugins into this process and runs them here. Throws as Worker does.
class LocalWorker {
 public:
  explicit LocalWorker(const WorkerConfig& config);

  WorkerInfo info() const;
  RunResult run(size_t candidate, const Case& c, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                const RunChecks& checks);
  BenchResult bench(const std::vector<size_t>& candidates, const Case& c, BenchData& data, const BenchPlan& plan);

 private:
  bool count_cuda_devices_;
  std::vector<Candidate> candidates_;
  std::unique_ptr<Device> device_;
};

LocalWorker::LocalWorker(const WorkerConfig& config)
    : count_cuda_devices_(config.count_cuda_devices), candidates_(load_plugins(config.plugins)) {
  try {
    device_ = open_device(config.device);
  } catch (const DeviceError& e) {
    throw EnvironmentError(e.what());
  }
}

WorkerInfo LocalWorker::info() const {
  WorkerInfo info;
  for (const Candidate& candidate : candidates_) {
    info.candidates.push_back(candidate);
    info.candidate_device.push_back(candidate.kernel->device);
  }
  info.cuda_devices = count_cuda_devices_ ? cuda_device_count() : 0;
  info.device = device_->info();
  return info;
}

RunResult LocalWorker::run(size_t candidate, const Case& c, const std::vector<Tensor>& inputs,
                           std::vector<Tensor>& outputs, const RunChecks& checks) {
  return run_candidate(*device_, candidates_.at(candidate), c, inputs, outputs, checks);
}

BenchResult LocalWorker::bench(const std::vector<size_t>& candidates, const Case& c, BenchData& data,
                               const BenchPlan& plan) {
  std::vector<const Candidate*> chosen;
  for (const size_t candidate : candidates) chosen.push_back(&candidates_.at(candidate));
  return bench_candidates(*device_, chosen, c, data, plan);
}

bool fits_side_by_side(const Case& c) {
  static const auto most = static_cast<int64_t>(std::max(uint64_t{256} << 20, available_memory().value_or(0) / 64));
  return tensor_bytes(c) <= most;
}

bool is_small(const Case& c) {
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  return tensor_bytes(c) <= kMostBytes;
}

Worker::Worker(WorkerConfig config) : config_(std::move(config)) {
  if (config_.external) {
    folder_ = std::make_unique<TempFolder>();
    config_.external->folder = folder_->path();
    config_.external->is_confined = isolates && can_be_confined(*config_.external);
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
  if (config_.external && config_.external->is_confined) hide_memory();
  if (has_plugin_host(config_)) {
    hide_memory();
    try {  // new for each process: the next one must not find what the last one left there
      folder_ = std::make_unique<TempFolder>();
      config_.folder = folder_->path();
    } catch (const EnvironmentError&) {
      config_.folder.clear();
    }
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    // lint: allow message, it takes a process without free descriptors
    throw EnvironmentError(fmt::format("worker: socketpair: {}", std::strerror(errno)));
  }
  auto process = std::make_unique<Process>();
  process->socket = Descriptor(ends[0]);
  Descriptor childs_end(ends[1]);
  process->child = ChildProcess([&] { return run_child(ends[1], config_); }, ChildProcess::Group::own);
  childs_end = Descriptor();

  const std::string where =
      config_.external
          ? config_.external->flag()
          : fmt::format("worker for {}",
                        config_.plugins.empty() ? "no plugin" : fmt::to_string(fmt::join(config_.plugins, ", ")));
  Message message;
  json answer;
  try {
    switch (receive_message(process->socket.get(), message, Clock::now() + kStartLimit, [&] {
      stop_if_interrupted();
      return process->child.is_alive();
    })) {
      case Received::message:
        answer = json::parse(message.body);
        break;
      case Received::end:
        throw InputError(where, process->bury(), "it crashes while it is loaded");
      case Received::late:
        // lint: allow message, it takes the time of kStartLimit
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
                                 item.at("digest").get<std::string>(), nullptr,
                                 item.at("recipes").get<std::vector<std::string>>()});
      info.candidate_device.push_back(item.at("device").get<int>());
    }
    info.device = decode_device(answer.at("device"));
    info.cuda_devices = answer.at("cuda_devices").get<int>();
    info_ = std::move(info);
    process->ends_in_order = config_.device != "cpu" && has_plugin_host(config_);
  } catch (const json::exception& e) {
    // lint: allow message, the worker is this program
    throw InputError(where, fmt::format("worker sent a malformed handshake: {}", e.what()));
  } catch (const WireError& e) {
    throw InputError(where, e.what());
  }
  process_ = std::move(process);
}

namespace {

/// Throws WireError unless the result covers everything that was asked for.
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
      const int64_t compared = run.contexts[k].bits.compared;
      // The inputs decide whether a rearrangement changes them, and how many rows it has.
      complete &= contexts[k].rearrangement == nullptr ? compared == expected : compared >= 0 && compared <= expected;
    }
  }
  // lint: allow message, a worker that breaks the protocol
  if (!complete) throw WireError("its answer leaves out checks that were asked for");
}

/// Whether the process may run further cases: not if it wrote where it must not, or a failure may have left effects in
/// it.
bool may_go_on(const RunResult& result) {
  const auto unwritten = [](const OutputRun& output) { return output.unwritten > 0; };
  return (result.status == RunStatus::ok || result.status == RunStatus::unsupported) && !result.device_lost &&
         result.guard_violations.empty() && result.modified_inputs.empty() &&
         std::none_of(result.outputs.begin(), result.outputs.end(), unwritten);
}

/// Throws WireError unless there are as many times as were asked for, all of them valid, and outputs of launches are
/// kept.
void require_complete(const BenchData& data, const BenchPlan& plan, const BenchResult& result) {
  if (result.status != RunStatus::ok) return;
  const auto are_times = [](const std::vector<double>& samples, size_t count) {
    const auto is_time = [](double ms) { return ms > 0 && std::isfinite(ms); };
    return samples.size() == count && std::all_of(samples.begin(), samples.end(), is_time);
  };
  bool complete = result.runs.size() == data.outputs.size() && are_times({result.copy_gbps}, 1);
  for (size_t i = 0; complete && i < result.runs.size(); ++i) {
    const BenchRun& run = result.runs[i];
    if (run.status != RunStatus::ok) continue;
    const auto is_kept = [&](int64_t set) { return set >= -1 && set < std::ssize(data.inputs); };
    complete &= run.kept.size() == data.outputs[i].size() && std::all_of(run.kept.begin(), run.kept.end(), is_kept);
    complete &= std::any_of(run.kept.begin(), run.kept.end(), [](int64_t set) { return set >= 0; });
    complete &= are_times(run.burst_ms, plan.burst ? static_cast<size_t>(plan.repeats) : 0);
    complete &= are_times(run.sustained_ms, plan.sustained ? static_cast<size_t>(kSustainedRounds) : 0);
  }
  // lint: allow message, a worker that breaks the protocol
  if (!complete) throw WireError("its answer leaves out times or outputs that were asked for");
}

}  // namespace

std::string Worker::words_of_external() const {
  return config_.external ? last_words(stderr_file(*config_.external)) : "";
}

uint64_t Worker::allowed_bytes(const Case& c) const {
  const bool has_gpu = config_.external && info_.device->kind == "cuda";
  if (config_.device != "cpu" || has_gpu) return 0;  // a CUDA driver maps more than there is
  if (config_.memory_limit > 0) return config_.memory_limit;
  const uint64_t room = room_for_candidates(memory_need(c, /*on_cuda=*/false, 1).host);
  if (!fits_side_by_side(c)) return room;
  return room / (config_.in_two_lanes && is_small(c) ? 4 : 2);
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

/// Calls `body`, and returns why it failed, if it did. Without an answer the process is of no further use.
std::optional<Worker::Failure> Worker::guarded(const std::function<void()>& body) {
  std::optional<Failure> failure;
  try {
    body();
  } catch (const Failure& f) {
    failure = f;
  } catch (const EnvironmentError& e) {
    failure = {RunStatus::no_device, e.what()};
  } catch (const WireError& e) {
    failure = {RunStatus::crashed, process_ && !process_->child.is_alive() ? process_->bury() : e.what()};
  } catch (const json::exception& e) {
    failure = {RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what())};
  } catch (const InputError& e) {  // the plugins can't be loaded again, or the tensors not mapped
    failure = {RunStatus::crashed, e.what()};
  } catch (...) {
    process_.reset();
    throw;
  }
  if (failure) process_.reset();
  return failure;
}

/// Sends a request, to a fresh process where there is none. Throws Failure where the process has died.
void Worker::send(json request, const TensorMemory& memory, std::chrono::seconds limit) {
  if (!process_) start();
  limit_ = limit;
  deadline_ = Clock::now() + limit;
  request_number_ = random_token();  // an answer is taken for this request alone: no earlier and no made-up one
  request["request"] = request_number_;
  process_->allowed_bytes = request.at("allowed_bytes").get<uint64_t>();
  process_->ends_in_order = false;
  if (!process_->child.is_alive()) {  // a thread of the candidate can outlive the answer, and then crash
    throw Failure{RunStatus::crashed, "between two cases: " + process_->bury()};
  }
  send_message(process_->socket.get(), request, memory.descriptors, deadline_, memory.bytes);
}

/// The answer to the latest request, and the bytes beside it. An answer that has arrived is accepted even after the
/// deadline. Throws Failure if none comes, WireError if it answers another request.
json Worker::receive(std::string& bytes) {
  const auto goes_on = [&] {
    stop_if_interrupted();
    return process_->child.is_alive();
  };
  Message message;
  switch (receive_message(process_->socket.get(), message, deadline_, goes_on)) {
    case Received::message: {
      json answer = json::parse(message.body);
      if (answer.contains("error")) throw InputError("", answer.at("text").get<std::string>());
      // lint: allow message, a worker that breaks the protocol
      if (answer.at("request") != request_number_) throw WireError("its answer is not to this request");
      process_->ends_in_order = config_.device != "cpu" && has_plugin_host(config_);
      bytes = std::move(message.bytes);
      return answer;
    }
    case Received::end:
      throw Failure{RunStatus::crashed, process_->bury()};
    case Received::late:
      break;
  }
  const bool is_given = config_.external && config_.external->descriptor >= 0;  // goes on behind its socket
  throw Failure{RunStatus::timeout, fmt::format("no answer within {} s{}{}", limit_.count(), is_given ? "" : "; killed",
                                                words_of_external())};
}

void Worker::begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                   std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit) {
  if (pending_) process_.reset();  // nobody finished that run: its answer must not be taken for this one's
  pending_ = std::make_unique<Pending>(Pending{index_of(candidate, c), &c, &inputs, &outputs, checks});
  if (local_) return;
  for (const Tensor& input : inputs) input.bytes.forbid_writes_by_others();
  pending_->failure = guarded([&] {
    share_most(outputs);
    TensorMemory memory;
    json request{{"candidate", pending_->candidate},
                 {"case", encode(c)},
                 {"inputs", encode(inputs, Role::input, memory)},
                 {"outputs", encode(outputs, Role::output, memory)},
                 {"checks", encode(checks)},
                 {"allowed_bytes", allowed_bytes(c)}};
    send(std::move(request), memory, limit);
  });
}

bool Worker::has_answered() const {
  if (local_ || !pending_) return false;
  if (pending_->failure || !process_) return true;
  pollfd socket{process_->socket.get(), POLLIN, 0};
  return poll(&socket, 1, 0) > 0 || !process_->child.is_alive();  // a child of it may keep the socket open
}

int Worker::awaited() const { return local_ || !pending_ || has_answered() ? -1 : process_->socket.get(); }

RunResult Worker::finish() {
  const std::unique_ptr<Pending> run = std::move(pending_);
  if (local_) return local_->run(run->candidate, *run->c, *run->inputs, *run->outputs, run->checks);
  RunResult result;
  std::optional<Failure> failure = std::move(run->failure);
  if (!failure) {
    failure = guarded([&] {
      std::string bytes;
      result = decode_result(receive(bytes));
      require_complete(*run->c, info_.device.value(), run->checks, result);
      if (run->checks.outputs && result.status == RunStatus::ok) take_own_bytes(bytes, *run->outputs);
      if (result.status == RunStatus::no_memory && process_->allowed_bytes > 0)
        result.message += fmt::format("; it may have {}", format_bytes(process_->allowed_bytes));
      // A command has none of this process's memory.
      const bool is_of_use = config_.external ? !result.device_lost : may_go_on(result);
      if (!is_of_use) process_.reset();
    });
  }
  if (failure) {
    result = {};
    result.status = failure->status;
    result.message = std::move(failure->message);
  }
  return result;
}

RunResult Worker::run(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                      std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit) {
  begin(candidate, c, inputs, outputs, checks, limit);
  return finish();
}

BenchResult Worker::bench(const std::vector<std::string>& candidates, const Case& c, BenchData& data,
                          const BenchPlan& plan, std::chrono::seconds limit) {
  std::vector<size_t> indices;
  for (const std::string& candidate : candidates) indices.push_back(index_of(candidate, c));
  if (local_) return local_->bench(indices, c, data, plan);
  for (const std::string& candidate : candidates) {
    if (std::find(config_.timed.begin(), config_.timed.end(), candidate) != config_.timed.end()) continue;
    config_.timed.push_back(candidate);
    process_.reset();  // the next one lists its candidates in the same order
  }
  BenchResult result;
  std::optional<Failure> failure = guarded([&] {
    TensorMemory memory;
    json request{{"candidates", indices},    {"case", encode(c)},     {"inputs", json::array()},
                 {"outputs", json::array()}, {"bench", encode(plan)}, {"allowed_bytes", allowed_bytes(c)}};
    for (std::vector<Tensor>& inputs : data.inputs) {
      for (Tensor& input : inputs) {
        input.bytes.share();
        input.bytes.forbid_writes_by_others();
      }
      request["inputs"].push_back(encode(inputs, Role::input, memory));
    }
    for (auto& of_candidate : data.outputs) {
      json& list = request["outputs"].emplace_back(json::array());
      for (std::vector<Tensor>& outputs : of_candidate) {
        for (Tensor& output : outputs) output.bytes.share();
        list.push_back(encode(outputs, Role::output, memory));
      }
    }
    send(std::move(request), memory, limit);
    std::string none;
    result = decode_bench(receive(none));
    require_complete(data, plan, result);
    const auto has_ended = [](const BenchRun& run) {
      return run.status != RunStatus::ok && run.status != RunStatus::unsupported;
    };
    // A candidate's own process may have ended, or hold on to what a failure left behind.
    if (result.status != RunStatus::ok || result.device_lost ||
        std::any_of(result.runs.begin(), result.runs.end(), has_ended))
      process_.reset();
  });
  if (failure) {
    result = {};
    result.status = failure->status;
    result.message = std::move(failure->message);
  }
  return result;
}

}  // namespace checkop
