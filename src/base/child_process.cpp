// SPDX-License-Identifier: Apache-2.0
// fork(), kill() and wait4().
#include "base/child_process.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace checkop {

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

namespace {

/// What NoForks locks.
std::mutex forks;

}  // namespace

NoForks::NoForks() : lock_(forks) {}

ChildProcess::ChildProcess(const std::function<int()>& body, Group group, Body kind) : group_(group) {
  std::optional<NoForks> alone;
  if (kind == Body::any) alone.emplace();
  // A child that calls exit() would print again what is still in these buffers.
  std::cout.flush();
  fflush(stdout);
  fflush(stderr);
  const pid_t parent = getpid();
  // wait() can only wait for what a child started where this process inherits it.
  if (group_ == Group::own) prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_ = kind == Body::becomes_program ? _Fork() : fork();
  alone.reset();
  if (pid_ < 0) throw EnvironmentError(fmt::format("fork: {}", std::strerror(errno)));
  if (pid_ > 0) {
    if (group_ == Group::own) setpgid(pid_, pid_);  // both processes do this, whoever comes first
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  if (group_ == Group::own) setpgid(0, 0);
  int code = 1;
  try {
    code = body();
  } catch (...) {  // nothing may unwind into the parent's frames
  }
  _exit(code);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), group_(other.group_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(group_, other.group_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill();
  wait();
}

bool ChildProcess::is_alive() const {
  siginfo_t info{};
  return pid_ > 0 && waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

void ChildProcess::kill() const {
  if (pid_ <= 0) return;  // reaped: the number may be another process's by now
  if (group_ == Group::own && ::kill(-pid_, SIGKILL) == 0) return;
  ::kill(pid_, SIGKILL);  // the child alone: it may not have made its group yet
}

void ChildProcess::pause() const {
  if (pid_ <= 0 || ::kill(pid_, SIGSTOP) != 0) return;
  siginfo_t info{};
  const auto wait = [&](int which) {
    info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, which);
  };
  while (wait(WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  if (info.si_code == CLD_STOPPED) wait(WSTOPPED | WNOHANG);  // so that the next stop is seen as one
}

void ChildProcess::resume() const {
  if (pid_ > 0) ::kill(pid_, SIGCONT);
}

std::optional<std::chrono::nanoseconds> ChildProcess::cpu_time() const {
  clockid_t clock{};
  timespec time{};
  if (pid_ <= 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return std::nullopt;
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

ChildProcess::End ChildProcess::wait() {
  const pid_t group = pid_;
  if (group_ == Group::own) {
    siginfo_t info{};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    ::kill(-group, SIGKILL);  // before the child is reaped: until then no other group can have its number
  }
  End end;
  rusage usage{};
  while (wait4(pid_, &end.status, 0, &usage) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (group_ == Group::own) {
    const auto until = Clock::now() + kReapLimit;
    for (pid_t ended = 1; ended >= 0 && Clock::now() < until;) {
      ended = waitpid(-group, nullptr, WNOHANG);
      if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  end.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return end;
}

namespace {

/// A clause about memory, if the end may have to do with it; else "".
std::string describe_memory(const ChildProcess::End& end, uint64_t allowed_bytes) {
  if (allowed_bytes > 0 && end.peak_bytes >= allowed_bytes / 4 * 3) {
    return fmt::format("; its memory had come to {} of the {} that it may have", format_bytes(end.peak_bytes),
                       format_bytes(allowed_bytes));
  }
  const bool killed = WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL;
  return killed ? ", and not by this program: perhaps the system ran out of memory" : "";
}

}  // namespace

std::string bury(ChildProcess& child, uint64_t allowed_bytes, std::chrono::milliseconds limit) {
  for (const auto until = Clock::now() + limit; child.is_alive();) {
    if (Clock::now() >= until) {
      child.kill();
      return "closed its connection but kept running; killed";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const ChildProcess::End end = child.wait();
  return describe_end(end.status) + (WIFEXITED(end.status) ? " before it answered" : "") +
         describe_memory(end, allowed_bytes);
}

}  // namespace checkop
