// SPDX-License-Identifier: Apache-2.0
// Not a plugin: a library that a tool such as compute-sanitizer loads into every program that it follows. It replaces
// fork() and execve(), and ends programs that lack the descriptor over which it would report.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace {

[[gnu::constructor]] void ask_for_descriptor() {
  const char* const number = std::getenv("CHECKOP_TOOL_DESCRIPTOR");
  if (number == nullptr || fcntl(std::atoi(number), F_GETFD) < 0) _exit(255);
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] pid_t fork() {
  ask_for_descriptor();
  return reinterpret_cast<pid_t (*)()>(dlsym(RTLD_NEXT, "fork"))();
}

[[gnu::visibility("default")]] int execve(const char* path, char* const* arguments, char* const* environment) {
  ask_for_descriptor();
  return reinterpret_cast<int (*)(const char*, char* const*, char* const*)>(dlsym(RTLD_NEXT, "execve"))(path, arguments,
                                                                                                        environment);
}
}
