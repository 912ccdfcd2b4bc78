// SPDX-License-Identifier: Apache-2.0
// Loads candidates from shared libraries. Checks ABI version, names and signatures before it calls anything.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "abi/check_operator.h"
#include "device/device.hpp"
#include "device/plugin_table.hpp"
#include "operator/operator.hpp"

namespace checkop {

struct Candidate {
  std::string name, op, pass;
  std::string path;    ///< of the shared library
  std::string digest;  ///< of the file's bytes: SHA-256, 64 hex digits
  const checkop_kernel* kernel = nullptr;
  std::vector<std::string> recipes = {};  ///< that it declares; see Subject::declared
};

/// Throws InputError at `where` if `op` has no recipe of one of these names.
void require_recipes(const std::string& where, const Operator& op, const std::vector<std::string>& names);

/// While it lives, load_plugin(path) returns the kernels of `plugin`, which is linked into this program.
class LinkedPlugin {
 public:
  LinkedPlugin(const std::string& path, const checkop_plugin& plugin);
  ~LinkedPlugin();
  LinkedPlugin(const LinkedPlugin&) = delete;
  LinkedPlugin& operator=(const LinkedPlugin&) = delete;

 private:
  std::string path_;
};

/// Whether a LinkedPlugin stands for this path.
bool is_linked(const std::string& path);

/// Throws InputError if there is no file at `path`.
void require_plugin_file(const std::string& path);

/// The kernels of a table. Throws InputError if one has no name or launch function, names an unknown operator, pass or
/// recipe, or is there twice.
std::vector<Candidate> candidates_of(const PluginTable& table);

/// Loads a plugin and keeps it loaded. Throws as open_plugin() and candidates_of().
std::vector<Candidate> load_plugin(const std::string& path);

/// The candidates of several plugins. Throws InputError if two have the same candidate for the same operator and pass.
std::vector<Candidate> join_candidates(std::vector<std::vector<Candidate>> plugins);

/// load_plugin() for all paths, and join_candidates().
std::vector<Candidate> load_plugins(const std::vector<std::string>& paths);

/// <op>/*.so below shipped_kernels() for the given operators (all if `ops` is empty), sorted.
std::vector<std::string> shipped_plugins(const std::vector<std::string>& ops);

/// Whether the plugin at `path` is one of shipped_plugins().
bool is_shipped_plugin(const std::string& path);

/// Whether `name` is a valid candidate name: names are used in flags, globs and file names.
bool is_candidate_name(std::string_view name);
/// The rule for candidate names, for hints.
inline constexpr char kCandidateNameHint[] = "use letters, digits and . _ + -, beginning with a letter or digit";

std::string file_digest(const std::string& path);

/// Why `kernel` can't run on `device`; "" if it can.
std::string why_unsupported(const checkop_kernel& kernel, const DeviceInfo& device);

}  // namespace checkop
