// SPDX-License-Identifier: Apache-2.0
// Defect: a candidate that honest.cpp has too.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_kernel kKernels[] = {kernel("honest", multiply)};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
