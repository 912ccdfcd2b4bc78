// SPDX-License-Identifier: Apache-2.0
// Where the files that come with the program lie.
#pragma once

#include <string>

namespace checkop {

/// The value of an environment variable; "" when it is not set.
std::string environment_variable(const char* name);

/// The name of this machine.
std::string host_name();

/// The running executable.
std::string executable_path();

/// The folder from which what comes with the program is found: that of the running executable, unless set.
std::string program_folder();
/// For a library in another program: where check_operator itself would lie.
void set_program_folder(const std::string& folder);

/// A path relative to the working directory where it lies below that, else as it is: what reports and repeat lines
/// show.
std::string short_path(const std::string& path);

/// Finds a file or folder that comes with the program, such as "contracts/default.json": in share/check_operator of the
/// installation that the program is part of, beside the program, in the source tree above a build folder, at last in
/// the working directory. As short_path gives it. Throws InputError when it is nowhere.
std::string find_shipped(const std::string& relative);

/// Where the program is installed; "" when it runs from a build folder.
std::string installed_prefix();

/// The folder with a folder of plugins for each operator: of the installation, or beside the program.
std::string shipped_kernels();

}  // namespace checkop
