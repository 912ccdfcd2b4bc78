// SPDX-License-Identifier: Apache-2.0
// The owner's memory, mapped into a plugin's process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "device/guest.hpp"
#include "plugin_host/wire.hpp"

namespace checkop::host {

/// Windows by number. Each lies at an address that is drawn anew, so that an address tells nothing of what lies there.
class Windows {
 public:
  /// From now on windows show memory of `device`, which maps them.
  void lie_on(GuestDevice& device) { device_ = &device; }
  /// Throws std::bad_alloc where there are no addresses left, WireError or DeviceError where the memory can't be
  /// mapped.
  void map(const Window& window, int descriptor);
  void drop(uint64_t number);
  /// Throws WireError for a number that is not mapped.
  std::byte* at(uint64_t number) const;

  struct Hit {
    uint64_t number, offset;
  };
  /// The read-only window that holds an address. For signal handlers: takes no lock and does not allocate, so that a
  /// window that is mapped meanwhile may be missed.
  std::optional<Hit> read_only_at(const void* address) const;

 private:
  struct Mapped {
    std::unique_ptr<BorrowedMemory> memory;
    size_t slot;  ///< in read_only_; kSlots: not there
  };
  struct Slot {
    std::atomic<std::byte*> memory{nullptr};
    std::atomic<size_t> bytes{0};
    std::atomic<uint64_t> number{0};
  };
  static constexpr size_t kSlots = 256;

  size_t note_read_only(const Window& window, std::byte* memory);

  GuestDevice* device_ = nullptr;  ///< none: host memory
  mutable std::mutex mutex_;
  std::map<uint64_t, Mapped> mapped_;
  Slot read_only_[kSlots];
};

}  // namespace checkop::host
