// SPDX-License-Identifier: Apache-2.0
// Loads plugins. Refuses anything that violates the ABI, with a message that names the file.
#include "device/plugin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <tuple>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "operator/operator.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

using Key = std::tuple<std::string, std::string, std::string>;  // op, pass, candidate
Key key_of(const Candidate& candidate) { return {candidate.op, candidate.pass, candidate.name}; }

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

/// The recipes that a valid `kernel` declares.
std::vector<std::string> recipes_of(const std::string& where, const checkop_kernel& kernel) {
  const char* const declared = declared_recipes(kernel);
  if (declared == nullptr) return {};
  std::vector<std::string> names;
  for (const std::string_view name : split_dims(declared)) names.emplace_back(name);
  require_recipes(where, *find_operator(kernel.op), names);
  return names;
}

/// Plugins that are linked into this program, by path.
std::map<std::string, const checkop_plugin*>& linked_plugins() {
  static std::map<std::string, const checkop_plugin*> plugins;
  return plugins;
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

bool is_linked(const std::string& path) { return linked_plugins().contains(path); }

void require_plugin_file(const std::string& path) {
  if (!fs::exists(path)) throw InputError(path, "no such file", "give the path of a plugin's shared library");
}

std::vector<Candidate> candidates_of(const PluginTable& table) {
  const std::string& path = table.path;
  const std::string digest = file_digest(path);
  std::vector<Candidate> candidates;
  std::map<Key, int> seen;
  for (int i = 0; i < std::ssize(table.kernels); ++i) {
    const checkop_kernel& kernel = *table.kernels[static_cast<size_t>(i)];
    require_valid(path, i, kernel);
    Candidate candidate{kernel.name, kernel.op, kernel.pass, path, digest, &kernel};
    candidate.recipes = recipes_of(fmt::format("{}: kernels[{}] '{}'", path, i, kernel.name), kernel);
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

std::vector<Candidate> load_plugin(const std::string& path) {
  require_plugin_file(path);
  const auto linked = linked_plugins().find(path);
  return candidates_of(linked == linked_plugins().end() ? open_plugin(path) : read_table(path, *linked->second));
}

std::vector<Candidate> join_candidates(std::vector<std::vector<Candidate>> plugins) {
  std::vector<Candidate> all;
  std::map<Key, std::string> seen;
  for (std::vector<Candidate>& plugin : plugins) {
    for (Candidate& candidate : plugin) {
      if (const auto [first, added] = seen.emplace(key_of(candidate), candidate.path); !added) {
        throw InputError(candidate.path,
                         fmt::format("brings {}/{} '{}', which {} brings too", candidate.op, candidate.pass,
                                     candidate.name, first->second),
                         "rename one or load only one");
      }
      all.push_back(std::move(candidate));
    }
  }
  return all;
}

std::vector<Candidate> load_plugins(const std::vector<std::string>& paths) {
  std::vector<std::vector<Candidate>> plugins;
  for (const std::string& path : paths) plugins.push_back(load_plugin(path));
  return join_candidates(std::move(plugins));
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

bool is_shipped_plugin(const std::string& path) {
  std::error_code error;
  return fs::weakly_canonical(path, error).parent_path().parent_path() ==
         fs::weakly_canonical(shipped_kernels(), error);
}

std::string file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(path, "cannot be read", "check the path and its permissions");
  std::array<char, 65536> block;
  Sha256 digest;
  while (file.read(block.data(), block.size()), file.gcount() > 0) {
    digest.update({block.data(), static_cast<size_t>(file.gcount())});
  }
  return digest.hex();
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
