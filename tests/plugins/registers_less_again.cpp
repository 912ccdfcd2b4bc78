// SPDX-License-Identifier: Apache-2.0
// Defect: registers two kernels where its temporary folder is the first of a run, and one elsewhere.
#include <cstdlib>
#include <string_view>

#include "plugins/matmul.hpp"

namespace {

constexpr checkop_kernel kKernels[] = {test_plugin::kernel("stays", test_plugin::multiply),
                                       test_plugin::kernel("goes", test_plugin::multiply)};
constexpr checkop_plugin kBoth = test_plugin::plugin(kKernels);
constexpr checkop_kernel kLess[] = {test_plugin::kernel("stays", test_plugin::multiply)};
constexpr checkop_plugin kOne = test_plugin::plugin(kLess);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && std::string_view(folder).ends_with("/0") ? &kBoth : &kOne;
}
