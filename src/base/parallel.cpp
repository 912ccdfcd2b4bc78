// SPDX-License-Identifier: Apache-2.0
// Runs a loop body on several threads.
#include "base/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/interruption.hpp"

namespace checkop {
namespace {

/// Threads that wait for loops: one takes as long to begin and to end as the loops of a small check. One loop at a time
/// has them.
class ThreadPool {
 public:
  static ThreadPool& instance() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current_ = new ThreadPool; }); });
    return *current_;
  }

  /// Has up to `count` threads call `work`, which must not throw, until finish(). Returns false if another loop has the
  /// threads.
  bool begin(size_t count, const std::function<void()>& work) {
    if (is_taken_.exchange(true, std::memory_order_acquire)) return false;
    try {
      for (; threads_ < count; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {  // the system has no more threads, or no memory for one: go on with fewer
    }
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      wanted_ = std::min(count, threads_);
    }
    wake_.notify_all();
    return true;
  }

  /// Waits for the threads that have begun to work.
  void finish() {
    {
      std::unique_lock lock(mutex_);
      wanted_ = 0;
      idle_.wait(lock, [&] { return at_work_ == 0; });
    }
    is_taken_.store(false, std::memory_order_release);
  }

 private:
  [[noreturn]] void serve() {
    for (std::unique_lock lock(mutex_);;) {
      wake_.wait(lock, [&] { return wanted_ > 0; });
      --wanted_;
      ++at_work_;
      const std::function<void()>& work = *work_;
      lock.unlock();
      work();
      lock.lock();
      if (--at_work_ == 0) idle_.notify_one();
    }
  }

  /// Never destroyed: the threads use it until the process ends. A forked child has none of them, and gets a new one.
  static ThreadPool* current_;

  std::atomic<bool> is_taken_{false};
  size_t threads_ = 0;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_, idle_;
  const std::function<void()>* work_ = nullptr;
  size_t wanted_ = 0, at_work_ = 0;
};

ThreadPool* ThreadPool::current_ = new ThreadPool;

}  // namespace

void parallel_for(unsigned threads, int64_t n, const std::function<void(int64_t)>& body) {
  const auto workers = static_cast<int64_t>(std::max(1u, threads));
  if (workers == 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) {
      stop_if_interrupted();
      body(i);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const std::function<void()> work = [&] {
    try {
      for (int64_t i = next++; i < n; i = next++) {
        stop_if_interrupted();
        body(i);
      }
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
      next = n;
    }
  };
  const int64_t others = std::min(workers, n) - 1;
  if (ThreadPool& pool = ThreadPool::instance(); pool.begin(static_cast<size_t>(others), work)) {
    work();
    pool.finish();
  } else {  // a loop within a loop, or beside one
    std::vector<std::jthread> started;
    try {
      for (int64_t w = 0; w < others; ++w) started.emplace_back(work);
    } catch (const std::exception&) {  // as above
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace checkop
