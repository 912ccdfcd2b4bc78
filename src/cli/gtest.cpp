// SPDX-License-Identifier: Apache-2.0
// The only symbol of libcheck_operator_gtest: runs the checker inside a test binary.
#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "abi/check_operator.h"
#include "base/paths.hpp"
#include "base/version.hpp"
#include "cli/linked_checks.hpp"

/// Documented in check_operator_gtest.h. That header is not included here, because it needs GoogleTest.
CHECKOP_EXPORT int check_operator_check_linked(const checkop_kernel* kernel, const char* const* arguments,
                                               int n_arguments, const char* test,
                                               void (*say)(void* context, const char* text), void* context) {
  namespace fs = std::filesystem;
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&check_operator_check_linked), &library) != 0 && library.dli_fname != nullptr) {
    // Shipped files are found relative to the program's folder. In a build folder, that is the library's own folder.
    std::error_code error;
    const fs::path here = fs::canonical(library.dli_fname, error).parent_path(),
                   program = here / checkop::kProgramFromLibrary;
    checkop::set_program_folder((fs::exists(program / "check_operator", error) ? program : here).string());
  }
  const checkop::LinkedOutcome outcome =
      checkop::check_linked(*kernel, {arguments, arguments + n_arguments}, test == nullptr ? "" : test);
  if (!outcome.text.empty()) say(context, outcome.text.c_str());
  return outcome.code;
}
