// SPDX-License-Identifier: Apache-2.0
// The driver's virtual memory functions. The driver is loaded at run time and its functions are declared here, so that
// every build has them.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace checkop::cuda {

// --- From cuda.h, version 11.4 and later ---

using Result = int;
using DevicePointer = unsigned long long;
using Handle = unsigned long long;
inline constexpr Result kSuccess = 0, kOutOfMemory = 2;
inline constexpr int kPinned = 1, kOnDevice = 1, kPosixDescriptor = 1, kMinimumGranularity = 0;
inline constexpr int kReadOnly = 1, kReadWrite = 3;
inline constexpr int kHasVirtualMemory = 102, kHasPosixDescriptors = 103;  // attributes of a device

struct Location {
  int type, id;
};

struct AllocationProperties {
  int type, handle_types;
  Location location;
  void* windows;
  std::array<unsigned char, 8> flags;
};
static_assert(sizeof(AllocationProperties) == 32, "CUmemAllocationProp");

struct AccessDescription {
  Location location;
  int flags;
};
static_assert(sizeof(AccessDescription) == 12, "CUmemAccessDesc");

/// The functions of libcuda; loaded once.
struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*get_error_name)(Result, const char**) = nullptr;
  Result (*get_device)(int*, int) = nullptr;
  Result (*get_attribute)(int*, int, int) = nullptr;
  Result (*get_uuid)(unsigned char*, int) = nullptr;
  Result (*get_granularity)(size_t*, const AllocationProperties*, int) = nullptr;
  Result (*create)(Handle*, size_t, const AllocationProperties*, unsigned long long) = nullptr;
  Result (*release)(Handle) = nullptr;
  Result (*export_handle)(void*, Handle, int, unsigned long long) = nullptr;
  Result (*import_handle)(Handle*, void*, int) = nullptr;
  Result (*reserve)(DevicePointer*, size_t, size_t, DevicePointer, unsigned long long) = nullptr;
  Result (*free_addresses)(DevicePointer, size_t) = nullptr;
  Result (*map)(DevicePointer, size_t, size_t, Handle, unsigned long long) = nullptr;
  Result (*unmap)(DevicePointer, size_t) = nullptr;
  Result (*set_access)(DevicePointer, size_t, const AccessDescription*, size_t) = nullptr;

  /// Throws EnvironmentError if the library, or a function, is missing.
  static const Driver& get();

  /// Throws OutOfMemory, or DeviceError with the driver's word for what went wrong.
  void check(Result result, const std::string& doing) const;

 private:
  Driver();
  std::string name_of(Result result) const;
};

/// The properties of memory of device `device` that another process can map.
AllocationProperties properties_of(int device);

/// A range of addresses in which memory of a device is mapped; what is around it faults.
class MappedMemory {
 public:
  /// Maps the whole of the memory behind `handle`, which it releases in the end: `bytes` bytes, whole granules, with
  /// `before` and `behind` unmapped bytes. Throws as Driver::check().
  MappedMemory(Handle handle, int device, size_t bytes, size_t before, size_t behind, int rights);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const;
  size_t bytes() const { return bytes_; }
  Handle handle() const { return handle_; }

 private:
  DevicePointer memory() const { return addresses_ + before_; }
  void give_back() noexcept;

  const Driver& driver_ = Driver::get();
  Handle handle_;
  size_t bytes_, before_, whole_;
  DevicePointer addresses_ = 0;
  bool is_mapped_ = false;
};

}  // namespace checkop::cuda
