// SPDX-License-Identifier: Apache-2.0
// Defect: compiled for ABI version 99.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_kernel kKernels[] = {kernel("other_abi", multiply)};
constexpr checkop_plugin kPlugin{99, 1, kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
