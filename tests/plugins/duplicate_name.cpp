// SPDX-License-Identifier: Apache-2.0
// Defect: one name for two kernels of the same operator and pass.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_kernel kKernels[] = {kernel("twin", multiply), kernel("twin", multiply)};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
