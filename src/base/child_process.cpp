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
#include <cstdio>
#include <cstring>
#include <iostream>
#include <utility>

#include "base/error.hpp"

namespace checkop {

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

ChildProcess::ChildProcess(const std::function<int()>& body, Group group) : group_(group) {
  // A child that calls exit() would print again what is still in these buffers.
  std::cout.flush();
  fflush(stdout);
  fflush(stderr);
  const pid_t parent = getpid();
  pid_ = fork();
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
  ::kill(pid_, SIGKILL);  // alone, also where it had no time to make its group
}

ChildProcess::End ChildProcess::wait() {
  End end;
  rusage usage{};
  while (wait4(pid_, &end.status, 0, &usage) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  end.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return end;
}

}  // namespace checkop
