// SPDX-License-Identifier: Apache-2.0
// The same question once more, in a process that knows nothing of the first answer.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker/worker.hpp"

namespace checkop {

/// Runs every case of a candidate once more in a process of its own, where nothing is left of the first runs: what a
/// candidate remembers, by the content of its inputs or by their place, must not be what makes its bits repeat.
class SecondProcess {
 public:
  explicit SecondProcess(WorkerConfig config) : config_(std::move(config)) {}

  /// Whether a case may run there while it runs in the first process: it is small, so that both have room, and its
  /// ranks do not meet those of the first.
  bool may_run_beside(const Case& c) const;

  /// Runs `candidate` on other data of the same sizes, then begins to run it on `inputs`, and returns while the process
  /// works on them. The process starts with the first call. `c` and `inputs` must live until finish().
  void begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs, std::chrono::seconds limit,
             unsigned threads);
  /// Waits for what begin() began.
  void finish();

  /// Enters into `first`, which is ok, where the bits of the second process differ from `outputs`. A crash, a failure
  /// or a time-out there is one of the whole.
  void compare(const std::vector<Tensor>& outputs, unsigned threads, RunResult& first);

 private:
  WorkerConfig config_;
  std::optional<Worker> worker_;
  RunResult result_;           ///< of the second process
  bool is_running_ = false;    ///< result_ is not known yet
  std::vector<Tensor> again_;  ///< the outputs of the second process
};

}  // namespace checkop
