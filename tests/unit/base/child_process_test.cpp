// SPDX-License-Identifier: Apache-2.0
// Child processes: how they end, and that nothing of the parent runs in them.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/child_process.hpp"

namespace checkop::child_process_test {
namespace {

std::string end_of(const std::function<int()>& body) { return describe_end(ChildProcess(body).wait().status); }

TEST(ChildProcess, LeavesWithWhatItsBodyReturns) {
  EXPECT_EQ(end_of([] { return 7; }), "exited with code 7");
}

TEST(ChildProcess, ASignalIsNamed) {
  EXPECT_EQ(end_of([] { return raise(SIGKILL); }), "killed by signal 9 (Killed)");
}

/// Leaves a file behind when it is destroyed in another process than the one that made it.
struct Trap {
  explicit Trap(std::string path_of_file) : path(std::move(path_of_file)) {}
  ~Trap() {
    if (getpid() != owner) std::ofstream(path) << "sprung";
  }
  std::string path;
  pid_t owner = getpid();
};

TEST(ChildProcess, AnExceptionDoesNotUnwindTheParentsFrames) {
  const std::string path = testing::TempDir() + "unwound";
  std::filesystem::remove(path);
  const Trap trap(path);
  EXPECT_EQ(end_of([]() -> int { throw std::runtime_error("no descriptor is open"); }), "exited with code 1");
  EXPECT_EQ(end_of([]() -> int { throw 1; }), "exited with code 1");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ChildProcess, IsKilledWithItsOwner) {
  const std::string path = testing::TempDir() + "lived_on";
  std::filesystem::remove(path);
  {
    const ChildProcess child([&] {
      sleep(1);
      std::ofstream(path) << "lived on";
      return 0;
    });
    EXPECT_TRUE(child.is_alive());
  }
  sleep(2);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ChildProcess, AGroupOfItsOwnEndsWithIt) {
  const std::string path = testing::TempDir() + "grandchild";
  std::filesystem::remove(path);
  ChildProcess child(
      [&] {
        if (fork() == 0) {
          sleep(1);
          std::ofstream(path) << "lived on";
          _exit(0);
        }
        pause();
        return 0;
      },
      ChildProcess::Group::own);
  usleep(200'000);  // the grandchild is there
  child.kill();
  child.wait();
  EXPECT_FALSE(child.is_started());
  EXPECT_FALSE(child.is_alive());
  sleep(2);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ChildProcess, StaysWaitableWhileItIsLookedAt) {
  ChildProcess child([] { return 5; });
  while (child.is_alive()) usleep(1000);
  EXPECT_EQ(describe_end(child.wait().status), "exited with code 5");
}

}  // namespace
}  // namespace checkop::child_process_test
