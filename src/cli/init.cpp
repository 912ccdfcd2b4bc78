// SPDX-License-Identifier: Apache-2.0
// check_operator init: makes a plugin project from the templates in sdk/init/.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "case/sweep.hpp"
#include "cli/commands.hpp"
#include "device/device.hpp"
#include "session/saved_case.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

/// Placeholder -> value: "@NAME@" -> "my_op".
using Values = std::map<std::string, std::string>;

std::string filled(const std::string& file, const Values& values) {
  const std::string path = find_shipped("sdk/init/" + file);
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw InputError(path, "cannot be read", "install check_operator again");
  std::string result = text.str();
  for (const auto& [placeholder, value] : values) {
    for (size_t at = 0; (at = result.find(placeholder, at)) != std::string::npos; at += value.size())
      result.replace(at, placeholder.size(), value);
  }
  return result;
}

/// The operators that have a template.
std::vector<std::string> operators_with_template() {
  std::vector<std::string> names;
  for (const Operator* op : operators()) {
    std::error_code error;
    if (fs::exists(fs::path(find_shipped("sdk/init")) / fmt::format("{}.json", op->name), error))
      names.emplace_back(op->name);
  }
  return names;
}

/// Throws InputError unless `name` can be a file, a CMake target and a new candidate.
void require_name(const std::string& name, const std::string& op) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", kMore = "0123456789_-";
  const bool is_word = !name.empty() && kLetters.find(name.front()) != std::string_view::npos &&
                       name.find_first_not_of(std::string(kLetters) + std::string(kMore)) == std::string::npos;
  if (!is_word) {
    throw InputError("init", fmt::format("'{}' is no name for a candidate", name),
                     "use letters, digits, _ and -, beginning with a letter");
  }
  for (const std::string_view taken : {"all", "none", "test", "install", "package", "clean", "help"}) {
    if (name == taken) throw InputError("init", fmt::format("'{}' means something else to CMake", name), "rename it");
  }
  for (const Candidate& candidate : probe_candidates({op}, {}).candidates) {
    if (candidate.op == op && candidate.name == name)
      throw InputError("init", fmt::format("{} has a candidate '{}' already", op, name), "choose another name");
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
  const std::string op(parse_operators("--op", {init.op}).front()->name);
  const auto known = operators_with_template();
  if (std::find(known.begin(), known.end(), op) == known.end()) {
    throw InputError("--op", fmt::format("there is no template for '{}'", op),
                     fmt::format("start from one of {} and see 'check_operator show {}'", fmt::join(known, ", "), op));
  }
  require_name(init.name, op);
  require_empty(init.folder);

  const bool cuda = init.device.empty() ? built_with_cuda() : init.device == "cuda";
  const std::string suffix = cuda ? "cu" : "cpp", prefix = installed_prefix();
  const std::string configure = fmt::format("cmake -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH={}",
                                            quote_command({prefix.empty() ? "PREFIX" : prefix}));
  const Values values{{"@NAME@", init.name},
                      {"@OP@", op},
                      {"@SUFFIX@", suffix},
                      {"@LANGUAGES@", cuda ? "CXX CUDA" : "CXX"},
                      {"@DEVICE@", cuda ? "cuda" : "cpu"},
                      {"@CONFIGURE@", configure}};
  const std::map<std::string, std::string> files{{"CMakeLists.txt", "CMakeLists.txt.in"},
                                                 {"README.md", "README.md.in"},
                                                 {"cases.json", op + ".json"},
                                                 {init.name + "." + suffix, op + "." + suffix}};
  std::map<std::string, std::string> texts;  // all templates are read before the first file is written
  for (const auto& [file, from] : files) texts[file] = filled(from, values);
  make_folder(init.folder);
  for (const auto& [file, text] : texts) write_file((fs::path(init.folder) / file).string(), text);

  fmt::print("{}: a {} candidate '{}' for {}. To build and check it:\n\n", init.folder, cuda ? "CUDA" : "CPU",
             init.name, op);
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
