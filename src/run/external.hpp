// SPDX-License-Identifier: Apache-2.0
// A process as a candidate: JSON lines on its standard input and output or on a socket. Tensors lie in memory of the
// device, which the process maps (protocol 2), or in safetensors files (protocol 1, or where memory can't be mapped).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi/check_operator.h"
#include "base/external_process.hpp"
#include "base/json.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"

namespace checkop {

/// A command given with --exec, or the socket of --exec-fd, whose other end a process holds that started this one.
struct ExternalCommand {
  std::string name;                      ///< of the candidate
  std::string command;                   ///< run by a shell; empty: `descriptor` is the socket
  std::string device = "auto";           ///< where the process should compute: "auto", "cpu" or "cuda:N"
  std::string folder = {};               ///< private; holds tensors and the process's standard error
  int descriptor = -1;                   ///< of --exec-fd
  std::string given = {};                ///< the flag that made the command, if it was not --exec
  bool is_confined = false;              ///< runs in a sandbox
  std::vector<std::string> hidden = {};  ///< files that it must not read in the sandbox

  std::string flag() const;  ///< as given: "--exec 'COMMAND'", "--exec-fd N", "--py MODULE"
};

/// A running candidate process. Its candidates have the form of the ABI: launch() sends a request that says where the
/// tensors lie. With files, it writes the inputs before and reads the outputs afterwards. A launch throws Stopped if
/// the process can't be used any more.
class External {
 public:
  /// Starts the process, or takes the one at the other end of `socket`, and asks for its kernels. Throws InputError if
  /// the answer is missing or invalid, EnvironmentError if the process reports that its device is missing.
  explicit External(const ExternalCommand& command, int socket = -1);
  ~External();
  External(const External&) = delete;
  External& operator=(const External&) = delete;

  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// The device whose memory this process owns and the external process maps; with files, or if that process only
  /// copies from host memory, a CPU device. Its DeviceInfo describes the device that the external process computes on.
  /// Call it once.
  std::unique_ptr<Device> take_device() { return std::move(device_); }

  /// Private memory of a process that is confined on the CPU; 0 of others.
  uint64_t memory() const;
  /// Limits memory() to `has` + `bytes`.
  void limit_memory(uint64_t has, uint64_t bytes);

  /// RunResult::unobserved for the launches since the last call.
  std::string take_unobserved();

 private:
  struct Kernel;
  static checkop_status launch(const checkop_call* call);
  checkop_status run(const Kernel& kernel, const checkop_call& call);
  std::string why_not_handed_over(const Kernel& kernel, const checkop_call& call) const;
  void read_hello(const ExternalCommand& command, const JsonValue& answer);
  void open_memory(const DeviceInfo& said, const JsonValue& answer);
  bool open_transport(const std::string& transport, const DeviceInfo& said, const JsonValue& answer,
                      std::vector<std::string>& refusals);
  std::string share(int64_t id);
  std::string share_arenas(const checkop_call& call);
  std::string ask(const nlohmann::json& request, const std::string& key, int64_t value,
                  const std::vector<int>& descriptors = {});
  JsonValue parsed(const std::string& line);

  std::string folder_;  ///< of inputs; the process writes to none but `own_folder_`
  std::string own_folder_;
  std::unique_ptr<LinePeer> process_;
  pid_t confined_ = 0;                    ///< the process, if it is confined and its memory is limited
  bool outlives_us_ = false;              ///< the other end of a socket, which earlier workers may have asked
  std::unique_ptr<Device> device_;        ///< until take_device()
  std::shared_ptr<SharedMemory> shared_;  ///< nullptr with files
  std::set<int64_t> mapped_;              ///< arenas that the process has mapped
  std::set<std::string> returned_;        ///< outputs that functions returned, since take_unobserved()
  int protocol_ = 1;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Candidate> candidates_;
  int64_t requests_ = 0;  ///< id of the latest one
};

/// Whether the command can run in a sandbox. If it may use a GPU, only if it replaces the shell that runs it.
bool can_be_confined(const ExternalCommand& command);

/// SHA-256 of the command and the files that it names, as 64 hex digits.
std::string command_digest(const std::string& command);

/// The file with the standard error of the process.
std::string stderr_file(const ExternalCommand& command);

}  // namespace checkop
