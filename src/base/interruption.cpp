// SPDX-License-Identifier: Apache-2.0
// The signal handler only records the signal.
#include "base/interruption.hpp"

#include <signal.h>

#include <atomic>
#include <initializer_list>

namespace checkop {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "or a handler may not write to it");

void note(int signal) { noted.store(signal, std::memory_order_relaxed); }

}  // namespace

void note_interruptions(bool all) {
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = note;
    action.sa_flags = static_cast<int>(all ? SA_RESTART : SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

const char* interruption() {
  const int signal = noted.load(std::memory_order_relaxed);
  return signal == 0 ? "" : signal == SIGINT ? "SIGINT" : "SIGTERM";
}

void stop_if_interrupted() {
  if (noted.load(std::memory_order_relaxed) != 0) throw Interrupted{};
}

}  // namespace checkop
