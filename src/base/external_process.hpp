// SPDX-License-Identifier: Apache-2.0
// A process that is spoken to in lines: its standard input and output are pipes, its standard error a file.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "base/child_process.hpp"

namespace checkop {

/// The process is of no use any more; what() says why.
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A private folder that goes with the object.
class TempFolder {
 public:
  TempFolder();  ///< in TMPDIR or /tmp. Throws EnvironmentError when it can't be made.
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Writes to the standard error, which may be closed or full: then the words are lost.
void print_last_words(const std::string& text);

/// The last lines of a process's standard error as a clause for the end of a sentence, "; it wrote: 'a | b'"; "" when
/// there is nothing.
std::string last_words(const std::string& stderr_file);

/// Runs a command in a shell. It dies with the process that started it, and is in its process group.
class LineProcess {
 public:
  /// Longer lines are no answers.
  static constexpr size_t kLongestLine = 1 << 20;

  /// Throws ProcessEnded when no process can be made. The parent must ignore SIGPIPE.
  LineProcess(const std::string& command, const std::string& stderr_file);
  ~LineProcess();  ///< kills it
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Sends one line and waits for one, for as long as it takes. What the process wrote to its standard error meanwhile
  /// goes on to ours. Throws ProcessEnded with how it ended and its last words.
  std::string ask(const std::string& line);

  /// Ends the process for what it did, and throws.
  [[noreturn]] void give_up(const std::string& why);

 private:
  std::string read_line();
  void pass_stderr_on();

  std::string stderr_file_, pending_;
  ChildProcess child_;
  int to_ = -1, from_ = -1, errors_ = -1;
};

}  // namespace checkop
