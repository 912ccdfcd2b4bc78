// SPDX-License-Identifier: Apache-2.0
// Shared library -> candidates. ABI version, names and signatures are checked before anything is called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "abi/check_operator.h"
#include "device/device.hpp"

namespace checkop {

struct Candidate {
  std::string name, op, pass;
  std::string path;    ///< of the shared library
  std::string digest;  ///< of the file's bytes: FNV-1a 64, 16 hex digits
  const checkop_kernel* kernel = nullptr;
};

/// While it lives, load_plugin(path) gives `plugin`, whose code is part of this program, and no library is loaded.
class LinkedPlugin {
 public:
  LinkedPlugin(const std::string& path, const checkop_plugin& plugin);
  ~LinkedPlugin();
  LinkedPlugin(const LinkedPlugin&) = delete;
  LinkedPlugin& operator=(const LinkedPlugin&) = delete;

 private:
  std::string path_;
};

/// Loads a plugin and keeps it loaded. Throws InputError: not a shared library, no symbol check_operator_plugin,
/// another ABI version, a kernel without name or launch, an operator or pass that is unknown, the same kernel twice.
std::vector<Candidate> load_plugin(const std::string& path);

/// Loads every path; throws InputError when two plugins bring the same candidate for the same operator and pass.
std::vector<Candidate> load_plugins(const std::vector<std::string>& paths);

/// <op>/*.so below shipped_kernels() for the given operators (all when empty), sorted.
std::vector<std::string> shipped_plugins(const std::vector<std::string>& ops);

/// Whether `name` can be a candidate's: it stands in flags, globs and file names.
bool is_candidate_name(std::string_view name);
/// What such a name is made of, for hints.
inline constexpr char kCandidateNameHint[] = "use letters, digits and . _ + -, beginning with a letter or digit";

std::string file_digest(const std::string& path);

/// Why `kernel` can't run on `device`; empty when it can.
std::string why_unsupported(const checkop_kernel& kernel, const DeviceInfo& device);

}  // namespace checkop
