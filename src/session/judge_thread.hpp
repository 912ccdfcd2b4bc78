// SPDX-License-Identifier: Apache-2.0
// Judges the checks of a run beside the thread that runs them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "session/attempt.hpp"

namespace checkop {

/// Judges checks in order, on a thread of its own. No child that runs code of this program is forked while it judges
/// (NoForks).
class JudgeThread {
 public:
  explicit JudgeThread(std::function<void(Attempt&)> judge) : judge_(std::move(judge)) {}
  JudgeThread(const JudgeThread&) = delete;
  JudgeThread& operator=(const JudgeThread&) = delete;
  /// Waits for the check at work; the others are not judged.
  ~JudgeThread();

  /// Returns at once. The thread starts with the first check; where there can be no thread, the caller judges.
  void add(Attempt attempt);
  /// Waits while more than `most` checks, or two or more with more than `most_bytes` of tensors in all, are not judged
  /// yet. Throws what the judge threw, every time: no further check is judged then.
  void wait(size_t most, int64_t most_bytes = std::numeric_limits<int64_t>::max());

 private:
  void serve();

  std::function<void(Attempt&)> judge_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::deque<Attempt> waiting_;  ///< the first of them is at work
  int64_t bytes_ = 0;            ///< of tensors of waiting_
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace checkop
