// SPDX-License-Identifier: Apache-2.0
// Files that a reader always finds complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace checkop {

/// Writes `text` to `path` so that a reader always finds a complete file: a temporary file beside it, then a rename.
/// What is there and no regular file (a pipe, /dev/stdout) is written to directly; a symbolic link keeps pointing where
/// it did. Throws InputError when the path can't be written, EnvironmentError when the disk has no room; what was there
/// before stays then.
void write_file(const std::string& path, std::string_view text);

/// False for what write_file() writes to directly.
bool is_replaceable(const std::string& path);

/// A file that gets a line at a time, each with one write; only the last one can be cut short.
class LineFile {
 public:
  /// Empties the file. Throws as write_file().
  explicit LineFile(const std::string& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void add(std::string line);  ///< without its end

 private:
  std::string path_;
  int descriptor_;
};

/// Adds `text` to the end of a file. Throws as write_file().
void append_to_file(const std::string& path, std::string_view text);

/// A document that grows: a body that is only added to, and a tail that changes each time, such as closing brackets.
/// After every publish() the file holds the whole of it, at a cost of what was added and the tail; a process that is
/// killed at any time leaves the file as of the latest publish(). Nothing is flushed to the disk itself: a machine that
/// loses its power may lose the file.
///
/// A single write is not safe against SIGKILL, which ends it between two pages. So there are two files. The spare one,
/// which readers do not know, lacks what the other one got last. It gets that and the new part, then the two change
/// names. Where the file system can't do that, the published file gets a second name (link) and the spare one is
/// renamed over the first; without links, the next spare file is a copy.
class GrowingFile {
 public:
  /// How the spare file takes the published one's place: the best that the file system can do.
  enum class Swap : uint8_t { exchange, link, copy };

  /// Nothing is written yet. `swap` is what is tried first.
  explicit GrowingFile(const std::string& path, Swap swap = Swap::exchange);
  /// Removes the spare file; the other one stays.
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
  std::string behind_;  ///< what the body of the published file has and that of the spare one lacks
};

}  // namespace checkop
