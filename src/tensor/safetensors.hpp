// SPDX-License-Identifier: Apache-2.0
// One safetensors file: an 8-byte length, a JSON header, raw little-endian data.
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

/// Creates a file whose size is fixed by its entries; data are then written at any offset from any thread.
class SafetensorsWriter {
 public:
  /// Throws InputError when the file can't be created or has no room.
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

/// Writes whole tensors, those with a name. Throws as SafetensorsWriter.
void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// An open file whose header was read and found right: tensors are loaded one at a time, as they are needed.
/// dtypes F64 F32 F16 BF16 I64 I32 U8, and BOOL, which is read as uint8. Every byte belongs to one tensor.
class SafetensorsReader {
 public:
  /// Throws InputError: no such file, a truncated or malformed header, an unknown dtype, ranges that overlap, leave
  /// bytes out or do not fit the shapes, a file that ends before its data do. `hint` ends what is said of a file that
  /// is none.
  explicit SafetensorsReader(const std::string& path, const std::string& hint = "give a safetensors file");
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  ///< sorted by name
  const SafetensorsEntry* find(const std::string& name) const;               ///< nullptr when there is none
  /// Throws InputError, with the nearest name, when the file has no such tensor.
  const SafetensorsEntry& at(const std::string& name) const;

  Tensor read(const SafetensorsEntry& entry) const;
  /// The bytes of `entry` to memory that has room for them.
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

/// Reads a whole file. Throws as SafetensorsReader. `wanted` limits what is loaded to names with one of these prefixes;
/// empty loads all.
SafetensorsFile read_safetensors(const std::string& path, const std::vector<std::string>& wanted = {},
                                 const std::string& hint = "give a safetensors file");

}  // namespace checkop
