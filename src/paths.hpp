// SPDX-License-Identifier: Apache-2.0
// Where the files that come with the program lie.
#pragma once

#include <string>

namespace checkop {

/// Folder of the running executable.
std::string executable_folder();

/// Finds a file or folder that comes with the program, such as "contracts/default.json": beside the executable, in the
/// source tree above a build folder, in share/check_operator of an installation, at last in the working directory.
/// Relative to the working directory where it lies below that. Throws InputError when it is nowhere.
std::string find_shipped(const std::string& relative);

}  // namespace checkop
