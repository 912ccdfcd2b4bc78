// SPDX-License-Identifier: Apache-2.0
// Child processes: how they end, and that nothing of the parent runs in them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/child_process.hpp"

namespace checkop::child_process_test {
namespace {

std::string end_of(const std::function<int()>& body) { return describe_end(ChildProcess(body).wait().status); }

TEST(ChildProcess, LeavesWithWhatItsBodyReturns) {
  EXPECT_EQ(end_of([] { return 7; }), "exited with code 7");
}

TEST(ChildProcess, NoForksHoldsBackForksOfOtherThreadsThatGoOnInThisProgram) {
  std::atomic<bool> is_held = false, is_last = false, may_fork = false;
  std::thread holder([&] {
    const NoForks none;
    is_held = true;
    while (!is_last) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    may_fork = true;
  });
  while (!is_held) std::this_thread::yield();
  const auto program = [] { return execl("/bin/true", "true", nullptr); };
  ChildProcess(program, ChildProcess::Group::shared, ChildProcess::Body::becomes_program).wait();
  is_last = true;
  EXPECT_EQ(end_of([&] { return may_fork ? 0 : 1; }), "exited with code 0");
  holder.join();
}

TEST(ChildProcess, ASignalIsNamed) {
  EXPECT_EQ(end_of([] { return raise(SIGKILL); }), "killed by signal 9 (Killed)");
}

TEST(ChildProcess, OneThatKeepsRunningIsKilledWhenItIsBuried) {
  ChildProcess child([] {
    sleep(60);
    return 0;
  });
  EXPECT_EQ(bury(child, 0, std::chrono::milliseconds(1)), "closed its connection but kept running; killed");
  EXPECT_EQ(describe_end(child.wait().status), "killed by signal 9 (Killed)");
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

/// A child that starts a process, says its number and then does what it is told. Returns that number.
pid_t start_with_grandchild(ChildProcess& child, const std::function<int()>& then) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  child = ChildProcess(
      [&] {
        pid_t grandchild = fork();
        if (grandchild == 0) {
          sleep(30);  // a broken program must not leave it for ever
          _exit(0);
        }
        if (write(ends[1], &grandchild, sizeof grandchild) != sizeof grandchild) return 1;
        return then();
      },
      ChildProcess::Group::own);
  pid_t grandchild = -1;
  if (read(ends[0], &grandchild, sizeof grandchild) != sizeof grandchild) grandchild = -1;
  close(ends[0]);
  close(ends[1]);
  return grandchild;
}

TEST(ChildProcess, AGroupOfItsOwnEndsWithIt) {
  ChildProcess child;
  const pid_t grandchild = start_with_grandchild(child, [] { return pause(); });
  ASSERT_GT(grandchild, 0);
  EXPECT_EQ(kill(grandchild, 0), 0);
  child.kill();
  child.wait();
  EXPECT_FALSE(child.is_started());
  EXPECT_FALSE(child.is_alive());
  EXPECT_EQ(kill(grandchild, 0), -1) << "what the child started lives on";
}

TEST(ChildProcess, WhatItStartedEndsWithAChildThatWasNotKilled) {
  ChildProcess child;
  const pid_t grandchild = start_with_grandchild(child, [] { return 7; });
  ASSERT_GT(grandchild, 0);
  EXPECT_EQ(describe_end(child.wait().status), "exited with code 7");
  EXPECT_EQ(kill(grandchild, 0), -1) << "what the child started lives on";
}

TEST(ChildProcess, StaysWaitableWhileItIsLookedAt) {
  ChildProcess child([] { return 5; });
  while (child.is_alive()) usleep(1000);
  EXPECT_EQ(describe_end(child.wait().status), "exited with code 5");
}

/// Memory that a child counts in.
struct Count {
  Count() {
    void* const memory = mmap(nullptr, sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    of = new (memory) std::atomic<uint64_t>(0);
  }
  ~Count() { munmap(of, sizeof *of); }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;
  void wait_for_more() const {
    for (const uint64_t before = *of; *of == before;) usleep(100);
  }

  std::atomic<uint64_t>* of;
};

/// Does not return.
int count_in_two_threads(const Count& first, const Count& second) {
  std::thread([&] {
    for (;;) ++*first.of;
  }).detach();
  for (;;) ++*second.of;
}

TEST(ChildProcess, NoThreadRunsWhileItIsPaused) {
  const Count first, second;
  const ChildProcess child([&] { return count_in_two_threads(first, second); });
  for (int i = 0; i < 3; ++i) {
    first.wait_for_more();
    second.wait_for_more();
    child.pause();
    const uint64_t a = *first.of, b = *second.of;
    usleep(20'000);
    EXPECT_EQ(*first.of, a);
    EXPECT_EQ(*second.of, b);
    EXPECT_TRUE(child.is_alive());
    child.resume();
  }
  child.pause();  // its end is none the later
}

TEST(ChildProcess, ProcessorTimeIsThatOfAllThreads) {
  const Count first, second;
  const ChildProcess child([&] { return count_in_two_threads(first, second); });
  first.wait_for_more();
  second.wait_for_more();
  const auto running = child.cpu_time();
  ASSERT_TRUE(running);
  EXPECT_GT(running->count(), 0);
  while (child.cpu_time() < *running + std::chrono::milliseconds(2)) usleep(100);
  child.pause();
  const auto paused = child.cpu_time();
  usleep(20'000);
  EXPECT_EQ(child.cpu_time(), paused);
}

TEST(ChildProcess, OneThatNeverStartedHasNoProcessorTime) { EXPECT_FALSE(ChildProcess().cpu_time()); }

TEST(ChildProcess, OneThatHasEndedIsNotWaitedForWhenItIsPaused) {
  ChildProcess child([] { return 5; });
  while (child.is_alive()) usleep(1000);
  child.pause();
  child.resume();
  EXPECT_EQ(describe_end(child.wait().status), "exited with code 5");
}

}  // namespace
}  // namespace checkop::child_process_test
