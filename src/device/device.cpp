// SPDX-License-Identifier: Apache-2.0
// The CPU device, and stubs for the CUDA device in a build without CUDA.
#include "device/device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host_memory.hpp"
#include "base/mix.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

/// "AMD EPYC 9654 96-Core Processor"; "cpu" if /proc/cpuinfo has no model name, as on many ARM machines.
std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (line.find(':') != std::string::npos && value != std::string::npos) return line.substr(value);
  }
  return "cpu";
}

uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::optional<DeviceInfo> elsewhere) : elsewhere_(std::move(elsewhere)) {
    info_.kind = "cpu";
    info_.name = processor_name();
    info_.multiprocessors = static_cast<int>(std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));
    info_.memory_bytes = physical_memory();
  }

  DeviceInfo info() const override {
    DeviceInfo info = elsewhere_ ? *elsewhere_ : info_;
    complete(info);
    return info;
  }

  void* stream() override { return nullptr; }

  /// Short, because touching pages takes time and inaccessible memory follows (map_apart()). In an arena that is mapped
  /// as a whole, the next block follows instead.
  size_t least_guard_bytes() const override { return shared_ && !by_block_ ? kMostGuardBytes : 8192; }

  std::shared_ptr<SharedMemory> share_memory(bool read_only_inputs) override {
    return shared_ = std::make_shared<SharedMemory>(memfd_arenas(read_only_inputs));
  }

  std::shared_ptr<SharedMemory> share_blocks(Sharing sharing) override {
    by_block_ = true;
    return shared_ = std::make_shared<SharedMemory>(
               for_sharing(memfd_arenas(/*read_only_inputs=*/true, Blocks::own_pages), sharing));
  }

  std::byte* allocate(size_t bytes, const std::string& what) override {
    require_room(bytes, what);
    std::byte* memory = map_apart(bytes);
    if (memory == nullptr) fail(bytes, what, "out of memory");
    sizes_[memory] = bytes;
    return memory;
  }

  std::byte* allocate_shared(size_t bytes, const std::string& what, Access access) override {
    if (!shared_) return allocate(bytes, what);
    require_room(bytes, what);
    try {
      return shared_->allocate(bytes, access);
    } catch (const OutOfMemory& e) {
      fail(bytes, what, e.what());
    }
  }

  void free(std::byte* memory) noexcept override {
    if (const auto bytes = shared_ ? shared_->size_of(memory) : std::nullopt) {
      // An answer must not reach a later launch through memory that stays mapped.
      std::memset(memory, 0xff, *bytes);
      return shared_->free(memory);
    }
    const auto found = sizes_.find(memory);
    if (found == sizes_.end()) return;
    unmap_apart(memory, found->second);
    sizes_.erase(found);
  }

  void upload(std::byte* device, const std::byte* host, size_t bytes) override { copy_bytes(device, host, bytes); }
  void download(std::byte* host, const std::byte* device, size_t bytes) override { copy_bytes(host, device, bytes); }

  void fill(std::byte* device, uint64_t pattern, size_t pattern_bytes, size_t bytes) override {
    // Copies of one block of repetitions: as fast as memset for every width. The block itself grows by copies of all
    // that it holds: pattern by pattern, a band of narrow elements would take thousands of them.
    std::byte block[4096];
    std::memcpy(block, &pattern, pattern_bytes);
    for (size_t held = pattern_bytes, needed = std::min(sizeof(block), bytes); held < needed; held *= 2)
      std::memcpy(block + held, block, std::min(held, sizeof(block) - held));
    for (size_t at = 0; at < bytes; at += sizeof(block))
      copy_bytes(device + at, block, std::min(sizeof(block), bytes - at));
  }

  bool rows_equal(const std::byte* a, const std::byte* b, size_t row_bytes, const std::vector<int64_t>& rows) override {
    for (size_t k = 0; k < rows.size() && row_bytes > 0; ++k) {
      if (rows[k] < 0) continue;
      if (std::memcmp(a + k * row_bytes, b + static_cast<size_t>(rows[k]) * row_bytes, row_bytes) != 0) return false;
    }
    return true;
  }

  void copy_rows(std::byte* to, size_t stride, const std::byte* from, size_t row_bytes,
                 const std::vector<int64_t>& rows) override {
    for (size_t k = 0; k < rows.size(); ++k) {
      if (rows[k] >= 0) copy_bytes(to + k * stride, from + static_cast<size_t>(rows[k]) * row_bytes, row_bytes);
    }
  }

  uint64_t fingerprint(const std::byte* memory, size_t bytes) override {
    const uint64_t salt = fingerprint_salt();
    // Half of a term's work depends on the index alone.
    static const std::vector<uint64_t> first = [salt] {
      std::vector<uint64_t> mixed(8192);  // 64 KiB: as much as most tensors
      for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = mix_bits(i + salt);
      return mixed;
    }();
    const size_t words = bytes / sizeof(uint64_t), rest = bytes % sizeof(uint64_t),
                 known = std::min(words, first.size());
    uint64_t sum = 0, word;
    for (size_t i = 0; i < known; ++i) {  // copies of a size that the compiler knows are single loads
      std::memcpy(&word, memory + i * sizeof(word), sizeof(word));
      sum += mix_bits(word ^ first[i]);
    }
    for (size_t i = known; i < words; ++i) {
      std::memcpy(&word, memory + i * sizeof(word), sizeof(word));
      sum += fingerprint_of(word, i, salt);
    }
    if (rest == 0) return sum;
    word = 0;
    std::memcpy(&word, memory + words * sizeof(word), rest);
    return sum + fingerprint_of(word, words, salt);
  }

  void synchronize(const std::string&) override {}

  size_t cache_bytes() const override {
    // 0 if the system does not tell. More than 64 MiB is shared by more cores than a candidate uses.
    constexpr long kUsual = 32l << 20, kMost = 64l << 20;
    const long told = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return static_cast<size_t>(told > 0 ? std::min(told, kMost) : kUsual);
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override { copy_bytes(to, from, bytes); }

  void flush_cache() override {
    // Twice the cache: with 128 MiB read before, sums over 1, 16 and 64 MiB take as long as with 1 GiB, on a processor
    // with 260 MiB. Written once, because untouched pages would all map to the same page of zeros.
    constexpr size_t kCaches = 2;
    if (flushed_.empty()) flushed_.assign(kCaches * cache_bytes() / sizeof(uint64_t), 1);
    read_ = std::accumulate(flushed_.begin(), flushed_.end(), uint64_t{0});
  }

  double time_ms(const std::function<void()>& enqueue, double, const std::function<void()>& prepare) override {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  [[noreturn]] static void fail(size_t bytes, const std::string& what, std::string_view why) {
    throw OutOfMemory(fmt::format("allocate {} ({}): {}", what, format_bytes(bytes), why));
  }

  /// The system would grant more memory than there is, and kill the process when it uses it.
  void require_room(size_t bytes, const std::string& what) const {
    if (bytes > info_.memory_bytes) fail(bytes, what, "the machine has not so much memory");
  }

  static void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);  // memcpy forbids null pointers even for zero bytes
  }

  std::unordered_map<std::byte*, size_t> sizes_;
  std::shared_ptr<SharedMemory> shared_;  ///< nullptr until share_memory() or share_blocks()
  bool by_block_ = false;                 ///< see share_blocks()
  std::vector<uint64_t> flushed_;
  volatile uint64_t read_ = 0;  // keeps the reads of flush_cache()
  std::optional<DeviceInfo> elsewhere_;
  DeviceInfo info_;  // read once, because /proc/cpuinfo takes a millisecond
};

}  // namespace

void Device::run(const LaunchMode& mode, const std::function<bool()>& launch) {
  if (mode.kind == LaunchMode::Kind::contended) {
    throw LaunchModeUnsupported(
        fmt::format("'{}' runs one launch at a time, so contention can't be tested", info().kind));
  }
  if (mode.kind == LaunchMode::Kind::replayed)
    throw LaunchModeUnsupported(fmt::format("'{}' has no graphs", info().kind));
  launch();
}

std::shared_ptr<SharedMemory> Device::share_memory(bool) {
  // lint: allow message, both devices have such memory
  throw EnvironmentError(fmt::format("'{}' has no memory that another process can map", info().kind));
}

std::shared_ptr<SharedMemory> Device::share_blocks(Sharing) { return share_memory(true); }

Device& Device::of_rank(int32_t) { return *this; }
std::string Device::comm_id(int32_t) { return ""; }
void* Device::join_comm(const std::string&, int32_t, int32_t, std::chrono::milliseconds) { return nullptr; }
std::optional<Unfinished> Device::finish(std::chrono::milliseconds, const std::atomic<bool>&) { return {}; }

void Device::complete(DeviceInfo& info) const {
  info.transport = transport_;
  if (processes_ == nullptr) return;
  info.most_ranks = most_ranks_;
  info.ranks_limit = fmt::format("processes, and {} run it", most_ranks_);
}

bool DeviceMemory::equal(const std::byte* a, const std::byte* b, size_t bytes) {
  constexpr size_t kPart = 65536;  // bytes per row: enough rows for every SM
  std::vector<int64_t> parts(bytes / kPart);
  std::iota(parts.begin(), parts.end(), 0);
  const size_t rest = parts.size() * kPart;
  return rows_equal(a, b, kPart, parts) && rows_equal(a + rest, b + rest, bytes - rest, {0});
}

uint64_t fingerprint_salt() {
  static const uint64_t salt = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return salt;
}

std::unique_ptr<Device> open_cpu_device() { return std::make_unique<CpuDevice>(std::nullopt); }
std::unique_ptr<Device> open_cpu_device(const DeviceInfo& elsewhere) { return std::make_unique<CpuDevice>(elsewhere); }

#ifdef CHECK_OPERATOR_CUDA
bool built_with_cuda() { return true; }
#else
bool built_with_cuda() { return false; }

std::unique_ptr<Device> open_cuda_device(int) {
  throw EnvironmentError("device 'cuda': built without CUDA; reconfigure with 'cmake --preset cuda'");
}

int cuda_device_count() { return 0; }
#endif

}  // namespace checkop
