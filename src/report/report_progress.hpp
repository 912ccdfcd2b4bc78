// SPDX-License-Identifier: Apache-2.0
// Where a run stands, on one line of a terminal that is written over.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace checkop {

class Progress {
 public:
  struct Step {
    std::string name;
    double weight;  ///< what it may cost, in any unit
  };

  /// Writes nothing unless `out` is a terminal.
  Progress(std::FILE* out, std::vector<Step> steps);

  /// That step `index` is about to run, and all before it are done; nothing after the last one.
  void show(size_t index);
  /// The same of steps that run in any order or side by side: that one begins, and that one is done.
  void begin(size_t index);
  void end(size_t index);
  /// Before anything else is written to the terminal.
  void clear();

 private:
  void write(const Step& step);

  std::FILE* out_;  ///< null: no terminal
  std::vector<Step> steps_;
  double total_ = 0, done_ = 0;
  size_t at_ = 0;  ///< steps that are done
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// "12/2600  3.1 checks/s, 4 min left": of `done` of `count` steps and `share` of their weight after `seconds`.
std::string describe_progress(size_t done, size_t count, double share, double seconds);

}  // namespace checkop
