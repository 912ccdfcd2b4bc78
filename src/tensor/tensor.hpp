// SPDX-License-Identifier: Apache-2.0
// Shape, Bytes (memory that can be handed to another process) and Tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.hpp"

namespace checkop {

using Shape = std::vector<int64_t>;

/// Product of the extents; 1 for a scalar. Throws InputError for a negative extent or a product beyond 2^62.
int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);  ///< "[8, 512, 151936]"

/// Zero-filled memory: anonymous shared pages behind a file descriptor, which a worker process maps, too, so that
/// nothing is copied on the way to a candidate; or memory of this process alone.
class Bytes {
 public:
  Bytes() = default;
  /// Shared memory, page-aligned. Throws InputError with the size when the allocation fails.
  explicit Bytes(size_t size);
  /// Memory of this process alone, aligned to 64 bytes, without a descriptor. Throws InputError as above.
  static Bytes of_own(size_t size);
  /// Maps memory that another process created. Takes ownership of `fd`.
  static Bytes map(int fd, size_t size, bool writable);
  Bytes(Bytes&& other) noexcept;
  Bytes& operator=(Bytes&& other) noexcept;
  ~Bytes();

  /// Moves what is in memory of this process alone to shared memory: data() changes. Throws InputError as above.
  void share();

  /// Forbids all later writes by other processes, if the system supports that; this process can still write. Does
  /// nothing for memory of this process alone, which others can't reach.
  void forbid_writes_by_others() const;
  /// Forbids every process, this one too, to change the size: touching a page that another process cut off is fatal.
  /// Does nothing for memory of this process alone.
  void forbid_resizing() const;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }  ///< -1: memory of this process alone, or none

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

/// Tensors of at most so many bytes lie in memory of one process: pages and a descriptor of their own would take longer
/// to make, to map and to free than copies of so few bytes.
inline constexpr size_t kMostOwnBytes = size_t{64} << 10;

/// A row-major, contiguous tensor. Of `shape`, only element_count(shape) must fit: element_count(shape) *
/// info(dtype).bytes == bytes.size().
struct Tensor {
  Tensor() = default;
  /// Zero-filled; shared memory if it has more than kMostOwnBytes.
  Tensor(std::string tensor_name, DType type, Shape extents);

  int64_t count() const { return element_count(shape); }
  double at(int64_t index) const;         ///< decoded; for tests and messages
  void set(int64_t index, double value);  ///< encoded with one rounding

  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  Bytes bytes;
};

/// Whether a floating-point tensor holds a NaN or an infinity; false for integers.
bool has_nonfinite(const Tensor& tensor, unsigned threads);

/// Decodes row `row` of a tensor seen as a matrix of rows as wide as `to`.
void decode_row(const Tensor& matrix, int64_t row, std::vector<double>& to);
/// Encodes row `row` of a tensor seen as a matrix of rows as wide as `values`, with one rounding.
void encode_row(Tensor& matrix, int64_t row, const std::vector<double>& values);

}  // namespace checkop
