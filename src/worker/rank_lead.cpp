// SPDX-License-Identifier: Apache-2.0
// The meeting of all processes, and the life of one that holds a rank.
#include "worker/rank_lead.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "base/child_process.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"

namespace checkop {
namespace {

/// For the others to call once more when they are to be dismissed, and to call again when nobody listens.
constexpr std::chrono::seconds kDismissLimit{10}, kGoneLimit{5};
constexpr std::chrono::milliseconds kBetweenCalls{50};

double seconds(std::chrono::milliseconds limit) { return std::chrono::duration<double>(limit).count(); }

}  // namespace

RankLeader::RankLeader(const RankPlace& place, std::vector<std::string> digests, std::chrono::milliseconds limit)
    : place_(place),
      own_(own_hello(place, std::move(digests))),
      limit_(limit),
      listener_(listen_at(place)),
      callers_(listener_.get()),
      token_(random_token()) {}

std::string RankLeader::why_not(const Hello& hello) const {
  const std::string who = fmt::format("rank {} ({}, process {})", hello.rank, hello.host, hello.process);
  if (hello.version != own_.version)
    return fmt::format("{} is of version {}, rank 0 of {}; start the same program", who, hello.version, own_.version);
  if (hello.processes != place_.processes)
    return fmt::format("{} is one of {} ranks, rank 0 one of {}; give all the same --world-size", who, hello.processes,
                       place_.processes);
  if (hello.rank < 1 || hello.rank >= place_.processes)
    return fmt::format("{} is no rank of {}", who, place_.processes);
  if (hello.digests != own_.digests)
    return fmt::format("{} has other plugins than rank 0: digests {} and {}; give all the same files", who,
                       fmt::join(hello.digests, ", "), fmt::join(own_.digests, ", "));
  for (const Caller& other : met_) {
    if (other.hello.rank != hello.rank) continue;
    return fmt::format("{} is there already, as process {} on {}; start each rank once", who, other.hello.process,
                       other.hello.host);
  }
  return "";
}

void RankLeader::meet() {
  std::string wrong;
  auto deadline = Clock::now() + limit_;
  while (std::ssize(met_) < place_.processes - 1) {
    std::optional<Caller> caller = callers_.next(deadline, stop_if_interrupted);
    if (!caller) break;
    if (wrong.empty()) {
      wrong = why_not(caller->hello);
      // The rest is about to call, and to be told.
      if (!wrong.empty()) deadline = std::min(deadline, Clock::now() + kGoneLimit);
    }
    met_.push_back(std::move(*caller));
  }
  if (!wrong.empty()) throw InputError("ranks", wrong);
  std::vector<int32_t> missing;
  for (int32_t rank = 1; rank < place_.processes; ++rank) {
    const auto is_it = [&](const Caller& caller) { return caller.hello.rank == rank; };
    if (std::none_of(met_.begin(), met_.end(), is_it)) missing.push_back(rank);
  }
  if (!missing.empty()) {
    is_whole_ = false;
    throw EnvironmentError(fmt::format("rank{} {} of {} did not come to {} within {} s; start a process for each rank",
                                       missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), place_.processes,
                                       place_.address(), seconds(limit_)));
  }
  for (const Caller& caller : met_) send_reply(caller, {Reply::Kind::again, token_, "", 0});
  met_.clear();
  has_met_ = true;
}

void RankLeader::dismiss(int code, const std::string& text) {
  const Reply bye{Reply::Kind::bye, "", text, code};
  auto told = std::ssize(met_);
  for (const Caller& caller : met_) send_reply(caller, bye);
  met_.clear();
  const auto limit = has_met_ && is_whole_ ? kDismissLimit : kGoneLimit;
  for (const auto deadline = Clock::now() + limit; told < place_.processes - 1; ++told) {
    const std::optional<Caller> caller = callers_.next(deadline);
    if (!caller) return;
    send_reply(*caller, bye);
  }
}

namespace {

/// Serves in a child process, and waits for its end; how it ended.
std::string serve_in_child(Descriptor socket, const RankServer& server) {
  ChildProcess child([&] { return serve_rank(socket.get(), server); }, ChildProcess::Group::own);
  socket = Descriptor();  // so that its end is seen
  return describe_end(child.wait().status);
}

}  // namespace

Followed follow(const RankPlace& place, const RankServer& server, std::chrono::milliseconds limit) {
  std::vector<std::string> digests;
  for (const auto& [digest, path] : server.plugins) digests.push_back(digest);
  Hello hello = own_hello(place, std::move(digests));
  bool has_met = false;
  const auto far = Clock::now() + std::chrono::hours(24 * 365);
  for (auto deadline = Clock::now() + limit; Clock::now() < deadline; std::this_thread::sleep_for(kBetweenCalls)) {
    std::optional<Descriptor> socket = call(place, hello);
    if (!socket) continue;
    std::optional<Reply> reply;
    try {
      reply = receive_reply(socket->get(), has_met ? far : deadline + kDismissLimit);  // it may have come later
    } catch (const WireError&) {  // something else is there; it may go
    }
    if (!reply) {
      if (has_met) deadline = std::max(deadline, Clock::now() + kGoneLimit);
      continue;
    }
    switch (reply->kind) {
      case Reply::Kind::again:
        hello.token = reply->token;
        break;
      case Reply::Kind::serve:
        hello.last_end = serve_in_child(std::move(*socket), server);
        break;
      case Reply::Kind::bye:
        return {reply->code, reply->text};
    }
    has_met = true;
    deadline = Clock::now() + kGoneLimit;
  }
  if (!has_met) {
    throw EnvironmentError(fmt::format("rank {}: rank 0 is not at {} within {} s; start it, or give --master HOST:PORT",
                                       place.rank, place.address(), seconds(limit)));
  }
  return {4, fmt::format("rank 0 at {} is gone", place.address())};
}

}  // namespace checkop
