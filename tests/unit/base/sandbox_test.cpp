// SPDX-License-Identifier: Apache-2.0
// The sandbox of plugins, with what the CUDA driver needs and without.
#include "base/sandbox.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "base/child_process.hpp"

namespace checkop {
namespace {

/// What the driver does as it starts, and what no plugin may do.
enum Attempt : int { kNamesThread, kListens, kIsToldOfNoMps, kReadsPci, kStreamSocket, kTcpSocket, kWritesTmp };

/// A bit for each attempt that succeeded.
int attempts(bool uses_cuda) {
  SandboxRules rules;
  rules.uses_cuda = uses_cuda;
  enter_sandbox(rules);
  int succeeded = 0;
  const auto note = [&](Attempt attempt, bool success) { succeeded |= success ? 1 << attempt : 0; };

  std::promise<long> number;
  std::promise<void> end;
  std::thread thread([&] {
    number.set_value(syscall(SYS_gettid));
    end.get_future().wait();
  });
  const std::string name = "/proc/self/task/" + std::to_string(number.get_future().get()) + "/comm";
  const int comm = open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  note(kNamesThread, comm >= 0 && write(comm, "cuda", 4) == 4);
  end.set_value();
  thread.join();

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string abstract = "sandbox-test-" + std::to_string(getpid());
  std::memcpy(address.sun_path + 1, abstract.data(), abstract.size());  // after a NUL: in no folder
  const int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  note(kListens, listening >= 0 && bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     listen(listening, 1) == 0);
  const int asking = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  note(kIsToldOfNoMps,
       asking >= 0 && connect(asking, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno == ENOENT);
  note(kReadsPci, open("/sys/devices", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0);
  note(kStreamSocket, socket(AF_UNIX, SOCK_STREAM, 0) >= 0);
  note(kTcpSocket, socket(AF_INET, SOCK_STREAM, 0) >= 0);
  note(kWritesTmp, open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) >= 0);
  return succeeded;
}

int attempts_in_child(bool uses_cuda) {
  ChildProcess child([&] { return attempts(uses_cuda); });
  const int status = child.wait().status;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Sandbox, OfAGpuHasWhatTheDriverNeedsAndNoMore) {
  EXPECT_EQ(attempts_in_child(/*uses_cuda=*/true),
            1 << kNamesThread | 1 << kListens | 1 << kIsToldOfNoMps | 1 << kReadsPci);
  EXPECT_EQ(attempts_in_child(/*uses_cuda=*/false), 0);
}

}  // namespace
}  // namespace checkop
