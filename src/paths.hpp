// SPDX-License-Identifier: Apache-2.0
// Where the files that come with the program lie.
#pragma once

#include <string>

namespace checkop {

/// Folder of the running executable.
std::string executable_folder();

/// Finds a file or folder that comes with the program, such as "contracts/default.json": in the working directory, in
/// the source tree above a build folder, or in share/check_operator of an installation. Throws InputError when it is
/// nowhere.
std::string find_shipped(const std::string& relative);

}  // namespace checkop
