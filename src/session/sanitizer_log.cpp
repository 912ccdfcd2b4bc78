// SPDX-License-Identifier: Apache-2.0
// Parses lines that begin with "=========": findings, their indented details, and summaries.
#include "session/sanitizer_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace checkop {
namespace {

constexpr std::string_view kPrefix = "========= ";

/// The number after ": " in "ERROR SUMMARY: 2 errors" or "RACECHECK SUMMARY: 1 hazard displayed (...)". 1 without a
/// number, since an unreadable summary must not count as clean.
int64_t errors_in(std::string_view summary) {
  const size_t colon = summary.find(": ");
  if (colon == std::string_view::npos) return 1;
  int64_t errors = 0;
  const char* begin = summary.data() + colon + 2;
  const char* end = summary.data() + summary.size();
  return std::from_chars(begin, end, errors).ptr == begin ? 1 : errors;
}

bool is_executable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

}  // namespace

SanitizerLog read_sanitizer_log(std::string_view text) {
  SanitizerLog log;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.starts_with(kPrefix)) continue;
    line.remove_prefix(kPrefix.size());
    while (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find(" SUMMARY: ") != std::string_view::npos && !line.starts_with(' ')) {
      log.errors += errors_in(line);
      log.summary = line;
      continue;
    }
    const bool is_detail = line.empty() || line.front() == ' ';
    const bool is_note = line == "COMPUTE-SANITIZER" || line.starts_with("Target application returned an error");
    if (log.first.empty() && !is_detail && !is_note) log.first = line;
  }
  return log;
}

std::string find_sanitizer() {
  const char* path = std::getenv("PATH");
  const char* home = std::getenv("CUDA_HOME");
  const std::string toolkit = home == nullptr ? "/usr/local/cuda" : home;
  const std::string folders =
      std::string(path == nullptr ? "" : path) + ":" + toolkit + "/bin:" + toolkit + "/compute-sanitizer";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    std::string file = folders.substr(begin, end - begin) + "/compute-sanitizer";
    if (end > begin && is_executable(file)) return file;
    begin = end + 1;
  }
  return "";
}

}  // namespace checkop
