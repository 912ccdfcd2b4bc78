// SPDX-License-Identifier: Apache-2.0
// Candidates that fail without killing their process.
#include <stdexcept>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status throws_exception(const checkop_call*) { throw std::runtime_error("no such tile"); }
checkop_status throws_number(const checkop_call*) { throw 7; }

checkop_status fails(const checkop_call* call) {
  say(call, "id 9 is out of range");
  return CHECKOP_FAILED;
}

checkop_status unknown_status(const checkop_call*) { return static_cast<checkop_status>(3); }

checkop_status endless_message(const checkop_call* call) {
  std::memset(call->message, 'x', call->message_bytes);
  return CHECKOP_FAILED;
}

checkop_status message_is_no_utf8(const checkop_call* call) {
  say(call, "bad \xff byte");
  return CHECKOP_FAILED;
}

checkop_status fails_second_time(const checkop_call* call) {
  static int runs = 0;
  return ++runs % 2 == 1 ? multiply(call) : CHECKOP_FAILED;
}

size_t throwing_workspace(const checkop_call*) { throw std::runtime_error("no size"); }
size_t absurd_workspace(const checkop_call*) { return ~size_t{0} - 5; }

constexpr checkop_kernel kKernels[] = {
    kernel("throws_exception", throws_exception),
    kernel("throws_number", throws_number),
    kernel("fails", fails),
    kernel("unknown_status", unknown_status),
    kernel("endless_message", endless_message),
    kernel("message_is_no_utf8", message_is_no_utf8),
    kernel("fails_second_time", fails_second_time),
    kernel("throwing_workspace", multiply, throwing_workspace),
    kernel("absurd_workspace", multiply, absurd_workspace),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
