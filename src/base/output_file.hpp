// SPDX-License-Identifier: Apache-2.0
// Output files that readers always find complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace checkop {

/// Writes `text` to `path` through a temporary file beside it and a rename, so that readers always find a complete
/// file. Writes directly to an existing path that is not a regular file (a pipe, /dev/stdout). A symbolic link keeps
/// its target. Throws InputError when the path can't be written and EnvironmentError when the disk is full; the old
/// file then stays.
void write_file(const std::string& path, std::string_view text);

/// Throws as write_file() where that would fail, before there is anything to write; the file stays as it is.
void require_writable(const std::string& path);

/// Throws for the errno `error` of a failed call on the file: EnvironmentError where there is no room, InputError
/// otherwise. `doing`: "cannot be opened".
[[noreturn]] void fail_to_write(const std::string& path, const char* doing, int error);

/// Whether write_file() replaces the file by a rename; false where it writes directly.
bool is_replaceable(const std::string& path);

/// A file written line by line, each line with one write; only the last line can be incomplete.
class LineFile {
 public:
  /// Truncates the file. Throws as write_file().
  explicit LineFile(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void add(std::string line);  ///< without the newline

 private:
  std::string path_;
  int descriptor_;
};

/// Adds `text` to the end of a file. Throws as write_file().
void append_to_file(const std::string& path, std::string_view text);

/// A growing document: a body that is only appended to, and a tail that changes each time, such as closing brackets.
/// After every publish() the file holds the whole document, and a publish() costs only the new part and the tail. A
/// process killed at any time leaves the file of its latest publish(). The disk is not flushed: a power failure may
/// lose the file.
///
/// A single write is not safe against SIGKILL, which can end it between two pages, so there are two files. The spare
/// file, unknown to readers, lacks the latest addition. publish() appends that addition and the new part to the spare
/// file, then exchanges the two names. On file systems without an atomic exchange, the published file gets a second
/// name (link) and the spare file is renamed over the first name; without links, the next spare file is a copy.
class GrowingFile {
 public:
  /// How the spare file replaces the published one; the best method that the file system supports.
  enum class Swap : uint8_t { exchange, link, copy };

  /// Writes nothing yet. `swap` is the first method to try.
  explicit GrowingFile(const std::string& path, Swap swap = Swap::exchange);
  /// Removes the spare file; the published one stays.
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  /// Adds `more` to the body and publishes body and tail. Throws as write_file().
  void publish(std::string_view more, std::string_view tail);

 private:
  struct File {
    int descriptor = -1;
    int64_t body_bytes = 0;
  };
  void make_spare();
  bool publish_spare();
  [[noreturn]] void fail(const char* doing) const;

  std::string path_, target_, spare_name_;
  Swap swap_;
  File published_, spare_;
  std::string behind_;  ///< the part of the published body that the spare file lacks
};

}  // namespace checkop
