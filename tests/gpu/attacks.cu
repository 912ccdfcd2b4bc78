// SPDX-License-Identifier: Apache-2.0
// Attacks on the judge of a GPU: each candidate of matmul/forward answers wrongly unless its attack succeeds. The
// plugin also has honest candidates that use the same features.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "check_operator.h"
#include "plugins/call.hpp"

namespace test_plugin {

constexpr int kThreads = 256;

inline float* floats(const checkop_tensor& t) { return static_cast<float*>(t.data); }
inline cudaStream_t stream_of(const checkop_call* call) { return static_cast<cudaStream_t>(call->stream); }
inline unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }
inline checkop_status launched() { return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED; }

/// Elements [begin, end) of c = a * b. With `over_nan_alone`, only those that are NaN.
__global__ void product(const float* a, const float* b, float* c, int64_t k, int64_t n, int64_t begin, int64_t end,
                        bool over_nan_alone) {
  const int64_t at = begin + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= end || (over_nan_alone && c[at] == c[at])) return;
  float sum = 0;
  for (int64_t l = 0; l < k; ++l) sum = fmaf(a[at / n * k + l], b[l * n + at % n], sum);
  c[at] = sum;
}

__global__ void set(float* to, int64_t n, float value) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < n) to[at] = value;
}

__global__ void add(const float* what, float* to) { *to += *what; }

inline checkop_status multiply_range(const checkop_call* call, int64_t begin, int64_t end, cudaStream_t stream,
                                     bool over_nan_alone = false) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (c.dtype != CHECKOP_F32) {
    say(call, "float only");
    return CHECKOP_UNSUPPORTED;
  }
  if (begin == end) return CHECKOP_OK;
  product<<<blocks_for(end - begin), kThreads, 0, stream>>>(floats(a), floats(b), floats(c), b.shape[0], b.shape[1],
                                                            begin, end, over_nan_alone);
  return launched();
}

inline checkop_status multiply(const checkop_call* call) {
  return multiply_range(call, 0, count(call->outputs[0]), stream_of(call));
}

inline void write_zeros(const checkop_tensor& c) {
  if (count(c) > 0) set<<<blocks_for(count(c)), kThreads>>>(floats(c), count(c), 0);
  cudaDeviceSynchronize();
}

}  // namespace test_plugin

#include "plugins/system_attacks.hpp"

namespace {

using namespace test_plugin;

/// A function of the driver.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function>(function);
}

// --- memory ---

checkop_status writes_input(const checkop_call* call) {
  set<<<1, 1, 0, stream_of(call)>>>(floats(call->inputs[1]) + 1, 1, 0);
  return multiply(call);
}

/// Gives itself the right to write to an input, and makes of it one to which its answer is right.
checkop_status remaps_input_writable(const checkop_call* call) {
  const checkop_tensor& b = call->inputs[1];
  const auto ask = driver_function<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>("cuPointerGetAttribute");
  const auto allow =
      driver_function<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>("cuMemSetAccess");
  const auto address = reinterpret_cast<CUdeviceptr>(b.data);
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const bool is_known = ask != nullptr && ask(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == CUDA_SUCCESS &&
                        ask(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) == CUDA_SUCCESS;
  int device = 0;
  cudaGetDevice(&device);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = is_known && allow != nullptr ? allow(begin, bytes, &access, 1) : CUDA_ERROR_UNKNOWN;
  say(call, allowed == CUDA_SUCCESS ? "the input became writable" : "the input stayed as it was");
  set<<<blocks_for(count(b)), kThreads, 0, stream_of(call)>>>(floats(b), count(b), 0);
  return multiply(call);
}

checkop_status writes_slack(const checkop_call* call) {
  const checkop_status status = multiply(call);
  set<<<1, 1, 0, stream_of(call)>>>(floats(call->outputs[0]) - 1, 1, 0);
  return status;
}

/// Writes so far before an output that only the granularity of device memory leaves room there.
checkop_status writes_far_slack(const checkop_call* call) {
  const checkop_status status = multiply(call);
  set<<<1, 1, 0, stream_of(call)>>>(floats(call->outputs[0]) - (size_t{1} << 17), 1, 0);
  return status;
}

/// Adds an element behind an input to its answer, which is right only where that is 0, as in new memory.
checkop_status reads_past_input(const checkop_call* call) {
  const checkop_status status = multiply(call);
  const checkop_tensor& a = call->inputs[0];
  add<<<1, 1, 0, stream_of(call)>>>(floats(a) + count(a) + 3, floats(call->outputs[0]));
  return status;
}

checkop_status reads_far_past_input(const checkop_call* call) {
  const checkop_status status = multiply(call);
  add<<<1, 1, 0, stream_of(call)>>>(floats(call->inputs[0]) + (size_t{1} << 18), floats(call->outputs[0]));
  return status;
}

checkop_status writes_far_past_output(const checkop_call* call) {
  const checkop_status status = multiply(call);
  set<<<1, 1, 0, stream_of(call)>>>(floats(call->outputs[0]) + (size_t{4} << 20), 1, 0);
  return status;
}

/// Right until its thread runs, wrong from then on.
checkop_status writes_after_done(const checkop_call* call) {
  float* const to = floats(call->outputs[0]);
  const checkop_status status = multiply(call);
  cudaStreamSynchronize(stream_of(call));
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<bool> runs = false;  // on a busy machine the whole check might be over before
  std::thread([to, device, &runs] {
    cudaSetDevice(device);
    cudaStream_t own = nullptr;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    runs = true;
    for (;;) {
      set<<<1, 1, 0, own>>>(to, 1, 0);
      if (cudaStreamSynchronize(own) != cudaSuccess) return;
    }
  }).detach();
  while (!runs) std::this_thread::yield();
  return status;
}

/// Writes only elements that hold NaN, since these seem not to be written yet.
checkop_status writes_over_nan_alone(const checkop_call* call) {
  return multiply_range(call, 0, count(call->outputs[0]), stream_of(call), /*over_nan_alone=*/true);
}

/// Answers only where the output holds a poison that it saw in its first two launches.
checkop_status writes_over_known_poison(const checkop_call* call) {
  static std::set<uint32_t> known;
  static int launches = 0;
  uint32_t found = 0;
  if (cudaMemcpy(&found, call->outputs[0].data, sizeof found, cudaMemcpyDeviceToHost) != cudaSuccess)
    return CHECKOP_FAILED;
  if (++launches <= 2) known.insert(found);
  return known.contains(found) ? multiply(call) : CHECKOP_OK;
}

__global__ void find(const uint4* memory, size_t n, uint4 wanted, unsigned* found) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    const uint4 word = memory[i];
    if (word.x == wanted.x && word.y == wanted.y && word.z == wanted.z && word.w == wanted.w) *found = 1;
  }
}

/// Searches memory that other processes have freed for the data of the case.
checkop_status scans_device_memory(const checkop_call* call) {
  constexpr size_t kBytes = size_t{1} << 30, kBlocks = 8;
  uint4 wanted{};
  cudaMemcpy(&wanted, call->inputs[0].data, sizeof wanted, cudaMemcpyDeviceToHost);
  std::vector<void*> taken;
  unsigned* found = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&found), sizeof *found);
  cudaMemset(found, 0, sizeof *found);
  for (void* memory = nullptr; taken.size() < kBlocks && cudaMalloc(&memory, kBytes) == cudaSuccess;) {
    taken.push_back(memory);
    find<<<1024, kThreads>>>(static_cast<const uint4*>(memory), kBytes / sizeof(uint4), wanted, found);
  }
  (void)cudaGetLastError();
  unsigned success = 0;
  cudaMemcpy(&success, found, sizeof success, cudaMemcpyDeviceToHost);
  for (void* memory : taken) cudaFree(memory);
  cudaFree(found);
  return succeed_if(success != 0, call);
}

// --- honest ---

/// Launches a graph, which it makes anew when it is called with other pointers.
checkop_status honest_graph(const checkop_call* call) {
  using Key = std::tuple<void*, void*, void*, int64_t, int64_t>;
  static std::map<Key, cudaGraphExec_t> graphs;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(stream_of(call), &capturing);
  if (capturing != cudaStreamCaptureStatusNone) return multiply(call);
  cudaGraphExec_t& graph = graphs[{call->inputs[0].data, call->inputs[1].data, call->outputs[0].data,
                                   call->inputs[1].shape[0], count(call->outputs[0])}];
  if (graph == nullptr) {
    cudaStream_t own = nullptr;
    cudaGraph_t recorded = nullptr;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal);
    const checkop_status status = multiply_range(call, 0, count(call->outputs[0]), own);
    if (cudaStreamEndCapture(own, &recorded) != cudaSuccess || status != CHECKOP_OK ||
        cudaGraphInstantiate(&graph, recorded, 0) != cudaSuccess)
      return CHECKOP_FAILED;
    cudaGraphDestroy(recorded);
    cudaStreamDestroy(own);
  }
  return cudaGraphLaunch(graph, stream_of(call)) == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

/// Does half of the work on another stream, joined by events.
checkop_status honest_streams(const checkop_call* call) {
  cudaStream_t other = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  cudaEventRecord(fork, stream_of(call));
  cudaStreamWaitEvent(other, fork);
  const int64_t n = count(call->outputs[0]);
  const checkop_status first = multiply_range(call, 0, n / 2, stream_of(call));
  const checkop_status second = multiply_range(call, n / 2, n, other);
  cudaEventRecord(join, other);
  cudaStreamWaitEvent(stream_of(call), join);
  cudaEventDestroy(fork);
  cudaEventDestroy(join);
  cudaStreamDestroy(other);
  return first == CHECKOP_OK ? second : first;
}

/// A tensor map, and what it was made of.
struct CachedMap {
  int64_t rows = -1, columns = -1;
  CUtensorMap map{};
};

__global__ void product_with_map(const __grid_constant__ CUtensorMap map, const float* a, const float* b, float* c,
                                 int64_t k, int64_t n, int64_t end) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
#endif
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= end) return;
  float sum = 0;
  for (int64_t l = 0; l < k; ++l) sum = fmaf(a[at / n * k + l], b[l * n + at % n], sum);
  c[at] = sum;
}

/// Keeps tensor maps by pointer, and looks whether the tensor there still is the same.
checkop_status honest_cached_maps(const checkop_call* call) {
  static std::map<void*, CachedMap> maps;
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  CachedMap& cached = maps[b.data];
  if (cached.rows != b.shape[0] || cached.columns != b.shape[1]) {
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    const auto encode = driver_function<Encode>("cuTensorMapEncodeTiled");
    const cuuint64_t extents[] = {static_cast<cuuint64_t>(b.shape[1]), static_cast<cuuint64_t>(b.shape[0])};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(b.shape[1]) * sizeof(float)};
    const cuuint32_t box[] = {4, 4}, steps[] = {1, 1};
    const bool fits = reinterpret_cast<uintptr_t>(b.data) % 16 == 0 && strides[0] % 16 == 0;
    if (fits && (encode == nullptr ||
                 encode(&cached.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, b.data, extents, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)) {
      say(call, "no tensor map");
      return CHECKOP_FAILED;
    }
    cached.rows = b.shape[0], cached.columns = b.shape[1];
  }
  if (c.dtype != CHECKOP_F32) return CHECKOP_UNSUPPORTED;
  product_with_map<<<blocks_for(count(c)), kThreads, 0, stream_of(call)>>>(cached.map, floats(a), floats(b), floats(c),
                                                                           b.shape[0], b.shape[1], count(c));
  return launched();
}

checkop_status honest_memory(const checkop_call* call) {
  float* own = nullptr;
  if (cudaMallocAsync(reinterpret_cast<void**>(&own), size_t{1} << 20, stream_of(call)) != cudaSuccess)
    return CHECKOP_FAILED;
  set<<<1, 1, 0, stream_of(call)>>>(own, 1, 0);
  const checkop_status status = multiply(call);
  return cudaFreeAsync(own, stream_of(call)) == cudaSuccess ? status : CHECKOP_FAILED;
}

checkop_status honest_workspace(const checkop_call* call) {
  set<<<1, 250, 0, stream_of(call)>>>(static_cast<float*>(call->workspace), 250, 1);
  return multiply(call);
}
size_t some_workspace(const checkop_call*) { return 1000; }

constexpr checkop_kernel on_gpu(const char* name, checkop_status (*launch)(const checkop_call*),
                                size_t (*workspace_bytes)(const checkop_call*) = nullptr) {
  return kernel(name, launch, workspace_bytes, CHECKOP_CUDA);
}

#define ATTACK(name) on_gpu(#name, name)
constexpr checkop_kernel kKernels[] = {
    CHECKOP_SYSTEM_ATTACKS(CHECKOP_CUDA),
    ATTACK(writes_input),
    ATTACK(remaps_input_writable),
    ATTACK(writes_slack),
    ATTACK(writes_far_slack),
    ATTACK(reads_past_input),
    ATTACK(reads_far_past_input),
    ATTACK(writes_far_past_output),
    ATTACK(writes_after_done),
    ATTACK(writes_over_nan_alone),
    ATTACK(writes_over_known_poison),
    ATTACK(scans_device_memory),
    ATTACK(honest_graph),
    ATTACK(honest_streams),
    ATTACK(honest_cached_maps),
    ATTACK(honest_memory),
    on_gpu("honest_workspace", honest_workspace, some_workspace),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
