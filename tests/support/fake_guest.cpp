// SPDX-License-Identifier: Apache-2.0
// A device of a plugin's process that passes for a GPU: launches run on the processor, and the process's own clock
// tells how long they take. Linked in place of device/cuda_guest.cpp.
#include <sys/mman.h>

#include <new>

#include "base/clock.hpp"
#include "device/guest.hpp"

namespace checkop {
namespace {

class FakeWindow final : public BorrowedMemory {
 public:
  FakeWindow(int descriptor, size_t bytes, bool is_writable) : bytes_(bytes) {
    const int rights = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void* const memory = mmap(nullptr, bytes, rights, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
  }
  ~FakeWindow() override { munmap(memory_, bytes_); }
  FakeWindow(const FakeWindow&) = delete;
  FakeWindow& operator=(const FakeWindow&) = delete;

  std::byte* data() const override { return memory_; }

 private:
  size_t bytes_;
  std::byte* memory_;
};

class FakeGuest final : public GuestDevice {
 public:
  void* stream() override { return nullptr; }
  void make_current() override {}
  std::unique_ptr<BorrowedMemory> map(int descriptor, size_t bytes, bool is_writable) override {
    return std::make_unique<FakeWindow>(descriptor, bytes, is_writable);
  }
  void run(const std::string&, const LaunchMode&, const std::function<bool()>& launch) override { launch(); }
  void release_cache() override {}
  uint64_t time_ns(const std::string&, double, const std::function<void()>& launch) override {
    const auto begin = Clock::now();
    launch();
    return static_cast<uint64_t>(ms_since(begin) * 1e6);
  }
  bool record(const std::function<bool()>&) override { return false; }
  void replay(const std::string&) override {}
};

}  // namespace

std::unique_ptr<GuestDevice> open_guest_device(int) { return std::make_unique<FakeGuest>(); }

}  // namespace checkop
