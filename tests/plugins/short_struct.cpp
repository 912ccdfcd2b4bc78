// SPDX-License-Identifier: Apache-2.0
// Defect: a struct_size smaller than the ABI's.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_kernel kKernels[] = {{8, "short_struct", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, multiply}};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
