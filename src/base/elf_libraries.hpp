// SPDX-License-Identifier: Apache-2.0
// The libraries that a shared library loads.
#pragma once

#include <string>
#include <vector>

namespace checkop {

/// The shared library at `path` and all that the loader may read for it outside the system's folders: the library files
/// of its own folder, of those that it or a library of these names for the search (RPATH, RUNPATH), and of
/// LD_LIBRARY_PATH. Just `path` where the file is no shared library of this machine.
std::vector<std::string> libraries_of(const std::string& path);

}  // namespace checkop
