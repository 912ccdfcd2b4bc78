// SPDX-License-Identifier: Apache-2.0
// Runs a loop body on several threads.
#include "base/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "base/interruption.hpp"

namespace checkop {
namespace {

/// A loop that is under way.
struct Loop {
  const std::function<void()>& work;  ///< what each of its threads calls; must not throw
  size_t wanted;                      ///< threads that may still join
  size_t at_work = 0;                 ///< threads that have joined and not left
};

/// Threads that wait for loops: one takes as long to begin and to end as the loops of a small check. Loops that are
/// under way at once share them.
class ThreadPool {
 public:
  static ThreadPool& instance() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current_ = new ThreadPool; }); });
    return *current_;
  }

  /// Lets threads join the loop until finish(), which must follow.
  void begin(Loop& loop) {
    const std::lock_guard lock(mutex_);
    try {
      for (; threads_ < loop.wanted; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {  // the system has no more threads, or no memory for one: go on with fewer
    }
    loops_.push_back(&loop);
    wake_.notify_all();
  }

  /// Waits for the threads that have joined.
  void finish(Loop& loop) {
    std::unique_lock lock(mutex_);
    loops_.remove(&loop);
    idle_.wait(lock, [&] { return loop.at_work == 0; });
  }

 private:
  [[noreturn]] void serve() {
    for (std::unique_lock lock(mutex_);;) {
      const auto may_join = [](const Loop* loop) { return loop->wanted > 0; };
      auto found = loops_.end();
      wake_.wait(lock, [&] {
        found = std::find_if(loops_.begin(), loops_.end(), may_join);
        return found != loops_.end();
      });
      Loop& loop = **found;
      --loop.wanted;
      ++loop.at_work;
      lock.unlock();
      loop.work();
      lock.lock();
      if (--loop.at_work == 0) idle_.notify_all();
    }
  }

  /// Never destroyed: the threads use it until the process ends. A forked child has none of them, and gets a new one.
  static ThreadPool* current_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_, idle_;
  size_t threads_ = 0;
  std::list<Loop*> loops_;
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
  Loop loop{work, static_cast<size_t>(std::min(workers, n) - 1)};
  ThreadPool& pool = ThreadPool::instance();
  pool.begin(loop);
  work();
  pool.finish(loop);
  if (error) std::rethrow_exception(error);
}

}  // namespace checkop
