// SPDX-License-Identifier: Apache-2.0
// Implements atomic replacement with temporary files, links and renames.
#include "base/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace checkop {
namespace {

namespace fs = std::filesystem;

/// `path` with symbolic links resolved.
std::string resolve(const std::string& path) {
  std::error_code ignored;
  const fs::path resolved = fs::weakly_canonical(path, ignored);
  return resolved.empty() ? path : resolved.string();
}

/// Writes all of `text`; returns false with errno on failure. `at` < 0 writes at the file's own position.
bool write_all(int descriptor, std::string_view text, int64_t at = -1) {
  while (!text.empty()) {
    const ssize_t n = at < 0 ? write(descriptor, text.data(), text.size())
                             : pwrite(descriptor, text.data(), text.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) return errno = ENOSPC, false;
    text.remove_prefix(static_cast<size_t>(n));
    if (at >= 0) at += n;
  }
  return true;
}

bool copy_bytes(int from, int to, int64_t bytes) {
  std::vector<char> buffer(size_t{1} << 18);
  for (int64_t at = 0; at < bytes;) {
    const auto wanted = static_cast<size_t>(std::min<int64_t>(bytes - at, std::ssize(buffer)));
    const ssize_t n = pread(from, buffer.data(), wanted, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    if (n == 0) return errno = EIO, false;  // another process truncated the file
    if (!write_all(to, {buffer.data(), static_cast<size_t>(n)}, at)) return false;
    at += n;
  }
  return true;
}

/// The name of the file beside `target` that replaces it once it is complete.
std::string temporary_name(const std::string& target) { return fmt::format("{}.{}.tmp", target, getpid()); }

constexpr int kCreate = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;

}  // namespace

void fail_to_write(const std::string& path, const char* doing, int error) {
  const std::string why = std::strerror(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO)
    throw EnvironmentError(fmt::format("{}: {}: {}; make room, or give another path", path, doing, why));
  throw InputError(path, fmt::format("{}: {}", doing, why), "give a path that can be written");
}

bool is_replaceable(const std::string& path) {
  std::error_code ignored;
  const std::string target = resolve(path);
  return !fs::exists(target, ignored) || fs::is_regular_file(target, ignored);
}

void require_writable(const std::string& path) {
  const bool in_place = !is_replaceable(path);
  const std::string tried = in_place ? resolve(path) : temporary_name(resolve(path));
  const int file = open(tried.c_str(), in_place ? O_WRONLY | O_CLOEXEC : kCreate, 0666);
  if (file < 0) fail_to_write(path, "cannot be opened", errno);
  close(file);
  if (!in_place) unlink(tried.c_str());
}

void write_file(const std::string& path, std::string_view text) {
  const std::string target = resolve(path);
  const bool in_place = !is_replaceable(path);
  const std::string written_to = in_place ? target : temporary_name(target);
  const auto fail = [&](const char* doing) {
    const int error = errno;
    if (!in_place) unlink(written_to.c_str());
    fail_to_write(path, doing, error);
  };
  const int file = open(written_to.c_str(), in_place ? O_WRONLY | O_CLOEXEC : kCreate, 0666);
  if (file < 0) fail("cannot be opened");
  const bool written = write_all(file, text);
  const int error = errno;
  const bool closed = close(file) == 0;
  if (!written) errno = error;
  if (!written || !closed) fail("cannot be written");
  if (!in_place && std::rename(written_to.c_str(), target.c_str()) != 0) fail("cannot be replaced");
}

LineFile::LineFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail_to_write(path, "cannot be opened", errno);
}

LineFile::~LineFile() { close(descriptor_); }

void LineFile::add(std::string line) {
  line += '\n';
  if (!write_all(descriptor_, line)) fail_to_write(path_, "cannot be written", errno);
}

void append_to_file(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) fail_to_write(path, "cannot be opened", errno);
  const bool written = write_all(file, text);
  const int error = errno;
  close(file);
  if (!written) fail_to_write(path, "cannot be written", error);
}

GrowingFile::GrowingFile(const std::string& path, Swap swap)
    : path_(path), target_(resolve(path)), spare_name_(fmt::format("{}.{}.tmp", target_, getpid())), swap_(swap) {}

GrowingFile::~GrowingFile() {
  if (published_.descriptor >= 0) close(published_.descriptor);
  if (spare_.descriptor < 0) return;
  close(spare_.descriptor);
  unlink(spare_name_.c_str());
}

void GrowingFile::fail(const char* doing) const { fail_to_write(path_, doing, errno); }

/// Creates a spare file that holds the published file's whole body.
void GrowingFile::make_spare() {
  spare_.descriptor = open(spare_name_.c_str(), kCreate, 0666);
  if (spare_.descriptor < 0) fail("cannot be opened");
  if (published_.descriptor >= 0 && !copy_bytes(published_.descriptor, spare_.descriptor, published_.body_bytes))
    // lint: allow message, it takes a disk that is full
    fail("cannot be copied");
  spare_.body_bytes = published_.body_bytes;
  behind_.clear();
}

/// Renames the spare file to the published name. Returns whether the formerly published file now has the spare name.
bool GrowingFile::publish_spare() {
  const char *spare = spare_name_.c_str(), *target = target_.c_str();
  const bool first = published_.descriptor < 0;
  if (!first && swap_ == Swap::exchange) {
    if (renameat2(AT_FDCWD, spare, AT_FDCWD, target, RENAME_EXCHANGE) == 0) return true;
    if (errno != ENOENT) swap_ = Swap::link;  // ENOENT: another process removed the published file
  }
  const std::string second_name = spare_name_ + ".old";
  bool linked = false;
  if (!first && swap_ == Swap::link) {
    unlink(second_name.c_str());
    linked = link(target, second_name.c_str()) == 0;
  }
  if (std::rename(spare, target) != 0) fail("cannot be replaced");
  return linked && std::rename(second_name.c_str(), spare) == 0;
}

void GrowingFile::publish(std::string_view more, std::string_view tail) {
  if (spare_.descriptor < 0) make_spare();
  const std::string addition = behind_ + std::string(more), text = addition + std::string(tail);
  const int64_t end = spare_.body_bytes + std::ssize(text);
  if (!write_all(spare_.descriptor, text, spare_.body_bytes) || ftruncate(spare_.descriptor, end) != 0)
    fail("cannot be written");
  const bool has_spare = publish_spare();
  spare_.body_bytes += std::ssize(addition);
  std::swap(published_, spare_);
  behind_ = more;
  // The file that had the published name may be another process's by now; write to it only if it is ours.
  struct stat named {
  }, own{};
  const bool is_own = has_spare && stat(spare_name_.c_str(), &named) == 0 && fstat(spare_.descriptor, &own) == 0 &&
                      named.st_dev == own.st_dev && named.st_ino == own.st_ino;
  if (is_own) return;
  if (has_spare) unlink(spare_name_.c_str());
  if (spare_.descriptor >= 0) close(spare_.descriptor);
  spare_ = {};
}

}  // namespace checkop
