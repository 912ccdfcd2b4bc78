// SPDX-License-Identifier: Apache-2.0
// Defect: a table without kernels.
#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, 1, nullptr};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
