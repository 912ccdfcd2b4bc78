// SPDX-License-Identifier: Apache-2.0
// How the processes that hold ranks find each other: one listens, the others call and say who they are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/frame.hpp"

namespace checkop {

/// Which of the processes this one is, and where they meet.
struct RankPlace {
  int32_t rank = 0, processes = 1;
  std::optional<int32_t> local_rank;  ///< among those of this machine, where a launcher tells
  std::string host = "127.0.0.1", port = "29500";

  std::string address() const { return host + ":" + port; }
};

/// What a process says when it calls.
struct Hello {
  int32_t rank = 0, processes = 1;
  std::string version;               ///< of the program and of what it says
  std::vector<std::string> digests;  ///< of its plugins, sorted
  std::string host;
  int64_t process = 0;
  std::string token;     ///< as it was told at the meeting; "" before
  std::string last_end;  ///< how its process that held the rank last ended; "" when there was none
};

/// Of this process.
Hello own_hello(const RankPlace& place, std::vector<std::string> digests);

/// One that was taken; the socket is open for an answer.
struct Caller {
  Descriptor socket;
  Hello hello;
};

/// Listens there and nowhere else. Throws InputError.
Descriptor listen_at(const RankPlace& place);

/// Calls once and says hello. Nothing when nobody listens.
std::optional<Descriptor> call(const RankPlace& place, const Hello& hello);

/// Those who call at `listener`. One that says no hello of ours within some seconds is dropped.
class Callers {
 public:
  explicit Callers(int listener) : listener_(listener) {}

  /// The next one; nothing when `deadline` passes. Calls `meanwhile` a few times a second.
  std::optional<Caller> next(std::chrono::steady_clock::time_point deadline,
                             const std::function<void()>& meanwhile = {});

 private:
  struct Pending {
    Descriptor socket;
    std::string received;
    std::chrono::steady_clock::time_point deadline;
  };
  void accept_one();

  int listener_;
  std::vector<Pending> pending_;
};

/// What a caller is told.
struct Reply {
  enum class Kind : uint8_t {
    again,  ///< all came: call again, with this token
    serve,  ///< hold your rank, over this connection
    bye,    ///< end with this code, and say this text
  };
  Kind kind = Kind::bye;
  std::string token, text;
  int code = 0;
};

/// Errors are ignored: who can't be told learns it from the end of the connection.
void send_reply(const Caller& caller, const Reply& reply);
/// Throws WireError for what is no reply. Nothing when the other side has gone away.
std::optional<Reply> receive_reply(int socket, std::chrono::steady_clock::time_point deadline);

}  // namespace checkop
