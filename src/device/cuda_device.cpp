// SPDX-License-Identifier: Apache-2.0
// The CUDA device; compiled by nvcc. Every member first makes its device current, since ranks use several in a process.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/mix.hpp"
#include "base/text.hpp"
#include "device/cuda_error.hpp"
#include "device/cuda_kernels.cuh"
#include "device/cuda_launches.hpp"
#include "device/cuda_memory.hpp"
#include "device/cuda_ranks.hpp"
#include "device/device.hpp"

namespace checkop {
namespace {

/// "13.0" for 13000.
std::string format_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index), ranks_(index) {
    check(cudaSetDevice(index), "select device cuda:" + std::to_string(index));
    check(cudaGetDeviceProperties(&properties_, index), "read the properties of cuda:" + std::to_string(index));
    memory_.keep_at_most(properties_.totalGlobalMem / 32);  // little enough for candidates not to miss it
    launches_.emplace(properties_);
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "read the driver's version");
    check(cudaRuntimeGetVersion(&runtime), "read the runtime's version");
    driver_ = format_version(driver);
    runtime_ = format_version(runtime);
    free_at_first_ = free_bytes();
  }

  DeviceInfo info() const override {
    const int arch = properties_.major * 10 + properties_.minor;
    DeviceInfo info;
    info.kind = "cuda";
    info.index = index_;
    info.name = properties_.name;
    info.arch_key = "sm" + std::to_string(arch);
    info.arch = arch;
    info.multiprocessors = properties_.multiProcessorCount;
    info.memory_bytes = properties_.totalGlobalMem;
    info.free_bytes = free_at_first_;
    info.driver = driver_;
    info.runtime = runtime_;
    ranks_.tell(info);
    complete(info);
    return info;
  }

  void* stream() override { return launches_->stream(); }
  void make_current() override { check(cudaSetDevice(index_), "select device cuda:" + std::to_string(index_)); }

  Device& of_rank(int32_t rank) override { return rank == 0 || processes_ != nullptr ? *this : ranks_.device_of(rank); }
  std::string comm_id(int32_t world_size) override { return ranks_.comm_id(world_size); }
  void* join_comm(const std::string& comm_id, int32_t rank, int32_t world_size,
                  std::chrono::milliseconds limit) override {
    make_current();
    return ranks_.join_comm(comm_id, rank, world_size, limit);
  }
  std::optional<Unfinished> finish(std::chrono::milliseconds limit, const std::atomic<bool>& is_broken) override {
    make_current();
    return ranks_.finish(launches_->stream(), limit, is_broken);
  }
  void abort_comms() noexcept override { ranks_.abort_comms(); }

  std::byte* allocate(size_t bytes, const std::string& what) override {
    make_current();
    std::byte* memory = nullptr;
    const std::string doing = "allocate " + what + " (" + format_bytes(bytes) + ")";
    const cudaError_t status = memory_.allocate(bytes, &memory);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw OutOfMemory(describe(status, doing, std::source_location::current()) + "; " + format_bytes(free_bytes()) +
                        " are free");
    }
    check(status, doing);
    return memory;
  }

  std::shared_ptr<SharedMemory> share_memory(bool) override { return share(Blocks::packed, Sharing::one_process); }

  std::shared_ptr<SharedMemory> share_blocks(Sharing sharing) override {
    is_by_block_ = true;
    return share(Blocks::own_arenas, sharing);
  }

  size_t shared_bytes(size_t bytes) const override {
    return is_by_block_ ? shared_->block_bytes(bytes) : Device::shared_bytes(bytes);
  }

  std::shared_ptr<SharedMemory> share(Blocks blocks, Sharing sharing) {
    make_current();
    check(cudaFree(nullptr), "make a context");  // what the driver's functions use
    ArenaKind kind = cuda_arenas(index_, blocks);
    kind.most_unused_bytes = properties_.totalGlobalMem / 32;  // as of memory_
    return shared_ = std::make_shared<SharedMemory>(for_sharing(std::move(kind), sharing));
  }

  std::byte* allocate_shared(size_t bytes, const std::string& what, Access access) override {
    if (!shared_) return allocate(bytes, what);
    make_current();
    const auto take = [&] {
      try {
        return shared_->allocate(bytes, access);
      } catch (const OutOfMemory& error) {
        throw OutOfMemory("allocate " + what + " (" + format_bytes(bytes) + "): " + error.what() + "; " +
                          format_bytes(free_bytes()) + " are free");
      }
    };
    try {
      return take();
    } catch (const OutOfMemory&) {
      memory_.release();
      return take();
    }
  }

  void free(std::byte* memory) noexcept override {
    (void)cudaSetDevice(index_);
    if (const auto bytes = shared_ ? shared_->size_of(memory) : std::nullopt) {
      // As in CudaMemory::free(). Waits, because an arena without blocks may be unmapped.
      (void)cudaMemsetAsync(memory, 0xff, *bytes, launches_->stream());
      (void)cudaStreamSynchronize(launches_->stream());
      (void)cudaGetLastError();
      return shared_->free(memory);
    }
    memory_.free(memory, launches_->stream());
  }

  void upload(std::byte* device, const std::byte* host, size_t bytes) override {
    copy(device, host, bytes, cudaMemcpyHostToDevice, "upload");
  }

  void download(std::byte* host, const std::byte* device, size_t bytes) override {
    copy(host, device, bytes, cudaMemcpyDeviceToHost, "download");
  }

  void fill(std::byte* device, uint64_t pattern, size_t pattern_bytes, size_t bytes) override {
    make_current();
    if (bytes == 0) return;
    for (size_t width = pattern_bytes; width < sizeof(pattern); width *= 2) {
      pattern &= ~uint64_t{0} >> (64 - 8 * width);
      pattern |= pattern << (8 * width);
    }
    fill_bytes<<<blocks_for(bytes / sizeof(uint4)), kThreads, 0, launches_->stream()>>>(device, pattern, bytes);
    check(cudaGetLastError(), "fill (" + format_bytes(bytes) + ")");
  }

  bool rows_equal(const std::byte* a, const std::byte* b, size_t row_bytes, const std::vector<int64_t>& rows) override {
    make_current();
    if (rows.empty() || row_bytes == 0) return true;
    const int64_t* const there = upload_rows(rows);
    return with_words(a, b, row_bytes, [&]<typename Word>(Word) {
      return sum_of("compare rows", [&](unsigned long long* different) {
               count_different<<<blocks_for(rows.size() * kThreads), kThreads, 0, launches_->stream()>>>(
                   reinterpret_cast<const Word*>(a), reinterpret_cast<const Word*>(b), row_bytes / sizeof(Word), there,
                   static_cast<int64_t>(rows.size()), different);
             }) == 0;
    });
  }

  void copy_rows(std::byte* to, size_t stride, const std::byte* from, size_t row_bytes,
                 const std::vector<int64_t>& rows) override {
    make_current();
    if (rows.empty() || row_bytes == 0) return;
    const int64_t* const there = upload_rows(rows);
    with_words(to, from, row_bytes | stride, [&]<typename Word>(Word) {
      gather_rows<<<blocks_for(rows.size() * kThreads), kThreads, 0, launches_->stream()>>>(
          reinterpret_cast<Word*>(to), stride / sizeof(Word), reinterpret_cast<const Word*>(from),
          row_bytes / sizeof(Word), there, static_cast<int64_t>(rows.size()));
    });
    check(cudaGetLastError(), "copy rows");
  }

  uint64_t fingerprint(const std::byte* memory, size_t bytes) override {
    make_current();
    return sum_of("read back", [&](unsigned long long* sum) {
      add_fingerprint<<<blocks_for(bytes / sizeof(uint64_t)), kThreads, 0, launches_->stream()>>>(
          memory, bytes, fingerprint_salt(), sum);
    });
  }

  void synchronize(const std::string& what) override {
    make_current();
    check(cudaDeviceSynchronize(), what);
    check(cudaGetLastError(), what);  // a launch error that the candidate did not report
  }

  /// Processes share the device in time slices. While another one has work, a launch after a break waits some
  /// milliseconds, until that process's time slice or its work ends.
  bool wait_until_alone(std::chrono::milliseconds limit) override {
    constexpr double kAnswerMs = 0.2, kBreakMs = 0.05;
    constexpr int kInARow = 2;
    make_current();
    const auto until = Clock::now() + limit;
    for (int prompt = 0; prompt < kInARow;) {
      const auto end = Clock::now();
      if (end > until) return false;
      while (prompt > 0 && ms_since(end) < kBreakMs) {  // long enough for another process's time slice to begin
      }
      const auto begin = Clock::now();
      do_nothing<<<1, 1, 0, launches_->stream()>>>();
      check(cudaGetLastError(), "wait for other processes");
      check(cudaStreamSynchronize(launches_->stream()), "wait for other processes");
      prompt = ms_since(begin) < kAnswerMs ? prompt + 1 : 0;
    }
    return true;
  }

  void run(const LaunchMode& mode, const std::function<bool()>& launch) override {
    make_current();
    if (!shared_) return launches_->run(mode, launch);
    if (!is_by_block_)
      return Device::run(mode, launch);  // another process's work is neither beside ours nor on our stream
    mode_elsewhere_ = mode;
    launch();
  }

  size_t cache_bytes() const override { return static_cast<size_t>(properties_.l2CacheSize); }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    make_current();
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, launches_->stream()),
          "copy (" + format_bytes(bytes) + ")");
  }

  void flush_cache() override {
    make_current();
    // Releases the cache that another process set aside. Not every device supports this.
    if (is_by_block_ && cudaCtxResetPersistingL2Cache() != cudaSuccess) (void)cudaGetLastError();
    constexpr size_t kCaches = 4;
    const size_t bytes = kCaches * cache_bytes();
    if (!flushed_) {
      flushed_.reset(allocate(bytes + sizeof(uint4), "what flushes the cache"));
      check(cudaMemsetAsync(flushed_.get(), 0, bytes + sizeof(uint4), launches_->stream()),
            "clear what flushes the cache");
    }
    read_words<<<blocks_for(bytes / sizeof(uint4)), kThreads, 0, launches_->stream()>>>(
        reinterpret_cast<const uint4*>(flushed_.get()), bytes / sizeof(uint4), 1,
        reinterpret_cast<unsigned*>(flushed_.get() + bytes));
    check(cudaGetLastError(), "flush the cache");
  }

  double time_ms(const std::function<void()>& enqueue, double cover_us, const std::function<void()>& prepare) override {
    make_current();
    if (!start_) start_ = cuda::make_event(), stop_ = cuda::make_event();
    launches_->release_cache();
    if (cover_us > 0) {
      wait_ns<<<1, 1, 0, launches_->stream()>>>(static_cast<uint64_t>(cover_us * 1e3));
      check(cudaGetLastError(), "cover a launch");
    }
    prepare();
    check(cudaEventRecord(start_.get(), launches_->stream()), "record the start");
    enqueue();
    check(cudaEventRecord(stop_.get(), launches_->stream()), "record the end");
    check(cudaEventSynchronize(stop_.get()), "wait for what is timed");
    check(cudaGetLastError(), "time");  // a launch error that the candidate did not report
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_.get(), stop_.get()), "read the time");
    return static_cast<double>(ms) + unfinished_ms();
  }

 private:
  static constexpr int kThreads = 256;

  /// How long other streams go on after the timed stream has finished, without the time that a wait for an idle device
  /// takes.
  double unfinished_ms() {
    constexpr double kNoiseMs = 0.02;
    const auto wait_ms = [] {
      const auto begin = Clock::now();
      check(cudaDeviceSynchronize(), "wait for all streams");
      return ms_since(begin);
    };
    const double first = wait_ms(), idle = wait_ms();
    return first - idle > kNoiseMs ? first - idle : 0;
  }

  /// Blocks for the work of `threads` threads; at most as many as all SMs hold.
  unsigned blocks_for(size_t threads) const {
    constexpr int kBlocksPerMultiprocessor = 8;
    const auto most = static_cast<size_t>(properties_.multiProcessorCount * kBlocksPerMultiprocessor);
    return static_cast<unsigned>(std::clamp<size_t>((threads + kThreads - 1) / kThreads, 1, most));
  }

  /// The address of `rows` on the device, valid until other rows are uploaded. Keeps the last upload, because the
  /// tensors of a launch use the same rows.
  const int64_t* upload_rows(const std::vector<int64_t>& rows) {
    if (rows != uploaded_rows_) {
      uploaded_rows_.clear();  // in case the upload throws
      const size_t bytes = rows.size() * sizeof(int64_t);
      if (bytes > rows_bytes_) {
        rows_.reset();
        rows_.reset(allocate(bytes, "numbers of rows"));
        rows_bytes_ = bytes;
      }
      upload(rows_.get(), reinterpret_cast<const std::byte*>(rows.data()), bytes);
      uploaded_rows_ = rows;
    }
    return reinterpret_cast<const int64_t*>(rows_.get());
  }

  /// The sum that the kernels started by `launch` add up, beginning at 0.
  template <class Launch>
  uint64_t sum_of(const std::string& doing, const Launch& launch) {
    if (!sum_) sum_.reset(allocate(sizeof(unsigned long long), "a sum"));
    check(cudaMemsetAsync(sum_.get(), 0, sizeof(unsigned long long), launches_->stream()), doing);
    launch(reinterpret_cast<unsigned long long*>(sum_.get()));
    check(cudaGetLastError(), doing);
    unsigned long long sum = 0;
    download(reinterpret_cast<std::byte*>(&sum), sum_.get(), sizeof(sum));
    return sum;
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes, cudaMemcpyKind kind, std::string_view verb) {
    make_current();
    if (bytes == 0) return;
    const std::string doing = std::string(verb) + " (" + format_bytes(bytes) + ")";
    check(cudaMemcpyAsync(to, from, bytes, kind, launches_->stream()), doing);
    check(cudaStreamSynchronize(launches_->stream()), doing);
  }

  static size_t free_bytes() {
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);  // leaves 0 after a sticky error
    return free;
  }

  struct MemoryDelete {
    CudaDevice* device;
    void operator()(std::byte* memory) const noexcept { device->free(memory); }
  };
  using Memory = std::unique_ptr<std::byte, MemoryDelete>;

  int index_;
  CudaRanks ranks_;
  CudaMemory memory_;
  std::shared_ptr<SharedMemory> shared_;  ///< nullptr until share_memory() or share_blocks()
  bool is_by_block_ = false;              ///< see share_blocks()
  cudaDeviceProp properties_{};
  std::optional<CudaLaunches> launches_;  ///< from the constructor on
  cuda::Event start_, stop_;
  Memory sum_{nullptr, {this}};   ///< used by sum_of()
  Memory rows_{nullptr, {this}};  ///< used by upload_rows()
  size_t rows_bytes_ = 0;
  std::vector<int64_t> uploaded_rows_;
  Memory flushed_{nullptr, {this}};  ///< the buffer that flush_cache() reads, and one more word
  std::string driver_, runtime_;
  size_t free_at_first_ = 0;
};

}  // namespace

std::unique_ptr<Device> open_cuda_device(int index) {
  const std::string device = "device 'cuda:" + std::to_string(index) + "'";
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    throw EnvironmentError(describe(status, device, std::source_location::current()) +
                           "; check the driver with 'nvidia-smi'");
  }
  if (index < 0 || index >= count) {
    throw EnvironmentError(device + ": this machine has " + std::to_string(count) +
                           (count == 1 ? " CUDA device" : " CUDA devices") +
                           "; choose one of them with --device cuda:N");
  }
  try {
    return std::make_unique<CudaDevice>(index);
  } catch (const DeviceError& error) {
    throw EnvironmentError(device + ": " + error.what());
  }
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

}  // namespace checkop
