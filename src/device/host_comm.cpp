// SPDX-License-Identifier: Apache-2.0
// Exchanges between threads. None waits for a rank that will not come.
#include "device/host_comm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace checkop {

HostComm::HostComm(int32_t world_size, std::chrono::milliseconds limit) : limit_(limit) {
  for (int32_t rank = 0; rank < world_size; ++rank) {
    ends_.push_back({{sizeof(checkop_host_comm), rank, world_size, all_gather, barrier, error}, this});
  }
}

int HostComm::all_gather(checkop_host_comm* comm, const void* send, void* receive, size_t bytes) {
  End& own = *reinterpret_cast<End*>(comm);
  return own.owner->exchange(own, send, receive, bytes);
}

int HostComm::barrier(checkop_host_comm* comm) { return all_gather(comm, nullptr, nullptr, 0); }

const char* HostComm::error(checkop_host_comm* comm) {
  HostComm& owner = *reinterpret_cast<End*>(comm)->owner;
  const std::lock_guard lock(owner.mutex_);
  return owner.error_.c_str();  // does not change once it is set
}

int HostComm::exchange(End& own, const void* send, void* receive, size_t bytes) {
  std::unique_lock lock(mutex_);
  for (const End& end : ends_) {
    if (end.left) fail(fmt::format("rank {} has returned and takes part in no further exchange", end.comm.rank));
  }
  if (!error_.empty()) return 1;
  own.send = send, own.receive = receive, own.bytes = bytes, own.waits = true;
  const uint64_t number = exchanges_;
  if (std::all_of(ends_.begin(), ends_.end(), [](const End& end) { return end.waits; })) {
    complete();
  } else {
    const auto is_over = [&] { return exchanges_ != number || !error_.empty(); };
    if (!changed_.wait_for(lock, limit_, is_over)) {
      const std::chrono::duration<double> seconds = limit_;
      fail(fmt::format("{} did not come to an exchange within {} s", absent(), seconds.count()));
    }
  }
  own.waits = false;
  return exchanges_ != number ? 0 : 1;
}

void HostComm::complete() {
  const size_t bytes = ends_.front().bytes;
  for (const End& end : ends_) {
    if (end.bytes == bytes) continue;
    return fail(fmt::format("rank {} exchanges {} bytes where rank 0 exchanges {}", end.comm.rank, end.bytes, bytes));
  }
  for (const End& to : ends_) {
    for (const End& from : ends_) {
      if (bytes == 0) continue;
      std::memcpy(static_cast<std::byte*>(to.receive) + static_cast<size_t>(from.comm.rank) * bytes, from.send, bytes);
    }
  }
  for (End& end : ends_) end.waits = false;
  ++exchanges_;
  changed_.notify_all();
}

void HostComm::fail(std::string reason) {
  if (error_.empty()) error_ = std::move(reason);
  changed_.notify_all();
}

std::string HostComm::absent() const {
  std::vector<int32_t> ranks;
  for (const End& end : ends_) {
    if (!end.waits) ranks.push_back(end.comm.rank);
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void HostComm::break_off(std::string reason) {
  const std::lock_guard lock(mutex_);
  fail(std::move(reason));
}

void HostComm::leave(int32_t rank, bool failed) {
  const std::lock_guard lock(mutex_);
  End& own = ends_[static_cast<size_t>(rank)];
  own.left = true;
  if (failed || std::any_of(ends_.begin(), ends_.end(), [](const End& end) { return end.waits; }))
    fail(fmt::format("rank {} has returned and takes part in no further exchange", rank));
}

}  // namespace checkop
