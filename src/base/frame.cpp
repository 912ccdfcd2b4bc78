// SPDX-License-Identifier: Apache-2.0
// Framing and descriptor passing. No call waits beyond its deadline.
#include "base/frame.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.hpp"

namespace checkop {
namespace {

using nlohmann::json;
constexpr uint32_t kMagic = 0x63686b6f;
constexpr std::chrono::milliseconds kSlice{200};

struct Header {
  uint32_t magic;
  uint32_t descriptors;
  uint64_t body_bytes, bytes;
};

using ControlBuffer = std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))>;

/// Waits until `socket` is ready for `events` or `until` has passed.
bool wait_for(int socket, short events, Clock::time_point until) {
  for (;;) {
    // Rounded up: a wait of 0 ms before the deadline would spin.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd entry{socket, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= until) return false;
    if (ready < 0 && errno != EINTR) throw WireError(fmt::format("poll: {}", std::strerror(errno)));
  }
}

/// Moves the descriptors of a received control message into `descriptors`.
void take_descriptors(msghdr& message, std::vector<Descriptor>& descriptors) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t n = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
}

/// Fills [to, to + bytes) from the socket; `is_ready`: some of it has probably arrived.
Received fill(int socket, char* to, size_t bytes, std::vector<Descriptor>& descriptors, Clock::time_point deadline,
              const std::function<bool()>& is_alive, bool is_ready = false) {
  while (bytes > 0) {
    if (!std::exchange(is_ready, false) && !wait_for(socket, POLLIN, std::min(deadline, Clock::now() + kSlice))) {
      if (Clock::now() >= deadline) return Received::late;
      // The candidate may have started a process that holds the socket open after the worker's end. Everything that the
      // worker sent before it died is in the socket by now, so read once more.
      if (!is_alive() && !wait_for(socket, POLLIN, Clock::now())) return Received::end;
      continue;
    }
    alignas(cmsghdr) ControlBuffer control{};
    iovec part{to, bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return Received::end;
    if (got < 0) throw WireError(fmt::format("receive: {}", std::strerror(errno)));
    take_descriptors(message, descriptors);
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return Received::message;
}

/// Sends all bytes; descriptors travel with the first one.
void send_all(int socket, const char* data, size_t bytes, const std::vector<int>& descriptors,
              Clock::time_point deadline) {
  bool is_full = false;
  for (size_t sent = 0; sent < bytes;) {
    if (is_full && !wait_for(socket, POLLOUT, deadline)) throw WireError("send: the other side does not read");
    iovec part{const_cast<char*>(data) + sent, bytes - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) ControlBuffer control{};
    if (sent == 0 && !descriptors.empty()) {
      const size_t size = descriptors.size() * sizeof(int);
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(size);
      cmsghdr* entry = CMSG_FIRSTHDR(&message);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(entry), descriptors.data(), size);
    }
    const ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    is_full = n < 0 && errno == EAGAIN;
    if (is_full || (n < 0 && errno == EINTR)) continue;
    if (n < 0) throw WireError(fmt::format("send: {}", std::strerror(errno)));
    sent += static_cast<size_t>(n);
  }
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

std::string random_token() {
  static thread_local std::random_device random;  // one per thread: its constructor queries the CPU
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string dump(const json& json) { return json.dump(-1, ' ', false, json::error_handler_t::replace); }

void send_message(int socket, const json& body, const std::vector<int>& descriptors, Clock::time_point deadline,
                  std::string_view beside) {
  if (descriptors.size() > kMaxDescriptors) {
    throw WireError(fmt::format("{} tensors in one message, at most {} fit", descriptors.size(), kMaxDescriptors));
  }
  const std::string text = dump(body);
  const Header header{kMagic, static_cast<uint32_t>(descriptors.size()), text.size(), beside.size()};
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  bytes.reserve(sizeof(header) + text.size() + beside.size());
  bytes.append(text).append(beside);
  send_all(socket, bytes.data(), bytes.size(), descriptors, deadline);
}

void send_bytes(int socket, const void* data, size_t bytes, Clock::time_point deadline,
                const std::vector<int>& descriptors) {
  send_all(socket, static_cast<const char*>(data), bytes, descriptors, deadline);
}

Received receive_bytes(int socket, void* data, size_t bytes, Clock::time_point deadline,
                       const std::function<bool()>& is_alive) {
  std::vector<Descriptor> none;
  return fill(socket, static_cast<char*>(data), bytes, none, deadline, is_alive);
}

Received receive_message(int socket, Message& message, Clock::time_point deadline,
                         const std::function<bool()>& is_alive) {
  message = {};
  Header header{};
  auto received =
      fill(socket, reinterpret_cast<char*>(&header), sizeof(header), message.descriptors, deadline, is_alive);
  if (received != Received::message) return received;
  if (header.magic != kMagic || header.body_bytes > kMaxBody || header.bytes > kMaxBody)
    throw WireError("malformed message: wrong magic number or too long");
  message.body.resize(header.body_bytes + header.bytes);
  received = fill(socket, message.body.data(), message.body.size(), message.descriptors, deadline, is_alive,
                  /*is_ready=*/true);
  message.bytes = message.body.substr(header.body_bytes);
  message.body.resize(header.body_bytes);
  if (received == Received::message && message.descriptors.size() != header.descriptors) {
    throw WireError(fmt::format("{} descriptors arrived of {}", message.descriptors.size(), header.descriptors));
  }
  return received;
}

}  // namespace checkop
