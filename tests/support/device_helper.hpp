// SPDX-License-Identifier: Apache-2.0
// A base class for faulty devices in tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace checkop {

/// Forwards every call to the CPU device; a test's device overrides some of them.
class DelegatingDevice : public Device {
 public:
  DeviceInfo info() const override { return cpu_->info(); }
  void* stream() override { return cpu_->stream(); }
  size_t least_guard_bytes() const override { return cpu_->least_guard_bytes(); }
  std::byte* allocate(size_t bytes, const std::string& what) override { return cpu_->allocate(bytes, what); }
  std::byte* allocate_shared(size_t bytes, const std::string& what, Access access) override {
    return cpu_->allocate_shared(bytes, what, access);
  }
  size_t shared_bytes(size_t bytes) const override { return cpu_->shared_bytes(bytes); }
  std::shared_ptr<SharedMemory> share_blocks(Sharing sharing) override { return cpu_->share_blocks(sharing); }
  void free(std::byte* memory) noexcept override { cpu_->free(memory); }
  void upload(std::byte* device, const std::byte* host, size_t bytes) override { cpu_->upload(device, host, bytes); }
  void download(std::byte* host, const std::byte* device, size_t bytes) override {
    cpu_->download(host, device, bytes);
  }
  void fill(std::byte* device, uint64_t pattern, size_t width, size_t bytes) override {
    cpu_->fill(device, pattern, width, bytes);
  }
  uint64_t fingerprint(const std::byte* memory, size_t bytes) override { return cpu_->fingerprint(memory, bytes); }
  bool rows_equal(const std::byte* a, const std::byte* b, size_t row_bytes, const std::vector<int64_t>& rows) override {
    return cpu_->rows_equal(a, b, row_bytes, rows);
  }
  void copy_rows(std::byte* to, size_t stride, const std::byte* from, size_t row_bytes,
                 const std::vector<int64_t>& rows) override {
    cpu_->copy_rows(to, stride, from, row_bytes, rows);
  }
  void synchronize(const std::string& what) override { cpu_->synchronize(what); }
  size_t cache_bytes() const override { return cpu_->cache_bytes(); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { cpu_->copy(to, from, bytes); }
  void flush_cache() override { cpu_->flush_cache(); }
  double time_ms(const std::function<void()>& enqueue, double cover_us, const std::function<void()>& prepare) override {
    return cpu_->time_ms(enqueue, cover_us, prepare);
  }

 private:
  std::unique_ptr<Device> cpu_ = open_cpu_device();
};

}  // namespace checkop
