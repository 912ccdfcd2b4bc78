// SPDX-License-Identifier: Apache-2.0
// whiten / cuda: mean and variance in two passes, relative to the first kept element; portable CUDA, no floating-point
// atomics.
//   y = (x - mean) / sqrt(var + eps), plus the mean without shift, over elements whose mask is not 0; masked, or fewer
//   than two elements: 0;  var is divided by n - 1 if unbiased
//   x, y: [batch, seq] f32   mask: [batch, seq] u8, optional; where it is 0 nothing is read
//   Limits: contiguous, batch*seq < 2^43.   Workspace: 512 bytes and 8 bytes per 4096 elements, rounded up to 256.
//   Expected error: sums are chains of 16 + 10 fp32 additions, then of batch*seq/2^22 + 10.
//   Bits depend only on the shape and the values.
#include "cuda/logit_transform.cuh"  // read_attribute

namespace checkop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;
constexpr int64_t kPerBlock = int64_t{kThreads} * kPerThread;
constexpr int kSumThreads = 1024;  // one block adds the sums of blocks
constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();

struct Inputs {
  const float* x;
  const uint8_t* mask;  ///< nullptr: everything is kept
  int64_t count;

  __device__ bool keeps(int64_t i) const { return i < count && (mask == nullptr || mask[i] != 0); }
};

struct Settings {
  bool shift, unbiased;
  float eps;
};

/// Statistics of the elements kept. The mean is relative to the first of them.
struct Moments {
  float n, first, mean, deviation;
};

/// A number of elements and a sum over them.
struct Sum {
  float n, value;
};

/// Calls body(i) for the thread's elements that are kept, in ascending order.
template <typename Body>
__device__ void for_kept(const Inputs& in, Body&& body) {
  const int64_t first = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
#pragma unroll 4
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + int64_t{k} * kThreads;
    if (in.keeps(i)) body(i);
  }
}

/// Lowers *first to the index of the block's first element kept.
// order-free: the smallest index is an integer minimum, independent of the order of the threads.
__global__ __launch_bounds__(kThreads) void find_first(Inputs in, unsigned long long* __restrict__ first) {
  unsigned long long mine = kNone;
  for_kept(in, [&](int64_t i) { mine = min(mine, static_cast<unsigned long long>(i)); });
  for (int offset = kWarp / 2; offset > 0; offset /= 2) mine = min(mine, __shfl_xor_sync(kAllLanes, mine, offset));
  if (threadIdx.x % kWarp == 0 && mine != kNone) atomicMin(first, mine);
}

/// to[block]: the number of elements kept, and the sum of their distances from the first.
__global__ __launch_bounds__(kThreads) void sum_distances(Inputs in, const unsigned long long* __restrict__ first,
                                                          Sum* __restrict__ to) {
  __shared__ float shared[2][kWarp];
  const float from = *first == kNone ? 0.0f : in.x[*first];
  Sum mine{};
  for_kept(in, [&](int64_t i) { mine.n += 1.0f, mine.value += in.x[i] - from; });
  const Sum total{block_sum(mine.n, shared[0]), block_sum(mine.value, shared[1])};
  if (threadIdx.x == 0) to[blockIdx.x] = total;
}

/// to[block].value: the sum of squared distances from the mean.
__global__ __launch_bounds__(kThreads) void sum_squares(Inputs in, const Moments* __restrict__ moments,
                                                        Sum* __restrict__ to) {
  __shared__ float shared[kWarp];
  const Moments m = *moments;
  float mine = 0.0f;
  for_kept(in, [&](int64_t i) {
    const float away = (in.x[i] - m.first) - m.mean;
    mine += away * away;
  });
  const float total = block_sum(mine, shared);
  if (threadIdx.x == 0) to[blockIdx.x] = {0.0f, total};
}

/// The sum over blocks, in every thread, in an order that depends only on their number.
__device__ Sum sum_blocks(const Sum* __restrict__ of_blocks, int64_t blocks) {
  __shared__ float shared[2][kWarp];
  Sum mine{};
  for (int64_t i = threadIdx.x; i < blocks; i += kSumThreads)
    mine.n += of_blocks[i].n, mine.value += of_blocks[i].value;
  return {block_sum(mine.n, shared[0]), block_sum(mine.value, shared[1])};
}

__global__ __launch_bounds__(kSumThreads) void find_mean(Inputs in, const unsigned long long* __restrict__ first,
                                                         const Sum* __restrict__ of_blocks, int64_t blocks,
                                                         Moments* __restrict__ to) {
  const Sum total = sum_blocks(of_blocks, blocks);
  if (threadIdx.x != 0) return;
  *to = total.n == 0.0f ? Moments{} : Moments{total.n, in.x[*first], total.value / total.n, 0.0f};
}

__global__ __launch_bounds__(kSumThreads) void find_deviation(Settings settings, const Sum* __restrict__ of_blocks,
                                                              int64_t blocks, Moments* __restrict__ to) {
  const Sum total = sum_blocks(of_blocks, blocks);
  if (threadIdx.x != 0 || to->n < 2.0f) return;
  to->deviation = sqrtf(total.value / (settings.unbiased ? to->n - 1.0f : to->n) + settings.eps);
}

__global__ __launch_bounds__(kThreads) void whiten(Inputs in, bool shift, const Moments* __restrict__ moments,
                                                   float* __restrict__ y) {
  const Moments m = *moments;
  const int64_t first = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
#pragma unroll 4
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + int64_t{k} * kThreads;
    if (i >= in.count) return;
    const bool is_kept = m.n >= 2.0f && in.keeps(i);
    y[i] = is_kept ? ((in.x[i] - m.first) - m.mean) / m.deviation + (shift ? 0.0f : m.first + m.mean) : 0.0f;
  }
}

/// Byte offsets: the index of the first element kept, moments, sums of blocks.
constexpr size_t kOfMoments = 256, kOfSums = 512;

int64_t blocks_of(int64_t count) { return ceil_div(count, kPerBlock); }
size_t bytes_of(int64_t count) {
  return kOfSums + static_cast<size_t>(round_up(blocks_of(count) * static_cast<int64_t>(sizeof(Sum)), 256));
}
int64_t count_of(const checkop_tensor& x) { return leading_count(x) * last_extent(x); }

size_t workspace_bytes(const checkop_call* call) {
  return call->n_inputs < 1 ? 0 : bytes_of(count_of(call->inputs[0]));
}

checkop_status read_settings(const checkop_call* call, Settings& settings) {
  double shift = 0, unbiased = 0, eps = 0;
  if (auto status = read_attribute(call, "shift", shift)) return status;
  if (auto status = read_attribute(call, "unbiased", unbiased)) return status;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  settings = {shift != 0, unbiased != 0, static_cast<float>(eps)};
  return CHECKOP_OK;
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(2, 1).failed()) return check.status();
  const checkop_tensor &x = call->inputs[0], &mask = call->inputs[1], &y = call->outputs[0];
  if (check.rank_at_least(x, "x", 1).failed()) return check.status();
  const auto expect = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, x, x.rank, {}).contiguous(t, name);
  };
  expect(x, "x", CHECKOP_F32);
  expect(y, "y", CHECKOP_F32);
  if (mask.data != nullptr) expect(mask, "mask", CHECKOP_U8);
  const Inputs in{static_cast<const float*>(x.data), static_cast<const uint8_t*>(mask.data), count_of(x)};
  if (check.workspace(bytes_of(in.count)).failed()) return check.status();
  Settings settings{};
  if (auto status = read_settings(call, settings)) return status;
  const int64_t blocks = blocks_of(in.count);
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'x': %lld elements, fewer than 2^43 are supported",
               static_cast<long long>(in.count));
  }
  if (blocks == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  auto* workspace = static_cast<char*>(call->workspace);
  auto* first = reinterpret_cast<unsigned long long*>(workspace);
  auto* moments = reinterpret_cast<Moments*>(workspace + kOfMoments);
  auto* sums = reinterpret_cast<Sum*>(workspace + kOfSums);
  const auto grid = static_cast<unsigned>(blocks);
  if (auto s = cuda_status(call, cudaMemsetAsync(first, 0xff, sizeof(*first), stream), "begin whiten")) return s;
  find_first<<<grid, kThreads, 0, stream>>>(in, first);
  sum_distances<<<grid, kThreads, 0, stream>>>(in, first, sums);
  find_mean<<<1, kSumThreads, 0, stream>>>(in, first, sums, blocks, moments);
  sum_squares<<<grid, kThreads, 0, stream>>>(in, moments, sums);
  find_deviation<<<1, kSumThreads, 0, stream>>>(settings, sums, blocks, moments);
  whiten<<<grid, kThreads, 0, stream>>>(in, settings.shift, moments, static_cast<float*>(y.data));
  return launch_status(call, "launch whiten");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "whiten", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
