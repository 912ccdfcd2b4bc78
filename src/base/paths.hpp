// SPDX-License-Identifier: Apache-2.0
// Finds the files that ship with the program.
#pragma once

#include <string>

namespace checkop {

/// The value of an environment variable; "" when it is not set.
std::string environment_variable(const char* name);

/// The name of this machine.
std::string host_name();

/// The running executable.
std::string executable_path();

/// The base folder for shipped files: the folder of the running executable, unless set_program_folder() was called.
std::string program_folder();
/// For a library inside another program: sets the folder where check_operator itself would lie.
void set_program_folder(const std::string& folder);

/// The path relative to the working directory if it lies below it, else unchanged. Reports and repeat lines show it.
std::string short_path(const std::string& path);

/// Finds a shipped file or folder, such as "contracts/default.json". Searches, in this order: share/check_operator of
/// the program's installation, the program's folder, the source tree above a build folder, the working directory.
/// Returns a short_path(). Throws InputError when it is not found.
std::string find_shipped(const std::string& relative);

/// The installation prefix; "" when the program runs from a build folder.
std::string installed_prefix();

/// The folder that holds one folder of plugins per operator: in the installation, or beside the program.
std::string shipped_kernels();

}  // namespace checkop
