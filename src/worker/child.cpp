// SPDX-License-Identifier: Apache-2.0
// The worker process: cut loose from its parent, it loads the plugins and answers requests.
#include "worker/child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/external_process.hpp"
#include "base/heap.hpp"
#include "base/host_memory.hpp"
#include "base/paths.hpp"
#include "base/sandbox.hpp"
#include "run/plugin_host.hpp"
#include "run/runner.hpp"
#include "worker/rank_link.hpp"
#include "worker/wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;
constexpr int kChildSocket = 3, kChildChannel = 4;
/// Time for the parent to read an answer: it may be waiting for another process.
constexpr std::chrono::seconds kSayLimit{600};

}  // namespace

void detach_from_parent(int socket, int channel) {
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};  // a crash is an expected result; it should not leave files about
  setrlimit(RLIMIT_CORE, &no_core);
  // If memory runs out all the same, the system should end this process, not the one that reports.
  std::ofstream("/proc/self/oom_score_adj") << 1000;

  if (channel != kNoChannel) channel = fcntl(channel, F_DUPFD, kChildChannel + 1);  // out of the way
  if (socket != kChildSocket) dup2(socket, kChildSocket);  // first: it may be 0 to 2 when the parent had closed those
  if (channel != kNoChannel) dup2(channel, kChildChannel);
  if (const int null = open("/dev/null", O_RDONLY); null >= 0) dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // what a plugin prints must not end up in a report on stdout
  fcntl(kChildSocket, F_SETFD, FD_CLOEXEC);
  fcntl(kChildChannel, F_SETFD, FD_CLOEXEC);
  // The parent's tensors and files; on kernels without the call they stay open, which does no harm.
  close_range(channel != kNoChannel ? kChildChannel + 1 : kChildSocket + 1, ~0u, 0);
}

namespace {

json hello(const std::vector<Candidate>& candidates, const Device& device, bool count_cuda_devices) {
  json list = json::array();
  for (const Candidate& candidate : candidates) {
    list.push_back({{"name", candidate.name},
                    {"op", candidate.op},
                    {"pass", candidate.pass},
                    {"path", candidate.path},
                    {"digest", candidate.digest},
                    {"device", candidate.kernel->device},
                    {"recipes", candidate.recipes}});
  }
  return {{"candidates", list},
          {"device", encode(device.info())},
          {"cuda_devices", count_cuda_devices ? cuda_device_count() : 0}};
}

void say(const json& body, std::string_view bytes = {}) {
  send_message(kChildSocket, body, {}, Clock::now() + kSayLimit, bytes);
}

/// Runs one candidate, or times several. `bytes`: what goes beside the answer.
json answer_to(const json& request, Device& device, const std::vector<Candidate>& candidates, RankLink* ranks,
               External* external, PluginHosts* hosts, ArrivedMemory& memory, std::string& bytes) {
  if (const auto end = hosts != nullptr ? hosts->end() : std::nullopt) {
    const auto crashed = [&](auto result) {
      result.status = RunStatus::crashed;
      result.message = "between two cases: " + *end;
      return encode(result);
    };
    return request.contains("bench") ? crashed(BenchResult()) : crashed(RunResult());
  }
  const Case c = decode_case(request.at("case"));
  if (request.contains("bench")) {
    std::vector<const Candidate*> chosen;
    for (const json& index : request.at("candidates")) chosen.push_back(&candidates.at(index.get<size_t>()));
    BenchData data;
    for (const json& set : request.at("inputs")) data.inputs.push_back(decode_tensors(set, Role::input, memory));
    for (const json& of_candidate : request.at("outputs")) {
      auto& outputs = data.outputs.emplace_back();
      for (const json& set : of_candidate) outputs.push_back(decode_tensors(set, Role::output, memory));
    }
    return encode(bench_candidates(device, chosen, c, data, decode_plan(request.at("bench"))));
  }
  const std::vector<Tensor> inputs = decode_tensors(request.at("inputs"), Role::input, memory);
  std::vector<Tensor> outputs = decode_tensors(request.at("outputs"), Role::output, memory);
  const RunChecks checks = decode_checks(request.at("checks"));
  if (ranks != nullptr) ranks->begin(checks.rank_limit);
  RunResult result =
      run_candidate(device, candidates.at(request.at("candidate").get<size_t>()), c, inputs, outputs, checks);
  if (checks.outputs && result.status == RunStatus::ok) bytes = own_bytes(outputs);
  if (ranks != nullptr) {
    ranks->end();
    device.abort_comms();  // the other ranks' processes are gone: the next request makes new communicators
    result.rank_gone = ranks->gone();
  }
  const std::string unobserved = external != nullptr ? external->take_unobserved() : "";
  if (result.status == RunStatus::ok) result.unobserved = unobserved;
  return encode(result);
}

/// Answers requests until the parent closes its end. A request says how much memory it may use, or with `in_all` how
/// much all requests so far may use together.
void serve(Device& device, const std::vector<Candidate>& candidates, RankLink* ranks, External* external,
           PluginHosts* hosts, bool in_all) {
  Message message;
  const auto used = [&] { return external != nullptr ? external->memory() : own_memory(); };
  const uint64_t at_start = used();
  const pid_t own_pid = getpid();
  const auto never = Clock::now() + std::chrono::hours(24 * 365);
  while (receive_message(kChildSocket, message, never, kAlwaysAlive) == Received::message) {
    const json request = json::parse(message.body);
    if (const auto allowed = request.at("allowed_bytes").get<uint64_t>(); allowed > 0) {
      if (hosts != nullptr) {
        hosts->limit_memory(allowed, in_all);
      } else {
        const uint64_t has = in_all ? at_start : used();
        if (external != nullptr) {
          external->limit_memory(has, allowed);
        } else {
          limit_own_memory(has, allowed);
        }
      }
    }
    ArrivedMemory memory(std::move(message));
    std::string bytes;
    json answer = answer_to(request, device, candidates, ranks, external, hosts, memory, bytes);
    fflush(stdout);  // what the plugin printed belongs to this case
    // A candidate that forked came back twice; only the worker itself may answer.
    if (getpid() != own_pid) _exit(0);
    answer["request"] = request.at("request");
    say(answer, bytes);
  }
}

}  // namespace

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

namespace {

/// Whether a tool of NVIDIA watches this program and the processes that it starts, as variables like these show. Such a
/// tool must be in the process that launches kernels, and it can't be in the process of plugins.
bool is_watched_by_tool() {
  constexpr const char* kBegins[] = {"NV_SANITIZER_INJECTION",     // compute-sanitizer
                                     "NV_COMPUTE_PROFILER",        // Nsight Compute
                                     "NSYS_PROFILING_SESSION_ID",  // Nsight Systems
                                     "CUDA_INJECTION64_PATH="};    // any
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (std::any_of(std::begin(kBegins), std::end(kBegins), [&](const char* begin) { return text.starts_with(begin); }))
      return true;
  }
  return environment_variable("LD_PRELOAD").find("Injection") != std::string::npos;
}

}  // namespace

bool has_plugin_host(const WorkerConfig& config) {
  if (config.in_worker || config.external || config.ranks || config.plugins.empty() ||
      std::any_of(config.plugins.begin(), config.plugins.end(), is_linked))
    return false;
  return config.device == "cpu" || !is_watched_by_tool();
}

int run_child(int socket, const WorkerConfig& config) {
  int code = 0;
  try {
    const bool asks_socket = config.external && config.external->descriptor >= 0;
    detach_from_parent(socket, config.ranks  ? config.ranks->channel
                               : asks_socket ? config.external->descriptor
                                             : kNoChannel);
    // Candidates run in this process.
    if (!config.external && !has_plugin_host(config)) return_freed_memory();
    try {
      std::optional<External> external;
      if (config.external) {
        signal(SIGPIPE, SIG_IGN);
        if (config.external->is_confined) hide_memory();
        external.emplace(*config.external, kChildChannel);
      }
      // Opens the device before the plugins, which may take memory as they are loaded: it notes how much is free.
      const std::unique_ptr<Device> device = external ? external->take_device() : open_device(config.device);
      std::optional<PluginHosts> hosts;
      if (has_plugin_host(config)) {
        hide_memory();
        hosts.emplace(config.plugins, config.folder, *device, config.timed);
      }
      const std::vector<Candidate> candidates = external ? external->candidates()
                                                : hosts  ? hosts->candidates()
                                                         : load_plugins(config.plugins);
      std::optional<RankLink> ranks;
      if (config.ranks) {
        ranks.emplace(kChildChannel, candidates);
        device->use_rank_processes(*ranks, config.ranks->processes);
      }
      say(hello(candidates, *device, config.count_cuda_devices));
      serve(*device, candidates, ranks ? &*ranks : nullptr, external ? &*external : nullptr, hosts ? &*hosts : nullptr,
            config.memory_limit > 0);
    } catch (const InputError& e) {
      say({{"error", "input"}, {"text", e.what()}});
    } catch (const EnvironmentError& e) {
      say({{"error", "environment"}, {"text", e.what()}});
    } catch (const DeviceError& e) {  // opening the device got half way
      say({{"error", "environment"}, {"text", e.what()}});
    }
  } catch (const std::exception& e) {
    print_last_words(fmt::format("check_operator worker: {}\n", e.what()));
    code = 1;
  }
  fflush(stdout);
  return code;
}

}  // namespace checkop
