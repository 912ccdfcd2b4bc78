// SPDX-License-Identifier: Apache-2.0
// Runs this program under compute-sanitizer, and turns the findings into a judgment for each check.
#include "session/sanitize.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/error.hpp"
#include "base/external_process.hpp"
#include "base/interruption.hpp"
#include "report/reader.hpp"
#include "session/sanitizer_log.hpp"

namespace checkop {
namespace {

/// compute-sanitizer's exit code for findings; differs from all exit codes of this program.
constexpr int kFound = 86;

/// Output of a process, and its status for waitpid's macros.
struct Ended {
  std::string text;
  int status = 0;
};

/// Runs `command` to its end. If a signal stops this program, kills the command and all processes that it started.
Ended run_to_end(std::vector<std::string> command) {
  std::array<int, 2> ends{-1, -1};
  int error = pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno;
  pid_t pid = -1;
  if (error == 0) {
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) posix_spawn_file_actions_adddup2(&files, ends[1], stream);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    error = posix_spawn(&pid, words[0], &files, &attributes, words.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
  }
  if (error != 0) {
    if (ends[0] >= 0) close(ends[0]);
    throw EnvironmentError(fmt::format("{}: {}", command[0], std::strerror(error)));
  }
  Ended ended;
  char buffer[4096];
  for (;;) {
    if (*interruption() != '\0') kill(-pid, SIGKILL);
    pollfd more{ends[0], POLLIN, 0};
    if (poll(&more, 1, /*ms=*/200) <= 0) continue;
    const ssize_t n = read(ends[0], buffer, sizeof buffer);
    if (n <= 0) break;
    ended.text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  while (waitpid(pid, &ended.status, 0) < 0 && errno == EINTR) {
  }
  stop_if_interrupted();
  return ended;
}

/// The result of a run under a tool.
struct Inner {
  SanitizerLog log;
  std::string end;                   ///< "exited with code 1"
  bool found = false;                ///< the tool reported an error
  std::optional<ReadReport> report;  ///< of the run itself; unset if the report is incomplete or missing
  std::string last_line;             ///< of the run's output
};

Inner run_under(const std::string& sanitizer, const std::string& tool, const std::vector<std::string>& flags) {
  const TempFolder folder;
  const std::string report = folder.path() + "/report.json";
  std::vector<std::string> command{sanitizer,
                                   "--tool",
                                   tool,
                                   "--target-processes",
                                   "all",
                                   "--error-exitcode",
                                   std::to_string(kFound),
                                   std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "run"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"--no-github", "--color=never", "--json=" + report});
  Ended ended = run_to_end(std::move(command));
  Inner inner;
  inner.log = read_sanitizer_log(ended.text);
  inner.end = describe_end(ended.status);
  inner.found = inner.log.errors > 0 || (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == kFound);
  try {
    ReadReport read = read_report(JsonValue::load(report, "a report"));
    if (read.complete) inner.report = std::move(read);
  } catch (const InputError&) {  // the run ended before it wrote a report
  }
  while (ended.text.ends_with('\n')) ended.text.pop_back();
  inner.last_line = ended.text.substr(ended.text.rfind('\n') + 1);
  return inner;
}

/// Why the run proves nothing; "" if `checks` checks completed under the tool.
std::string why_unproven(const Inner& inner, const std::string& tool, size_t checks) {
  if (inner.log.summary.empty())
    return fmt::format("{} wrote no summary, so the run did not finish under it: {}; {}", tool, inner.end,
                       inner.log.first.empty() ? inner.last_line : inner.log.first);
  if (!inner.report)
    return fmt::format("the run under {} did not come to its end: {}; {}", tool, inner.end, inner.last_line);
  if (inner.report->cases.size() != checks)
    return fmt::format("{} of {} checks ran under {}", inner.report->cases.size(), checks, tool);
  return "";
}

std::string describe(const Inner& inner, const std::string& tool) {
  return fmt::format("{}: {}; {}", tool, inner.log.first.empty() ? "found something, exit code 86" : inner.log.first,
                     inner.log.summary);
}

/// A --filter flag that matches only `name`.
std::string exact_filter(const std::string& name) {
  std::string glob = "--filter=";
  for (const char c : name) {
    if (std::strchr("*?[]\\", c) != nullptr) glob += '\\';
    glob += c;
  }
  return glob;
}

/// Errors and timeouts that occurred under the tool: "under racecheck: no answer within 300 s; killed".
std::string trouble_in(const ReadReport& report, const std::string& check, const std::string& tool) {
  for (const ReadCase& c : report.cases) {
    const bool same = check == fmt::format("{}/{}/{}/{}", c.op, c.pass, c.candidate, c.name);
    if (same && (c.verdict == Verdict::error || c.verdict == Verdict::timeout))
      return fmt::format("under {}: {}", tool, c.reason);
  }
  return "";
}

}  // namespace

Sanitized::Sanitized(const RunOptions& options, const Selection& selection) {
  if (options.sanitizers.empty()) return;
  const std::string sanitizer = find_sanitizer();
  if (sanitizer.empty())
    throw EnvironmentError(
        fmt::format("--sanitize: compute-sanitizer was not found; install it with: {}", kInstallSanitizer));
  std::vector<std::string> names;
  for (const Check* check : selection.checks_here()) names.push_back(check_name(*check));
  if (names.empty()) return;
  std::vector<std::string> unfiltered = options.check_flags;
  std::erase_if(unfiltered, [](const std::string& flag) {
    return flag.starts_with("--filter=") || flag.starts_with("--shard-index=") || flag.starts_with("--total-shards=");
  });
  for (const std::string& tool : options.sanitizers) {
    const Inner all = run_under(sanitizer, tool, options.check_flags);
    runs_.push_back({tool, all.log.summary, all.log.errors, all.report ? std::ssize(all.report->cases) : 0});
    const std::string unproven = why_unproven(all, tool, names.size());
    bool told = false;
    for (const std::string& name : names) {
      if (!all.found && !unproven.empty()) note(name, Verdict::error, unproven);
      if (all.report) note(name, Verdict::error, trouble_in(*all.report, name, tool));
      if (!all.found) continue;
      const Inner one = names.size() == 1 ? all : [&] {
        std::vector<std::string> flags = unfiltered;
        flags.push_back(exact_filter(name));
        return run_under(sanitizer, tool, flags);
      }();
      if (one.found) {
        note(name, Verdict::fail, describe(one, tool));
        told = true;
      } else {
        note(name, Verdict::error, why_unproven(one, tool, 1));
      }
    }
    // If only the run of all checks shows a finding, any check may be the cause, so all fail.
    for (const std::string& name : names) {
      if (all.found && !told)
        note(name, Verdict::fail, describe(all, tool) + " only when all checks run together, not in any single check");
    }
  }
}

void Sanitized::note(const std::string& check, Verdict verdict, const std::string& reason) {
  if (reason.empty()) return;
  const auto [entry, is_new] = found_.try_emplace(check, Judgment{verdict, "sanitizer", reason});
  if (is_new) return;
  entry->second.reason += "; " + reason;
  if (verdict == Verdict::fail) entry->second.verdict = verdict;
}

void Sanitized::enter(const Check& check, Judgment& judgment) const {
  const auto found = found_.find(check_name(check));
  if (found == found_.end()) return;
  const Verdict verdict = judgment.verdict;
  if (verdict == Verdict::pass || verdict == Verdict::xfail || verdict == Verdict::xpass ||
      verdict == Verdict::vacuous) {
    judgment = found->second;
  } else {
    judgment.reason += "; " + found->second.reason;
  }
}

}  // namespace checkop
