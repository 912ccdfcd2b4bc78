// SPDX-License-Identifier: Apache-2.0
// Peers that answer a line with a line: a child process with pipes and a file for its standard error, or the other end
// of a socket. Descriptors travel with the lines over a socket; a child process finds its socket's number in
// CHECK_OPERATOR_FD.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/child_process.hpp"
#include "base/frame.hpp"
#include "base/sandbox.hpp"

namespace checkop {

/// The other end ended or broke the protocol; what() says why.
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

/// A peer that answers each line with a line.
class LinePeer {
 public:
  /// Longest answer, in bytes; a longer line is an error.
  static constexpr size_t kLongestLine = 1 << 20;

  LinePeer() = default;
  virtual ~LinePeer() = default;
  LinePeer(const LinePeer&) = delete;
  LinePeer& operator=(const LinePeer&) = delete;

  /// Sets the time limit of each answer from now on. An answer that takes longer ends the conversation.
  void limit_answers(std::chrono::seconds limit) { limit_ = limit; }

  /// Sends one line and waits for one line of answer, without a time limit unless limit_answers() gave one.
  /// `descriptors` go with it; they remain open. Throws ProcessEnded when no answer comes.
  virtual std::string request(const std::string& line, const std::vector<int>& descriptors = {}) = 0;

  /// Waits for one more line, which no request asked for. Throws as request() does.
  virtual std::string next_line() = 0;

  /// Ends the conversation and throws ProcessEnded with `why` and the last words of the other end.
  [[noreturn]] void give_up(const std::string& why);

 protected:
  /// Returns the last words as a clause that ends a sentence.
  virtual std::string end() = 0;
  /// The next line of `from`. Where no more can come, `at_end` throws.
  std::string read_line(int from, const std::function<void()>& at_end);

  std::string pending_;                        ///< bytes that were read already and belong to later lines
  std::optional<std::chrono::seconds> limit_;  ///< of each answer
};

/// The variable that holds the number of a child's socket. Descriptors come over it with single bytes, in the order of
/// the lines that they belong to.
inline constexpr char kSocketVariable[] = "CHECK_OPERATOR_FD";

/// Limits for a command that runs in a sandbox.
struct Confinement {
  SandboxRules rules;
  std::vector<std::string> variables;  ///< NAME=VALUE, in place of its parent's
};

/// Whether `command` replaces the shell that runs it, so that both are one process.
bool replaces_shell(const std::string& command);

/// Runs a command in a shell. The process dies with its parent and belongs to the parent's process group.
class LineProcess : public LinePeer {
 public:
  /// Throws ProcessEnded when the process can't be started. The caller must ignore SIGPIPE, and have only one thread if
  /// the command is confined.
  LineProcess(const std::string& command, const std::string& stderr_file,
              const std::optional<Confinement>& confinement = {});
  ~LineProcess() override;  ///< kills the process

  /// Copies the text that the process wrote to its standard error to ours. An exception says how the process ended and
  /// quotes its last stderr lines.
  std::string request(const std::string& line, const std::vector<int>& descriptors = {}) override;
  std::string next_line() override;
  pid_t id() const { return child_.id(); }

 protected:
  std::string end() override;  ///< kills the process; its last words are of its standard error

 private:
  [[noreturn]] void report_end();
  void pass_stderr_on();

  std::string stderr_file_;
  ChildProcess child_;
  int to_ = -1, from_ = -1, errors_ = -1;
  Descriptor socket_;  ///< its other end is in kSocketVariable
};

/// The other end of an inherited socket, held by a process that outlives this one.
class LineSocket : public LinePeer {
 public:
  /// Leaves the descriptor open. Throws away what has arrived: the late answer to a process that asked before this one.
  explicit LineSocket(int descriptor);

  static bool is_socket(int descriptor);

  std::string request(const std::string& line, const std::vector<int>& descriptors = {}) override;
  std::string next_line() override;

 protected:
  std::string end() override { return ""; }

 private:
  int descriptor_;
};

}  // namespace checkop
