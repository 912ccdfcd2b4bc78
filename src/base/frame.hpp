// SPDX-License-Identifier: Apache-2.0
// Messages over a socket: framed JSON or raw bytes. File descriptors and bytes can travel with the JSON.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace checkop {

/// The peer sent a malformed message, or writing to it failed.
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
  std::string body;   ///< JSON
  std::string bytes;  ///< any, beside it
  std::vector<Descriptor> descriptors;
};

/// Most descriptors per message.
inline constexpr size_t kMaxDescriptors = 250;  // the kernel takes 253
/// Largest body, and most bytes beside it; a header that announces more is malformed.
inline constexpr size_t kMaxBody = size_t{64} << 20;

/// Writes one message. Throws WireError on errors, when the peer is gone, and when `deadline` passes.
void send_message(int socket, const nlohmann::json& body, const std::vector<int>& descriptors,
                  std::chrono::steady_clock::time_point deadline, std::string_view beside = {});

enum class Received : uint8_t { message, end, late };

/// For peers whose end is visible on the socket.
inline constexpr auto kAlwaysAlive = [] { return true; };

/// Reads one message. `end`: the peer closed the socket, or `is_alive` (called a few times a second) returned false.
/// `late`: `deadline` has passed. Throws WireError for a malformed message.
Received receive_message(int socket, Message& message, std::chrono::steady_clock::time_point deadline,
                         const std::function<bool()>& is_alive);

/// Raw bytes of a length that both ends know; `descriptors` travel with the first one. Errors as with messages.
void send_bytes(int socket, const void* data, size_t bytes, std::chrono::steady_clock::time_point deadline,
                const std::vector<int>& descriptors = {});
Received receive_bytes(int socket, void* data, size_t bytes, std::chrono::steady_clock::time_point deadline,
                       const std::function<bool()>& is_alive);

/// 128 random bits as 32 hex digits: a token that a candidate can't guess.
std::string random_token();

/// Serialises to one line. Replaces bytes that are not UTF-8, because a candidate's message may hold any bytes.
std::string dump(const nlohmann::json& json);

}  // namespace checkop
