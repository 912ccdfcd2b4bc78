// SPDX-License-Identifier: Apache-2.0
// Runs check_operator as a user does, for tests of the whole program.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "support/built.hpp"

namespace checkop {

struct ProcessResult {
  int code;
  std::string text;  ///< stdout and stderr
};

/// Runs the program in the source folder; a shell parses `arguments`.
inline ProcessResult run_program(const std::string& arguments) {
  // Behaves as outside GitHub's runners, wherever the tests run.
  const std::string command =
      fmt::format("cd '{}' && env -u GITHUB_ACTIONS '{}' {} 2>&1", CHECKOP_SOURCE_DIR, kProgram, arguments);
  std::FILE* pipe = popen(command.c_str(), "r");
  ProcessResult result{-1, ""};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) result.text.append(buffer, n);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

inline void expect_exit(const ProcessResult& result, int code, const std::string& part) {
  EXPECT_EQ(result.code, code) << result.text;
  EXPECT_NE(result.text.find(part), std::string::npos) << "no '" << part << "' in: " << result.text;
}

}  // namespace checkop
