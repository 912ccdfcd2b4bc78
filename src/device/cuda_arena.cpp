// SPDX-License-Identifier: Apache-2.0
// Arenas of device memory, by the driver's virtual memory functions. The driver is loaded at run time and its functions
// are declared here, so that every build has them.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/device.hpp"
#include "device/shared_memory.hpp"

namespace checkop {
namespace {

// --- From cuda.h, version 11.4 and later ---

using Result = int;
using DevicePointer = unsigned long long;
using Handle = unsigned long long;
constexpr Result kSuccess = 0, kOutOfMemory = 2;
constexpr int kPinned = 1, kOnDevice = 1, kPosixDescriptor = 1, kReadWrite = 3, kMinimumGranularity = 0;
constexpr int kHasVirtualMemory = 102, kHasPosixDescriptors = 103;  // attributes of a device

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
  Result (*reserve)(DevicePointer*, size_t, size_t, DevicePointer, unsigned long long) = nullptr;
  Result (*free_addresses)(DevicePointer, size_t) = nullptr;
  Result (*map)(DevicePointer, size_t, size_t, Handle, unsigned long long) = nullptr;
  Result (*unmap)(DevicePointer, size_t) = nullptr;
  Result (*set_access)(DevicePointer, size_t, const AccessDescription*, size_t) = nullptr;

  /// Throws EnvironmentError if the library, or a function, is missing.
  static const Driver& get() {
    static const Driver driver;
    return driver;
  }

  /// Throws OutOfMemory, or DeviceError with the driver's word for what went wrong.
  void check(Result result, const std::string& doing) const {
    if (result == kSuccess) return;
    const std::string text = fmt::format("{}: {}", doing, name_of(result));
    if (result == kOutOfMemory) throw OutOfMemory(text);
    throw DeviceError(text, /*sticky=*/false);
  }

  std::string name_of(Result result) const {
    const char* name = nullptr;
    return get_error_name(result, &name) == kSuccess ? name : fmt::format("CUDA error {}", result);
  }

 private:
  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw EnvironmentError(fmt::format("there is no CUDA driver: {}", dlerror()));
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw EnvironmentError(fmt::format("the CUDA driver has no {}", name));
    };
    load(init, "cuInit");
    load(get_error_name, "cuGetErrorName");
    load(get_device, "cuDeviceGet");
    load(get_attribute, "cuDeviceGetAttribute");
    load(get_uuid, "cuDeviceGetUuid_v2");
    load(get_granularity, "cuMemGetAllocationGranularity");
    load(create, "cuMemCreate");
    load(release, "cuMemRelease");
    load(export_handle, "cuMemExportToShareableHandle");
    load(reserve, "cuMemAddressReserve");
    load(free_addresses, "cuMemAddressFree");
    load(map, "cuMemMap");
    load(unmap, "cuMemUnmap");
    load(set_access, "cuMemSetAccess");
    if (const Result result = init(0); result != kSuccess)
      throw EnvironmentError(fmt::format("cuInit: {}", name_of(result)));
  }
};

AllocationProperties properties_of(int device) { return {kPinned, kPosixDescriptor, {kOnDevice, device}, nullptr, {}}; }

/// Between unmapped addresses of one granule on each side: an access beyond it faults.
class CudaArena final : public Arena {
 public:
  CudaArena(int device, size_t bytes, size_t granule) : bytes_(bytes), granule_(granule) {
    const AllocationProperties properties = properties_of(device);
    const std::string doing = fmt::format("allocate shared memory ({})", format_bytes(bytes));
    try {
      driver_.check(driver_.create(&handle_, bytes, &properties, 0), doing);
      is_created_ = true;
      driver_.check(driver_.reserve(&addresses_, bytes + 2 * granule, 0, 0, 0), doing);
      driver_.check(driver_.map(memory(), bytes, 0, handle_, 0), doing);
      is_mapped_ = true;
      const AccessDescription access{{kOnDevice, device}, kReadWrite};
      driver_.check(driver_.set_access(memory(), bytes, &access, 1), doing);
    } catch (...) {
      give_back();  // the destructor does not run if the constructor throws
      throw;
    }
  }
  ~CudaArena() override { give_back(); }
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;

  std::byte* data() const override { return std::bit_cast<std::byte*>(memory()); }
  size_t bytes() const override { return bytes_; }

  Descriptor open() const override {
    int descriptor = -1;
    driver_.check(driver_.export_handle(&descriptor, handle_, kPosixDescriptor, 0), "export shared memory");
    return Descriptor(descriptor);
  }

 private:
  DevicePointer memory() const { return addresses_ + granule_; }

  void give_back() noexcept {
    if (is_mapped_) driver_.unmap(memory(), bytes_);
    if (addresses_ != 0) driver_.free_addresses(addresses_, bytes_ + 2 * granule_);
    if (is_created_) driver_.release(handle_);
  }

  const Driver& driver_ = Driver::get();
  size_t bytes_, granule_;
  Handle handle_ = 0;
  DevicePointer addresses_ = 0;
  bool is_created_ = false, is_mapped_ = false;
};

}  // namespace

ArenaKind cuda_arenas(int index) {
  const Driver& driver = Driver::get();
  int device = 0;
  size_t granule = 0;
  try {
    driver.check(driver.get_device(&device, index), "find the device");
    for (const auto& [attribute, what] : {std::pair{kHasVirtualMemory, "virtual memory functions"},
                                          {kHasPosixDescriptors, "descriptors of device memory"}}) {
      int has = 0;
      driver.check(driver.get_attribute(&has, attribute, device), "ask the device");
      if (has == 0) throw EnvironmentError(fmt::format("the CUDA driver has no {} for this device", what));
    }
    const AllocationProperties properties = properties_of(device);
    driver.check(driver.get_granularity(&granule, &properties, kMinimumGranularity), "ask for the granularity");
  } catch (const DeviceError& e) {
    throw EnvironmentError(e.what());
  }
  const auto make = [=](size_t bytes, Access) -> std::unique_ptr<Arena> {
    return std::make_unique<CudaArena>(device, bytes, granule);
  };
  return {"cuda_vmm", granule, size_t{8} << 20, size_t{4} << 30, make};
}

std::string cuda_uuid(int index) {
  try {
    const Driver& driver = Driver::get();
    int device = 0;
    std::array<unsigned char, 16> bytes{};
    driver.check(driver.get_device(&device, index), "find the device");
    driver.check(driver.get_uuid(bytes.data(), device), "read the UUID");
    std::string digits;
    for (const unsigned char each : bytes) digits += fmt::format("{:02x}", each);
    return digits;
  } catch (const EnvironmentError&) {
  } catch (const DeviceError&) {
  }
  return "";
}

}  // namespace checkop
