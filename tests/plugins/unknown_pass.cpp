// SPDX-License-Identifier: Apache-2.0
// Defect: a pass that does not exist.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "unknown_pass", "matmul", "foward", CHECKOP_CPU, 0, 0, nullptr, multiply}};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
