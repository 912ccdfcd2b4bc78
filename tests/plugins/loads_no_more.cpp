// SPDX-License-Identifier: Apache-2.0
// Defect: once CHECKOP_LOADS_NO_MORE is set, its constructor ends the process.
#include <cstdlib>

#include "plugins/matmul.hpp"

namespace {

const bool kEnds = [] {
  if (std::getenv("CHECKOP_LOADS_NO_MORE") != nullptr) std::_Exit(3);
  return false;
}();
constexpr checkop_kernel kKernels[] = {test_plugin::kernel("loads_no_more", test_plugin::multiply)};
constexpr checkop_plugin kPlugin = test_plugin::plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return kEnds ? nullptr : &kPlugin; }
