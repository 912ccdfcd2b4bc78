// SPDX-License-Identifier: Apache-2.0
// The CUDA device. The only file in src/ that includes the CUDA runtime. nvcc compiles it: timing and contention take
// kernels.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device.hpp"
#include "error.hpp"
#include "text.hpp"

namespace checkop {
namespace {

/// "13.0" for 13000.
std::string format_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// "upload (16.0 MiB): cudaErrorMemoryAllocation: out of memory [device_cuda.cpp:41]"
std::string describe(cudaError_t status, std::string_view doing, const std::source_location& at) {
  const std::string_view path = at.file_name();
  std::string text(doing);
  text += std::string(": ") + cudaGetErrorName(status) + ": " + cudaGetErrorString(status) + " [";
  text += path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
  return text + ":" + std::to_string(at.line()) + "]";
}

/// Throws DeviceError unless `status` is cudaSuccess; the runtime's last error is cleared first.
void check(cudaError_t status, std::string_view doing,
           const std::source_location& at = std::source_location::current()) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  // After an illegal address, an assert, an ECC error and their like, every later call fails too, and there is no list
  // of them that a new driver could not make incomplete: ask for something harmless instead.
  const bool sticky = cudaDeviceSynchronize() != cudaSuccess;
  (void)cudaGetLastError();
  throw DeviceError(describe(status, doing, at), sticky);
}

/// Reads n words. The sum is stored where it is `never`, so that the reads are not optimised away.
__global__ void read_words(const uint4* __restrict__ words, size_t n, unsigned never, unsigned* __restrict__ sum_out) {
  unsigned sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const uint4 word = words[i];
    sum += word.x + word.y + word.z + word.w;
  }
  if (sum == never) *sum_out = sum;
}

/// Keeps the stream busy for so many nanoseconds.
__global__ void wait_ns(uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < ns);
}

/// What host and device tell each other while multiprocessors are held.
struct Held {
  unsigned blocks;  ///< that run; written by the device
  unsigned stop;    ///< not 0: end; written by the host
};

/// Every block takes a multiprocessor, whose shared memory it has all of, until it is told to end or `most_ns` are
/// over.
__global__ void hold_multiprocessor(volatile Held* held, uint64_t most_ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  atomicAdd_system(const_cast<unsigned*>(&held->blocks), 1u);
  do {
    __nanosleep(500);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (held->stop == 0 && now - start < most_ns);
}

struct StreamDelete {
  using pointer = cudaStream_t;
  void operator()(cudaStream_t stream) const noexcept { (void)cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<cudaStream_t, StreamDelete>;

struct EventDelete {
  using pointer = cudaEvent_t;
  void operator()(cudaEvent_t event) const noexcept { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<cudaEvent_t, EventDelete>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "create an event");
  return Event(event);
}

struct HostDelete {
  void operator()(Held* held) const noexcept { (void)cudaFreeHost(held); }
};

struct GraphDelete {
  using pointer = cudaGraph_t;
  void operator()(cudaGraph_t graph) const noexcept { (void)cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<cudaGraph_t, GraphDelete>;

struct GraphExecDelete {
  using pointer = cudaGraphExec_t;
  void operator()(cudaGraphExec_t graph) const noexcept { (void)cudaGraphExecDestroy(graph); }
};
using GraphExec = std::unique_ptr<cudaGraphExec_t, GraphExecDelete>;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    check(cudaSetDevice(index), "select device cuda:" + std::to_string(index));
    check(cudaGetDeviceProperties(&properties_, index), "read the properties of cuda:" + std::to_string(index));
    cudaStream_t stream = nullptr;
    // Non-blocking: no implicit order with the default stream, as in the programs that kernels end up in.
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    stream_.reset(stream);
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "read the driver's version");
    check(cudaRuntimeGetVersion(&runtime), "read the runtime's version");
    driver_ = format_version(driver);
    runtime_ = format_version(runtime);
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
    info.driver = driver_;
    info.runtime = runtime_;
    return info;
  }

  void* stream() override { return stream_.get(); }

  std::byte* allocate(size_t bytes, const std::string& what) override {
    void* memory = nullptr;
    // At least one byte: an empty tensor still gets an address of its own. cudaMalloc aligns to 256 bytes.
    check(cudaMalloc(&memory, std::max<size_t>(bytes, 1)), "allocate " + what + " (" + format_bytes(bytes) + ")");
    return static_cast<std::byte*>(memory);
  }

  void free(std::byte* memory) noexcept override {
    (void)cudaFree(memory);  // may run after a sticky error
    (void)cudaGetLastError();
  }

  void upload(std::byte* device, const std::byte* host, size_t bytes) override {
    copy(device, host, bytes, cudaMemcpyHostToDevice, "upload");
  }

  void download(std::byte* host, const std::byte* device, size_t bytes) override {
    copy(host, device, bytes, cudaMemcpyDeviceToHost, "download");
  }

  // A block of the pattern goes up once, and then what is filled doubles.
  void fill(std::byte* device, uint64_t pattern, size_t pattern_bytes, size_t bytes) override {
    if (bytes == 0) return;
    constexpr size_t kBlockBytes = size_t{4} << 20;  // a multiple of every pattern's size
    const std::string doing = "fill (" + format_bytes(bytes) + ")";
    std::vector<std::byte> block(std::min(bytes, kBlockBytes));
    // The low bytes come first in memory: every host of a CUDA device is little-endian.
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(pattern >> (i % pattern_bytes * 8));
    check(cudaMemcpyAsync(device, block.data(), block.size(), cudaMemcpyHostToDevice, stream_.get()), doing);
    for (size_t filled = block.size(); filled < bytes;) {
      const size_t next = std::min(filled, bytes - filled);
      check(cudaMemcpyAsync(device + filled, device, next, cudaMemcpyDeviceToDevice, stream_.get()), doing);
      filled += next;
    }
    check(cudaStreamSynchronize(stream_.get()), doing);
  }

  void synchronize(const std::string& what) override {
    check(cudaDeviceSynchronize(), what);
    check(cudaGetLastError(), what);  // a launch error that a candidate did not report
  }

  void run(const Manner& manner, const std::function<bool()>& launch) override {
    switch (manner.kind) {
      case Manner::Kind::plain:
        launch();
        return;
      case Manner::Kind::contended:
        return run_contended(manner.percent, launch);
      case Manner::Kind::replayed:
        return run_replayed(launch);
    }
  }

  size_t cache_bytes() const override { return static_cast<size_t>(properties_.l2CacheSize); }

  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()),
          "copy (" + format_bytes(bytes) + ")");
  }

  void flush_cache() override {
    const size_t bytes = kFlushCaches * cache_bytes();
    if (!flushed_) {
      flushed_.reset(allocate(bytes + sizeof(uint4), "what flushes the cache"));
      check(cudaMemsetAsync(flushed_.get(), 0, bytes + sizeof(uint4), stream_.get()), "clear what flushes the cache");
    }
    constexpr int kThreads = 512, kBlocksPerMultiprocessor = 4;  // all threads that a multiprocessor holds
    const auto blocks = static_cast<unsigned>(properties_.multiProcessorCount * kBlocksPerMultiprocessor);
    read_words<<<blocks, kThreads, 0, stream_.get()>>>(reinterpret_cast<const uint4*>(flushed_.get()),
                                                       bytes / sizeof(uint4), 1,
                                                       reinterpret_cast<unsigned*>(flushed_.get() + bytes));
    check(cudaGetLastError(), "flush the cache");
  }

  double time_ms(const std::function<void()>& enqueue, double cover_us) override {
    if (!start_) start_ = make_event(), stop_ = make_event();
    if (cover_us > 0) {
      wait_ns<<<1, 1, 0, stream_.get()>>>(static_cast<uint64_t>(cover_us * 1e3));
      check(cudaGetLastError(), "cover a launch");
    }
    check(cudaEventRecord(start_.get(), stream_.get()), "record the start");
    enqueue();
    check(cudaEventRecord(stop_.get(), stream_.get()), "record the end");
    check(cudaEventSynchronize(stop_.get()), "wait for what is timed");
    check(cudaGetLastError(), "time");  // a launch error that a candidate did not report
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_.get(), stop_.get()), "read the time");
    return static_cast<double>(ms);
  }

 private:
  /// The contending work ends with the launch's, and by itself after a second: a candidate that waits for the whole
  /// device, or whose blocks all have to run at once, would wait for ever.
  void run_contended(int percent, const std::function<bool()>& launch) {
    constexpr std::chrono::milliseconds kMostStart{200}, kMost{500};
    constexpr uint64_t kMostHeldNs = 1'000'000'000;
    using Clock = std::chrono::steady_clock;
    if (!other_stream_) {
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream for contending work");
      other_stream_.reset(stream);
      Held* held = nullptr;
      check(cudaHostAlloc(reinterpret_cast<void**>(&held), sizeof(Held), cudaHostAllocMapped), "allocate flags");
      held_.reset(held);
      check(cudaFuncSetAttribute(hold_multiprocessor, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(properties_.sharedMemPerBlockOptin)),
            "let contending work have a multiprocessor's shared memory");
    }
    const auto blocks = static_cast<unsigned>(std::max(1, properties_.multiProcessorCount * percent / 100));
    volatile Held* const held = held_.get();
    held->blocks = 0;
    held->stop = 0;
    hold_multiprocessor<<<blocks, 1, properties_.sharedMemPerBlockOptin, other_stream_.get()>>>(held_.get(),
                                                                                                kMostHeldNs);
    check(cudaGetLastError(), "start contending work");
    auto start = Clock::now();
    while (held->blocks < blocks && Clock::now() - start < kMostStart) std::this_thread::yield();
    const bool holds = held->blocks == blocks;
    launch();
    const cudaError_t launched = cudaGetLastError();  // a launch error that a candidate did not report
    start = Clock::now();
    while (cudaStreamQuery(stream_.get()) == cudaErrorNotReady && Clock::now() - start < kMost) {
      std::this_thread::yield();
    }
    held->stop = 1;
    check(cudaStreamSynchronize(other_stream_.get()), "run beside contending work");
    check(launched, "run beside contending work");
    if (!holds) throw NotOnDevice("the contending work did not get the multiprocessors");
  }

  void run_replayed(const std::function<bool()>& launch) {
    // Thread-local: calls that can't be part of a graph fail, and are not made outside of it instead.
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "begin to record a graph");
    const bool launched = launch();
    cudaGraph_t recorded = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &recorded);
    const Graph graph(recorded);
    (void)cudaGetLastError();  // of calls that failed because they were recorded
    size_t nodes = 0;
    if (launched && ended == cudaSuccess && graph) {
      check(cudaGraphGetNodes(graph.get(), nullptr, &nodes), "count what was recorded");
    }
    if (nodes == 0) {
      throw NotOnDevice(std::string("the launch can't be recorded in a graph: ") +
                        (ended != cudaSuccess ? cudaGetErrorString(ended)
                         : launched           ? "nothing was put on its stream"
                                              : "it failed meanwhile"));
    }
    cudaGraphExec_t instance = nullptr;
    check(cudaGraphInstantiate(&instance, graph.get(), 0), "make a graph");
    const GraphExec replay(instance);
    for (int i = 0; i < 2; ++i) check(cudaGraphLaunch(replay.get(), stream_.get()), "launch a graph");
    check(cudaStreamSynchronize(stream_.get()), "replay a graph");
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes, cudaMemcpyKind kind, std::string_view verb) {
    if (bytes == 0) return;
    const std::string doing = std::string(verb) + " (" + format_bytes(bytes) + ")";
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), doing);
    check(cudaStreamSynchronize(stream_.get()), doing);
  }

  struct MemoryDelete {
    void operator()(std::byte* memory) const noexcept { (void)cudaFree(memory); }
  };

  int index_;
  cudaDeviceProp properties_{};
  Stream stream_, other_stream_;
  std::unique_ptr<Held, HostDelete> held_;  ///< of run_contended()
  Event start_, stop_;
  std::unique_ptr<std::byte, MemoryDelete> flushed_;  ///< what flush_cache() reads, and a word behind it
  std::string driver_, runtime_;
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
