// SPDX-License-Identifier: Apache-2.0
// One safetensors file: an 8-byte length, a JSON header, raw little-endian data. Written in place, read by mapping.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor.hpp"

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

struct SafetensorsFile {
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;  ///< named as in the file

  const Tensor* find(const std::string& name) const;
};

/// Reads a whole file. Throws InputError: no such file, a truncated or malformed header, an unknown dtype, ranges that
/// overlap or do not fit the shapes. `wanted` limits what is loaded to names with one of these prefixes; empty loads
/// all.
SafetensorsFile read_safetensors(const std::string& path, const std::vector<std::string>& wanted = {});

}  // namespace checkop
