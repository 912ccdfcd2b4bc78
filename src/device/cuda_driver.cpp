// SPDX-License-Identifier: Apache-2.0
// Loads the driver, and maps memory by it.
#include "device/cuda_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <bit>
#include <type_traits>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/device.hpp"

namespace checkop::cuda {

const Driver& Driver::get() {
  static const Driver driver;
  return driver;
}

void Driver::check(Result result, const std::string& doing) const {
  if (result == kSuccess) return;
  const std::string text = fmt::format("{}: {}", doing, name_of(result));
  if (result == kOutOfMemory) throw OutOfMemory(text);
  throw DeviceError(text, /*sticky=*/false);
}

std::string Driver::name_of(Result result) const {
  const char* name = nullptr;
  return get_error_name(result, &name) == kSuccess ? name : fmt::format("CUDA error {}", result);
}

Driver::Driver() {
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
  load(import_handle, "cuMemImportFromShareableHandle");
  load(reserve, "cuMemAddressReserve");
  load(free_addresses, "cuMemAddressFree");
  load(map, "cuMemMap");
  load(unmap, "cuMemUnmap");
  load(set_access, "cuMemSetAccess");
  if (const Result result = init(0); result != kSuccess)
    throw EnvironmentError(fmt::format("cuInit: {}", name_of(result)));
}

AllocationProperties properties_of(int device) { return {kPinned, kPosixDescriptor, {kOnDevice, device}, nullptr, {}}; }

MappedMemory::MappedMemory(Handle handle, int device, size_t bytes, size_t before, size_t behind, int rights)
    : handle_(handle), bytes_(bytes), before_(before), whole_(before + bytes + behind) {
  const std::string doing = fmt::format("map shared memory ({})", format_bytes(bytes));
  try {
    driver_.check(driver_.reserve(&addresses_, whole_, 0, 0, 0), doing);
    driver_.check(driver_.map(memory(), bytes, 0, handle_, 0), doing);
    is_mapped_ = true;
    const AccessDescription access{{kOnDevice, device}, rights};
    driver_.check(driver_.set_access(memory(), bytes, &access, 1), doing);
  } catch (...) {
    give_back();  // the destructor does not run if the constructor throws
    throw;
  }
}

MappedMemory::~MappedMemory() { give_back(); }

std::byte* MappedMemory::data() const { return std::bit_cast<std::byte*>(memory()); }

void MappedMemory::give_back() noexcept {
  if (is_mapped_) driver_.unmap(memory(), bytes_);
  if (addresses_ != 0) driver_.free_addresses(addresses_, whole_);
  driver_.release(handle_);
}

}  // namespace checkop::cuda
