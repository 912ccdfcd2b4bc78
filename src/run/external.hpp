// SPDX-License-Identifier: Apache-2.0
// Another process as a candidate: JSON lines on its standard input and output, tensors as safetensors files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "abi/check_operator.h"
#include "base/external_process.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"

namespace checkop {

/// Of --exec.
struct ExternalCommand {
  std::string name;             ///< of the candidate
  std::string command;          ///< for a shell
  std::string device = "auto";  ///< where it should compute: "auto", "cpu" or "cuda:N"
  std::string folder = {};      ///< private; for tensors and its standard error
};

/// The process in this one's service. Its candidates have the ABI's form: launch() writes the inputs to a file, asks,
/// and reads the outputs from another. A launch throws Stopped when the process is of no use any more.
class External {
 public:
  /// Starts the process and asks what it can do. Throws InputError when it does not say, or says what makes no sense,
  /// EnvironmentError when it says that its device is not there.
  explicit External(const ExternalCommand& command);
  ~External();
  External(const External&) = delete;
  External& operator=(const External&) = delete;

  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// Memory of this process. What it says of itself is what the process says of the device that it computes on.
  std::unique_ptr<Device> open_device() const;

 private:
  struct Kernel;
  static checkop_status launch(const checkop_call* call);
  checkop_status run(const Kernel& kernel, const checkop_call& call);

  std::string folder_;
  LineProcess process_;
  DeviceInfo device_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Candidate> candidates_;
  int64_t requests_ = 0;
};

/// Of the command and of the files that it names: FNV-1a 64, 16 hex digits.
std::string command_digest(const std::string& command);

/// Where the standard error of the process is found while it runs.
std::string stderr_file(const ExternalCommand& command);

}  // namespace checkop
