// SPDX-License-Identifier: Apache-2.0
// The processes that a launcher started, one a rank: rank 0 runs the checks, the others hold their ranks for it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "worker/isolate.hpp"
#include "worker/rank_hello.hpp"
#include "worker/rank_serve.hpp"

namespace checkop {

/// Rank 0's side, in the process that reports.
class RankLeader {
 public:
  /// Listens. `limit`: for the others to call. Throws InputError.
  RankLeader(const RankPlace& place, std::vector<std::string> digests, std::chrono::milliseconds limit);

  /// Waits until all have called, and are of the same program, plugins and number. Throws InputError when they are
  /// not, EnvironmentError when one does not come.
  void meet();

  int32_t processes() const { return place_.processes; }
  /// For workers.
  RankService service() const { return {listener_.get(), token_, place_.processes}; }

  /// A rank's process is gone: it is not waited for in the end.
  void give_up() { is_whole_ = false; }

  /// Ends all other processes with that code and text.
  void dismiss(int code, const std::string& text);

 private:
  /// Why that caller can't take part; "" when it can.
  std::string why_not(const Hello& hello) const;

  RankPlace place_;
  Hello own_;
  std::chrono::milliseconds limit_;
  Descriptor listener_;
  Callers callers_;
  std::string token_;
  std::vector<Caller> met_;  ///< and were not answered yet
  bool is_whole_ = true, has_met_ = false;
};

/// How a process that holds a rank ends: with rank 0's exit code, or 4 when that vanishes.
struct Followed {
  int code = 0;
  std::string text;  ///< to be said; "" when rank 0 has said it all
};

/// The side of all others: holds the rank, in a fresh process for each request, until rank 0 ends the run. Throws
/// EnvironmentError when that does not come within `limit`.
Followed follow(const RankPlace& place, const RankServer& server, std::chrono::milliseconds limit);

}  // namespace checkop
