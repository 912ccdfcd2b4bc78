// SPDX-License-Identifier: Apache-2.0
// Ranks on CUDA devices that share a case: the devices of other ranks, communicators, and waits that can be aborted.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "device/device.hpp"
#include "device/nccl_comm.hpp"

namespace checkop {

class CudaRanks {
 public:
  explicit CudaRanks(int index) : index_(index) {}

  /// Sets most_ranks: the number of CUDA devices from this one on, or 1 without NCCL.
  void tell(DeviceInfo& info) const {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) (void)cudaGetLastError();
    count = std::max(1, count - index_);
    info.most_ranks = count;
    info.ranks_limit = "CUDA devices, and from cuda:" + std::to_string(index_) + " on there " +
                       (count == 1 ? "is 1" : "are " + std::to_string(count));
    if (const std::string why = NcclComm::why_none(); count > 1 && !why.empty()) {
      info.most_ranks = 1;
      info.ranks_limit = "communicators of NCCL: " + why;
    }
  }

  /// The device of another rank; opened at the first use.
  Device& device_of(int32_t rank) {
    std::unique_ptr<Device>& device = devices_[rank];
    if (!device) device = open_cuda_device(index_ + rank);
    return *device;
  }

  std::string comm_id(int32_t world_size) {
    const std::lock_guard lock(mutex_);
    std::string& id = comm_ids_[world_size];
    if (id.empty()) id = NcclComm::make_id();
    return id;
  }

  void* join_comm(const std::string& comm_id, int32_t rank, int32_t world_size, std::chrono::milliseconds limit) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = comms_.find(comm_id); found != comms_.end()) return found->second->get();
    }
    auto comm = std::make_shared<NcclComm>(comm_id, rank, world_size, limit);
    const std::lock_guard lock(mutex_);
    return (comms_[comm_id] = std::move(comm))->get();
  }

  /// Waits for the work on `stream` by polling, so that the wait can be aborted.
  std::optional<Unfinished> finish(cudaStream_t stream, std::chrono::milliseconds limit,
                                   const std::atomic<bool>& is_broken) {
    const auto start = Clock::now();
    for (auto next = start; cudaStreamQuery(stream) == cudaErrorNotReady;) {
      (void)cudaGetLastError();
      std::this_thread::yield();
      const auto now = Clock::now();
      if (now < next) continue;
      next = now + std::chrono::milliseconds(1);
      std::optional<Unfinished> found;
      if (is_broken) {
        found = Unfinished{false, "its work was ended, since another rank failed"};
      } else if (std::string error = error_of_comms(); !error.empty()) {
        found = Unfinished{false, std::move(error)};
      } else if (now - start > limit) {
        found = Unfinished{true, "its work did not end within " + std::to_string(limit.count()) + " ms"};
      }
      if (!found) continue;
      abort_comms();
      return found;
    }
    return {};  // the device's next call reports errors of the work itself
  }

  void abort_comms() noexcept {
    std::map<std::string, std::shared_ptr<NcclComm>> left;
    {
      const std::lock_guard lock(mutex_);
      left.swap(comms_);
      comm_ids_.clear();
      for (const auto& [id, comm] : left) comm->abort();
    }
  }

 private:
  std::string error_of_comms() {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, comm] : comms_)
      if (std::string error = comm->error(); !error.empty()) return error;
    return "";
  }

  int index_;
  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<Device>> devices_;
  std::map<int32_t, std::string> comm_ids_;  ///< by number of ranks
  std::map<std::string, std::shared_ptr<NcclComm>> comms_;
};

}  // namespace checkop
