// SPDX-License-Identifier: Apache-2.0
// Loads plugins. Refuses anything that violates the ABI, with a message that names the file.
#include "device/plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "operator/operator.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

constexpr char kSymbol[] = "check_operator_plugin";
/// Of checkop_kernel in the first header of this ABI version.
constexpr size_t kLeastKernelBytes = offsetof(checkop_kernel, recipes);

using Key = std::tuple<std::string, std::string, std::string>;  // op, pass, candidate
Key key_of(const Candidate& candidate) { return {candidate.op, candidate.pass, candidate.name}; }

/// The kernel table that the library at `path` exports.
const checkop_plugin& open_library(const std::string& path) {
  // An absolute path, because dlopen searches the system's libraries for a name without a slash.
  void* library = dlopen(fs::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw InputError(path, fmt::format("not a loadable shared library: {}", why ? why : "no reason given"),
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
  // Read only abi_version before this test: in another version, other members may be at other offsets.
  if (plugin->abi_version != CHECKOP_ABI_VERSION) {
    throw InputError(
        path, fmt::format("built for ABI version {}, this program has {}", plugin->abi_version, CHECKOP_ABI_VERSION),
        "compile it again with this program's check_operator.h");
  }
  if (plugin->n_kernels < 1 || plugin->kernels == nullptr) {
    throw InputError(path,
                     fmt::format("the table holds no kernels (n_kernels = {}, kernels {} NULL)", plugin->n_kernels,
                                 plugin->kernels ? "not" : "is"),
                     "list at least one checkop_kernel");
  }
  return *plugin;
}

bool is_blank(const char* text) { return text == nullptr || *text == '\0'; }

void require_known_pass(const std::string& where, const checkop_kernel& kernel) {
  if (is_blank(kernel.op)) throw InputError(where, "no operator", "set checkop_kernel.op");
  if (is_blank(kernel.pass))
    throw InputError(where, "no pass", "set checkop_kernel.pass to \"forward\" or \"backward\"");
  const Operator* op = find_operator(kernel.op);
  if (op == nullptr) {
    std::vector<std::string> known;
    for (const Operator* each : operators()) known.emplace_back(each->name);
    const std::string guess = did_you_mean(kernel.op, known);
    throw InputError(where, fmt::format("unknown operator '{}'", kernel.op),
                     guess + (guess.empty() ? "see" : " See") + " 'check_operator list'");
  }
  if (find_pass(*op, kernel.pass) == nullptr) {
    std::vector<std::string> known;
    for (const Pass& each : op->passes) known.emplace_back(each.name);
    throw InputError(where, fmt::format("operator '{}' has no pass '{}'", op->name, kernel.pass),
                     did_you_mean(kernel.pass, known));
  }
}

/// Throws InputError unless all members that the runner uses are valid.
void require_valid(const std::string& path, int index, const checkop_kernel& kernel) {
  const std::string place = fmt::format("{}: kernels[{}]", path, index);
  if (is_blank(kernel.name)) throw InputError(place, "no name", "set checkop_kernel.name to the candidate's name");
  const std::string where = fmt::format("{} '{}'", place, kernel.name);
  if (!is_candidate_name(kernel.name)) throw InputError(where, "is no candidate name", kCandidateNameHint);
  require_known_pass(where, kernel);
  if (kernel.launch == nullptr) throw InputError(where, "launch is NULL", "set checkop_kernel.launch");
  if (kernel.device != CHECKOP_CPU && kernel.device != CHECKOP_CUDA) {
    throw InputError(where, fmt::format("unknown device {}", kernel.device), "use CHECKOP_CPU or CHECKOP_CUDA");
  }
  if (kernel.min_arch > 0 && kernel.max_arch > 0 && kernel.min_arch > kernel.max_arch) {
    throw InputError(where, fmt::format("min_arch {} is above max_arch {}", kernel.min_arch, kernel.max_arch),
                     "swap them");
  }
}

/// The recipes that a valid `kernel` declares; none where the plugin's header had no such member.
std::vector<std::string> declared_recipes(const std::string& where, const checkop_kernel& kernel) {
  if (kernel.struct_size < kLeastKernelBytes + sizeof kernel.recipes || kernel.recipes == nullptr) return {};
  std::vector<std::string> names;
  for (const std::string_view name : split_dims(kernel.recipes)) names.emplace_back(name);
  require_recipes(where, *find_operator(kernel.op), names);
  return names;
}

/// Plugins that are linked into this program, by path.
std::map<std::string, const checkop_plugin*>& linked_plugins() {
  static std::map<std::string, const checkop_plugin*> plugins;
  return plugins;
}

const checkop_plugin& table_of(const std::string& path) {
  const auto linked = linked_plugins().find(path);
  return linked == linked_plugins().end() ? open_library(path) : *linked->second;
}

}  // namespace

void require_recipes(const std::string& where, const Operator& op, const std::vector<std::string>& names) {
  const std::vector<std::string_view> known = recipes_of(op);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = did_you_mean(name, {known.begin(), known.end()});
    throw InputError(where, fmt::format("operator '{}' has no recipe '{}'", op.name, name),
                     nearest.empty() ? fmt::format("see 'check_operator show {}'", op.name) : nearest);
  }
}

bool is_candidate_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string_view::npos && name != "all" &&
         name != "none" && name.front() != '-' && name.front() != '.';
}

LinkedPlugin::LinkedPlugin(const std::string& path, const checkop_plugin& plugin) : path_(path) {
  linked_plugins()[path] = &plugin;
}

LinkedPlugin::~LinkedPlugin() { linked_plugins().erase(path_); }

std::vector<Candidate> load_plugin(const std::string& path) {
  if (!fs::exists(path)) throw InputError(path, "no such file", "give the path of a plugin's shared library");
  const checkop_plugin& plugin = table_of(path);
  const std::string digest = file_digest(path);

  // A plugin built with a later header has larger entries, so its struct_size is the distance between entries.
  const uint32_t stride = plugin.kernels[0].struct_size;
  if (stride < kLeastKernelBytes) {
    throw InputError(path + ": kernels[0]",
                     fmt::format("struct_size is {}, expected at least {}", stride, kLeastKernelBytes),
                     "set it to sizeof(checkop_kernel)");
  }
  std::vector<Candidate> candidates;
  std::map<Key, int> seen;
  for (int i = 0; i < plugin.n_kernels; ++i) {
    const auto* kernel = reinterpret_cast<const checkop_kernel*>(reinterpret_cast<const std::byte*>(plugin.kernels) +
                                                                 static_cast<size_t>(i) * stride);
    if (kernel->struct_size != stride) {
      throw InputError(fmt::format("{}: kernels[{}]", path, i),
                       fmt::format("struct_size is {}, but {} in kernels[0]", kernel->struct_size, stride),
                       "set it to sizeof(checkop_kernel) in every entry");
    }
    require_valid(path, i, *kernel);
    Candidate candidate{kernel->name, kernel->op, kernel->pass, path, digest, kernel};
    candidate.recipes = declared_recipes(fmt::format("{}: kernels[{}] '{}'", path, i, kernel->name), *kernel);
    if (const auto [first, added] = seen.emplace(key_of(candidate), i); !added) {
      throw InputError(path,
                       fmt::format("kernels[{}] and kernels[{}] are both {}/{} '{}'", first->second, i, candidate.op,
                                   candidate.pass, candidate.name),
                       "give each its own name");
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

std::vector<Candidate> load_plugins(const std::vector<std::string>& paths) {
  std::vector<Candidate> all;
  std::map<Key, std::string> seen;
  for (const std::string& path : paths) {
    for (Candidate& candidate : load_plugin(path)) {
      if (const auto [first, added] = seen.emplace(key_of(candidate), path); !added) {
        throw InputError(path,
                         fmt::format("brings {}/{} '{}', which {} brings too", candidate.op, candidate.pass,
                                     candidate.name, first->second),
                         "rename one or load only one");
      }
      all.push_back(std::move(candidate));
    }
  }
  return all;
}

std::vector<std::string> shipped_plugins(const std::vector<std::string>& ops) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const fs::directory_entry& op : fs::directory_iterator(shipped_kernels(), error)) {
    const bool wanted = ops.empty() || std::find(ops.begin(), ops.end(), op.path().filename().string()) != ops.end();
    if (!wanted || !op.is_directory()) continue;
    for (const fs::directory_entry& file : fs::directory_iterator(op.path(), error)) {
      if (file.path().extension() == ".so") paths.push_back(short_path(file.path().string()));
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path, "cannot be read", "check the path and its permissions");
  std::array<char, 65536> block;
  uint64_t state = fnv1a("");
  while (file.read(block.data(), block.size()), file.gcount() > 0) {
    state = fnv1a({block.data(), static_cast<size_t>(file.gcount())}, state);
  }
  return fmt::format("{:016x}", state);
}

std::string why_unsupported(const checkop_kernel& kernel, const DeviceInfo& device) {
  if (kernel.device == CHECKOP_CPU && device.kind != "cpu") {
    return fmt::format("runs on the CPU, not on '{}'; use --device cpu", device.kind);
  }
  if (kernel.device == CHECKOP_CUDA && device.kind != "cuda") {
    return fmt::format("runs on a CUDA device, not on '{}'; use --device cuda", device.kind);
  }
  if (kernel.device != CHECKOP_CUDA) return "";
  if (kernel.min_arch > 0 && device.arch < kernel.min_arch) {
    return fmt::format("needs sm_{}, device is sm_{}", kernel.min_arch, device.arch);
  }
  if (kernel.max_arch > 0 && device.arch > kernel.max_arch) {
    return fmt::format("runs up to sm_{}, device is sm_{}", kernel.max_arch, device.arch);
  }
  return "";
}

}  // namespace checkop
