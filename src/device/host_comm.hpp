// SPDX-License-Identifier: Apache-2.0
// The communicator of ranks that are threads of one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "abi/check_operator.h"

namespace checkop {

/// Shared by the ranks of one launch. An exchange completes when all ranks have joined it. It fails for all ranks if a
/// rank has returned from its launch or does not join within `limit`.
class HostComm {
 public:
  HostComm(int32_t world_size, std::chrono::milliseconds limit);
  HostComm(const HostComm&) = delete;
  HostComm& operator=(const HostComm&) = delete;

  checkop_host_comm* of(int32_t rank) { return &ends_[static_cast<size_t>(rank)].comm; }
  /// Call when a rank has returned from its launch: it joins no further exchange. If the rank has failed, all exchanges
  /// fail from then on.
  void leave(int32_t rank, bool failed = false);
  /// Makes all further exchanges fail. `reason` is their error, unless there is one already.
  void break_off(std::string reason);

 private:
  struct End {
    checkop_host_comm comm;  ///< must be the first member: the ABI's functions cast its address to End
    HostComm* owner;
    const void* send = nullptr;
    void* receive = nullptr;
    size_t bytes = 0;
    bool waits = false, left = false;
  };

  static int all_gather(checkop_host_comm* comm, const void* send, void* receive, size_t bytes);
  static int barrier(checkop_host_comm* comm);
  static const char* error(checkop_host_comm* comm);

  int exchange(End& own, const void* send, void* receive, size_t bytes);
  void complete();                ///< call when all ranks wait
  void fail(std::string reason);  ///< keeps an earlier reason
  std::string absent() const;     ///< "rank 2", "ranks 2, 3"

  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<End> ends_;
  uint64_t exchanges_ = 0;
  std::string error_;  ///< set at most once
};

}  // namespace checkop
