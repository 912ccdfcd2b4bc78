// SPDX-License-Identifier: Apache-2.0
// Starts a process, exchanges lines with it, and describes how it ended.
#include "base/external_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace checkop {
namespace {

/// Time that a process gets to end after it closed its standard output.
constexpr std::chrono::seconds kDeathLimit{5};
/// Time for the other end to read descriptors: a socket holds only some that have not been read.
constexpr std::chrono::seconds kTakeLimit{60};
/// Limits on the quoted end of a process's standard error.
constexpr off_t kLastBytes = 16384;
constexpr size_t kLastLines = 6, kLongestWords = 1200;

/// The last bytes of a file; "" when it can't be read.
std::string tail_of(const std::string& path, off_t most) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  struct stat status {};
  std::string text;
  if (fstat(file, &status) == 0 && status.st_size > 0) {
    const off_t from = std::max<off_t>(0, status.st_size - most);
    text.resize(static_cast<size_t>(status.st_size - from));
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(file, text.data(), text.size(), from))));
  }
  close(file);
  return text;
}

bool write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

/// Sends descriptors with a text. Ignores a failure, as write_all() does: whoever waits for the answer learns of it.
void send_with(int socket, const std::string& text, const std::vector<int>& descriptors) {
  try {
    send_bytes(socket, text.data(), text.size(), Clock::now() + kTakeLimit, descriptors);
  } catch (const WireError&) {  // the other end has closed its socket, or does not read
  }
}

std::string first_word(const std::string& command) {
  const size_t begin = std::min(command.find_first_not_of(' '), command.size());
  return command.substr(begin, command.find(' ', begin) - begin);
}

/// Lets a simple command replace its shell (`exec`), so that its signals and its closed output are seen directly, not
/// the shell's version of them.
std::string without_shell(const std::string& command) {
  return replaces_shell(command) && first_word(command) != "exec" ? "exec " + command : command;
}

/// This process's environment, with `changed` variables.
std::vector<std::string> environment_with(std::vector<std::string> changed) {
  const size_t n = changed.size();
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable(*each);
    const std::string_view name = variable.substr(0, variable.find('=') + 1);
    const auto is_same = [&](const std::string& other) { return other.starts_with(name); };
    if (std::none_of(changed.begin(), changed.begin() + static_cast<std::ptrdiff_t>(n), is_same))
      changed.emplace_back(variable);
  }
  return changed;
}

struct Streams {
  int in, out, errors, socket;
};

/// Runs in the child between fork and shell. Makes only async-signal-safe calls, unless the child is confined. Returns
/// the exit code when there is no shell.
int become_shell(const char* command, const Streams& streams, char* const* variables, const SandboxRules* rules) {
  signal(SIGPIPE, SIG_DFL);
  dup2(streams.in, STDIN_FILENO);
  dup2(streams.out, STDOUT_FILENO);
  dup2(streams.errors, STDERR_FILENO);
  if (rules != nullptr) {
    const auto first = static_cast<unsigned>(STDERR_FILENO + 1), socket = static_cast<unsigned>(streams.socket);
    if (socket > first) close_range(first, socket - 1, 0);
    close_range(socket + 1, ~0u, 0);
    enter_sandbox(*rules);
  }
  fcntl(streams.socket, F_SETFD, 0);
  execle("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr), variables);
  return 127;
}

}  // namespace

TempFolder::TempFolder() {
  std::error_code error;
  const std::filesystem::path base = std::filesystem::temp_directory_path(error);
  path_ = (base / "check_operator.XXXXXX").string();
  if (error || mkdtemp(path_.data()) == nullptr) {
    const char* const given = std::getenv("TMPDIR");
    const std::string where = error && given != nullptr ? given : base.string();
    throw EnvironmentError(
        fmt::format("no temporary folder can be made in '{}': {}; let TMPDIR name a folder that can be written", where,
                    error ? error.message() : std::strerror(errno)));
  }
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void print_last_words(const std::string& text) { write_all(STDERR_FILENO, text); }

std::string last_words(const std::string& stderr_file) {
  std::vector<std::string> lines;
  std::string line;
  for (const char c : tail_of(stderr_file, kLastBytes) + "\n") {
    if (c != '\n') {
      line += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
      continue;
    }
    if (line.find_first_not_of(' ') != std::string::npos) lines.push_back(line);
    line.clear();
  }
  if (lines.empty()) return "";
  if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - kLastLines);
  std::string words = fmt::format("{}", fmt::join(lines, " | "));
  if (words.size() > kLongestWords) words = "..." + words.substr(words.size() - kLongestWords);
  return fmt::format("; it wrote: '{}'", words);
}

bool replaces_shell(const std::string& command) {
  const std::string first = first_word(command);
  if (first.empty() || first == "!" || first.find('=') != std::string::npos) return false;
  char quote = '\0';
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '\\' && quote != '\'') {
      ++i;  // the next character stands for itself
    } else if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (std::string_view(";&|()<>\n").find(c) != std::string_view::npos) {
      return false;
    }
  }
  return quote == '\0';
}

LineProcess::LineProcess(const std::string& command, const std::string& stderr_file,
                         const std::optional<Confinement>& confinement)
    : stderr_file_(stderr_file) {
  std::array<int, 2> in{-1, -1}, out{-1, -1}, sockets{-1, -1};
  // O_APPEND: each write goes to the current end, also after the file was truncated.
  errors_ = open(stderr_file.c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
  const std::string in_shell = without_shell(command);
  std::string trouble;
  if (errors_ >= 0 && pipe2(in.data(), O_CLOEXEC) == 0 && pipe2(out.data(), O_CLOEXEC) == 0 &&
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0) {
    std::vector<std::string> changed{fmt::format("{}={}", kSocketVariable, sockets[1])};
    if (confinement) changed.insert(changed.end(), confinement->variables.begin(), confinement->variables.end());
    std::vector<std::string> variables = environment_with(std::move(changed));
    std::vector<char*> pointers;
    for (std::string& each : variables) pointers.push_back(each.data());
    pointers.push_back(nullptr);
    const Streams streams{in[0], out[1], errors_, sockets[1]};
    const SandboxRules* const rules = confinement ? &confinement->rules : nullptr;
    try {
      child_ = ChildProcess([&] { return become_shell(in_shell.c_str(), streams, pointers.data(), rules); },
                            ChildProcess::Group::shared, ChildProcess::Body::becomes_program);
    } catch (const EnvironmentError& e) {
      trouble = e.what();
    }
  } else {
    trouble = std::strerror(errno);
  }
  for (const int end : {in[0], out[1], sockets[1]}) {
    if (end >= 0) close(end);
  }
  socket_ = Descriptor(sockets[0]);
  to_ = in[1];
  from_ = out[0];
  if (child_.is_started()) return;
  for (const int end : {to_, from_, errors_}) {
    if (end >= 0) close(end);
  }
  // lint: allow message, no fork, or no descriptor left
  throw ProcessEnded(fmt::format("can't be started: {}", trouble));
}

LineProcess::~LineProcess() {
  child_ = {};  // before its pipes are closed
  for (const int end : {to_, from_, errors_}) close(end);
}

void LineProcess::pass_stderr_on() {
  write_all(STDERR_FILENO, tail_of(stderr_file_, kLastBytes));
  if (ftruncate(errors_, 0) != 0) return;  // on failure, this request's stderr text precedes the next one's
}

std::string LineProcess::end() {
  std::string words = last_words(stderr_file_);
  pass_stderr_on();
  child_ = {};
  return words;
}

void LinePeer::give_up(const std::string& why) { throw ProcessEnded(why + end()); }

std::string LinePeer::read_line(int from, const std::function<void()>& at_end) {
  const auto start = Clock::now();
  for (;;) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    if (pending_.size() > kLongestLine) give_up(fmt::format("wrote a line of more than {} bytes", kLongestLine));
    if (limit_) {
      pollfd arrived{from, POLLIN, 0};
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(start + *limit_ - Clock::now());
      const int ready = poll(&arrived, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
      if (ready == 0) give_up(fmt::format("gave no answer within {} s; killed", limit_->count()));
      if (ready < 0) continue;  // a signal came
    }
    std::array<char, 65536> block;
    const ssize_t n = read(from, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      pending_.append(block.data(), static_cast<size_t>(n));
      continue;
    }
    at_end();
  }
}

void LineProcess::report_end() {
  for (const auto until = Clock::now() + kDeathLimit; Clock::now() < until;) {
    if (!child_.is_alive()) give_up(describe_end(child_.wait().status) + " before it answered");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  give_up("closed its standard output but kept running; killed");
}

std::string LineProcess::request(const std::string& line, const std::vector<int>& descriptors) {
  if (!child_.is_started()) throw ProcessEnded("has ended already");
  for (const int descriptor : descriptors) send_with(socket_.get(), ".", {descriptor});
  write_all(to_, line + "\n");  // a failed write needs no handling: read_line() reports the end of the process
  std::string answer = next_line();
  pass_stderr_on();
  return answer;
}

std::string LineProcess::next_line() {
  return read_line(from_, [this] { report_end(); });
}

bool LineSocket::is_socket(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

LineSocket::LineSocket(int descriptor) : descriptor_(descriptor) {
  std::array<char, 65536> late;
  while (recv(descriptor_, late.data(), late.size(), MSG_DONTWAIT) > 0) {
  }
}

std::string LineSocket::request(const std::string& line, const std::vector<int>& descriptors) {
  if (descriptors.empty()) {
    write_all(descriptor_, line + "\n");  // read_line() reports a failed write, too
  } else {
    send_with(descriptor_, line + "\n", descriptors);
  }
  return next_line();
}

std::string LineSocket::next_line() {
  return read_line(descriptor_, [this] { give_up("closed the socket before it answered"); });
}

}  // namespace checkop
