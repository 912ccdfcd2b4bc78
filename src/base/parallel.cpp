// SPDX-License-Identifier: Apache-2.0
// Runs a loop body on several threads.
#include "base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/interruption.hpp"

namespace checkop {

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
  const auto work = [&] {
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
  {
    std::vector<std::jthread> others;
    try {
      for (int64_t w = 1; w < std::min(workers, n); ++w) others.emplace_back(work);
    } catch (const std::system_error&) {  // the system has no more threads: go on with fewer
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace checkop
