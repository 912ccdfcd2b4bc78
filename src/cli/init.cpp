// SPDX-License-Identifier: Apache-2.0
// check_operator init: makes a plugin project for rms_norm from the templates in sdk/init/.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "device/device.hpp"
#include "session/saved_case.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperator = "rms_norm";  // that the templates are for

/// Placeholder -> value: "@NAME@" -> "my_op".
using Values = std::map<std::string, std::string>;

std::string filled(const std::string& file, const Values& values) {
  const std::string path = find_shipped("sdk/init/" + file);
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  // lint: allow message, it takes an incomplete installation
  if (!in) throw InputError(path, "cannot be read", "install check_operator again");
  std::string result = text.str();
  for (const auto& [placeholder, value] : values) {
    for (size_t at = 0; (at = result.find(placeholder, at)) != std::string::npos; at += value.size())
      result.replace(at, placeholder.size(), value);
  }
  return result;
}

/// Throws InputError unless `name` can be a file, a CMake target and a new candidate.
void require_name(const std::string& name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", kMore = "0123456789_-";
  const bool is_word = !name.empty() && kLetters.find(name.front()) != std::string_view::npos &&
                       name.find_first_not_of(std::string(kLetters) + std::string(kMore)) == std::string::npos;
  if (!is_word) {
    throw InputError("init", fmt::format("'{}' is no name for a candidate", name),
                     "use letters, digits, _ and -, beginning with a letter");
  }
  for (const std::string_view taken : {"all", "none", "test", "install", "package", "clean", "help"}) {
    if (name == taken) throw InputError("init", fmt::format("'{}' is reserved by CMake", name), "choose another name");
  }
  for (const Candidate& candidate : probe_candidates({std::string(kOperator)}, {}).candidates) {
    if (candidate.op == kOperator && candidate.name == name)
      throw InputError("init", fmt::format("{} has a candidate '{}' already", kOperator, name), "choose another name");
  }
}

void require_empty(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (fs::exists(status) && !fs::is_directory(status))
    throw InputError(folder, "is no folder", "name one that is empty or not there yet");
  if (fs::exists(status) && !fs::is_empty(folder, error)) {
    throw InputError(folder, error ? "cannot be read" : "exists and is not empty",
                     "name a folder that is empty or not there yet");
  }
}

}  // namespace

int init_command(const Options& options) {
  const InitOptions& init = options.init;
  require_name(init.name);
  require_empty(init.folder);

  const bool cuda = init.device.empty() ? built_with_cuda() : init.device == "cuda";
  const std::string suffix = cuda ? "cu" : "cpp", prefix = installed_prefix();
  const std::string configure = fmt::format("cmake -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH={}",
                                            quote_command({prefix.empty() ? "PREFIX" : prefix}));
  const Values values{{"@NAME@", init.name},
                      {"@SUFFIX@", suffix},
                      {"@LANGUAGES@", cuda ? "CXX CUDA" : "CXX"},
                      {"@DEVICE@", cuda ? "cuda" : "cpu"},
                      {"@CONFIGURE@", configure}};
  const std::map<std::string, std::string> files{{"CMakeLists.txt", "CMakeLists.txt.in"},
                                                 {"README.md", "README.md.in"},
                                                 {"cases.json", "cases.json"},
                                                 {init.name + "." + suffix, "rms_norm." + suffix}};
  std::map<std::string, std::string> texts;  // all templates are read before the first file is written
  for (const auto& [file, from] : files) texts[file] = filled(from, values);
  make_folder(init.folder);
  for (const auto& [file, text] : texts) write_file((fs::path(init.folder) / file).string(), text);

  fmt::print("{}: a {} candidate '{}' for {}. To build and check it:\n\n", init.folder, cuda ? "CUDA" : "CPU",
             init.name, kOperator);
  fmt::print("  cd {}\n  {}\n  cmake --build build\n  ctest --test-dir build --no-tests=error --output-on-failure\n",
             quote_command({init.folder}), configure);
  if (prefix.empty())
    fmt::print(
        "\nPREFIX is where check_operator is installed: this one runs from its build folder, so first\n"
        "  cmake --install {} --prefix PREFIX\n",
        quote_command({program_folder()}));
  return 0;
}

}  // namespace checkop
