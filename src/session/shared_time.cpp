// SPDX-License-Identifier: Apache-2.0
// Counts a time out to candidates, in the order of their checks.
#include "session/shared_time.hpp"

namespace checkop {
namespace {

bool is_same_candidate(const Check& a, const Check& b) {
  return a.candidate.name == b.candidate.name && a.candidate.device == b.candidate.device;
}

}  // namespace

SharedTime::SharedTime(std::chrono::seconds time, const std::vector<const Check*>& checks, Clock::time_point now)
    : end_(now + time) {
  for (size_t i = 0; i < checks.size(); ++i)
    if (i == 0 || !is_same_candidate(*checks[i], *checks[i - 1])) ++waiting_;
}

bool SharedTime::allows(const Check& check, Clock::time_point now) {
  if (last_ != nullptr && is_same_candidate(check, *last_)) return now < end_of_share_;
  last_ = &check;
  end_of_share_ = now + (end_ - now) / waiting_--;
  return true;
}

}  // namespace checkop
