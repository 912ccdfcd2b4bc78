// SPDX-License-Identifier: Apache-2.0
// A worker without a process of its own.
#include "worker/local_worker.hpp"

#include "base/error.hpp"
#include "run/runner.hpp"
#include "worker/child.hpp"

namespace checkop {

LocalWorker::LocalWorker(const WorkerConfig& config)
    : count_cuda_devices_(config.count_cuda_devices), candidates_(load_plugins(config.plugins)) {
  try {
    device_ = open_device(config.device);
  } catch (const DeviceError& e) {
    throw EnvironmentError(e.what());
  }
}

WorkerInfo LocalWorker::info() const {
  WorkerInfo info;
  for (const Candidate& candidate : candidates_) {
    info.candidates.push_back(candidate);
    info.candidate_device.push_back(candidate.kernel->device);
  }
  info.cuda_devices = count_cuda_devices_ ? cuda_device_count() : 0;
  info.device = device_->info();
  return info;
}

RunResult LocalWorker::run(size_t candidate, const Case& c, const std::vector<Tensor>& inputs,
                           std::vector<Tensor>& outputs, const RunChecks& checks) {
  return run_candidate(*device_, candidates_.at(candidate), c, inputs, outputs, checks);
}

BenchResult LocalWorker::bench(const std::vector<size_t>& candidates, const Case& c, const std::vector<Tensor>& inputs,
                               const BenchPlan& plan) {
  std::vector<const Candidate*> chosen;
  for (const size_t candidate : candidates) chosen.push_back(&candidates_.at(candidate));
  return bench_candidates(*device_, chosen, c, inputs, plan);
}

}  // namespace checkop
