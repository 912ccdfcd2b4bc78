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

/// Finds a file or folder that comes with the program, such as "contracts/default.json": in share/check_operator of the
/// installation that the executable is part of, beside the executable, in the source tree above a build folder, at last
/// in the working directory.
/// As short_path gives it. Throws InputError when it is nowhere.
std::string find_shipped(const std::string& relative);

/// Where the running executable is installed; "" when it runs from a build folder.
std::string installed_prefix();

/// The folder with a folder of plugins for each operator: of the installation, or beside the executable.
std::string shipped_kernels();

}  // namespace checkop
