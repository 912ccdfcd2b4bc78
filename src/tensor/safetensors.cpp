// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files.
#include "tensor/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/output_file.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // as in the format's reference reader

std::optional<DType> parse_name(std::string_view name) {
  if (name == "BOOL") return DType::u8;
  for (const DType dtype : kDTypes) {
    if (info(dtype).safetensors == name) return dtype;
  }
  return {};
}

/// The shape as safetensors files state it: F4 counts FP4 numbers, of which one element of e2m1x2 holds two.
Shape shape_in_file(DType dtype, Shape shape) {
  if (dtype == DType::e2m1x2 && !shape.empty()) shape.back() *= 2;
  return shape;
}

void write_at(int file, const std::string& path, uint64_t offset, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = pwrite(file, from, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail_to_write(path, "cannot be written", done < 0 ? errno : ENOSPC);
    from += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<size_t>(done);
  }
}

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
    throw InputError(value.where(), fmt::format("has dtype '{}', which is not known here", dtype.string()),
                     "convert it to F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, F4, I64, I32, U8 or BOOL");
  entry.dtype = *known;
  for (const JsonValue& extent : value.at("shape").items()) entry.shape.push_back(extent.integer(0));
  if (entry.dtype == DType::e2m1x2) {
    if (entry.shape.empty() || entry.shape.back() % 2 != 0)
      throw InputError(value.where(),
                       fmt::format("is F4 of shape {}, whose rows are no whole bytes", to_string(entry.shape)),
                       "make the last extent even");
    entry.shape.back() /= 2;
  }
  const JsonValue range = value.at("data_offsets");
  const auto offsets = range.items();
  if (offsets.size() != 2) range.fail("two offsets");
  entry.begin = static_cast<uint64_t>(offsets[0].integer(0));
  entry.end = static_cast<uint64_t>(offsets[1].integer(0));
  const auto bytes = static_cast<uint64_t>(element_count(entry.shape)) * info(entry.dtype).bytes;
  if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
    throw InputError(value.where(),
                     fmt::format("has offsets [{}, {}) but needs {} bytes", entry.begin, entry.end, bytes), kHint);
  }
  if (entry.end > data_bytes) {
    throw InputError(
        value.where(),
        fmt::format("has offsets [{}, {}) but the file holds {} bytes of data", entry.begin, entry.end, data_bytes),
        "the file is truncated; write it again");
  }
  return entry;
}

/// Refuses overlapping tensors, which could need more memory than the file has bytes, and bytes that belong to no
/// tensor, which mean lost or hidden data.
void require_tiling(const std::string& path, std::vector<SafetensorsEntry> entries, uint64_t data_bytes) {
  constexpr const char* kHint = "the file is no valid safetensors file";
  std::erase_if(entries, [](const SafetensorsEntry& entry) { return entry.begin == entry.end; });
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].begin < end)
      throw InputError(path, fmt::format("tensors '{}' and '{}' overlap", entries[i - 1].name, entries[i].name), kHint);
    if (entries[i].begin > end)
      throw InputError(
          path,
          fmt::format("has {} bytes before '{}' that belong to no tensor", entries[i].begin - end, entries[i].name),
          kHint);
    end = entries[i].end;
  }
  if (end != data_bytes)
    throw InputError(path, fmt::format("has {} bytes at its end that belong to no tensor", data_bytes - end), kHint);
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
    header[entry.name] = {{"dtype", info(entry.dtype).safetensors},
                          {"shape", shape_in_file(entry.dtype, entry.shape)},
                          {"data_offsets", {entry.begin, entry.end}}};
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
  if (ftruncate(file_, static_cast<off_t>(data_begin_ + at)) != 0) fail_to_write(path, "cannot be written", errno);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) close(file_);
}

void SafetensorsWriter::write(const std::string& name, uint64_t offset, const void* data, size_t bytes) {
  write_at(file_, path_, data_begin_ + entries_.at(name).begin + offset, data, bytes);
}

void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const Tensor& tensor : tensors) {
    if (!tensor.name.empty()) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  SafetensorsWriter file(path, entries, metadata);
  for (const Tensor& tensor : tensors) {
    if (!tensor.name.empty()) file.write(tensor.name, 0, tensor.bytes.data(), tensor.bytes.size());
  }
}

SafetensorsReader::SafetensorsReader(const std::string& path, const std::string& hint, Links links) : path_(path) {
  // O_NONBLOCK, because opening a pipe without a writer would block for ever.
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refused ? O_NOFOLLOW : 0));
  if (file_ < 0) throw InputError(path, fmt::format("cannot be opened: {}", std::strerror(errno)), hint);
  try {
    read_header(hint);
  } catch (...) {
    close(file_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { close(file_); }

void SafetensorsReader::read_header(const std::string& hint) {
  struct stat status {};
  if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) throw InputError(path_, "is no file", hint);
  const auto size = static_cast<uint64_t>(status.st_size);
  uint64_t length = 0;
  if (size >= 8) read_at(file_, path_, 0, &length, 8);
  if (size < 8)
    throw InputError(path_, fmt::format("is no safetensors file: it has {} byte{}", size, size == 1 ? "" : "s"), hint);
  if (length > kMaxHeader || length > size - 8) {
    throw InputError(
        path_, fmt::format("is no safetensors file, or truncated: its header would be {} bytes long", length), hint);
  }
  std::string text(length, '\0');
  read_at(file_, path_, 8, text.data(), text.size());
  const JsonValue header = JsonValue::parse(text, path_);
  if (!header.is_object()) throw InputError(path_, "has a header that is no JSON object", hint);
  data_begin_ = 8 + length;
  for (const auto& [name, value] : header.members()) {
    if (name == "__metadata__") {
      for (const auto& [key, entry] : value.members()) metadata_[key] = entry.string();
    } else {
      entries_.push_back(parse_entry(name, value, size - data_begin_));
    }
  }
  require_tiling(path_, entries_, size - data_begin_);
}

const SafetensorsEntry* SafetensorsReader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const SafetensorsEntry& entry, const std::string& n) { return entry.name < n; });
  return found == entries_.end() || found->name != name ? nullptr : &*found;
}

const SafetensorsEntry& SafetensorsReader::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  std::vector<std::string> known;
  for (const SafetensorsEntry& entry : entries_) known.push_back(entry.name);
  constexpr size_t kMostNamed = 8;
  std::string hint = did_you_mean(name, known);
  if (known.size() <= kMostNamed)
    hint += fmt::format("{}it holds {}", hint.empty() ? "" : " ",
                        known.empty() ? "none" : fmt::to_string(fmt::join(known, ", ")));
  throw InputError(path_, fmt::format("holds no tensor '{}'", name), hint);
}

Tensor SafetensorsReader::read(const SafetensorsEntry& entry) const {
  Tensor tensor(entry.name, entry.dtype, entry.shape);
  read(entry, tensor.bytes.data());
  return tensor;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::byte* to) const {
  read_at(file_, path_, data_begin_ + entry.begin, to, entry.end - entry.begin);
}

const Tensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

SafetensorsFile read_safetensors(const std::string& path, const std::vector<std::string>& wanted,
                                 const std::string& hint) {
  const SafetensorsReader file(path, hint);
  SafetensorsFile result{file.metadata(), {}};
  for (const SafetensorsEntry& entry : file.entries()) {
    const bool keep = wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& prefix) {
                        return entry.name.starts_with(prefix);
                      });
    if (keep) result.tensors.push_back(file.read(entry));
  }
  return result;
}

}  // namespace checkop
