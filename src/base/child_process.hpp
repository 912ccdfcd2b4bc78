// SPDX-License-Identifier: Apache-2.0
// A child process: forked without exec, killed and reaped by its owner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace checkop {

/// How a process ended, from waitpid's status: "killed by signal 9 (Killed)", "exited with code 1".
std::string describe_end(int status);

/// While one lives, no other thread forks a child that runs code of this program: such a thread waits. For threads that
/// work beside the one that forks, since the child would find the locks that they hold locked for ever. The thread that
/// has one must not fork.
class NoForks {
 public:
  NoForks();

 private:
  std::unique_lock<std::mutex> lock_;
};

/// A child that runs one function. The destructor kills and reaps it.
class ChildProcess {
 public:
  enum class Group : uint8_t {
    shared,  ///< the child stays in the process group of its parent
    own      ///< the child leads a group of its own: kill() and wait() end everything that it started, too
  };
  enum class Body : uint8_t {
    any,
    /// The child only makes system calls and becomes another program. Handlers of pthread_atfork() are not called:
    /// tools that are loaded into programs register handlers that fail where the tool's descriptors are closed.
    becomes_program
  };

  ChildProcess() = default;
  /// Forks. The child calls `body` and leaves with _exit(): with the value that `body` returns, or with 1 if it throws.
  /// No destructor, no atexit handler and no buffered output of the parent runs in the child, whatever `body` does.
  /// The child dies with the parent. Throws EnvironmentError when there can't be another process.
  explicit ChildProcess(const std::function<int()>& body, Group group = Group::shared, Body kind = Body::any);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  /// The child's process id; less than 1 if there is none.
  pid_t id() const { return pid_; }
  /// Whether it was started and not yet waited for.
  bool is_started() const { return pid_ > 0; }
  /// Whether it runs. Leaves it waitable, so that its process id is not reused.
  bool is_alive() const;
  /// Ends the child, and its group if it has one, at once.
  void kill() const;
  /// Stops all threads of the child, but not its group. Returns once none runs or the child has ended.
  void pause() const;
  /// Lets the child run on after pause().
  void resume() const;
  /// Processor time of all of its threads so far; nullopt if it can't be read.
  std::optional<std::chrono::nanoseconds> cpu_time() const;

  struct End {
    int status = 0;           ///< as waitpid() gives it
    uint64_t peak_bytes = 0;  ///< the most memory that it had resident
  };
  /// Waits for the end and reaps the child. Of a group, also ends and reaps what the child started and what did not
  /// leave the group: nothing of it runs any more when this returns.
  End wait();

 private:
  pid_t pid_ = -1;
  Group group_ = Group::shared;
};

/// Time for a dying child, whether killed or with a closed connection: a CUDA driver may take a while to clean up after
/// its process.
inline constexpr std::chrono::milliseconds kReapLimit{20'000};

/// How a child ended that closed its connection or did not answer. Waits for its end, and kills a child that runs
/// longer than `limit`. `allowed_bytes`: the memory that the child was allowed; 0: no limit.
std::string bury(ChildProcess& child, uint64_t allowed_bytes, std::chrono::milliseconds limit = kReapLimit);

}  // namespace checkop
