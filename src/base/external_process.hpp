// SPDX-License-Identifier: Apache-2.0
// A child process with a line protocol: its standard input and output are pipes, its standard error is a file.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "base/child_process.hpp"

namespace checkop {

/// The process ended or broke the protocol; what() says why.
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A private temporary folder; the destructor removes it.
class TempFolder {
 public:
  TempFolder();  ///< in TMPDIR or /tmp; throws EnvironmentError when it can't be made
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Writes to the standard error, which may be closed or full: then the words are lost.
void print_last_words(const std::string& text);

/// The last lines of a process's standard error as a clause that ends a sentence, "; it wrote: 'a | b'"; "" when the
/// file is empty.
std::string last_words(const std::string& stderr_file);

/// Runs a command in a shell. The process dies with its parent and belongs to the parent's process group.
class LineProcess {
 public:
  /// Longest answer, in bytes; a longer line is an error.
  static constexpr size_t kLongestLine = 1 << 20;

  /// Throws ProcessEnded when the process can't be started. The caller must ignore SIGPIPE.
  LineProcess(const std::string& command, const std::string& stderr_file);
  ~LineProcess();  ///< kills the process
  LineProcess(const LineProcess&) = delete;
  LineProcess& operator=(const LineProcess&) = delete;

  /// Sends one line and waits, without a time limit, for one line of answer. Copies the text that the process wrote to
  /// its standard error to ours. Throws ProcessEnded, with how the process ended and its last stderr lines.
  std::string request(const std::string& line);

  /// Kills the process and throws ProcessEnded with `why` and its last stderr lines.
  [[noreturn]] void give_up(const std::string& why);

 private:
  std::string read_line();
  void pass_stderr_on();

  std::string stderr_file_, pending_;
  ChildProcess child_;
  int to_ = -1, from_ = -1, errors_ = -1;
};

}  // namespace checkop
