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
#include <vector>

#include "device/guest.hpp"
#include "plugin_host/wire.hpp"

namespace checkop::host {

class Room;  // in windows.cpp

/// Windows by number. Each lies at an address that is drawn anew, so that an address tells nothing of what lies there.
class Windows {
 public:
  struct Source {
    Window window;
    int descriptor;  ///< of the memory that it shows
  };

  /// From now on windows show memory of `device`, which maps them.
  void lie_on(GuestDevice& device) { device_ = &device; }
  /// Throws std::bad_alloc where there are no addresses left, WireError or DeviceError where the memory can't be
  /// mapped.
  void map(const std::vector<Source>& sources);
  /// Numbers that are not mapped are passed over.
  void drop(const std::vector<uint64_t>& numbers);
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
    std::byte* begin;
    size_t bytes;
    size_t slot;                             ///< in read_only_; kSlots: not there
    std::unique_ptr<BorrowedMemory> memory;  ///< of a GPU; or
    std::shared_ptr<Room> room;              ///< where the window lies
  };
  struct Slot {
    std::atomic<std::byte*> memory{nullptr};
    std::atomic<size_t> bytes{0};
    std::atomic<uint64_t> number{0};
  };
  static constexpr size_t kSlots = 256;

  void map_host(const std::vector<Source>& sources);
  size_t note_read_only(uint64_t number, std::byte* memory, size_t bytes);

  GuestDevice* device_ = nullptr;  ///< none: host memory
  mutable std::mutex mutex_;
  std::map<uint64_t, Mapped> mapped_;
  Slot read_only_[kSlots];
};

}  // namespace checkop::host
