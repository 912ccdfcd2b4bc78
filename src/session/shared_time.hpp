// SPDX-License-Identifier: Apache-2.0
// How --for divides its time.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"
#include "session/selection.hpp"

namespace checkop {

/// Gives each candidate an equal share of the time that those before it left.
class SharedTime {
 public:
  /// `checks` are all of the run, those of a candidate on a device side by side; the time counts from `now`.
  SharedTime(std::chrono::seconds time, const std::vector<const Check*>& checks, Clock::time_point now = Clock::now());

  /// Whether `check` may begin. The first check of a candidate always may, so that none goes unchecked.
  bool allows(const Check& check, Clock::time_point now = Clock::now());

 private:
  Clock::time_point end_, end_of_share_;
  int64_t waiting_ = 0;  ///< candidates of which no check has begun
  const Check* last_ = nullptr;
};

}  // namespace checkop
