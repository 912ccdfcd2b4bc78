// SPDX-License-Identifier: Apache-2.0
// Reading and writing safetensors files.
#include "safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "error.hpp"
#include "json.hpp"

namespace checkop {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // as in the format's reference reader

std::optional<DType> parse_name(std::string_view name) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    if (info(dtype).safetensors == name) return dtype;
  }
  return {};
}

void write_at(int file, const std::string& path, uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = pwrite(file, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      throw InputError(path, fmt::format("cannot be written: {}", std::strerror(errno)), "free some space");
    from += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

/// A file descriptor that closes itself.
struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd;
};

void read_at(int file, const std::string& path, uint64_t offset, void* data, size_t bytes) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = pread(file, to, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw InputError(path, "ends before its data do", "the file is truncated; write it again");
    to += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

SafetensorsEntry parse_entry(const std::string& name, const JsonValue& value, uint64_t data_bytes) {
  constexpr const char* kHint = "the file is no valid safetensors file";
  value.allow_keys({"dtype", "shape", "data_offsets"});
  SafetensorsEntry entry;
  entry.name = name;
  const JsonValue dtype = value.at("dtype");
  const auto known = parse_name(dtype.string());
  if (!known)
    throw InputError(value.where(), fmt::format("has dtype '{}', which is not known here", dtype.string()), kHint);
  entry.dtype = *known;
  for (const JsonValue& extent : value.at("shape").items()) entry.shape.push_back(extent.integer(0));
  const JsonValue range = value.at("data_offsets");
  const auto offsets = range.items();
  if (offsets.size() != 2) range.fail("two offsets");
  entry.begin = static_cast<uint64_t>(offsets[0].integer(0));
  entry.end = static_cast<uint64_t>(offsets[1].integer(0));
  const auto bytes = static_cast<uint64_t>(element_count(entry.shape)) * info(entry.dtype).bytes;
  if (entry.begin > entry.end || entry.end > data_bytes || entry.end - entry.begin != bytes) {
    throw InputError(
        value.where(),
        fmt::format("has offsets [{}, {}) but needs {} of {} bytes", entry.begin, entry.end, bytes, data_bytes), kHint);
  }
  return entry;
}

/// Two tensors in the same bytes: more memory than the file is long, and one of them is not what was written.
void refuse_overlaps(const std::string& path, std::vector<SafetensorsEntry> entries) {
  std::erase_if(entries, [](const SafetensorsEntry& entry) { return entry.begin == entry.end; });
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].begin >= entries[i - 1].end) continue;
    throw InputError(path, fmt::format("tensors '{}' and '{}' overlap", entries[i - 1].name, entries[i].name),
                     "the file is no valid safetensors file");
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path) {
  nlohmann::json header;
  header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (SafetensorsEntry entry : entries) {
    entry.begin = at;
    entry.end = at += static_cast<uint64_t>(element_count(entry.shape)) * info(entry.dtype).bytes;
    header[entry.name] = {
        {"dtype", info(entry.dtype).safetensors}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
    entries_[entry.name] = entry;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data start at a multiple of 8 bytes
  data_begin_ = 8 + text.size();
  file_ = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw InputError(path, fmt::format("cannot be created: {}", std::strerror(errno)),
                     "give a folder that can be written");
  }
  const uint64_t length = text.size();
  write_at(file_, path_, 0, &length, sizeof length);
  write_at(file_, path_, 8, text.data(), text.size());
  if (ftruncate(file_, static_cast<off_t>(data_begin_ + at)) != 0) {
    throw InputError(path, fmt::format("has no room for {} bytes: {}", at, std::strerror(errno)), "free some space");
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) close(file_);
}

void SafetensorsWriter::write(const std::string& name, uint64_t offset, const void* data, size_t bytes) {
  write_at(file_, path_, data_begin_ + entries_.at(name).begin + offset, data, bytes);
}

const Tensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

SafetensorsFile read_safetensors(const std::string& path, const std::vector<std::string>& wanted) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) {
    throw InputError(path, fmt::format("cannot be opened: {}", std::strerror(errno)),
                     "give a file that --save-tensors wrote");
  }
  struct stat status {};
  if (fstat(file.fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw InputError(path, "is no file", "give a file that --save-tensors wrote");
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  uint64_t length = 0;
  if (size >= 8) read_at(file.fd, path, 0, &length, 8);
  if (size < 8 || length > kMaxHeader || length > size - 8) {
    throw InputError(path, "is no safetensors file", "give a file that --save-tensors wrote");
  }
  std::string text(length, '\0');
  read_at(file.fd, path, 8, text.data(), text.size());
  const JsonValue header = JsonValue::parse(text, path);
  if (!header.is_object()) {
    throw InputError(path, "has a header that is no JSON object", "give a file that --save-tensors wrote");
  }
  SafetensorsFile result;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : header.members()) {
    if (name == "__metadata__") {
      for (const auto& [key, entry] : value.members()) result.metadata[key] = entry.string();
    } else {
      entries.push_back(parse_entry(name, value, size - 8 - length));
    }
  }
  refuse_overlaps(path, entries);
  for (const SafetensorsEntry& entry : entries) {
    const bool keep = wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& prefix) {
                        return entry.name.starts_with(prefix);
                      });
    if (!keep) continue;
    Tensor tensor(entry.name, entry.dtype, entry.shape);
    read_at(file.fd, path, 8 + length + entry.begin, tensor.bytes.data(), tensor.bytes.size());
    result.tensors.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace checkop
