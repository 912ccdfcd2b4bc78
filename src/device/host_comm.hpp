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

/// What the ranks of one launch share. An exchange ends when all ranks came, or in an error for all of them: when one
/// has returned from its launch, or stayed away for `limit`.
class HostComm {
 public:
  HostComm(int32_t world_size, std::chrono::milliseconds limit);
  HostComm(const HostComm&) = delete;
  HostComm& operator=(const HostComm&) = delete;

  checkop_host_comm* of(int32_t rank) { return &ends_[static_cast<size_t>(rank)].comm; }
  /// The rank has returned from its launch: it will not come to any further exchange. Where it has failed, that ends
  /// what others wait for by other means, too.
  void leave(int32_t rank, bool failed = false);
  /// Every exchange fails from here on, with this reason unless there is one.
  void break_off(std::string reason);

 private:
  struct End {
    checkop_host_comm comm;  ///< first: the ABI's functions find the rest behind it
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
  void complete();                ///< when all ranks wait
  void fail(std::string reason);  ///< unless it failed before
  std::string absent() const;     ///< "rank 2", "ranks 2, 3"

  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<End> ends_;
  uint64_t exchanges_ = 0;
  std::string error_;  ///< set once
};

}  // namespace checkop
