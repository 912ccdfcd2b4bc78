// SPDX-License-Identifier: Apache-2.0
// Candidates whose bits depend on something they must not: the run, the batch, the workspace's previous contents.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

checkop_status differs_each_run(const checkop_call* call) {
  static int runs = 0;
  const checkop_status status = multiply(call);
  static_cast<float*>(call->outputs[0].data)[4] += static_cast<float>(++runs);
  return status;
}

checkop_status depends_on_batch(const checkop_call* call) {
  const checkop_status status = multiply(call);
  const checkop_tensor& c = call->outputs[0];
  static_cast<float*>(c.data)[count(c) - 1] += static_cast<float>(rows(c));
  return status;
}

checkop_status reads_workspace(const checkop_call* call) {
  const checkop_status status = multiply(call);
  static_cast<float*>(call->outputs[0].data)[0] = *static_cast<const unsigned char*>(call->workspace);
  return status;
}

constexpr checkop_kernel kKernels[] = {
    kernel("differs_each_run", differs_each_run),
    kernel("depends_on_batch", depends_on_batch),
    kernel("reads_workspace", reads_workspace, [](const checkop_call*) -> size_t { return 1; }),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
