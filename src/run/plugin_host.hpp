// SPDX-License-Identifier: Apache-2.0
// A process for plugins, and their kernels as they look to who owns the memory: launch() has that process run the
// kernel on memory that it maps, inputs for reading only. What it did is judged by that memory alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "abi/check_operator.h"
#include "base/child_process.hpp"
#include "base/frame.hpp"
#include "base/host_memory.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "plugin_host/wire.hpp"
#include "run/stage.hpp"

namespace checkop {

/// The process, and its plugins' candidates. A launch throws Stopped where the process ends.
class PluginHost {
 public:
  /// Starts the process and has it load the plugins, which may write to `folder` alone; "": to no file. The buffers of
  /// `device` must come from its shared memory. Throws InputError as load_plugins() does and where a plugin ends the
  /// process, EnvironmentError where there is no program for the process, or it can't use the device.
  PluginHost(const std::vector<std::string>& paths, const std::string& folder, Device& device);
  ~PluginHost();
  PluginHost(const PluginHost&) = delete;
  PluginHost& operator=(const PluginHost&) = delete;

  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// How the process ended, if it has: a thread of a kernel can outlive its call, and then crash.
  std::optional<std::string> end();
  /// Private memory of the process.
  uint64_t memory() const { return process_memory(child_.id()); }
  /// Limits memory() to `has` + `bytes`, and workspaces to `bytes`.
  void limit_memory(uint64_t has, uint64_t bytes);

 private:
  struct Kernel;
  /// What a window shows, where it is an input: `bytes` of elements of `width` bytes begin at `offset`.
  struct Window {
    std::string name = {};
    int64_t offset = 0, bytes = 0, width = 1;
  };

  static Window describe(const Kernel& kernel, const checkop_call& call, const void* pointer,
                         const SharedMemory::Block& block);
  static Stopped stopped_by_write(const Window& input, int64_t offset);
  static checkop_status launch(const checkop_call* call);
  static size_t workspace_bytes(const checkop_call* call);

  void read_table(const std::string& message);
  std::string call(host::Request what, const checkop_call& call, host::Answer wanted);
  std::string pack(host::Request what, const Kernel& kernel, const checkop_call& call, std::vector<Descriptor>& memory);
  Descriptor open_arena(int64_t id);
  std::string ask(const checkop_call* call, const std::string& request, const std::vector<int>& descriptors);
  Descriptor take_lane();
  void control(const std::string& request, const std::vector<int>& descriptors);
  void drop_freed();
  std::vector<uint64_t> take_gone();
  const Stopped& why_it_ended();
  [[noreturn]] void stop_after_end();

  void start();
  Stopped why_lost(host::Request what, const checkop_call& call, const std::string& error);

  std::vector<std::string> paths_;
  std::string folder_;
  Device& device_;
  std::shared_ptr<SharedMemory> shared_;
  uint64_t memory_bytes_;  ///< of the machine
  int32_t gpu_;            ///< index, or kNoGpu
  ChildProcess child_;
  bool may_write_inputs_ = false;      ///< a process that tells why another one lost its device
  uint64_t allowed_bytes_ = 0;         ///< 0: no limit
  std::mutex mutex_;                   ///< of what follows: ranks are threads
  std::optional<Stopped> stopped_;     ///< why the process ended, once somebody has seen it
  Descriptor control_;                 ///< for requests while kernels run
  std::vector<Descriptor> lanes_;      ///< connections that are free; a kernel has one for itself
  std::map<uint64_t, Window> mapped_;  ///< by the blocks' numbers
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Candidate> candidates_;
};

}  // namespace checkop
