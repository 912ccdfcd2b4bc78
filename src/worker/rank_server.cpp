// SPDX-License-Identifier: Apache-2.0
// A rank in a process of its own for each request: rank 0's worker says what to do, and its exchanges go through there.
#include "worker/rank_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/child_process.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/external_process.hpp"
#include "base/frame.hpp"
#include "base/heap.hpp"
#include "base/host_memory.hpp"
#include "run/rank.hpp"
#include "worker/child.hpp"
#include "worker/rank_job.hpp"
#include "worker/rank_wire.hpp"
#include "worker/wire.hpp"

namespace checkop {
namespace {

using nlohmann::json;
constexpr int kSocket = 3;
/// Time for rank 0 to read or send a message.
constexpr std::chrono::seconds kAnswerLimit{120};
/// Time for the process to end once its connection did; a CUDA driver may take some time to clean up after it.
constexpr std::chrono::seconds kBuryLimit{5};

/// The rank's end of the host's communicator.
struct Exchanges {
  checkop_host_comm comm;  ///< first: the ABI's functions find the rest behind it
  std::chrono::milliseconds limit;
  std::string error = {};

  static int all_gather(checkop_host_comm* comm, const void* send, void* receive, size_t bytes) {
    auto& own = *reinterpret_cast<Exchanges*>(comm);
    if (!own.error.empty()) return 1;
    try {
      // Rank 0 waits that long for the others, and some time goes by on the way.
      const auto deadline = Clock::now() + 2 * own.limit + kAnswerLimit;
      // lint: allow message, an exchange of more than 4 GiB
      if (bytes > kMostExchanged) throw WireError(fmt::format("{} bytes are more than an exchange can have", bytes));
      send_message(kSocket, {{"exchange", bytes}}, {}, deadline);
      send_bytes(kSocket, send, bytes, deadline);
      Message message;
      if (receive_message(kSocket, message, deadline, kAlwaysAlive) != Received::message)
        // lint: allow message, rank 0 no longer prints what this rank says
        throw WireError("rank 0 is gone");
      own.error = json::parse(message.body).at("error").get<std::string>();
      const size_t all = bytes * static_cast<size_t>(comm->world_size);
      if (own.error.empty() && receive_bytes(kSocket, receive, all, deadline, kAlwaysAlive) != Received::message)
        // lint: allow message, rank 0 no longer prints what this rank says
        throw WireError("rank 0 is gone");
    } catch (const std::exception& e) {
      own.error = e.what();
    }
    return own.error.empty() ? 0 : 1;
  }
  static int barrier(checkop_host_comm* comm) { return all_gather(comm, nullptr, nullptr, 0); }
  static const char* error_of(checkop_host_comm* comm) { return reinterpret_cast<Exchanges*>(comm)->error.c_str(); }
};

class Serving {
 public:
  explicit Serving(const RankServer& server) : server_(server) {}

  void serve() {
    const auto never = Clock::now() + std::chrono::hours(24 * 365);
    send_message(kSocket, "here", {}, Clock::now() + kAnswerLimit);
    Message message;
    while (receive_message(kSocket, message, never, kAlwaysAlive) == Received::message) {
      const json request = json::parse(message.body);
      json answer;
      std::vector<std::byte> bytes;
      try {
        answer = answer_to(request, bytes);
      } catch (const InputError& e) {
        answer = {{"stopped", static_cast<int>(RunStatus::failed)}, {"text", e.what()}};
      } catch (const EnvironmentError& e) {
        answer = {{"stopped", static_cast<int>(RunStatus::no_device)}, {"text", e.what()}};
      } catch (const std::bad_alloc&) {
        answer = {{"stopped", static_cast<int>(RunStatus::no_memory)}, {"text", "the host ran out of memory"}};
      } catch (...) {
        answer = encode_error(std::current_exception());
      }
      fflush(stdout);
      if (answer.is_null()) continue;
      send_message(kSocket, answer, {}, Clock::now() + kAnswerLimit);
      send_bytes(kSocket, bytes.data(), bytes.size(), Clock::now() + kAnswerLimit);
    }
  }

 private:
  json answer_to(const json& request, std::vector<std::byte>& bytes) {
    const auto what = request.at("do").get<std::string>();
    if (what == "open") return open(request.at("device").get<int>());
    const int number = request.at("number").get<int>();
    if (what == "make") return make(number, request);
    if (what == "drop") {
      ranks_.erase(number);
      return nullptr;
    }
    const std::shared_ptr<LocalRank> rank = ranks_.at(number);
    if (what == "upload") {
      const size_t input = request.at("input").get<size_t>();
      std::vector<std::byte> content(rank->input_bytes(input));
      const auto deadline = Clock::now() + kAnswerLimit;
      if (receive_bytes(kSocket, content.data(), content.size(), deadline, kAlwaysAlive) != Received::message)
        _exit(1);  // rank 0 is gone, or half of an input would be taken for all of it
      rank->upload(input, content);
      return json::object();
    }
    if (what == "prepare") rank->prepare();
    if (what == "workspace") rank->make_workspace(request.at("extra").get<size_t>());
    if (what == "prepare" || what == "workspace") return {{"workspace", rank->workspace_bytes()}};
    if (what == "poison") {
      rank->poison({request.at("outputs").get<uint64_t>(),
                    request.at("workspace").get<uint64_t>(),
                    {},
                    request.at("draw").get<uint64_t>()});
      return json::object();
    }
    if (what == "launch") return launch(rank, request.at("launch"));
    if (what == "guards") {
      std::vector<std::string> sentences;
      rank->check_guards(sentences);
      return {{"sentences", sentences}};
    }
    const size_t tensor = request.at("tensor").get<size_t>();
    if (what == "as_uploaded") return {{"is", rank->input_as_uploaded(tensor)}};
    bytes = what == "input" ? rank->input(tensor) : rank->output(tensor);
    return {{"bytes", bytes.size()}};
  }

  json open(int kind) {
    if (kind == CHECKOP_CPU) {
      if (const uint64_t room = room_for_candidates(kUnknownNeed)) limit_own_memory(own_memory(), room);
    }
    const int index = kind == CHECKOP_CUDA && cuda_device_count() > 1 ? server_.cuda_index : 0;
    device_ = open_device(kind == CHECKOP_CPU           ? "cpu"
                          : server_.cuda_device.empty() ? fmt::format("cuda:{}", index)
                                                        : server_.cuda_device);
    return {{"process", encode(describe_rank(*device_, server_.rank))}};
  }

  json make(int number, const json& request) {
    const auto digest = request.at("digest").get<std::string>();
    const auto path = server_.plugins.find(digest);
    // lint: allow message, rank 0 asks for what both have
    if (path == server_.plugins.end()) throw InputError("rank", fmt::format("no plugin has the digest {}", digest));
    for (const Candidate& each : load_plugin(path->second)) {
      const json& named = request.at("candidate");
      if (named.at(0) != each.name || named.at(1) != each.op || named.at(2) != each.pass) continue;
      const json& layout = request.at("layout");
      ranks_[number] = std::make_shared<LocalRank>(
          *device_, *each.kernel, decode_case(request.at("case")), request.at("suffix").get<std::string>(),
          TensorLayout{layout.at(0).get<size_t>(), layout.at(1).get<int64_t>(), layout.at(2).get<Arrangement>()},
          decode_place(request.at("place")));
      return json::object();
    }
    // lint: allow message, rank 0 asks for what both have
    throw InputError(path->second, "has no such candidate");
  }

  /// Launches in a thread, which has the socket to itself; the calling thread only looks whether the other end has
  /// closed.
  static json launch(const std::shared_ptr<LocalRank>& rank, const json& request) {
    RankLaunch launch;
    decode_launch(request, launch);
    const RankPart place = rank->place();
    Exchanges exchanges{{sizeof(checkop_host_comm), place.rank, place.world_size, Exchanges::all_gather,
                         Exchanges::barrier, Exchanges::error_of},
                        launch.limit};
    RankLaunchStatus answer;
    std::atomic<bool> returned = false;
    std::thread thread([&] {
      answer = rank->launch(launch, &exchanges.comm);
      returned = true;
    });
    constexpr int kSliceMs = 1;
    while (!returned) {
      pollfd entry{kSocket, POLLRDHUP, 0};
      if (poll(&entry, 1, kSliceMs) > 0) _exit(0);  // nobody waits for this any more
    }
    thread.join();
    return encode(answer);
  }

  const RankServer& server_;
  std::unique_ptr<Device> device_;
  std::map<int, std::shared_ptr<LocalRank>> ranks_;
};

/// The body of a process that holds the rank: serves until the other end of `socket` closes. Returns the exit code.
int hold_rank(int socket, const RankServer& server) {
  return_freed_memory();  // candidates run in this process
  int code = 0;
  try {
    detach_from_parent(socket, kNoChannel);
    Serving(server).serve();
  } catch (const std::exception& e) {
    print_last_words(fmt::format("check_operator, rank {}: {}\n", server.rank, e.what()));
    code = 1;
  }
  fflush(stdout);
  return code;
}

/// Waits for the end of a process that held the rank and of all processes that it started. Returns how it ended. After
/// the end of `connection` the process has a few seconds to end.
std::string bury(ChildProcess process, int connection) {
  constexpr int kSliceMs = 5;
  std::optional<Clock::time_point> until;
  while (process.is_alive()) {
    pollfd entry{until ? -1 : connection, POLLRDHUP, 0};
    if (poll(&entry, 1, kSliceMs) > 0) until = Clock::now() + kBuryLimit;
    if (until && Clock::now() > *until) break;
  }
  process.kill();
  return describe_end(process.wait().status);
}

}  // namespace

void serve_rank(int channel, const RankServer& server) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // there is nothing here to be ended in good order
  const auto never = Clock::now() + std::chrono::hours(24 * 365);
  Message message;
  while (receive_message(channel, message, never, kAlwaysAlive) == Received::message) {
    RankStreams streams{std::move(message.descriptors.at(0)), std::move(message.descriptors.at(1))};
    ChildProcess process([&] { return hold_rank(streams.talk.get(), server); }, ChildProcess::Group::own);
    streams.talk = Descriptor();  // so that its end is seen
    const std::string end = bury(std::move(process), streams.end.get());
    try {
      send_message(streams.end.get(), end, {}, Clock::now() + kBuryLimit);
    } catch (const WireError&) {  // nobody asks
    }
  }
}

}  // namespace checkop
