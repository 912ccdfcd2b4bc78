// SPDX-License-Identifier: Apache-2.0
// Where the files that come with the program lie.
#pragma once

#include <string>

namespace checkop {

/// Folder of the running executable.
std::string executable_folder();

/// A path relative to the working directory where it lies below that, else as it is: what reports and repeat lines
/// show.
std::string short_path(const std::string& path);

/// Finds a file or folder that comes with the program, such as "contracts/default.json": beside the executable, in the
/// source tree above a build folder, in share/check_operator of an installation, at last in the working directory.
/// As short_path gives it. Throws InputError when it is nowhere.
std::string find_shipped(const std::string& relative);

}  // namespace checkop
