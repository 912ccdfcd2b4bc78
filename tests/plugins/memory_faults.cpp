// SPDX-License-Identifier: Apache-2.0
// Candidates that write outside their outputs, or leave outputs unwritten. They work for every dtype.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status writes_behind(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  write_zeros(c);
  std::memset(element(c, count(c) + 1), 0, 3 * element_bytes(c));
  return CHECKOP_OK;
}

checkop_status writes_before(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  write_zeros(c);
  std::memset(element(c, -2), 0, element_bytes(c));
  return CHECKOP_OK;
}

checkop_status writes_behind_input(const checkop_call* call) {
  const checkop_tensor& b = call->inputs[1];
  write_zeros(call->outputs[0]);
  std::memset(element(b, count(b)), 0, element_bytes(b));
  return CHECKOP_OK;
}

checkop_status overruns_workspace(const checkop_call* call) {
  write_zeros(call->outputs[0]);
  std::memset(call->workspace, 0, call->workspace_bytes + 2);
  return CHECKOP_OK;
}

checkop_status changes_input(const checkop_call* call) {
  const checkop_tensor& a = call->inputs[0];
  write_zeros(call->outputs[0]);
  std::memset(element(a, 2), 0x11, 2 * element_bytes(a));
  return CHECKOP_OK;
}

/// Leaves elements 3 and 5 unwritten.
checkop_status leaves_unwritten(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  for (int64_t i = 0; i < count(c); ++i) {
    if (i != 3 && i != 5) std::memset(element(c, i), 0, element_bytes(c));
  }
  return CHECKOP_OK;
}

/// Overwrites the call's structs, casting const away.
checkop_status scribbles_on_call(const checkop_call* call) {
  const checkop_status status = multiply(call);
  auto* c = const_cast<checkop_tensor*>(call->outputs);
  const_cast<int64_t*>(c->shape)[0] = 1 << 20;
  const_cast<int64_t*>(c->strides)[0] = -1;
  c->data = nullptr;
  return status;
}

/// Writes past the rows only when there is a single row, like a kernel that always processes two.
checkop_status single_row_overrun(const checkop_call* call) {
  const checkop_tensor& c = call->outputs[0];
  write_zeros(c);
  if (rows(c) == 1) std::memset(element(c, count(c)), 0, static_cast<size_t>(count(c)) * element_bytes(c));
  return CHECKOP_OK;
}

constexpr checkop_kernel kKernels[] = {
    kernel("writes_behind", writes_behind),
    kernel("writes_before", writes_before),
    kernel("writes_behind_input", writes_behind_input),
    kernel("overruns_workspace", overruns_workspace, [](const checkop_call*) -> size_t { return 33; }),
    kernel("changes_input", changes_input),
    kernel("leaves_unwritten", leaves_unwritten),
    kernel("scribbles_on_call", scribbles_on_call),
    kernel("single_row_overrun", single_row_overrun),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
