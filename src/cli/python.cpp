// SPDX-License-Identifier: Apache-2.0
// Finds the Python package and an interpreter, and writes commands for them.
#include "cli/python.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

/// The interpreter whose wheel started the program, else python3 of PATH.
std::string interpreter() {
  const std::string named = environment_variable("CHECK_OPERATOR_PYTHON");
  if (named.find('/') != std::string::npos && access(named.c_str(), X_OK) != 0)
    throw EnvironmentError(
        fmt::format("CHECK_OPERATOR_PYTHON: '{}' can't be run: {}; name a Python, or unset the variable", named,
                    std::strerror(errno)));
  return named.empty() ? "python3" : named;
}

/// The folder of the package: around the program in a wheel, in the documents of an installation, in the source tree.
fs::path package() {
  const fs::path here = program_folder();
  for (const fs::path& folder : {here / "../..", here / "../share/doc/check_operator/python/check_operator",
                                 here / "../../python/check_operator", fs::path("python/check_operator")}) {
    std::error_code error;
    if (fs::exists(folder / "serving.py", error)) return fs::absolute(folder, error).lexically_normal();
  }
  // lint: allow message, it takes an incomplete installation
  throw InputError("python/check_operator", "is not beside the program",
                   "install check_operator again, with pip or CMake");
}

/// A candidate's name, of letters, digits, '_' and '-': the function's, the module's, or that of an operator of torch.
std::string name_of(std::string text) {
  if (const size_t colons = text.find("::"); colons != std::string::npos)
    text.resize(std::min(text.size(), text.find('.', colons)));
  if (text.ends_with(".py")) text.resize(text.size() - 3);
  text = text.substr(text.find_last_of(".:/") + 1);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '_' && c != '-'; }, '-');
  return text;
}

}  // namespace

void serve_python_candidates(RunOptions& run) {
  if (run.has("--import") && run.torch_operators.empty())
    throw InputError("--import", "has no effect without --torch-op", "add it, or leave the module out");
  if (run.python_modules.empty() && run.torch_operators.empty()) return;
  if (!run.torch_operators.empty() && (!run.has("--op") || run.ops.size() != 1 || run.ops.front() == "all"))
    throw InputError("--torch-op", "computes one operator, and --op does not name one",
                     "add --op, such as --op rms_norm");
  const size_t given = run.external_names.size();
  std::vector<std::string> names;
  const auto add = [&](const char* flag, const std::string& from, std::vector<std::string> command) {
    command.insert(command.begin(), {interpreter(), (package() / "serving.py").string()});
    command.insert(command.end(), {"--path", fs::current_path().string()});
    // Names belong to commands by position, and the commands of --exec come first: name those that have none yet.
    const size_t at = run.external.size();
    while (run.external_names.size() < at) {
      const size_t i = run.external_names.size();
      run.external_names.push_back(i == 0 ? "exec" : fmt::format("exec{}", i + 1));
    }
    if (given <= at) run.external_names.push_back(name_of(from));
    names.push_back(run.external_names.at(at));
    run.external_flags.resize(at);
    run.external_flags.push_back(fmt::format("{} {}", flag, from));
    run.external.push_back(quote_command(command));
  };
  for (const std::string& module : run.python_modules) add("--py", module, {"--candidates", module});
  for (const std::string& op : run.torch_operators) {
    std::vector<std::string> command{"--torch-op", op, "--op", run.ops.front()};
    for (const std::string& module : run.torch_imports) command.insert(command.end(), {"--import", module});
    add("--torch-op", op, std::move(command));
  }
  if (!run.has("--candidate")) run.candidates = names;
  if (!run.has("--op") && !run.has("--cases") && !run.has("--suite")) run.ops = {"all"};
}

void become_import(const std::vector<std::string>& arguments) {
  const std::string python = interpreter(), others = environment_variable("PYTHONPATH");
  setenv("CHECK_OPERATOR_PROGRAM", executable_path().c_str(), 1);
  setenv("PYTHONPATH", (package().parent_path().string() + (others.empty() ? "" : ":" + others)).c_str(), 1);
  std::vector<std::string> words{python, "-m", "check_operator.definitions"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(python.c_str(), argv.data());
  throw EnvironmentError(
      fmt::format("import: '{}' can't be run: {}; install Python 3.9 or later", python, std::strerror(errno)));
}

}  // namespace checkop
