// SPDX-License-Identifier: Apache-2.0
// Defect: a constructor that runs at load time kills the process.
#include <csignal>

#include "plugins/matmul.hpp"

namespace {

const int kCrash = std::raise(SIGSEGV);
constexpr checkop_kernel kKernels[] = {test_plugin::kernel("crashes_at_load", test_plugin::multiply)};
constexpr checkop_plugin kPlugin = test_plugin::plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return kCrash == 0 ? &kPlugin : nullptr; }
