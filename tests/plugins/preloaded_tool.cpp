// SPDX-License-Identifier: Apache-2.0
// Not a plugin: a library that a tool such as compute-sanitizer loads into every program that it follows. It ends
// programs that lack the descriptor over which it would report.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace {

[[gnu::constructor]] void ask_for_descriptor() {
  const char* const number = std::getenv("CHECKOP_TOOL_DESCRIPTOR");
  if (number == nullptr || fcntl(std::atoi(number), F_GETFD) < 0) _exit(255);
}

}  // namespace
