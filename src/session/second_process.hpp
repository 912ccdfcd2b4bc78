// SPDX-License-Identifier: Apache-2.0
// Runs a check once more, in a process that knows nothing of the first run.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "run/invariance/contexts.hpp"
#include "worker/worker.hpp"

namespace checkop {

/// Runs every case of a candidate once more in a second process, where nothing of the first runs is left, and before it
/// one row of the case alone. So a candidate that remembers results, by content or address of its inputs, can't make
/// its bits repeat that way, nor those of rows that it has seen in the full batch.
class SecondProcess {
 public:
  explicit SecondProcess(WorkerConfig config) : config_(std::move(config)) {}

  /// Whether a case may run here while it runs in the first process: it is so small that both fit into memory, and its
  /// ranks do not meet those of the first.
  bool may_run_beside(const Case& c) const;

  /// Starts the process if it does not run. Throws as Worker does.
  void start() {
    if (!worker_) worker_.emplace(config_);
  }
  /// Begins to run `candidate` on other data of the same sizes, and returns while the process works on them. The
  /// process starts with the first call, unless start() was called. All arguments must live until finish().
  /// `a_row`: also on a row of the case alone.
  void begin(const std::string& candidate, const Case& c, const std::vector<Tensor>& inputs, bool a_row,
             std::chrono::seconds limit, unsigned threads);
  /// Whether go_on() has something to begin and would not wait.
  bool may_go_on() const { return waiting_ && (before_.empty() || worker_->has_answered()); }
  /// As Worker::awaited().
  int awaited() const { return !before_.empty() || is_running_ ? worker_->awaited() : -1; }
  /// Waits for what runs now, and begins the next: last of all the candidate on `inputs`.
  void go_on();
  /// Waits for what begin() and go_on() began, and goes on where go_on() was not called.
  void finish();

  /// Enters into `first`, whose status is ok, where the bits of the second process differ from `outputs`: a row alone
  /// as a further context. If the second process crashes, fails or times out, `first` gets that status.
  void compare(const std::vector<Tensor>& outputs, unsigned threads, RunResult& first);

 private:
  /// What runs before the case: other data, or a row of it alone.
  struct Before {
    std::string what;  ///< "on other data"
    Case c;
    std::vector<Tensor> inputs;
    std::optional<Context> row = {};   ///< of a row alone
    std::vector<Tensor> outputs = {};  ///< of a row alone
  };
  /// What begin() was given.
  struct Request {
    const std::string* candidate;
    const Case* c;
    const std::vector<Tensor>* inputs;
    std::chrono::seconds limit;
  };

  void begin_before();
  void compare_row(const std::vector<Tensor>& outputs, RunResult& first) const;

  WorkerConfig config_;
  std::optional<Worker> worker_;
  Case case_;
  RunResult result_;                ///< of the second process
  std::optional<Request> waiting_;  ///< it did not begin yet
  std::deque<Before> before_;       ///< the process works on the first
  std::optional<Before> alone_;     ///< the row, once it has run
  bool is_running_ = false;         ///< on the inputs of the case
  std::vector<Tensor> again_;       ///< the outputs of the second process
};

}  // namespace checkop
