// SPDX-License-Identifier: Apache-2.0
// A process for plugins, and stand-ins for their kernels in the process that owns the memory: launch() has the plugins'
// process run the kernel on memory that it maps, inputs for reading only. The owner judges a launch by that memory
// alone, and times it by its own clock.
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
#include "base/output_relay.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "plugin_host/wire.hpp"
#include "run/stage.hpp"
#include "tensor/tensor.hpp"

namespace checkop {

/// The process, and its plugins' candidates. A launch throws Stopped where the process ends.
class PluginHost {
 public:
  /// What the process is for.
  enum class Use : uint8_t {
    checks,
    times,  ///< it can be timed, and runs only while it handles a request
  };

  /// Starts the process and has it load the plugins, which may write to `folder` alone; "": to no file. The buffers of
  /// `device` must come from `shared`, its shared memory. Throws InputError as load_plugins() does and where a plugin
  /// ends the process, EnvironmentError where there is no program for the process, or it can't use the device. `empty`
  /// is a process without plugins to compare times with.
  PluginHost(const std::vector<std::string>& paths, const std::string& folder, Device& device,
             std::shared_ptr<SharedMemory> shared, Use use, std::shared_ptr<PluginHost> empty = {});
  ~PluginHost();
  PluginHost(const PluginHost&) = delete;
  PluginHost& operator=(const PluginHost&) = delete;

  const std::vector<Candidate>& candidates() const { return candidates_; }

  /// The process that runs a kernel; nullptr: the kernel is in this process.
  static PluginHost* of(const checkop_kernel& kernel);

  /// Launches of a kernel that are timed: on several calls in turns.
  struct Turns {
    std::vector<const checkop_call*> calls;
    int64_t count;  ///< of all launches
    host::Timer timer = host::Timer::plain;
    double cover_us = 0;  ///< of Timer::claimed; see Device::time_ms()
  };
  struct Timed {
    int status = CHECKOP_OK;  ///< of the launch that was not ok, whose message the first call has
    /// Milliseconds of all launches. Timer::plain: by the clock of this process, from their begin to their end.
    /// Timer::claimed: by the process's own account. Others: by the clock of this process, from before `prepare` until
    /// the device is idle.
    double ms = 0;
    /// Timer::plain: how long the process ran outside of that time, between the signals that resume and stop it. On the
    /// CPU, no more than the processor time of its threads.
    double unseen_ms = 0;
  };
  /// Only for Use::times. Calls `prepare` while the process is stopped, and lets it go on with the launches. Stops it
  /// again before it returns, so that nothing is written after them. Timers that time a whole pass do not stop it
  /// before, since the delay of a signal varies. Throws Stopped if its work on the device does not end.
  Timed time(const Turns& turns, const std::function<void()>& prepare);
  /// The same for a process without plugins, and so without launches.
  Timed time_empty(host::Timer timer, const std::function<void()>& prepare);

  /// How the process ended, if it has: a thread of a kernel can outlive its call, and then crash.
  std::optional<std::string> end();
  /// Private memory of the process.
  uint64_t memory() const { return process_memory(child_.id()); }
  /// Limits what memory() grows by, from now on or from the start, and workspaces, to `bytes`.
  void limit_memory(uint64_t bytes, bool from_start);

 private:
  struct Kernel;
  /// The begin of a window's block. If the window shows an input: `bytes` of elements of `width` bytes begin at
  /// `offset`.
  struct Window {
    const std::byte* begin = nullptr;  ///< of the block
    std::string name = {};
    int64_t offset = 0, bytes = 0, width = 1;
  };
  class Running;

  static Window describe(const Kernel& kernel, const checkop_call& call, const void* pointer,
                         const SharedMemory::Block& block);
  static Stopped stopped_by_write(const Window& input, int64_t offset);
  static checkop_status launch(const checkop_call* call);
  static size_t workspace_bytes(const checkop_call* call);

  void read_table(const std::string& message);
  std::string call(host::Request what, const checkop_call& call, host::Answer wanted);
  std::string checked(host::Request what, const checkop_call& call, host::Answer wanted, std::string answer);
  template <class Body>
  auto refusing_malformed_answers(const Body& body);
  std::string pack(host::Request what, const Kernel& kernel, const Turns& turns, std::vector<Descriptor>& memory);
  Timed take_turns(const std::string& request, const std::vector<int>& descriptors, host::Timer timer,
                   const std::function<void()>& prepare, std::string& answer);
  [[noreturn]] void stop_at_work();
  template <class Done>
  void wait_until(const Done& done);
  void make_gate();
  static int status_of(const std::string& answer, const checkop_call& call);
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
  uint64_t memory_bytes_;                ///< of the machine
  int32_t gpu_;                          ///< index, or kNoGpu
  std::unique_ptr<OutputRelay> output_;  ///< ends after the process
  ChildProcess child_;
  Use use_;
  std::unique_ptr<Bytes> page_;  ///< of the gate
  host::Gate* gate_ = nullptr;
  std::shared_ptr<PluginHost> empty_;
  std::mutex running_mutex_;
  int running_ = 0;                ///< requests that the process is at work on; of Use::times
  bool may_write_inputs_ = false;  ///< set to find out why a process lost its device
  uint64_t allowed_bytes_ = 0;     ///< 0: no limit
  uint64_t bytes_at_start_ = 0, frees_ = 0;
  std::mutex mutex_;                   ///< guards what follows: ranks are threads
  std::optional<Stopped> stopped_;     ///< why the process ended, once somebody has seen it
  Descriptor control_;                 ///< for requests while kernels run
  std::vector<Descriptor> lanes_;      ///< connections that are free; a kernel has one for itself
  std::map<uint64_t, Window> mapped_;  ///< by the blocks' numbers
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<Candidate> candidates_;
};

/// The processes of a worker's plugins: one for all, or, where candidates are timed, one for each of these. The latter
/// run one at a time, and share no memory and no folder that one of them may write to.
class PluginHosts {
 public:
  /// Starts the processes; see PluginHost. `timed`: names of candidates; if there are any, each has a process for
  /// Use::times. A plugin's other candidates are in the process of its first one.
  PluginHosts(const std::vector<std::string>& paths, const std::string& folder, Device& device,
              const std::vector<std::string>& timed);

  const std::vector<Candidate>& candidates() const { return candidates_; }
  /// How the first that ended did.
  std::optional<std::string> end();
  void limit_memory(uint64_t bytes, bool from_start);

 private:
  std::vector<std::unique_ptr<PluginHost>> hosts_;
  std::vector<Candidate> candidates_;
};

}  // namespace checkop
