// SPDX-License-Identifier: Apache-2.0
// Messages over a socket: framed JSON, with file descriptors or bytes beside it.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace checkop {

/// The other side can't be understood, or can't be written to.
class WireError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

struct Message {
  std::string body;  ///< JSON
  std::vector<Descriptor> descriptors;
};

/// At most this many descriptors travel with a message.
inline constexpr size_t kMaxDescriptors = 16;
/// A longer body is no message of ours.
inline constexpr size_t kMaxBody = size_t{64} << 20;

/// Writes one message. Throws WireError, also when the other side is gone or `deadline` passes.
void send_message(int socket, const nlohmann::json& body, const std::vector<int>& descriptors,
                  std::chrono::steady_clock::time_point deadline);

enum class Received : uint8_t { message, end, late };

/// Of a process whose end the socket tells.
inline constexpr auto kAlwaysAlive = [] { return true; };

/// Reads one message. `end`: the other side closed its end, or `is_alive` (asked a few times a second) denies that it
/// lives. `late`: `deadline` has passed. Throws WireError for what is no message.
Received receive_message(int socket, Message& message, std::chrono::steady_clock::time_point deadline,
                         const std::function<bool()>& is_alive);

/// Bytes of which both ends know how many there are. Errors as with messages.
void send_bytes(int socket, const void* data, size_t bytes, std::chrono::steady_clock::time_point deadline);
Received receive_bytes(int socket, void* data, size_t bytes, std::chrono::steady_clock::time_point deadline,
                       const std::function<bool()>& is_alive);

/// A number that a candidate can't guess.
std::string unguessable();

/// One line for a log or a socket; bytes that are no UTF-8 are replaced, since a candidate's message may hold any.
std::string dump(const nlohmann::json& json);

}  // namespace checkop
