// SPDX-License-Identifier: Apache-2.0
// The channel between a process that relays and the one that works.
#include "worker/rank_job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace checkop {
namespace {

using nlohmann::json;
/// Time for the parent to read a message.
constexpr std::chrono::seconds kTellLimit{20};
/// The parent has a limit of its own, and is gone when that passes.
constexpr auto kAsLongAsItTakes = std::chrono::hours(24 * 365);

std::pair<Descriptor, Descriptor> make_pair_of_ends() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    // lint: allow message, it takes a process without free descriptors
    throw EnvironmentError(fmt::format("ranks: socketpair: {}", std::strerror(errno)));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

json encode(const Introduction& of) {
  return {{"version", of.version}, {"arguments", of.arguments}, {"plugins", of.plugins},
          {"host", of.host},       {"process", of.process},     {"error", of.error}};
}

Introduction decode_introduction(const json& said) {
  return {said.at("version").get<std::string>(),
          said.at("arguments").get<std::string>(),
          said.at("plugins").get<std::vector<std::string>>(),
          said.at("host").get<std::string>(),
          said.at("process").get<int64_t>(),
          said.at("error").get<std::string>()};
}

}  // namespace

void require_same(const std::vector<Introduction>& members) {
  const Introduction& first = members.front();
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const Introduction& member = members[rank];
    const std::string who = fmt::format("rank {} ({}, process {})", rank, member.host, member.process);
    if (!member.error.empty()) throw InputError(rank == 0 ? "" : who, member.error);
    if (member.version != first.version)
      throw InputError(who, fmt::format("is of version {}, rank 0 of {}", member.version, first.version),
                       "start the same program for all ranks");
    if (member.arguments != first.arguments)
      throw InputError(who, fmt::format("was asked '{}', rank 0 '{}'", member.arguments, first.arguments),
                       "give all ranks the same arguments");
    if (member.plugins != first.plugins)
      throw InputError(who,
                       fmt::format("has other plugins than rank 0: digests {} and {}", fmt::join(member.plugins, ", "),
                                   fmt::join(first.plugins, ", ")),
                       "give all ranks the same files");
  }
}

RankStreamPair make_streams() {
  auto [talk, other_talk] = make_pair_of_ends();
  auto [end, other_end] = make_pair_of_ends();
  return {{std::move(talk), std::move(end)}, {std::move(other_talk), std::move(other_end)}};
}

RankStreams connect_to_rank(int channel, int32_t rank) {
  RankStreamPair streams = make_streams();
  send_message(channel, {{"rank", rank}}, {streams.other.talk.get(), streams.other.end.get()},
               Clock::now() + kTellLimit);
  return std::move(streams.own);
}

RankPlace RankJob::introduce(const Introduction& own) {
  const std::string gone = "ranks: MPI did not connect the processes of the job";
  try {
    send_message(channel_.get(), encode(own), {}, Clock::now() + kAsLongAsItTakes);
    Message message;
    if (receive_message(channel_.get(), message, Clock::now() + kAsLongAsItTakes, kAlwaysAlive) != Received::message)
      throw EnvironmentError(gone);
    const json said = json::parse(message.body);
    RankPlace place{
        said.at("rank").get<int32_t>(), said.at("processes").get<int32_t>(), said.at("local_rank").get<int32_t>(), {}};
    for (const json& member : said.at("members"))
      place.members.push_back(decode_introduction(json::parse(member.get<std::string>())));
    return place;
  } catch (const WireError&) {
    throw EnvironmentError(gone);
  }
}

SplitJob split_job() {
  auto [parents, childs] = make_pair_of_ends();
  std::cout.flush();
  fflush(stdout);
  fflush(stderr);
  const pid_t parent = getpid(), child = fork();
  // lint: allow message, it takes a machine that allows no more processes
  if (child < 0) throw EnvironmentError(fmt::format("ranks: fork: {}", std::strerror(errno)));
  if (child > 0) {
    setpgid(child, child);  // in both processes: whoever comes first
    return {child, std::move(parents)};
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(4);  // it died before the line above
  setpgid(0, 0);
  signal(SIGPIPE, SIG_IGN);  // the launcher, which reads what this prints, may end before it
  return {0, std::move(childs)};
}

}  // namespace checkop
