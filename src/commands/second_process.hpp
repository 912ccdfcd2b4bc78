// SPDX-License-Identifier: Apache-2.0
// The same question once more, in a process that knows nothing of the first answer.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "isolate.hpp"

namespace checkop {

/// Runs every case of a candidate once more in a process of its own, where nothing is left of the first runs: what a
/// candidate remembers, by the content of its inputs or by their place, must not be what makes its bits repeat.
class SecondProcess {
 public:
  explicit SecondProcess(WorkerConfig config) : config_(std::move(config)) {}

  /// Runs `candidate` on `inputs`, right after other data of the same sizes, and enters into `run`, which is ok, where
  /// the bits differ from `outputs`. A crash, a failure or a time-out there is one of the whole. The process starts
  /// with the first call.
  void repeat(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs,
              const std::vector<Tensor>& outputs, std::chrono::seconds limit, unsigned threads, RunResult& run);

 private:
  WorkerConfig config_;
  std::optional<Worker> worker_;
};

}  // namespace checkop
