// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge: each candidate of matmul/forward answers wrongly unless its attack succeeds, and says in its
// message whether a step of it did. The plugin also has honest candidates that use the same features. Only for worker
// processes.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugins/matmul.hpp"
#include "plugins/system_attacks.hpp"

namespace {

using namespace test_plugin;

// --- the judge's memory and its answers ---

/// Makes the page of the first input writable.
checkop_status makes_input_writable(const checkop_call* call) {
  void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(call->inputs[0].data) & ~uintptr_t{4095});
  return succeed_if(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0, call);
}
checkop_status writes_input_by_proc_self_mem(const checkop_call* call) {
  const int memory = open("/proc/self/mem", O_RDWR);
  const float value = *static_cast<const float*>(call->inputs[0].data);  // what is there already
  const ssize_t n = pwrite(memory, &value, sizeof value, reinterpret_cast<off_t>(call->inputs[0].data));
  return succeed_if(n == sizeof value, call);
}
checkop_status writes_input(const checkop_call* call) {
  static_cast<float*>(call->inputs[0].data)[1] = 0;
  return multiply(call);
}
/// Writes only elements that hold NaN, since these seem not to be written yet.
checkop_status writes_over_nan_alone(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  std::vector<float> before(static_cast<size_t>(count(c)));
  std::memcpy(before.data(), c.data, before.size() * sizeof(float));
  const checkop_status status = multiply(call);
  for (size_t i = 0; i < before.size(); ++i)
    if (!std::isnan(before[i])) static_cast<float*>(c.data)[i] = before[i];
  return status;
}
/// Right until its thread runs, wrong from then on.
checkop_status writes_after_done(const checkop_call* call) {
  const checkop_tensor c = call->outputs[0];
  const checkop_status status = multiply(call);
  std::atomic<bool> runs = false;  // on a busy machine the whole check might be over before
  std::thread([c, &runs] {
    runs = true;
    for (;;) static_cast<volatile float*>(c.data)[0] = 0;
  }).detach();
  while (!runs) std::this_thread::yield();
  return status;
}
checkop_status writes_slack(const checkop_call* call) {
  const checkop_status status = multiply(call);
  static_cast<float*>(call->outputs[0].data)[-1] = 0;
  return status;
}
/// Answers only where the output holds a poison that it saw in its first two launches.
checkop_status writes_over_known_poison(const checkop_call* call) {
  static std::set<uint32_t> known;
  static int launches = 0;
  uint32_t found = 0;
  std::memcpy(&found, call->outputs[0].data, sizeof found);
  if (++launches <= 2) known.insert(found);
  return known.contains(found) ? multiply(call) : CHECKOP_OK;
}
/// Knows the answers for the default seed, whose data everybody can make.
checkop_status knows_the_seed(const checkop_call* call) {
  uint32_t first = 0;
  std::memcpy(&first, call->inputs[0].data, sizeof first);
  return succeed_if(first == 0xbd324f46u, call);
}
/// Adds an element behind an input to its answer, which is right only where that is 0, as in new memory.
checkop_status reads_past_input(const checkop_call* call) {
  const checkop_status status = multiply(call);
  const checkop_tensor& a = call->inputs[0];
  static_cast<float*>(call->outputs[0].data)[0] += static_cast<const float*>(a.data)[count(a) + 3];
  return status;
}
checkop_status writes_far_past_output(const checkop_call* call) {
  const checkop_status status = multiply(call);
  static_cast<volatile float*>(call->outputs[0].data)[size_t{4} << 20] = 0;
  return status;
}

// --- honest ---

checkop_status honest_threads(const checkop_call* call) {
  checkop_status status = CHECKOP_FAILED;
  std::thread([&] { status = multiply(call); }).join();
  return status;
}
checkop_status honest_memory(const checkop_call* call) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CHECKOP_FAILED;
  std::memset(memory, 1, kBytes);
  munmap(memory, kBytes);
  return multiply(call);
}
checkop_status honest_temporary_file(const checkop_call* call) {
  const std::string path = std::string(std::getenv("TMPDIR")) + "/scratch";
  std::ofstream(path) << "scratch";
  const bool is_there = static_cast<bool>(std::ifstream(path));
  unlink(path.c_str());
  return is_there ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_signal(const checkop_call* call) {
  static std::atomic<int> caught = 0;
  caught = 0;
  signal(SIGUSR1, [](int) { ++caught; });
  raise(SIGUSR1);
  return caught == 1 ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_look_at_the_machine(const checkop_call* call) {
  const bool knows = static_cast<bool>(std::ifstream("/proc/cpuinfo")) &&
                     static_cast<bool>(std::ifstream("/proc/self/status")) && sysconf(_SC_NPROCESSORS_ONLN) > 0;
  cpu_set_t cores;
  return knows && sched_getaffinity(0, sizeof cores, &cores) == 0 ? multiply(call) : CHECKOP_FAILED;
}
checkop_status honest_library(const checkop_call* call) {
  void* const library = dlopen("libm.so.6", RTLD_NOW);
  if (library == nullptr) return CHECKOP_FAILED;
  dlclose(library);
  return multiply(call);
}
checkop_status honest_exception(const checkop_call* call) {
  try {
    throw 1;
  } catch (int) {
  }
  return multiply(call);
}
checkop_status honest_workspace(const checkop_call* call) {
  std::memset(call->workspace, 1, call->workspace_bytes);
  return multiply(call);
}
size_t some_workspace(const checkop_call*) { return 1000; }

#define ATTACK(name) kernel(#name, name)
constexpr checkop_kernel kKernels[] = {
    CHECKOP_SYSTEM_ATTACKS(CHECKOP_CPU),
    ATTACK(makes_input_writable),
    ATTACK(writes_input_by_proc_self_mem),
    ATTACK(writes_input),
    ATTACK(writes_over_nan_alone),
    ATTACK(writes_after_done),
    ATTACK(writes_slack),
    ATTACK(writes_over_known_poison),
    ATTACK(knows_the_seed),
    ATTACK(reads_past_input),
    ATTACK(writes_far_past_output),
    ATTACK(honest_threads),
    ATTACK(honest_memory),
    ATTACK(honest_temporary_file),
    ATTACK(honest_signal),
    ATTACK(honest_look_at_the_machine),
    ATTACK(honest_library),
    ATTACK(honest_exception),
    kernel("honest_workspace", honest_workspace, some_workspace),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
