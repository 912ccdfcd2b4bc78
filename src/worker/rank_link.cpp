// SPDX-License-Identifier: Apache-2.0
// Requests to the processes of other ranks, one at a time for each; their exchanges while they are launched.
#include "worker/rank_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.hpp"
#include "worker/rank_job.hpp"
#include "worker/rank_wire.hpp"
#include "worker/wire.hpp"

namespace checkop {

using nlohmann::json;
namespace {

/// Time for a process to connect, or for its parent to say how it ended.
constexpr std::chrono::seconds kReturnLimit{10};

std::string late_text(std::chrono::milliseconds limit) {
  return fmt::format("did not answer within {} s", std::chrono::duration<double>(limit).count());
}

}  // namespace

/// A connection to the process of a rank. Throws Stopped if the process has gone away or does not answer, and the
/// errors of its device.
class RankConnection {
 public:
  RankConnection(int32_t rank, RankStreams streams, std::chrono::milliseconds limit)
      : rank_(rank), streams_(std::move(streams)), limit_(limit) {}

  /// Waits for the first message of the process. Returns false if none comes in time.
  bool await_process() {
    Message message;
    const auto deadline = Clock::now() + kReturnLimit;
    return receive_message(streams_.talk.get(), message, deadline, kAlwaysAlive) != Received::late;
  }
  /// How the process ended, as its parent reports; nullopt if the parent is gone or does not report in time.
  std::optional<std::string> how_it_ended() {
    Message message;
    try {
      const auto deadline = Clock::now() + kReturnLimit;
      if (receive_message(streams_.end.get(), message, deadline, kAlwaysAlive) == Received::message)
        return json::parse(message.body).get<std::string>();
    } catch (const WireError&) {
    } catch (const json::exception&) {
    }
    return {};
  }

  /// Has the process open its device, once.
  void require_ready(int device) {
    if (process_.device.empty()) process_ = decode_rank(call({{"do", "open"}, {"device", device}}).at("process"));
  }
  /// The process's description of itself.
  const RankRun& process() const { return process_; }

  int make_number() { return numbers_++; }

  json call(const json& request, const std::vector<std::byte>& bytes = {}) {
    const auto deadline = Clock::now() + limit_;
    send(request, bytes.data(), bytes.size(), deadline);
    return receive(deadline);
  }

  /// The same, if the answer is `bytes` bytes.
  std::vector<std::byte> fetch_bytes(const json& request, size_t bytes) {
    const auto deadline = Clock::now() + limit_;
    send(request, nullptr, 0, deadline);
    if (receive(deadline).at("bytes").get<size_t>() != bytes)
      fail(RunStatus::crashed, "sent other sizes than asked for");  // lint: allow message, it is this program
    std::vector<std::byte> answer(bytes);
    receive_bytes(answer.data(), bytes, deadline);
    return answer;
  }

  /// Sends a request that needs no answer. Sends nothing during a launch or after the connection has closed.
  void tell(const json& request) noexcept {
    if (is_closed_ || is_launching_) return;
    try {
      send(request, nullptr, 0, Clock::now() + limit_);
    } catch (...) {  // the next request finds out
    }
  }

  /// Sends the request and serves the rank's exchanges until its answer comes. Throws as the others do.
  json launch(const json& request, checkop_host_comm* host_comm) {
    is_launching_ = true;
    send(request, nullptr, 0, Clock::now() + limit_);
    // The group has its own limit; when it gives up, this process ends.
    constexpr auto kAsLongAsItTakes = std::chrono::hours(24 * 365);
    for (;;) {
      json said = receive(Clock::now() + kAsLongAsItTakes);
      if (!said.contains("exchange")) {
        is_launching_ = false;
        return said;
      }
      exchange(said.at("exchange").get<size_t>(), *host_comm);
    }
  }

  void close() {
    is_closed_ = true;
    streams_ = {};
  }

  int32_t rank() const { return rank_; }

 private:
  [[noreturn]] void fail(RunStatus status, const std::string& why) {
    is_closed_ = true;
    throw Stopped{status, why};
  }

  void send(const json& request, const void* bytes, size_t size, Clock::time_point deadline) {
    if (is_closed_) fail(RunStatus::crashed, kLostConnection);
    try {
      send_message(streams_.talk.get(), request, {}, deadline);
      if (size > 0) send_bytes(streams_.talk.get(), bytes, size, deadline);
    } catch (const WireError&) {
      fail(RunStatus::crashed, kLostConnection);
    }
  }

  json receive(Clock::time_point deadline) {
    Message message;
    try {
      switch (receive_message(streams_.talk.get(), message, deadline, kAlwaysAlive)) {
        case Received::end:
          fail(RunStatus::crashed, kLostConnection);
        case Received::late:
          fail(RunStatus::timeout, late_text(limit_));
        case Received::message:
          break;
      }
      json said = json::parse(message.body);
      rethrow_error(said);
      return said;
    } catch (const WireError& e) {
      fail(RunStatus::crashed, e.what());
    } catch (const json::exception& e) {
      // lint: allow message, it is this program
      fail(RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what()));
    }
  }

  void receive_bytes(void* to, size_t bytes, Clock::time_point deadline) {
    try {
      if (checkop::receive_bytes(streams_.talk.get(), to, bytes, deadline, kAlwaysAlive) != Received::message)
        fail(RunStatus::crashed, kLostConnection);
    } catch (const WireError& e) {
      fail(RunStatus::crashed, e.what());
    }
  }

  void exchange(size_t bytes, checkop_host_comm& comm) {
    const auto deadline = Clock::now() + limit_;
    // lint: allow message, the rank refuses it first
    if (bytes > kMostExchanged) fail(RunStatus::failed, fmt::format("exchanges {} bytes at once", bytes));
    std::vector<std::byte> own(bytes), all(bytes * static_cast<size_t>(comm.world_size));
    receive_bytes(own.data(), bytes, deadline);
    const bool good = comm.all_gather(&comm, own.data(), all.data(), bytes) == 0;
    send({{"error", good ? "" : comm.error(&comm)}}, all.data(), good ? all.size() : 0, Clock::now() + limit_);
  }

  int32_t rank_;
  RankStreams streams_;
  std::chrono::milliseconds limit_;
  RankRun process_;
  std::atomic<bool> is_closed_ = false, is_launching_ = false;
  int numbers_ = 0;
};

template <class Body>
auto RankLink::explained(RankConnection& connection, const Body& body) {
  const auto prefixed = [&](const std::string& what) { return fmt::format("rank {}: {}", connection.rank(), what); };
  try {
    return body();
  } catch (const Stopped& stopped) {
    const bool died = stopped.status == RunStatus::crashed;
    throw Stopped{stopped.status, prefixed(died ? how_it_ended(connection) : stopped.message)};
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(prefixed(e.what()));
  } catch (const DeviceError& e) {
    throw DeviceError(prefixed(e.what()), e.sticky());
  }
}

namespace {

class RemoteRank final : public Rank {
 public:
  RemoteRank(RankLink& link, std::shared_ptr<RankConnection> connection, const Case& c, const TensorLayout& layout,
             json request)
      : link_(link), connection_(std::move(connection)), case_(c), layout_(layout) {
    request["number"] = number_ = connection_->make_number();
    call(request);
  }
  ~RemoteRank() override { connection_->tell(request("drop")); }

  void upload(size_t i, const std::vector<std::byte>& bytes) override {
    json message = request("upload");
    message["input"] = i;
    call(message, bytes);
  }
  void prepare() override { workspace_bytes_ = call(request("prepare")).at("workspace").get<size_t>(); }
  void make_workspace(size_t extra) override {
    json message = request("workspace");
    message["extra"] = extra;
    workspace_bytes_ = call(message).at("workspace").get<size_t>();
  }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  void poison(const InitialState& initial) override {
    json message = request("poison");
    message["outputs"] = initial.outputs, message["workspace"] = initial.workspace;
    message["draw"] = initial.draw;
    call(message);
  }

  RankLaunchStatus launch(const RankLaunch& launch, checkop_host_comm* host_comm) override {
    RankLaunchStatus result;
    json message = request("launch");
    message["launch"] = encode(launch);
    try {
      result = decode_answer(connection_->launch(message, host_comm));
    } catch (const Stopped& stopped) {
      result.status.stopped = stopped;
      result.has_died = stopped.status == RunStatus::crashed;
    } catch (const DeviceError& e) {
      result.status.stopped = Stopped{RunStatus::crashed, e.what()};
    } catch (const json::exception& e) {
      // lint: allow message, a rank that breaks the protocol
      result.status.stopped = Stopped{RunStatus::crashed, fmt::format("its answer can't be read: {}", e.what())};
    }
    return result;
  }

  void explain(RankLaunchStatus& answer) override { answer.status.stopped->message = link_.how_it_ended(*connection_); }
  void give_up() noexcept override {}  // its own limits hold, and the end of this process ends it

  std::vector<std::byte> input(size_t i) override {
    json message = request("input");
    message["tensor"] = i;
    return fetch_bytes(message, bytes_of(case_.pass->inputs[i]));
  }
  std::vector<std::byte> output(size_t i) override {
    json message = request("output");
    message["tensor"] = i;
    return fetch_bytes(message, bytes_of(case_.pass->outputs[i].tensor));
  }
  bool input_as_uploaded(size_t i) override {
    json message = request("as_uploaded");
    message["tensor"] = i;
    return call(message).at("is").get<bool>();
  }
  void check_guards(std::vector<std::string>& violations) override {
    const json answer = call(request("guards"));
    for (const json& sentence : answer.at("sentences")) violations.push_back(sentence.get<std::string>());
  }
  RankRun describe() const override { return connection_->process(); }

 private:
  json request(const char* what) const { return {{"do", what}, {"number", number_}}; }
  json call(const json& request, const std::vector<std::byte>& bytes = {}) {
    return link_.explained(*connection_, [&] { return connection_->call(request, bytes); });
  }
  std::vector<std::byte> fetch_bytes(const json& request, size_t bytes) {
    return link_.explained(*connection_, [&] { return connection_->fetch_bytes(request, bytes); });
  }
  size_t bytes_of(const TensorSpec& spec) const {
    const Placement placement = placement_of(case_, spec, layout_);
    return static_cast<size_t>(placement.elements) * info(placement.dtype).bytes;
  }

  RankLink& link_;
  std::shared_ptr<RankConnection> connection_;
  Case case_;
  TensorLayout layout_;
  int number_ = 0;
  size_t workspace_bytes_ = 0;
};

}  // namespace

RankLink::RankLink(int channel, std::vector<Candidate> candidates)
    : channel_(channel), candidates_(std::move(candidates)) {}

RankLink::~RankLink() = default;

void RankLink::begin(std::chrono::milliseconds limit) { limit_ = limit; }

void RankLink::end() {
  for (const auto& [rank, connection] : connections_) connection->close();
  connections_.clear();
}

std::string RankLink::gone() {
  const std::lock_guard lock(mutex_);
  return gone_;
}

std::string RankLink::note_gone(std::string why) {
  const std::lock_guard lock(mutex_);
  return gone_ = std::move(why);
}

std::string RankLink::how_it_ended(RankConnection& connection) {
  if (std::optional<std::string> said = connection.how_it_ended()) return *std::move(said);
  return note_gone(fmt::format("the process of rank {} is gone", connection.rank()));
}

std::shared_ptr<RankConnection> RankLink::connect(int32_t rank) {
  if (const auto found = connections_.find(rank); found != connections_.end()) return found->second;
  try {
    const auto connection = std::make_shared<RankConnection>(rank, connect_to_rank(channel_, rank), limit_);
    if (connection->await_process()) return connections_[rank] = connection;
  } catch (const WireError&) {
    // lint: allow message, the launcher killed the job between two calls
    throw Stopped{RunStatus::crashed, note_gone("the job of this rank and the others is over")};
  }
  throw Stopped{RunStatus::crashed,
                note_gone(fmt::format("rank {} did not come within {} s", rank, kReturnLimit.count()))};
}

std::unique_ptr<Rank> RankLink::make_rank(const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                                          const TensorLayout& layout, const RankPart& place) {
  const auto candidate = std::find_if(candidates_.begin(), candidates_.end(),
                                      [&](const Candidate& each) { return each.kernel == &kernel; });
  const std::shared_ptr<RankConnection> connection = connect(place.rank);
  // lint: allow message, a mistake in this program
  if (candidate == candidates_.end()) throw Stopped{RunStatus::failed, "the kernel is of no candidate of this worker"};
  explained(*connection, [&] {
    connection->require_ready(kernel.device);
    return 0;
  });
  return std::make_unique<RemoteRank>(*this, connection, c, layout,
                                      json{{"do", "make"},
                                           {"candidate", {candidate->name, candidate->op, candidate->pass}},
                                           {"digest", candidate->digest},
                                           {"case", encode(c)},
                                           {"suffix", suffix},
                                           {"layout", {layout.offset, layout.row_padding, layout.inputs}},
                                           {"place", encode(place)}});
}

}  // namespace checkop
