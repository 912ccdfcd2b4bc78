// SPDX-License-Identifier: Apache-2.0
// Honest candidates of matmul/forward beside those of bench_attacks.cu, in a plugin of their own: a process that
// attacks has no other candidates.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "gpu/timed_product.cuh"

namespace {

using namespace test_plugin;

checkop_status honest_timed(const checkop_call* call) { return multiply(call, kWorkNs); }
checkop_status honest_short(const checkop_call* call) { return multiply(call, kShortNs); }

/// Does half of the work on another stream, which is made once.
checkop_status honest_two_streams_joined(const checkop_call* call) {
  static const auto make_event = [] {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    return event;
  };
  static const cudaEvent_t fork = make_event(), join = make_event();
  const Product all(call);
  cudaEventRecord(fork, stream_of(call));
  cudaStreamWaitEvent(own_stream(), fork);
  all.launch(stream_of(call), kWorkNs, 0, all.count / 2);
  all.launch(own_stream(), kWorkNs, all.count / 2, all.count);
  cudaEventRecord(join, own_stream());
  cudaStreamWaitEvent(stream_of(call), join);
  return launched();
}

/// Launches a graph, which it makes anew when it is called with other pointers, unless its launch is being recorded.
checkop_status honest_graph_of_its_own(const checkop_call* call) {
  using Key = std::tuple<const void*, const void*, void*, int64_t>;
  static std::map<Key, cudaGraphExec_t> graphs;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream_of(call), &capturing);
  if (capturing != cudaStreamCaptureStatusNone) return multiply(call, kWorkNs);
  const Product all(call);
  cudaGraphExec_t& graph = graphs[{all.a, all.b, all.c, all.count}];
  if (graph == nullptr) {
    cudaGraph_t recorded = nullptr;
    cudaStreamBeginCapture(own_stream(), cudaStreamCaptureModeThreadLocal);
    all.launch(own_stream(), kWorkNs);
    if (cudaStreamEndCapture(own_stream(), &recorded) != cudaSuccess ||
        cudaGraphInstantiate(&graph, recorded, 0) != cudaSuccess)
      return CHECKOP_FAILED;
    cudaGraphDestroy(recorded);
  }
  return cudaGraphLaunch(graph, stream_of(call)) == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

#define CANDIDATE(name) kernel(#name, name, nullptr, CHECKOP_CUDA)
constexpr checkop_kernel kKernels[] = {
    CANDIDATE(honest_timed),
    CANDIDATE(honest_short),
    CANDIDATE(honest_two_streams_joined),
    CANDIDATE(honest_graph_of_its_own),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
