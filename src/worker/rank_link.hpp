// SPDX-License-Identifier: Apache-2.0
// Ranks of other processes, as the worker of rank 0 sees them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/plugin.hpp"
#include "run/rank.hpp"
#include "worker/rank_hello.hpp"

namespace checkop {

class RankConnection;  // to one process, for the time of a request; in rank_link.cpp

/// Takes the other ranks' processes as they call, and lets them go at the end of each request: then fresh ones come.
class RankLink final : public RankProcesses {
 public:
  /// `token` is what callers were told at the meeting. `candidates` are this worker's.
  RankLink(int listener, std::string token, std::vector<Candidate> candidates);
  ~RankLink() override;

  /// A request begins, in which nothing is waited for longer than `limit`.
  void begin(std::chrono::milliseconds limit);
  void end();

  std::unique_ptr<Rank> make_rank(const checkop_kernel& kernel, const Case& c, const std::string& suffix,
                                  const TensorLayout& layout, const RankPart& place) override;
  /// How the process of a rank that died ended, once its parent calls again and tells.
  std::string how_it_ended(int32_t rank);
  /// body(), whose Stopped and DeviceError come to name the rank, and say how it ended where its process did.
  template <class Body>
  auto explained(int32_t rank, const Body& body);
  /// Why a rank will not come any more; "" while all do.
  std::string gone();

 private:
  std::shared_ptr<RankConnection> connect(int32_t rank);
  std::optional<Caller> next_of(int32_t rank, std::chrono::steady_clock::time_point deadline);

  std::string token_;
  std::vector<Candidate> candidates_;
  std::chrono::milliseconds limit_{60'000};
  std::map<int32_t, std::shared_ptr<RankConnection>> connections_;
  std::mutex mutex_;  ///< of what follows: several ranks can die at once
  Callers callers_;
  std::map<int32_t, Caller> waiting_;
  std::string gone_;
};

}  // namespace checkop
