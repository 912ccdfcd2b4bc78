// SPDX-License-Identifier: Apache-2.0
// A queue and a thread that serves it.
#include "session/judge_thread.hpp"

#include <system_error>
#include <utility>

#include "base/child_process.hpp"

namespace checkop {

JudgeThread::~JudgeThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void JudgeThread::add(Attempt attempt) {
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {  // there can be no further thread
      return judge_(attempt);
    }
  }
  const std::lock_guard lock(mutex_);
  bytes_ += tensor_bytes(attempt.record.c);
  waiting_.push_back(std::move(attempt));
  changed_.notify_all();
}

void JudgeThread::wait(size_t most, int64_t most_bytes) {
  std::unique_lock lock(mutex_);
  const auto are_few = [&] { return waiting_.size() <= most && (waiting_.size() <= 1 || bytes_ <= most_bytes); };
  changed_.wait(lock, [&] { return error_ || are_few(); });
  if (!error_) return;
  waiting_.clear();
  bytes_ = 0;
  std::rethrow_exception(error_);
}

void JudgeThread::serve() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return ends_ || (!waiting_.empty() && !error_); });
    if (ends_) return;
    Attempt& attempt = waiting_.front();
    lock.unlock();
    const int64_t bytes = tensor_bytes(attempt.record.c);  // judge_ may move the record away
    std::exception_ptr error;
    try {
      const NoForks none;
      judge_(attempt);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    bytes_ -= bytes;
    error_ = error;
    waiting_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace checkop
