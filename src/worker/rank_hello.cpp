// SPDX-License-Identifier: Apache-2.0
// Sockets of the processes that hold ranks. What comes in before a hello was understood is small, and waited for only
// beside other callers.
#include "worker/rank_hello.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/version.hpp"

namespace checkop {
namespace {

using nlohmann::json;
/// Of what the processes say to each other.
constexpr int kProtocol = 1;
constexpr std::chrono::seconds kHelloLimit{5}, kSendLimit{5};
constexpr std::chrono::milliseconds kSlice{200};
/// A hello has some digests; whoever sends more is not one of us.
constexpr size_t kMostHello = 64 << 10;
/// More callers than there are ranks, at once.
constexpr int kBacklog = 256;
constexpr size_t kMostPending = 256;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Throws InputError for a name that nobody knows.
Addresses resolve(const RankPlace& place) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found); error != 0) {
    throw InputError("--master", fmt::format("'{}': {}", place.address(), gai_strerror(error)),
                     "give the address of the machine of rank 0, HOST:PORT");
  }
  return {found, freeaddrinfo};
}

/// A process on a machine that is gone must not be waited for.
void watch(int socket) {
  const auto set = [&](int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof(value)); };
  constexpr int kIdle = 10, kInterval = 5, kProbes = 3, kUnsentMs = 30'000;
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdle);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnsentMs);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

json encode(const Hello& hello) {
  return {{"rank", hello.rank},       {"processes", hello.processes}, {"version", hello.version},
          {"digests", hello.digests}, {"host", hello.host},           {"process", hello.process},
          {"token", hello.token},     {"last_end", hello.last_end}};
}

/// Nothing for what is no hello.
std::optional<Hello> decode_hello(const std::string& body) {
  const json said = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || said.value("rank", json()).is_null()) return {};
  try {
    return Hello{said.at("rank").get<int32_t>(),        said.at("processes").get<int32_t>(),
                 said.at("version").get<std::string>(), said.at("digests").get<std::vector<std::string>>(),
                 said.at("host").get<std::string>(),    said.at("process").get<int64_t>(),
                 said.at("token").get<std::string>(),   said.at("last_end").get<std::string>()};
  } catch (const json::exception&) {
    return {};
  }
}

}  // namespace

Hello own_hello(const RankPlace& place, std::vector<std::string> digests) {
  std::sort(digests.begin(), digests.end());
  return {place.rank,
          place.processes,
          fmt::format("{}, protocol {}", kVersion, kProtocol),
          std::move(digests),
          host_name(),
          getpid(),
          "",
          ""};
}

Descriptor listen_at(const RankPlace& place) {
  const Addresses addresses = resolve(place);
  int error = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol));
    const int on = 1;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(socket.get(), kBacklog) == 0) return socket;
    error = errno;
  }
  throw InputError("--master", fmt::format("rank 0 can't listen at {}: {}", place.address(), std::strerror(error)),
                   error == EADDRINUSE ? "another run or program is there; give every rank another HOST:PORT"
                                       : "give every rank an address of the machine of rank 0, HOST:PORT");
}

std::optional<Descriptor> call(const RankPlace& place, const Hello& hello) {
  const Addresses addresses = resolve(place);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Descriptor socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol));
    if (connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) continue;
      constexpr int kConnectMs = 5000;
      pollfd entry{socket.get(), POLLOUT, 0};
      int error = 0;
      socklen_t size = sizeof(error);
      if (poll(&entry, 1, kConnectMs) != 1) continue;
      if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) continue;
    }
    watch(socket.get());
    try {
      send_message(socket.get(), encode(hello), {}, Clock::now() + kSendLimit);
    } catch (const WireError&) {
      continue;
    }
    return socket;
  }
  return {};
}

void Callers::accept_one() {
  Descriptor socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() < 0 || pending_.size() >= kMostPending) return;  // it was gone again, or is one of a flood
  watch(socket.get());
  pending_.push_back({std::move(socket), "", Clock::now() + kHelloLimit});
}

std::optional<Caller> Callers::next(Clock::time_point deadline, const std::function<void()>& meanwhile) {
  for (;;) {
    if (meanwhile) meanwhile();
    const auto now = Clock::now();
    std::erase_if(pending_, [&](const Pending& each) { return now > each.deadline; });
    std::vector<pollfd> entries{{listener_, POLLIN, 0}};
    for (const Pending& each : pending_) entries.push_back({each.socket.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    const auto wait = std::clamp(left, std::chrono::milliseconds(0), kSlice);
    if (poll(entries.data(), entries.size(), static_cast<int>(wait.count())) <= 0 && now >= deadline) return {};
    for (size_t i = pending_.size(); i-- > 0;) {
      if (entries[i + 1].revents == 0) continue;
      Pending& each = pending_[i];
      char block[4096];
      const ssize_t n = recv(each.socket.get(), block, sizeof(block), 0);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      std::optional<Hello> hello;
      bool is_of_use = n > 0;
      if (is_of_use) {
        each.received.append(block, static_cast<size_t>(n));
        try {
          if (const auto body = take_message(each.received, kMostHello)) {
            hello = decode_hello(*body);
            is_of_use = hello.has_value();
          }
        } catch (const WireError&) {
          is_of_use = false;
        }
      }
      if (is_of_use && !hello) continue;
      Descriptor socket = std::move(each.socket);
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
      if (hello) return Caller{std::move(socket), std::move(*hello)};
    }
    if (entries[0].revents != 0) accept_one();
  }
}

void send_reply(const Caller& caller, const Reply& reply) {
  try {
    send_message(
        caller.socket.get(),
        {{"reply", static_cast<int>(reply.kind)}, {"token", reply.token}, {"text", reply.text}, {"code", reply.code}},
        {}, Clock::now() + kSendLimit);
  } catch (const WireError&) {  // it has gone
  }
}

std::optional<Reply> receive_reply(int socket, Clock::time_point deadline) {
  Message message;
  if (receive_message(socket, message, deadline, kAlwaysAlive, kMostHello) != Received::message) return {};
  try {
    const json said = json::parse(message.body);
    const int kind = said.at("reply").get<int>();
    if (kind < 0 || kind > static_cast<int>(Reply::Kind::bye)) throw WireError("a reply of no known kind");
    return Reply{static_cast<Reply::Kind>(kind), said.at("token").get<std::string>(),
                 said.at("text").get<std::string>(), said.at("code").get<int>()};
  } catch (const json::exception& e) {
    throw WireError(fmt::format("a reply that can't be read: {}", e.what()));
  }
}

}  // namespace checkop
