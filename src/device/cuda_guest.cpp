// SPDX-License-Identifier: Apache-2.0
// The CUDA device of a plugin's process; compiled by nvcc.
#include "device/guest.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda_driver.hpp"
#include "device/cuda_error.hpp"
#include "device/cuda_launches.hpp"

namespace checkop {
namespace {

/// Addresses within this distance of a window can't be touched.
constexpr size_t kApart = size_t{64} << 20;
/// A window begins at one of this many granules, drawn at random.
constexpr size_t kPlaces = 64;

cuda::Handle import_memory(int descriptor) {
  const cuda::Driver& driver = cuda::Driver::get();
  cuda::Handle handle = 0;
  driver.check(
      driver.import_handle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)), cuda::kPosixDescriptor),
      "take shared memory");
  return handle;
}

class CudaWindow final : public BorrowedMemory {
 public:
  CudaWindow(int descriptor, int device, size_t bytes, size_t before, bool is_writable)
      : memory_(import_memory(descriptor), device, bytes, before, kApart,
                is_writable ? cuda::kReadWrite : cuda::kReadOnly) {}
  std::byte* data() const override { return memory_.data(); }

 private:
  cuda::MappedMemory memory_;
};

class CudaGuest final : public GuestDevice {
 public:
  explicit CudaGuest(int index) : index_(index) {
    make_current();
    check(cudaFree(nullptr), "make a context");
    check(cudaGetDeviceProperties(&properties_, index), "read the properties of cuda:" + std::to_string(index));
    const cuda::Driver& driver = cuda::Driver::get();
    driver.check(driver.get_device(&device_, index), "find the device");
    const cuda::AllocationProperties properties = cuda::properties_of(device_);
    driver.check(driver.get_granularity(&granule_, &properties, cuda::kMinimumGranularity), "ask for the granularity");
    launches_ = std::make_unique<CudaLaunches>(properties_);
  }

  void* stream() override { return launches_->stream(); }
  void make_current() override { check(cudaSetDevice(index_), "select device cuda:" + std::to_string(index_)); }

  std::unique_ptr<BorrowedMemory> map(int descriptor, size_t bytes, bool is_writable) override {
    const size_t before = kApart + random_() % kPlaces * granule_;
    return std::make_unique<CudaWindow>(descriptor, device_, bytes, before, is_writable);
  }

  void run(const std::string& what, const LaunchMode& mode, const std::function<bool()>& launch) override {
    launches_->run(mode, launch);
    check(cudaDeviceSynchronize(), what);
    check(cudaGetLastError(), what);  // a launch error that the candidate did not report
  }

  void release_cache() override { launches_->release_cache(); }

  uint64_t time_ns(const std::string& what, double cover_us, const std::function<void()>& launch) override {
    if (!start_) start_ = cuda::make_event(), stop_ = cuda::make_event();
    if (cover_us > 0) {
      wait_ns<<<1, 1, 0, launches_->stream()>>>(static_cast<uint64_t>(cover_us * 1e3));
      check(cudaGetLastError(), "cover a launch");
    }
    check(cudaEventRecord(start_.get(), launches_->stream()), "record the start");
    launch();
    check(cudaEventRecord(stop_.get(), launches_->stream()), "record the end");
    check(cudaDeviceSynchronize(), what);
    check(cudaGetLastError(), what);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_.get(), stop_.get()), "read the time");
    return static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
  }

  bool record(const std::function<bool()>& launch) override {
    recorded_.reset();
    try {
      recorded_ = launches_->record([&] {
        do_nothing<<<1, 1, 0, launches_->stream()>>>();
        return launch();
      });
      check(cudaGraphUpload(recorded_.get(), launches_->stream()), "upload a graph");
      check(cudaStreamSynchronize(launches_->stream()), "upload a graph");
      return true;
    } catch (const LaunchModeUnsupported&) {
    } catch (const DeviceError&) {  // a lost device is seen by what runs next
    }
    recorded_.reset();
    return false;
  }

  void replay(const std::string& what) override {
    check(cudaGraphLaunch(recorded_.get(), launches_->stream()), "launch a graph");
    check(cudaDeviceSynchronize(), what);
    check(cudaGetLastError(), what);
  }

 private:
  int index_, device_ = 0;
  size_t granule_ = 0;
  cudaDeviceProp properties_{};
  std::unique_ptr<CudaLaunches> launches_;
  CudaLaunches::GraphExec recorded_;
  cuda::Event start_, stop_;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace

std::unique_ptr<GuestDevice> open_guest_device(int index) {
  try {
    return std::make_unique<CudaGuest>(index);
  } catch (const DeviceError& error) {
    throw EnvironmentError("device 'cuda:" + std::to_string(index) + "' in a plugin's process: " + error.what());
  }
}

}  // namespace checkop
