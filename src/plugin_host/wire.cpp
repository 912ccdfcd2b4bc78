// SPDX-License-Identifier: Apache-2.0
// Messages on a stream socket: a length, and as many bytes. Blocking: other processes kill one that waits too long.
#include "plugin_host/wire.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace checkop::host {
namespace {

/// The kernel lets at most 253 travel with a message.
constexpr size_t kMostDescriptors = 253;
/// Most messages are shorter, and come in one piece.
constexpr size_t kFirstPiece = 16384;

using ControlBuffer = std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))>;

void take_descriptors(msghdr& header, std::vector<Descriptor>& descriptors) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at < control->cmsg_len; at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, reinterpret_cast<char*>(control) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
}

/// Reads up to `bytes` bytes; 0 at the end of the connection.
size_t read_some(int socket, char* to, size_t bytes, std::vector<Descriptor>& descriptors) {
  for (;;) {
    iovec part{to, bytes};
    alignas(cmsghdr) ControlBuffer control;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    take_descriptors(header, descriptors);
    return static_cast<size_t>(got);
  }
}

}  // namespace

bool send(int socket, std::string_view message, const std::vector<int>& descriptors) {
  const uint64_t length = message.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.append(message);
  for (size_t sent = 0; sent < bytes.size();) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) ControlBuffer control{};
    if (const size_t size = std::min(descriptors.size(), kMostDescriptors) * sizeof(int); sent == 0 && size > 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(size);
      cmsghdr* entry = CMSG_FIRSTHDR(&header);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(entry), descriptors.data(), size);
    }
    const ssize_t n = sendmsg(socket, &header, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

bool receive(int socket, std::string& message, std::vector<Descriptor>& descriptors, uint64_t most) {
  uint64_t length = 0;
  std::array<char, kFirstPiece> piece;
  size_t got = 0;
  while (got < sizeof length) {
    const size_t n = read_some(socket, piece.data() + got, piece.size() - got, descriptors);
    if (n == 0) return false;
    got += n;
  }
  std::memcpy(&length, piece.data(), sizeof length);
  got -= sizeof length;
  if (length > most || got > length) throw WireError("a message that nobody asked for");
  message.assign(piece.data() + sizeof length, got);
  message.resize(length);
  while (got < length) {
    const size_t n = read_some(socket, message.data() + got, length - got, descriptors);
    if (n == 0) return false;
    got += n;
  }
  return true;
}

}  // namespace checkop::host
