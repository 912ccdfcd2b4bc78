// SPDX-License-Identifier: Apache-2.0
// What a candidate's process may do. Each measure is taken where the kernel has it; probe_sandbox() tells which hold.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace checkop {

/// The rights of a process that was started for candidates.
struct SandboxRules {
  enum class Processes : uint8_t {
    none,     ///< threads alone: a plugin
    in_group  ///< what it starts stays in its process group, and so ends with it: a command
  };
  Processes processes = Processes::none;
  /// Files that may be read. With `reads_all`: all files except `hidden`, devices, and those of other processes in
  /// /proc. Otherwise: `readable`, and the files that the system's libraries need.
  bool reads_all = false;
  std::vector<std::string> readable, hidden;
  std::vector<std::string> writable;  ///< files and folders
  bool uses_cuda = false;             ///< opens what cuda_files() lists
  /// Processes that a command must not signal, also where the kernel can't keep it from signalling others.
  std::vector<pid_t> untouchable;
};

/// Confines the calling process, which must have one thread, and all that it starts. Can't be undone.
void enter_sandbox(const SandboxRules& rules);

/// Keeps other processes of this user from reading and changing the memory of the calling process.
void hide_memory();

/// The files of this machine that the CUDA driver opens. A folder stands for everything in it.
struct CudaFiles {
  std::vector<std::string> readable;
  std::vector<std::string> devices;   ///< for control and for mapping
  std::vector<std::string> writable;  ///< its threads write their names here
};
CudaFiles cuda_files();

struct SandboxMeasure {
  std::string what;  ///< "no network"
  bool holds;
  std::string how;  ///< "seccomp"; where it does not hold, what is missing
};
/// Tries each measure against plugins or commands in a child process.
std::vector<SandboxMeasure> probe_sandbox(SandboxRules::Processes processes);

}  // namespace checkop
