// SPDX-License-Identifier: Apache-2.0
// Replaces functions of the plugin's own process.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace test_plugin {

/// Writes code over the begin of a function. Returns whether that was possible.
inline bool replace_code(void* function, const void* code, size_t bytes) {
  if (function == nullptr) return false;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* const begin = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(function) & ~(page - 1));
  if (mprotect(begin, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) return false;
  std::memcpy(function, code, bytes);
  __builtin___clear_cache(static_cast<char*>(function), static_cast<char*>(function) + bytes);
  return true;
}

/// Patches clock_gettime(), which all clocks of the library call, to give the same time in every call.
inline bool stop_the_clock() {
#if defined(__x86_64__)
  // xor eax, eax; mov [rsi], rax; mov [rsi + 8], rax; ret
  constexpr unsigned char kCode[] = {0x31, 0xc0, 0x48, 0x89, 0x06, 0x48, 0x89, 0x46, 0x08, 0xc3};
#elif defined(__aarch64__)
  // str xzr, [x1]; str xzr, [x1, 8]; mov w0, 0; ret
  constexpr uint32_t kCode[] = {0xf900003f, 0xf900043f, 0x52800000, 0xd65f03c0};
#else
#error "no code for this processor"
#endif
  if (!replace_code(dlsym(RTLD_DEFAULT, "clock_gettime"), kCode, sizeof kCode)) return false;
  timespec now{1, 1};
  return clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec == 0 && now.tv_nsec == 0;
}

}  // namespace test_plugin
