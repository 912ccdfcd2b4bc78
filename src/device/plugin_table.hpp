// SPDX-License-Identifier: Apache-2.0
// Opens shared libraries with kernels, and reads their tables.
#pragma once

#include <string>
#include <vector>

#include "abi/check_operator.h"

namespace checkop {

/// The kernels of a plugin, and the file that they come from.
struct PluginTable {
  std::string path;
  std::vector<const checkop_kernel*> kernels;
};

/// Loads the library at `path` and keeps it loaded. Throws InputError if the file is no shared library, has no symbol
/// check_operator_plugin, or has a table of another ABI version or of no valid size.
PluginTable open_plugin(const std::string& path);

/// The kernels of a table that is in memory already. Throws InputError as above; messages begin with `path`.
PluginTable read_table(const std::string& path, const checkop_plugin& plugin);

/// The recipes that a kernel declares, with spaces between; nullptr where the plugin's header had no such member.
const char* declared_recipes(const checkop_kernel& kernel);

}  // namespace checkop
