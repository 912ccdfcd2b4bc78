// SPDX-License-Identifier: Apache-2.0
// A worker without a process of its own.
#pragma once

#include <memory>
#include <vector>

#include "worker/worker.hpp"

namespace checkop {

/// Loads plugins into this process and runs them here. Throws as Worker does.
class LocalWorker {
 public:
  explicit LocalWorker(const WorkerConfig& config);

  WorkerInfo info() const;
  RunResult run(size_t candidate, const Case& c, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                const RunChecks& checks);
  BenchResult bench(const std::vector<size_t>& candidates, const Case& c, const std::vector<Tensor>& inputs,
                    const BenchPlan& plan);

 private:
  bool count_cuda_devices_;
  std::vector<Candidate> candidates_;
  std::unique_ptr<Device> device_;
};

}  // namespace checkop
