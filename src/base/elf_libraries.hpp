// SPDX-License-Identifier: Apache-2.0
// The libraries that a shared library loads.
#pragma once

#include <string>
#include <vector>

namespace checkop {

/// The shared library at `path` and all files that the loader may read for it outside the system's folders: the library
/// files in its own folder, in the folders that it or one of these libraries names (RPATH, RUNPATH), and in
/// LD_LIBRARY_PATH. Only `path` if the file is no shared library of this machine.
std::vector<std::string> libraries_of(const std::string& path);

}  // namespace checkop
