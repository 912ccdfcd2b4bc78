// SPDX-License-Identifier: Apache-2.0
// Ranks of other processes, as the worker of rank 0 sees them.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/plugin.hpp"
#include "run/rank.hpp"

namespace checkop {

class RankConnection;  // to one process, for the time of a request; in rank_link.cpp

/// Connects to the other ranks' processes, and disconnects at the end of each request: the next one gets fresh
/// processes.
class RankLink final : public RankProcesses {
 public:
  /// `channel` leads to the process that relays, see connect_to_rank(). `candidates` are this worker's.
  RankLink(int channel, std::vector<Candidate> candidates);
  ~RankLink() override;

  /// Begins a request, during which no wait is longer than `limit`.
  void begin(std::chrono::milliseconds limit);
  void end();

  std::unique_ptr<Rank> make_rank(const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                                  const TensorLayout& layout, const RankPart& place) override;
  /// How the process of a rank that died ended, once its parent tells.
  std::string how_it_ended(RankConnection& connection);
  /// Calls body(). Adds to its Stopped or DeviceError the name of the rank, and how the rank's process ended if it did.
  template <class Body>
  auto explained(RankConnection& connection, const Body& body);
  /// Why a rank will not come any more; "" while all do.
  std::string gone();

 private:
  std::shared_ptr<RankConnection> connect(int32_t rank);
  std::string note_gone(std::string why);

  int channel_;
  std::vector<Candidate> candidates_;
  std::chrono::milliseconds limit_{60'000};
  std::map<int32_t, std::shared_ptr<RankConnection>> connections_;
  std::mutex mutex_;  ///< of what follows: several ranks can die at once
  std::string gone_;
};

}  // namespace checkop
