// SPDX-License-Identifier: Apache-2.0
// The progress of a run, on one terminal line that is overwritten.
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
    double weight;  ///< expected cost, in any unit
  };

  /// Writes nothing unless `out` is a terminal.
  Progress(std::FILE* out, std::vector<Step> steps);

  /// Shows that step `index` is about to run and all before it are done. Writes nothing if there is no such step.
  void show(size_t index);
  /// The same for steps that run in any order or side by side: step `index` begins, or is done.
  void begin(size_t index);
  void end(size_t index);
  /// Clears the line; call before writing anything else to the terminal.
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

/// "12/2600  3.1 checks/s, 4 min left" for `done` of `count` steps and `share` of their weight after `seconds`.
std::string describe_progress(size_t done, size_t count, double share, double seconds);

}  // namespace checkop
