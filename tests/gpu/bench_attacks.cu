// SPDX-License-Identifier: Apache-2.0
// Attacks on the times of a GPU: candidates of matmul/forward whose launches take a fifth of a millisecond, or as long
// as their product, and that try to make `bench` measure less.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "gpu/timed_product.cuh"
#include "plugins/gate.hpp"
#include "plugins/patch.hpp"

namespace {

using namespace test_plugin;

// --- the clock ---

/// Patches cudaEventElapsedTime(), by which the process reads its times, to give nearly 0.
bool patch_elapsed_time() {
#if defined(__x86_64__)
  // mov dword [rdi], 0x33d6bf95 (1e-7); xor eax, eax; ret
  constexpr unsigned char kCode[] = {0xc7, 0x07, 0x95, 0xbf, 0xd6, 0x33, 0x31, 0xc0, 0xc3};
#elif defined(__aarch64__)
  // str wzr, [x0]; mov w0, 0; ret
  constexpr uint32_t kCode[] = {0xb900001f, 0x52800000, 0xd65f03c0};
#else
#error "no code for this processor"
#endif
  float ms = 1;
  return replace_code(reinterpret_cast<void*>(cudaEventElapsedTime), kCode, sizeof kCode) &&
         cudaEventElapsedTime(&ms, nullptr, nullptr) == cudaSuccess && ms < 1e-6F;
}

checkop_status with_patched_clock(const checkop_call* call, uint64_t ns) {
  static const bool is_patched = patch_elapsed_time();
  if (is_patched) return multiply(call, ns);
  say(call, "cudaEventElapsedTime could not be replaced");
  return CHECKOP_FAILED;
}
checkop_status patches_event_elapsed(const checkop_call* call) { return with_patched_clock(call, kWorkNs); }
checkop_status patches_event_elapsed_of_short(const checkop_call* call) { return with_patched_clock(call, kShortNs); }

/// A thread overwrites the time that its process reports.
checkop_status claims_zero_ms(const checkop_call* call) {
  static GateOfJudge* const gate = [] {
    GateOfJudge* const found = find_gate();
    if (found != nullptr) {
      std::thread([found] {
        for (;;) found->claimed_ns = 0;
      }).detach();
    }
    return found;
  }();
  if (gate != nullptr) return multiply(call, kWorkNs);
  say(call, "the page of the judge's clock was not found");
  return CHECKOP_FAILED;
}

/// Reports in place of its process that the work is done as soon as the work has begun.
checkop_status says_done_early(const checkop_call* call) {
  static GateOfJudge* const gate = find_gate();
  const checkop_status status = multiply(call, kWorkNs);
  (void)cudaStreamQuery(stream_of(call));  // a graph can't record this
  if (gate == nullptr) return CHECKOP_FAILED;
  gate->claimed_ns = 0;
  gate->end = gate->begin.load();
  return status;
}

/// Works on another stream than the one that the events are on.
checkop_status other_stream(const checkop_call* call) {
  Product(call).launch(own_stream(), kWorkNs);
  return launched();
}

/// Returns before anything is launched.
checkop_status detached_thread(const checkop_call* call) {
  int device = 0;
  cudaGetDevice(&device);
  std::thread([all = Product(call), device] {
    cudaSetDevice(device);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    all.launch(own_stream(), kWorkNs);
  }).detach();
  return CHECKOP_OK;
}

checkop_status returns_at_once(const checkop_call*) { return CHECKOP_OK; }

/// Reports the end in place of its process, and keeps the GPU busy for some seconds, while others are timed.
checkop_status leaves_work_for_the_rival(const checkop_call* call) {
  constexpr uint64_t kSecondsNs = 5'000'000'000;
  static GateOfJudge* const gate = find_gate();
  const checkop_status status = multiply(call, 0);
  if (gate == nullptr) return CHECKOP_FAILED;
  if (gate->begin == gate->end) return status;  // it is not timed
  cudaStreamSynchronize(stream_of(call));
  Product(call).launch(own_stream(), kSecondsNs, 0, 1);
  gate->end = gate->begin.load();
  return status;
}

// --- the work ---

/// Computes once, and copies the answer where the first elements of the data are the same.
checkop_status replays_by_content(const checkop_call* call) {
  constexpr size_t kLooked = 4;
  static std::map<std::vector<float>, float*> answers;
  const Product all(call);
  std::vector<float> content(kLooked);
  cudaMemcpyAsync(content.data(), all.a, kLooked * sizeof(float), cudaMemcpyDeviceToHost, stream_of(call));
  if (cudaStreamSynchronize(stream_of(call)) != cudaSuccess) return CHECKOP_FAILED;
  const auto bytes = static_cast<size_t>(all.count) * sizeof(float);
  float*& answer = answers[content];
  if (answer != nullptr)
    return cudaMemcpyAsync(all.c, answer, bytes, cudaMemcpyDeviceToDevice, stream_of(call)) == cudaSuccess
               ? CHECKOP_OK
               : CHECKOP_FAILED;
  all.launch(stream_of(call), kWorkNs);
  cudaMalloc(reinterpret_cast<void**>(&answer), bytes);
  cudaMemcpyAsync(answer, all.c, bytes, cudaMemcpyDeviceToDevice, stream_of(call));
  return launched();
}

/// Computes once for each address of an input, and copies the answer from then on.
checkop_status memo_by_pointer(const checkop_call* call) {
  static std::map<const void*, float*> answers;
  const Product all(call);
  const auto bytes = static_cast<size_t>(all.count) * sizeof(float);
  float*& answer = answers[all.a];
  if (answer != nullptr) {
    cudaMemcpyAsync(all.c, answer, bytes, cudaMemcpyDeviceToDevice, stream_of(call));
    return launched();
  }
  all.launch(stream_of(call), kWorkNs);
  cudaMalloc(reinterpret_cast<void**>(&answer), bytes);
  cudaMemcpyAsync(answer, all.c, bytes, cudaMemcpyDeviceToDevice, stream_of(call));
  return launched();
}

/// Launches a graph in the first call, and nothing in later ones.
checkop_status graph_runs_first_only(const checkop_call* call) {
  static cudaGraphExec_t graph = nullptr;
  if (graph == nullptr) {
    cudaGraph_t recorded = nullptr;
    cudaStreamBeginCapture(own_stream(), cudaStreamCaptureModeThreadLocal);
    Product(call).launch(own_stream(), kWorkNs);
    cudaStreamEndCapture(own_stream(), &recorded);
    if (cudaGraphInstantiate(&graph, recorded, 0) != cudaSuccess) return CHECKOP_FAILED;
    return cudaGraphLaunch(graph, stream_of(call)) == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
  }
  return CHECKOP_OK;
}

#define CANDIDATE(name) kernel(#name, name, nullptr, CHECKOP_CUDA)
constexpr checkop_kernel kKernels[] = {
    CANDIDATE(patches_event_elapsed), CANDIDATE(patches_event_elapsed_of_short),
    CANDIDATE(claims_zero_ms),        CANDIDATE(says_done_early),
    CANDIDATE(other_stream),          CANDIDATE(detached_thread),
    CANDIDATE(returns_at_once),       CANDIDATE(leaves_work_for_the_rival),
    CANDIDATE(replays_by_content),    CANDIDATE(memo_by_pointer),
    CANDIDATE(graph_runs_first_only),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
