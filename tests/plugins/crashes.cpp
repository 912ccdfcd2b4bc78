// SPDX-License-Identifier: Apache-2.0
// Candidates that kill their process or never return. Only for worker processes.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <thread>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status segfaults(const checkop_call*) {
  raise(SIGSEGV);
  return CHECKOP_OK;
}

checkop_status aborts(const checkop_call*) { std::abort(); }

checkop_status exits(const checkop_call* call) {
  multiply(call);
  std::exit(0);
}

checkop_status sleeps(const checkop_call*) {
  std::this_thread::sleep_for(std::chrono::minutes(1));
  return CHECKOP_OK;
}

checkop_status takes_a_while(const checkop_call* call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  return multiply(call);
}

/// Its child keeps the worker's socket open and sleeps.
checkop_status leaves_child_and_dies(const checkop_call*) {
  if (fork() == 0) {
    sleep(60);
    _exit(0);
  }
  raise(SIGSEGV);
  return CHECKOP_OK;
}

/// The answer is right, but a thread crashes afterwards.
checkop_status crashes_later(const checkop_call* call) {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    raise(SIGSEGV);
  }).detach();
  return multiply(call);
}

checkop_status closes_everything(const checkop_call*) {
  for (int fd = 3; fd < 64; ++fd) close(fd);
  std::exit(3);
}

/// Right, but its process can neither answer nor complain.
checkop_status closes_descriptors(const checkop_call* call) {
  for (int fd = 0; fd < 64; ++fd) close(fd);
  return multiply(call);
}

/// Reads memory that it has given back.
checkop_status uses_freed_memory(const checkop_call* call) {
  const checkop_status status = multiply(call);
  constexpr size_t kBytes = size_t{24} << 20;  // more than a block that is free already
  volatile char* const memory = static_cast<char*>(std::malloc(kBytes));
  memory[0] = 1;
  const volatile auto address = reinterpret_cast<uintptr_t>(memory);  // hides from the compiler what is read
  std::free(const_cast<char*>(memory));
  return *reinterpret_cast<volatile char*>(address + kBytes / 2) == 1 ? CHECKOP_FAILED : status;
}

/// Right, but crashes for sums of 10, 20, ... terms.
checkop_status crashes_every_tenth(const checkop_call* call) {
  if (call->inputs[1].shape[0] % 10 == 0) raise(SIGSEGV);
  return multiply(call);
}

checkop_status prints(const checkop_call* call) {
  std::printf("hello from the plugin\n");
  return multiply(call);
}

constexpr checkop_kernel kKernels[] = {
    kernel("segfaults", segfaults),
    kernel("aborts", aborts),
    kernel("exits", exits),
    kernel("takes_a_while", takes_a_while),
    kernel("sleeps", sleeps),
    kernel("leaves_child_and_dies", leaves_child_and_dies),
    kernel("crashes_later", crashes_later),
    kernel("closes_everything", closes_everything),
    kernel("closes_descriptors", closes_descriptors),
    kernel("prints", prints),
    kernel("uses_freed_memory", uses_freed_memory),
    kernel("crashes_every_tenth", crashes_every_tenth),
    kernel("honest", multiply),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
