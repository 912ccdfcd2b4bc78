// SPDX-License-Identifier: Apache-2.0
// A rank's NCCL communicator. NCCL is loaded when it is first needed: a machine with one GPU need not have it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace checkop {

/// Does not block, so that what waits for a rank that will not come can be ended. Every member throws DeviceError with
/// NCCL's own words.
class NcclComm {
 public:
  /// Why there is none: no NCCL on this machine, or none when this was built; "" where there is.
  static std::string why_none();
  /// What ranks need to know to meet: made by one of them. Throws EnvironmentError where there is no NCCL.
  static std::string name_meeting();

  /// Waits for the other ranks, at most for `limit`. The current device becomes the rank's.
  NcclComm(const std::string& meeting, int32_t rank, int32_t world_size, std::chrono::milliseconds limit);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  void* get() const { return comm_; }
  /// What went wrong meanwhile; "" while nothing did.
  std::string error();
  /// Ends its kernels, whatever they wait for. From any thread; once.
  void abort() noexcept;

 private:
  std::mutex mutex_;
  void* comm_ = nullptr;  ///< ncclComm_t
  bool is_aborted_ = false;
};

}  // namespace checkop
