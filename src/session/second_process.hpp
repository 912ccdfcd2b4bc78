// SPDX-License-Identifier: Apache-2.0
// The same question once more, in a process that knows nothing of the first answer.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker/isolate.hpp"

namespace checkop {

/// Runs every case of a candidate once more in a process of its own, where nothing is left of the first runs: what a
/// candidate remembers, by the content of its inputs or by their place, must not be what makes its bits repeat.
class SecondProcess {
 public:
  explicit SecondProcess(WorkerConfig config) : config_(std::move(config)) {}

  /// Whether a case may run there while it runs in the first process: it is small, so that both have room, and its
  /// ranks do not meet those of the first.
  bool may_run_beside(const Case& c) const;

  /// Runs `candidate` on `inputs`, right after other data of the same sizes. The process starts with the first call.
  /// `meanwhile` is called while it works on `inputs`, if it comes to that.
  void run(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs, std::chrono::seconds limit,
           unsigned threads, const std::function<void()>& meanwhile = {});

  /// Enters into `first`, which is ok, where the bits of run() differ from `outputs`. A crash, a failure or a time-out
  /// there is one of the whole.
  void compare(const std::vector<Tensor>& outputs, unsigned threads, RunResult& first);

 private:
  WorkerConfig config_;
  std::optional<Worker> worker_;
  RunResult found_;  ///< of run()
  std::vector<Tensor> again_;
};

}  // namespace checkop
