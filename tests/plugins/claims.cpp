// SPDX-License-Identifier: Apache-2.0
// Candidates of matmul/forward that pass for kernels of a GPU (tests/support/fake_guest.cpp), and lie about their
// times. Their work takes a fixed time, however busy the machine is.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <thread>

#include "plugins/gate.hpp"
#include "plugins/matmul.hpp"
#include "plugins/patch.hpp"

namespace {

using namespace test_plugin;

/// The system's time, by a call that nothing here replaces.
double now_ms() {
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void work() {
  constexpr double kMs = 20;
  for (const double begin = now_ms(); now_ms() - begin < kMs;) {
  }
}

checkop_status honest(const checkop_call* call) {
  work();
  return multiply(call);
}

checkop_status stops_the_clock(const checkop_call* call) {
  static const bool is_stopped = stop_the_clock();
  if (!is_stopped) return CHECKOP_FAILED;
  return honest(call);
}

checkop_status claims_no_time(const checkop_call* call) {
  static const bool has_begun = [] {
    GateOfJudge* const gate = find_gate();
    if (gate != nullptr) {
      std::thread([gate] {
        for (;;) gate->claimed_ns = 0;
      }).detach();
    }
    return gate != nullptr;
  }();
  if (!has_begun) return CHECKOP_FAILED;
  return honest(call);
}

/// Works on data that it does not know yet, and remembers its answer.
checkop_status replays_by_content(const checkop_call* call) {
  static std::map<std::string, std::string> answers;
  const checkop_tensor &a = call->inputs[0], &c = call->outputs[0];
  const auto [answer, is_new] = answers.try_emplace(std::string(element(a, 0), element(a, count(a))));
  if (is_new) {
    const checkop_status status = honest(call);
    answer->second.assign(element(c, 0), element(c, count(c)));
    return status;
  }
  std::memcpy(c.data, answer->second.data(), answer->second.size());
  return CHECKOP_OK;
}

constexpr checkop_kernel on_gpu(const char* name, checkop_status (*launch)(const checkop_call*)) {
  return kernel(name, launch, nullptr, CHECKOP_CUDA);
}

constexpr checkop_kernel kKernels[] = {
    on_gpu("honest", honest),
    on_gpu("stops_the_clock", stops_the_clock),
    on_gpu("claims_no_time", claims_no_time),
    on_gpu("replays_by_content", replays_by_content),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
