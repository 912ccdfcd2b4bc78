// SPDX-License-Identifier: Apache-2.0
// A pipe and the thread that reads it.
#include "base/output_relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.hpp"

namespace checkop {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr std::string_view kLineBegin = "plugin: ";

/// Returns false where nobody can read it.
bool print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EAGAIN) {  // standard error does not block, and is full
      pollfd wait{STDERR_FILENO, POLLOUT, 0};
      poll(&wait, 1, -1);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

/// `text` with "plugin: " before each line, and '?' in place of control characters. `begins_line`: whether the text
/// begins a line; afterwards, whether the next one does.
std::string relayed(std::string_view text, bool& begins_line) {
  std::string shown;
  for (const char c : text) {
    if (std::exchange(begins_line, c == '\n')) shown += kLineBegin;
    const auto code = static_cast<unsigned char>(c);
    const bool is_control = (code < ' ' && c != '\n' && c != '\t') || code == 0x7f;
    shown += is_control ? '?' : c;
  }
  return shown;
}

}  // namespace

OutputRelay::OutputRelay() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  reader_ = Descriptor(ends[0]);
  writer_ = Descriptor(ends[1]);
  thread_ = std::thread([this] { copy(); });
}

OutputRelay::~OutputRelay() {
  close_writer();
  thread_.join();
}

void OutputRelay::settle() const {
  const auto until = Clock::now() + std::chrono::milliseconds(100);
  for (int waiting = 0; Clock::now() < until; std::this_thread::yield()) {
    const bool is_empty = ioctl(reader_.get(), FIONREAD, &waiting) != 0 || waiting == 0;
    if (is_empty && !is_copying_) return;
  }
}

void OutputRelay::copy() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // a reader that is gone is an error of write()
  bool begins_line = true, can_print = true;
  size_t printed = 0;
  std::array<char, 4096> buffer;
  for (;;) {
    pollfd wait{reader_.get(), POLLIN, 0};
    poll(&wait, 1, -1);
    is_copying_ = true;
    const ssize_t n = read(reader_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    const bool had_room = printed < kMostBytes;
    printed += static_cast<size_t>(n);
    if (had_room && can_print) can_print = print(relayed({buffer.data(), static_cast<size_t>(n)}, begins_line));
    if (had_room && can_print && printed >= kMostBytes) {
      can_print = print(begins_line ? "plugin: the rest is left out\n" : "\nplugin: the rest is left out\n");
      begins_line = true;
    }
    is_copying_ = false;
  }
  if (can_print && !begins_line) print("\n");
  is_copying_ = false;
}

}  // namespace checkop
