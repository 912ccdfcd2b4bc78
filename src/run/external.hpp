// SPDX-License-Identifier: Apache-2.0
// A process as a candidate: JSON lines on its standard input and output or on a socket, tensors as safetensors files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "abi/check_operator.h"
#include "base/external_process.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"

namespace checkop {

/// A command given with --exec, or the socket of --exec-fd, whose other end a process holds that started this one.
struct ExternalCommand {
  std::string name;             ///< of the candidate
  std::string command;          ///< run by a shell; empty: `descriptor` is the socket
  std::string device = "auto";  ///< where the process should compute: "auto", "cpu" or "cuda:N"
  std::string folder = {};      ///< private; holds tensors and the process's standard error
  int descriptor = -1;          ///< of --exec-fd
  std::string given = {};       ///< the flag that made the command, if it was not --exec

  std::string flag() const;  ///< as given: "--exec 'COMMAND'", "--exec-fd N", "--py MODULE"
};

/// A running candidate process. Its candidates have the form of the ABI: launch() writes the inputs to a file, sends a
/// request, and reads the outputs from another file. A launch throws Stopped if the process can't be used any more.
class External {
 public:
  /// Starts the process, or takes the one at the other end of `socket`, and asks for its kernels. Throws InputError if
  /// the answer is missing or invalid, EnvironmentError if the process reports that its device is missing.
  explicit External(const ExternalCommand& command, int socket = -1);
  ~External();
  External(const External&) = delete;
  External& operator=(const External&) = delete;

  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// A device with memory of this process. Its DeviceInfo describes the device that the external process computes on.
  std::unique_ptr<Device> open_device() const;

 private:
  struct Kernel;
  static checkop_status launch(const checkop_call* call);
  checkop_status run(const Kernel& kernel, const checkop_call& call);
  std::string ask(int64_t id, const std::string& request);

  std::string folder_;
  std::unique_ptr<LinePeer> process_;
  bool outlives_us_ = false;  ///< the other end of a socket, which earlier workers may have asked
  DeviceInfo device_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Candidate> candidates_;
  int64_t requests_ = 0;  ///< id of the latest one
};

/// FNV-1a 64 of the command and the files that it names, as 16 hex digits.
std::string command_digest(const std::string& command);

/// The file with the standard error of the process.
std::string stderr_file(const ExternalCommand& command);

}  // namespace checkop
