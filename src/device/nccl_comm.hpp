// SPDX-License-Identifier: Apache-2.0
// The NCCL communicator of a rank. NCCL is loaded at the first use, as a machine with one GPU need not have it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace checkop {

/// A non-blocking communicator: waiting for a rank that will not come can be aborted. All members throw DeviceError
/// with NCCL's message.
class NcclComm {
 public:
  /// Why NCCL is unavailable: missing on this machine, or when this was built; "" if it is available.
  static std::string why_none();
  /// Creates the id with which ranks join a communicator; called by one rank. Throws EnvironmentError without NCCL.
  static std::string make_id();

  /// Waits for the other ranks, at most for `limit`. Uses the current device.
  NcclComm(const std::string& comm_id, int32_t rank, int32_t world_size, std::chrono::milliseconds limit);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  void* get() const { return comm_; }
  /// An asynchronous error; "" if there is none.
  std::string error();
  /// Aborts the communicator and its kernels. Thread-safe; only the first call has an effect.
  void abort() noexcept;

 private:
  std::mutex mutex_;
  void* comm_ = nullptr;  ///< ncclComm_t
  bool is_aborted_ = false;
};

}  // namespace checkop
