// SPDX-License-Identifier: Apache-2.0
// dlopen(), and distances between table entries.
#include "device/plugin_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <filesystem>

#include "base/error.hpp"

namespace checkop {
namespace {

constexpr char kSymbol[] = "check_operator_plugin";
/// Size of checkop_kernel in the first header of this ABI version.
constexpr size_t kLeastKernelBytes = offsetof(checkop_kernel, recipes);

}  // namespace

PluginTable open_plugin(const std::string& path) {
  // An absolute path, because dlopen searches the system's libraries for a name without a slash.
  void* library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw InputError(path, fmt::format("not a loadable shared library: {}", dlerror()),
                     "build it with '-shared -fPIC' and see that its own libraries are found");
  }
  auto* entry = reinterpret_cast<decltype(&check_operator_plugin)>(dlsym(library, kSymbol));
  if (entry == nullptr) {
    throw InputError(path, fmt::format("no symbol '{}'", kSymbol), "declare it with CHECKOP_EXPORT");
  }
  const checkop_plugin* plugin = nullptr;
  try {
    plugin = entry();
  } catch (const std::exception& e) {
    throw InputError(path, fmt::format("{}() threw: {}", kSymbol, e.what()), "return the table without doing work");
  }
  if (plugin == nullptr) throw InputError(path, fmt::format("{}() returned NULL", kSymbol), "return the table");
  return read_table(path, *plugin);
}

PluginTable read_table(const std::string& path, const checkop_plugin& plugin) {
  // Read only abi_version before this test: in another version, other members may be at other offsets.
  if (plugin.abi_version != CHECKOP_ABI_VERSION) {
    throw InputError(
        path, fmt::format("built for ABI version {}, this program has {}", plugin.abi_version, CHECKOP_ABI_VERSION),
        "compile it again with this program's check_operator.h");
  }
  if (plugin.n_kernels < 1 || plugin.kernels == nullptr) {
    throw InputError(path,
                     fmt::format("the table holds no kernels (n_kernels = {}, kernels {} NULL)", plugin.n_kernels,
                                 plugin.kernels ? "not" : "is"),
                     "list at least one checkop_kernel");
  }
  // A plugin built with a later header has larger entries, so its struct_size is the distance between entries.
  const uint32_t stride = plugin.kernels[0].struct_size;
  if (stride < kLeastKernelBytes) {
    throw InputError(path + ": kernels[0]",
                     fmt::format("struct_size is {}, expected at least {}", stride, kLeastKernelBytes),
                     "set it to sizeof(checkop_kernel)");
  }
  PluginTable table{path, {}};
  for (int i = 0; i < plugin.n_kernels; ++i) {
    const auto* kernel = reinterpret_cast<const checkop_kernel*>(reinterpret_cast<const std::byte*>(plugin.kernels) +
                                                                 static_cast<size_t>(i) * stride);
    if (kernel->struct_size != stride) {
      throw InputError(fmt::format("{}: kernels[{}]", path, i),
                       fmt::format("struct_size is {}, but {} in kernels[0]", kernel->struct_size, stride),
                       "set it to sizeof(checkop_kernel) in every entry");
    }
    table.kernels.push_back(kernel);
  }
  return table;
}

const char* declared_recipes(const checkop_kernel& kernel) {
  return kernel.struct_size < kLeastKernelBytes + sizeof kernel.recipes ? nullptr : kernel.recipes;
}

}  // namespace checkop
