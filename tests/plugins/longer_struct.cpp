// SPDX-License-Identifier: Apache-2.0
// Not a defect: built with a later header whose entries are longer.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

struct LaterKernel {
  checkop_kernel kernel;
  const char* added;
};
constexpr checkop_kernel later(const char* name) {
  return {sizeof(LaterKernel), name, "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, multiply};
}
constexpr LaterKernel kKernels[] = {{later("first"), "x"}, {later("second"), "y"}};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, 2, &kKernels[0].kernel};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
