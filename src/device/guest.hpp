// SPDX-License-Identifier: Apache-2.0
// A device as a process uses it that owns none of the memory it computes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/device.hpp"

namespace checkop {

/// Memory of another process, mapped into this one while it lives.
class BorrowedMemory {
 public:
  virtual ~BorrowedMemory() = default;
  virtual std::byte* data() const = 0;
};

/// All members throw DeviceError.
class GuestDevice {
 public:
  virtual ~GuestDevice() = default;
  virtual void* stream() = 0;
  /// Makes this the device of the calling thread.
  virtual void make_current() = 0;
  /// Maps the `bytes` bytes behind a descriptor at a random address between inaccessible addresses. Kernels may write
  /// there, or only read.
  virtual std::unique_ptr<BorrowedMemory> map(int descriptor, size_t bytes, bool is_writable) = 0;
  /// As DeviceStream::run(), and waits for the work on all streams.
  virtual void run(const std::string& what, const LaunchMode& mode, const std::function<bool()>& launch) = 0;
  /// Gives back what launches set aside of the last-level cache.
  virtual void release_cache() = 0;
  /// Nanoseconds of the work that `launch` puts on stream(), between two events, behind `cover_us` in which the stream
  /// waits. Waits for the work on all streams.
  virtual uint64_t time_ns(const std::string& what, double cover_us, const std::function<void()>& launch) = 0;
  /// Records the work that `launch` puts on stream(), behind a kernel that does nothing, and uploads it. Returns
  /// whether that was possible; `launch` is as in DeviceStream::run().
  virtual bool record(const std::function<bool()>& launch) = 0;
  /// Runs what was recorded, and waits for the work on all streams.
  virtual void replay(const std::string& what) = 0;
};

/// Throws EnvironmentError if this build has no CUDA or the device can't be used.
std::unique_ptr<GuestDevice> open_guest_device(int index);

}  // namespace checkop
