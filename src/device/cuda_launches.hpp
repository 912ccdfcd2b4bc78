// SPDX-License-Identifier: Apache-2.0
// Launches on a CUDA device, in the process that the kernel is loaded into: plainly, beside other work, from a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "device/cuda_error.hpp"
#include "device/cuda_kernels.cuh"
#include "device/device.hpp"

namespace checkop {

namespace cuda {

struct EventDelete {
  using pointer = cudaEvent_t;
  void operator()(cudaEvent_t event) const noexcept { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<cudaEvent_t, EventDelete>;

inline Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "create an event");
  return Event(event);
}

}  // namespace cuda

class CudaLaunches {
 public:
  /// Of the current device.
  explicit CudaLaunches(const cudaDeviceProp& properties) : properties_(properties), stream_(make_stream()) {}

  cudaStream_t stream() const { return stream_.get(); }

  struct GraphExecDelete {
    using pointer = cudaGraphExec_t;
    void operator()(cudaGraphExec_t graph) const noexcept { (void)cudaGraphExecDestroy(graph); }
  };
  using GraphExec = std::unique_ptr<cudaGraphExec_t, GraphExecDelete>;

  /// The work that `launch` puts on stream(), without running it. Throws LaunchModeUnsupported where that is
  /// impossible.
  GraphExec record(const std::function<bool()>& launch) {
    // Thread-local mode: calls that can't be recorded fail; they are not executed outside of the graph instead.
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
      throw LaunchModeUnsupported(std::string("the launch can't be recorded in a graph: ") +
                                  (ended != cudaSuccess ? cudaGetErrorString(ended)
                                   : launched           ? "nothing was put on its stream"
                                                        : "it failed meanwhile"));
    }
    cudaGraphExec_t instance = nullptr;
    check(cudaGraphInstantiate(&instance, graph.get(), 0), "make a graph");
    return GraphExec(instance);
  }

  /// Resets the part of the L2 cache that a launch may have set aside as persisting, since reading does not evict it.
  /// Not every device has this.
  void release_cache() {
    size_t reserved = 0;
    if (cudaDeviceGetLimit(&reserved, cudaLimitPersistingL2CacheSize) != cudaSuccess) {
      (void)cudaGetLastError();
      return;
    }
    if (reserved == 0) return;
    cudaLaunchAttributeValue no_window{};
    no_window.accessPolicyWindow.hitProp = cudaAccessPropertyNormal;
    no_window.accessPolicyWindow.missProp = cudaAccessPropertyNormal;
    check(cudaStreamSetAttribute(stream_.get(), cudaLaunchAttributeAccessPolicyWindow, &no_window),
          "end the stream's access window");
    check(cudaCtxResetPersistingL2Cache(), "release the L2 cache");
    check(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0), "release the L2 cache");
  }

  /// See DeviceStream::run().
  void run(const LaunchMode& mode, const std::function<bool()>& launch) {
    switch (mode.kind) {
      case LaunchMode::Kind::plain:
        launch();
        return;
      case LaunchMode::Kind::contended:
        return run_contended(mode.percent, launch);
      case LaunchMode::Kind::replayed:
        return run_replayed(launch);
    }
  }

 private:
  struct StreamDelete {
    using pointer = cudaStream_t;
    void operator()(cudaStream_t stream) const noexcept { (void)cudaStreamDestroy(stream); }
  };
  using Stream = std::unique_ptr<cudaStream_t, StreamDelete>;

  struct HostDelete {
    void operator()(Held* held) const noexcept { (void)cudaFreeHost(held); }
  };

  struct GraphDelete {
    using pointer = cudaGraph_t;
    void operator()(cudaGraph_t graph) const noexcept { (void)cudaGraphDestroy(graph); }
  };
  using Graph = std::unique_ptr<cudaGraph_t, GraphDelete>;

  /// Non-blocking: no implicit order with the default stream, as in the programs that will use the kernels.
  static Stream make_stream() {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    return Stream(stream);
  }

  /// The contending work ends when the launch ends, or by itself after a second: a candidate that needs the whole
  /// device, or all its blocks at once, would otherwise wait forever.
  void run_contended(int percent, const std::function<bool()>& launch) {
    constexpr std::chrono::milliseconds kMostStart{200}, kMost{500};
    constexpr uint64_t kMostHeldNs = 1'000'000'000;
    if (!other_stream_) {
      other_stream_ = make_stream();
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
    const cudaError_t launched = cudaGetLastError();  // a launch error that the candidate did not report
    start = Clock::now();
    while (cudaStreamQuery(stream_.get()) == cudaErrorNotReady && Clock::now() - start < kMost) {
      std::this_thread::yield();
    }
    held->stop = 1;
    check(cudaStreamSynchronize(other_stream_.get()), "run beside contending work");
    check(launched, "run beside contending work");
    if (!holds) throw LaunchModeUnsupported("the contending work could not occupy the SMs");
  }

  void run_replayed(const std::function<bool()>& launch) {
    const GraphExec replay = record(launch);
    for (int i = 0; i < 2; ++i) check(cudaGraphLaunch(replay.get(), stream_.get()), "launch a graph");
    check(cudaStreamSynchronize(stream_.get()), "replay a graph");
  }

  const cudaDeviceProp& properties_;
  Stream stream_, other_stream_;
  std::unique_ptr<Held, HostDelete> held_;  ///< used by run_contended()
};

}  // namespace checkop
