// SPDX-License-Identifier: Apache-2.0
// Processes that time implementations of their own beside the candidates: those of a framework or of a library.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "run/bench.hpp"

namespace checkop {

/// Commands that answer lines of JSON, as docs/bench.md describes. They make data of their own, and nobody judges what
/// they compute.
class BenchPeers {
 public:
  /// Starts the commands and asks for the names of their implementations, which they may time on `device`, "cpu" or
  /// "cuda:N". An answer may take `limit`. Throws InputError if an answer is missing or invalid, or if two
  /// implementations have one name; EnvironmentError if a process says that it finds no such device.
  BenchPeers(const std::vector<std::string>& commands, const std::string& device, std::chrono::seconds limit);
  ~BenchPeers();

  /// The names of all implementations, in the order of the runs.
  const std::vector<std::string>& names() const { return names_; }

  enum class Half { first, second };
  /// Takes half of the samples of `plan`, as bench_candidates() does of candidates. The runs of names() get more
  /// samples from the second half; `workspace_bytes` is all the memory that an implementation says to take, or 0. If a
  /// process does not answer as it should, its runs are crashed, and it is started again for the next request.
  void take(const Case& c, const BenchPlan& plan, Half half, std::vector<BenchRun>& runs);

 private:
  class Peer;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::string> names_;
};

}  // namespace checkop
