// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files: an 8-byte length, a JSON header, raw little-endian data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor/tensor.hpp"

namespace checkop {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
  uint64_t begin = 0, end = 0;  ///< byte range in the data section
};

/// Creates a file of the size that its entries give. Afterwards any thread may write data at any offset.
class SafetensorsWriter {
 public:
  /// Throws InputError when the file can't be created or the disk has no room.
  SafetensorsWriter(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes `bytes` at byte `offset` of tensor `name`.
  void write(const std::string& name, uint64_t offset, const void* data, size_t bytes);

 private:
  std::string path_;
  int file_ = -1;
  uint64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
};

/// Writes all tensors that have a name. Throws as SafetensorsWriter.
void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// An open file with a valid header. Loads tensors one at a time. Supports the dtypes of dtype.hpp, and reads BOOL as
/// uint8. F4 of shape [3, 8] is e2m1x2 of shape [3, 4]. Every data byte belongs to exactly one tensor.
class SafetensorsReader {
 public:
  enum class Links : uint8_t { followed, refused };
  /// Throws InputError for: a missing file, a truncated or malformed header, an unknown dtype, byte ranges that
  /// overlap, leave gaps or do not fit the shapes, a file that ends before its data. `hint` ends the message about a
  /// file that is not a safetensors file.
  explicit SafetensorsReader(const std::string& path, const std::string& hint = "give a safetensors file",
                             Links links = Links::followed);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  ///< sorted by name
  const SafetensorsEntry* find(const std::string& name) const;               ///< nullptr when there is none
  /// Throws InputError that suggests the nearest name when the file has no such tensor.
  const SafetensorsEntry& at(const std::string& name) const;

  Tensor read(const SafetensorsEntry& entry) const;
  /// Reads the bytes of `entry` into `to`, which must have room for them.
  void read(const SafetensorsEntry& entry, std::byte* to) const;

 private:
  void read_header(const std::string& hint);
  std::string path_;
  int file_ = -1;
  uint64_t data_begin_ = 0;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> entries_;
};

struct SafetensorsFile {
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;  ///< named as in the file

  const Tensor* find(const std::string& name) const;
};

/// Reads the tensors whose names begin with one of the `wanted` prefixes; all tensors when `wanted` is empty. Throws as
/// SafetensorsReader.
SafetensorsFile read_safetensors(const std::string& path, const std::vector<std::string>& wanted = {},
                                 const std::string& hint = "give a safetensors file");

}  // namespace checkop
