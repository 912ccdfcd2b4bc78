// SPDX-License-Identifier: Apache-2.0
// A worker process per candidate: the parent never loads a plugin and never touches CUDA.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/plugin.hpp"
#include "run/bench.hpp"
#include "run/external.hpp"
#include "run/run_result.hpp"

namespace checkop {

/// Whether a case may be in memory twice, in two processes, and beside another case: it has at most 256 MiB, or a
/// sixty-fourth of the memory that the host had free at the first call.
bool fits_side_by_side(const Case& c);

/// Whether two such cases may be run at once, each in two processes: its tensors have at most 16 MiB.
bool is_small(const Case& c);

/// Where a worker connects to the processes of other ranks; see RankJob.
struct RankService {
  int channel = -1;
  int32_t processes = 0;
};

struct WorkerConfig {
  std::vector<std::string> plugins;              ///< paths to load
  std::string device = "cpu";                    ///< "cpu", "cuda" or "cuda:N"
  bool count_cuda_devices = false;               ///< starts the driver, which takes a quarter of a second
  std::optional<ExternalCommand> external = {};  ///< in place of plugins and device; the worker makes its folder
  std::optional<RankService> ranks = {};
  std::vector<std::string> timed = {};  ///< names of candidates that are timed: each has a process of its own
  bool in_worker = false;     ///< plugins run in the worker's process: shipped ones of a GPU, or as NCCL needs it
  std::string folder = {};    ///< that plugins may write to; the worker makes it
  uint64_t memory_limit = 0;  ///< that a candidate on the CPU may use; 0: what the machine has free
  bool in_two_lanes = false;  ///< two small cases may be run at once, and share that
};

/// What a worker says of itself once it is up.
struct WorkerInfo {
  std::vector<Candidate> candidates;  ///< kernel pointers are null on this side
  std::vector<int> candidate_device;  ///< CHECKOP_CPU or CHECKOP_CUDA, parallel to candidates
  int cuda_devices = 0;               ///< 0 unless the config asked for them to be counted
  std::optional<DeviceInfo> device;   ///< absent when the config names no usable device
};

/// Decides, while it lives, whether workers are processes of their own; by default they are. Otherwise this process is
/// the worker: a debugger sees the candidate, and a process that has already used CUDA can run it, which a fork of it
/// could not. Then a crash ends this process, and there is no time limit.
class Isolation {
 public:
  explicit Isolation(bool on);
  static bool is_on();
  ~Isolation();
  Isolation(const Isolation&) = delete;
  Isolation& operator=(const Isolation&) = delete;

 private:
  bool before_;
};

class LocalWorker;    // in worker.cpp
struct TensorMemory;  // in wire.hpp

/// A child process that loads plugins and runs cases. Killed when destroyed.
class Worker {
 public:
  /// Forks. Throws InputError for a bad plugin, EnvironmentError for a missing device.
  explicit Worker(WorkerConfig config);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const WorkerInfo& info() const;
  /// Begins to run `candidate` of this worker's plugins and returns while the process works; the time limit counts from
  /// here. Moves outputs that do not fit beside an answer to shared memory, see Bytes::share(). All arguments must live
  /// until finish(). Without a process of its own, the worker runs the candidate in finish().
  void begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
             std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit);
  /// Whether the process has answered what begin() sent it, or has ended; false without a process of its own.
  bool has_answered() const;
  /// A descriptor that can be read once has_answered(); -1 if nothing is awaited of the process.
  int awaited() const;
  /// Waits for the run that begin() began. A crash or a time-out is a status of the result; the next run starts a fresh
  /// process.
  RunResult finish();
  /// begin() and finish().
  RunResult run(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
                std::vector<Tensor>& outputs, const RunChecks& checks, std::chrono::seconds limit);

  /// Times `candidates` in turns; see bench_candidates(). A time-out of any of them ends the whole, and is the status
  /// of the result, as is a crash where the candidates have no processes of their own; the next call starts fresh ones.
  /// With a process of its own, the worker moves all tensors of `data` to shared memory, see Bytes::share().
  BenchResult bench(const std::vector<std::string>& candidates, const Case& c, BenchData& data, const BenchPlan& plan,
                    std::chrono::seconds limit);

 private:
  struct Process;
  struct Pending;
  struct Failure;
  void start();
  std::optional<Failure> guarded(const std::function<void()>& body);
  void send(nlohmann::json request, const TensorMemory& memory, std::chrono::seconds limit);
  nlohmann::json receive(std::string& bytes);
  std::string words_of_external() const;        ///< "" when there is none
  uint64_t allowed_bytes(const Case& c) const;  ///< that a candidate may use now; 0: no limit
  size_t index_of(const std::string& candidate, const Case& c) const;

  WorkerConfig config_;
  WorkerInfo info_;
  std::unique_ptr<TempFolder> folder_;  ///< of a process that is no worker itself; outlives it
  std::unique_ptr<Process> process_;
  std::unique_ptr<Pending> pending_;  ///< between begin() and finish()
  std::string request_number_;        ///< of the latest request
  std::chrono::seconds limit_{};      ///< for its answer
  std::chrono::steady_clock::time_point deadline_;
  std::unique_ptr<LocalWorker> local_;  ///< in place of the process
};

}  // namespace checkop
