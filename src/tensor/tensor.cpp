// SPDX-License-Identifier: Apache-2.0
// Memory behind a file descriptor or of this process alone, and tensors that use it.
#include "tensor/tensor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/parallel.hpp"

namespace checkop {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 62;

/// Closes a descriptor unless its owner took it.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

[[noreturn]] void fail(size_t size, std::string_view doing, std::string_view why) {
  throw InputError(fmt::format("memory of {} bytes ({:.1f} MiB)", size, static_cast<double>(size) / 1048576.0),
                   fmt::format("{}: {}", doing, why), "use smaller dimensions or a machine with more memory");
}

std::byte* map_shared(int fd, size_t size, bool writable) {
  void* address = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail(size, "map", std::strerror(errno));
  return static_cast<std::byte*>(address);
}

/// Refuses sizes beyond physical memory: the kernel would allow such a shared file, and kill a process that touches it.
void require_physical_memory(size_t size) {
  static const size_t physical = [] {  // asking takes a call of the system
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page_bytes) : SIZE_MAX;
  }();
  if (size > physical) fail(size, "allocate", fmt::format("the machine has {} bytes", physical));
}

Bytes bytes_of_tensor(size_t size) { return size <= kMostOwnBytes ? Bytes::of_own(size) : Bytes(size); }

size_t byte_count(const Shape& shape, DType dtype) {
  const auto count = static_cast<size_t>(element_count(shape));
  size_t bytes;
  if (__builtin_mul_overflow(count, info(dtype).bytes, &bytes)) {
    throw InputError("shape " + to_string(shape), "more than 2^64 bytes", "use smaller dimensions");
  }
  return bytes;
}

}  // namespace

int64_t element_count(const Shape& shape) {
  for (const int64_t extent : shape) {
    if (extent < 0) {
      throw InputError("shape " + to_string(shape), fmt::format("expected extents ≥ 0, got {}", extent));
    }
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    // Not a division: loops over elements ask for their number again and again.
    if (__builtin_mul_overflow(count, extent, &count) || count > kMaxElements) {
      throw InputError("shape " + to_string(shape), "more than 2^62 elements", "use smaller dimensions");
    }
  }
  return count;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + "]";
}

Bytes::Bytes(size_t size) {
  if (size == 0) return;
  require_physical_memory(size);
  Descriptor file{memfd_create("checkop", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (file.fd < 0) fail(size, "create", std::strerror(errno));
  if (ftruncate(file.fd, static_cast<off_t>(size)) != 0) fail(size, "allocate", std::strerror(errno));
  data_ = map_shared(file.fd, size, /*writable=*/true);
  // A forked worker does not inherit this mapping, so its stray writes can't hit it; small tensors it inherits as
  // copies.
  madvise(data_, size, MADV_DONTFORK);
  size_ = size;
  fd_ = file.release();
}

Bytes Bytes::of_own(size_t size) {
  constexpr size_t kAlignment = 64;
  Bytes bytes;
  if (size == 0) return bytes;
  require_physical_memory(size);
  void* const memory = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) fail(size, "allocate", std::strerror(errno));
  std::memset(memory, 0, size);
  bytes.data_ = static_cast<std::byte*>(memory);
  bytes.size_ = size;
  return bytes;
}

void Bytes::share() {
  if (fd_ >= 0 || size_ == 0) return;
  Bytes shared(size_);
  std::memcpy(shared.data_, data_, size_);
  *this = std::move(shared);
}

void Bytes::forbid_writes_by_others() const {
  if (fd_ >= 0) fcntl(fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
}

void Bytes::forbid_resizing() const {
  if (fd_ >= 0) fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
}

Bytes Bytes::map(int fd, size_t size, bool writable) {
  Descriptor file{fd};
  Bytes bytes;
  if (size == 0) return bytes;
  // Touching pages past the end of the file would raise SIGBUS instead of an error.
  struct stat status {};
  if (fstat(file.fd, &status) != 0) fail(size, "inspect descriptor", std::strerror(errno));
  if (status.st_size < 0 || static_cast<size_t>(status.st_size) < size) {
    fail(size, "map", fmt::format("the other process allocated only {} bytes", status.st_size));
  }
  fcntl(file.fd, F_SETFD, FD_CLOEXEC);
  bytes.data_ = map_shared(file.fd, size, writable);
  bytes.size_ = size;
  bytes.fd_ = file.release();
  return bytes;
}

Bytes::Bytes(Bytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

Bytes& Bytes::operator=(Bytes&& other) noexcept {
  Bytes taken(std::move(other));  // first, so that moving an object into itself keeps its memory
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(fd_, taken.fd_);
  return *this;
}

Bytes::~Bytes() {
  if (fd_ < 0) {
    std::free(data_);
  } else {
    munmap(data_, size_);
    close(fd_);
  }
}

Tensor::Tensor(std::string tensor_name, DType type, Shape extents)
    : name(std::move(tensor_name)),
      dtype(type),
      shape(std::move(extents)),
      bytes(bytes_of_tensor(byte_count(shape, type))) {}

namespace {

/// By the bytes, since loops over elements ask for each: the product of the extents would take longer than the element.
void require_element(const Tensor& tensor, int64_t index) {
  if (static_cast<uint64_t>(index) < tensor.bytes.size() / info(tensor.dtype).bytes) return;
  throw std::out_of_range(fmt::format("{}{}: no element {}", tensor.name, to_string(tensor.shape), index));
}

}  // namespace

double Tensor::at(int64_t index) const {
  require_element(*this, index);
  double value;
  info(dtype).decode(bytes.data() + static_cast<size_t>(index) * info(dtype).bytes, &value, 1);
  return value;
}

void Tensor::set(int64_t index, double value) {
  require_element(*this, index);
  info(dtype).encode(&value, bytes.data() + static_cast<size_t>(index) * info(dtype).bytes, 1);
}

bool has_nonfinite(const Tensor& tensor, unsigned threads) {
  const DTypeInfo& type = info(tensor.dtype);
  if (!type.is_float || tensor.name.empty()) return false;
  constexpr int64_t kBlock = 1 << 12;
  const int64_t count = tensor.count();
  std::atomic<bool> found = false;
  parallel_for(threads, (count + kBlock - 1) / kBlock, [&](int64_t block) {
    if (found) return;
    std::array<double, kBlock> values{};
    const int64_t first = block * kBlock, n = std::min(kBlock, count - first);
    type.decode(tensor.bytes.data() + static_cast<size_t>(first) * type.bytes, values.data(), static_cast<size_t>(n));
    if (std::any_of(values.begin(), values.begin() + n, [](double x) { return !std::isfinite(x); })) found = true;
  });
  return found;
}

void decode_row(const Tensor& matrix, int64_t row, std::vector<double>& to) {
  const DTypeInfo& type = info(matrix.dtype);
  type.decode(matrix.bytes.data() + static_cast<size_t>(row) * to.size() * type.bytes, to.data(), to.size());
}

void encode_row(Tensor& matrix, int64_t row, const std::vector<double>& values) {
  const DTypeInfo& type = info(matrix.dtype);
  const size_t bytes = values.size() * type.bytes;
  type.encode(values.data(), matrix.bytes.data() + static_cast<size_t>(row) * bytes, values.size());
}

}  // namespace checkop
