// SPDX-License-Identifier: Apache-2.0
// Arenas of device memory, by the driver's virtual memory functions.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda_driver.hpp"
#include "device/device.hpp"
#include "device/shared_memory.hpp"

namespace checkop {
namespace {

using cuda::Driver;

cuda::Handle make_memory(int device, size_t bytes) {
  const Driver& driver = Driver::get();
  const cuda::AllocationProperties properties = cuda::properties_of(device);
  cuda::Handle handle = 0;
  driver.check(driver.create(&handle, bytes, &properties, 0),
               fmt::format("allocate shared memory ({})", format_bytes(bytes)));
  return handle;
}

/// An arena between unmapped addresses of one granule on each side: an access beyond it faults.
class CudaArena final : public Arena {
 public:
  CudaArena(int device, size_t bytes, size_t granule)
      : memory_(make_memory(device, bytes), device, bytes, granule, granule, cuda::kReadWrite) {}

  std::byte* data() const override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

  Descriptor open() const override {
    const Driver& driver = Driver::get();
    int descriptor = -1;
    driver.check(driver.export_handle(&descriptor, memory_.handle(), cuda::kPosixDescriptor, 0),
                 "export shared memory");
    return Descriptor(descriptor);
  }

 private:
  cuda::MappedMemory memory_;
};

}  // namespace

ArenaKind cuda_arenas(int index, Blocks blocks) {
  const Driver& driver = Driver::get();
  int device = 0;
  size_t granule = 0;
  try {
    driver.check(driver.get_device(&device, index), "find the device");
    for (const auto& [attribute, what] : {std::pair{cuda::kHasVirtualMemory, "virtual memory functions"},
                                          {cuda::kHasPosixDescriptors, "descriptors of device memory"}}) {
      int has = 0;
      driver.check(driver.get_attribute(&has, attribute, device), "ask the device");
      if (has == 0) throw EnvironmentError(fmt::format("the CUDA driver has no {} for this device", what));
    }
    const cuda::AllocationProperties properties = cuda::properties_of(device);
    driver.check(driver.get_granularity(&granule, &properties, cuda::kMinimumGranularity), "ask for the granularity");
  } catch (const DeviceError& e) {
    throw EnvironmentError(e.what());
  }
  const auto make = [=](size_t bytes, Access) -> std::unique_ptr<Arena> {
    return std::make_unique<CudaArena>(device, bytes, granule);
  };
  const size_t least = blocks == Blocks::own_arenas ? granule : size_t{8} << 20;
  return {"cuda_vmm", granule, least, size_t{4} << 30, make, blocks};
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
