// SPDX-License-Identifier: Apache-2.0
// moe_route / cuda: a warp per token; scores in fp32, one maximum after the other; among equal scores the lowest index
// comes first, NaN last.
//   s = softmax(logits), sigmoid(logits) or logits;  b = s + bias;  of the n_group groups, the topk_group stay whose
//   group_top largest b have the largest sums;  ids[t] = the topk largest b in these groups;  counts[e] = slots of
//   expert e
//   weights = route_scale * s / (sum of the chosen s + norm_eps), route_scale * s without renorm, or
//   route_scale * softmax(chosen logits);  dlogits: the gradient by logits, with ids as they are
//   logits, dlogits: [..., experts] f32|f16|bf16   bias: [experts] f32, optional   counts: [experts] i32
//   ids: [..., topk] i32   weights, grad_weights: [..., topk] f32   all contiguous
//   Limits: experts < 2^31. In the backward pass ids outside [0, experts) are CHECKOP_FAILED.
//   Workspace: forward about 64 MiB where the scores of four tokens exceed 48 KiB, else none; backward 256 bytes.
//   Expected error: chains of n / 32 fp32 additions, then a tree over 32 lanes; expf within 2 ulp, one output rounding.
//   A token's bits depend only on its own logits and the bias.
//
// A score and its index are packed into one integer that is larger for experts earlier in the order. The next expert is
// the one with the largest integer below the previous expert's, so no record of the chosen experts is needed.
#include "cuda/findings.cuh"

namespace checkop::kernels {
namespace {

constexpr int kTokens = 4, kThreads = kTokens * kWarp;  // few tokens a block: the scores of each take shared memory
constexpr int64_t kSharedBytes = 48 * 1024, kScratchBytes = int64_t{64} << 20;

enum Score : int { kSoftmax, kSigmoid, kLogit };

struct Route {
  int64_t tokens = 0, experts = 0, topk = 0, groups = 1, groups_kept = 1, group_top = 1;
  int score = kSoftmax;
  bool renorm = false;  ///< never with kLogit
  float norm_eps = 0, scale = 1;

  /// fp32 values that a token needs: its biased scores and the sums of groups.
  __host__ __device__ int64_t scratch() const { return experts + (groups > 1 ? groups : 0); }
  bool fits_shared() const { return kTokens * scratch() * static_cast<int64_t>(sizeof(float)) <= kSharedBytes; }
  /// Blocks whose scratch is in the workspace; they stride over the tokens.
  int64_t blocks() const {
    constexpr int64_t kMostBlocks = int64_t{1} << 20;
    const int64_t needed = ceil_div(tokens, kTokens);
    if (fits_shared()) return needed < kMostBlocks ? needed : kMostBlocks;
    const int64_t fit = kScratchBytes / (kTokens * scratch() * static_cast<int64_t>(sizeof(float)));
    return needed < fit ? needed : fit < 1 ? 1 : fit;
  }
};

// --- order

constexpr unsigned long long kBeforeAll = std::numeric_limits<unsigned long long>::max();

/// The place of a value at `index` in the order: larger for earlier ones. 0 is behind all places.
__device__ inline unsigned long long place_of(float value, int64_t index) {
  const unsigned bits = __float_as_uint(value + 0.0f);  // +0 of -0: both are equal
  const unsigned key = isnan(value) ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(key) << 32 | (0xffffffffu - static_cast<unsigned>(index));
}
__device__ inline int64_t index_at(unsigned long long place) {
  return int64_t{0xffffffffu - static_cast<unsigned>(place & 0xffffffffu)};
}

/// The first place behind `last` among values[i], i = begin, begin + step ... < end, for which is_open(i).
template <typename IsOpen>
__device__ unsigned long long next_place(const float* __restrict__ values, int64_t begin, int64_t end, int64_t step,
                                         unsigned long long last, const IsOpen& is_open) {
  unsigned long long next = 0;
  for (int64_t i = begin; i < end; i += step) {
    const unsigned long long place = place_of(values[i], i);
    if (place < last && place > next && is_open(i)) next = place;
  }
  return next;
}

/// The same of a whole warp for all values.
template <typename IsOpen>
__device__ unsigned long long warp_next_place(const float* __restrict__ values, int64_t count, unsigned long long last,
                                              const IsOpen& is_open) {
  unsigned long long next = next_place(values, threadIdx.x % kWarp, count, kWarp, last, is_open);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const unsigned long long other = __shfl_xor_sync(kAllLanes, next, offset);
    if (other > next) next = other;
  }
  return next;
}

// --- scores

/// Sum of term(i), i < n, in every lane of the warp.
template <typename Term>
__device__ float warp_total(int64_t n, const Term& term) {
  float sum = 0.0f;
  for (int64_t i = threadIdx.x % kWarp; i < n; i += kWarp) sum += term(i);
  return warp_sum(sum);
}

struct Softmax {
  float shift = 0.0f, sum = 1.0f;

  __device__ float operator()(float z) const { return expf(z - shift) / sum; }

  /// Of value(i), i < n.
  template <typename Value>
  __device__ static Softmax of(int64_t n, const Value& value) {
    float max = -INFINITY;
    for (int64_t i = threadIdx.x % kWarp; i < n; i += kWarp) max = fmaxf(max, value(i));
    const float shift = exp_shift(warp_max(max));
    return {shift, warp_total(n, [&](int64_t i) { return expf(value(i) - shift); })};
  }
};

/// The scores of a token's experts. The same logit always has the same score.
template <typename T>
struct Scores {
  const T* __restrict__ logits;
  int score;
  Softmax of_all;

  __device__ Scores(const T* row, const Route& route) : logits(row), score(route.score) {
    if (score == kSoftmax) of_all = Softmax::of(route.experts, [&](int64_t e) { return to_float(row[e]); });
  }
  __device__ float operator()(int64_t expert) const {
    const float z = to_float(logits[expert]);
    return score == kSoftmax ? of_all(z) : score == kSigmoid ? 1.0f / (1.0f + expf(-z)) : z;
  }
};

/// The scores of a token's chosen experts; for kLogit their softmax.
template <typename T>
struct Chosen {
  const Scores<T>& scores;
  const int32_t* ids;
  int64_t experts;
  Softmax of_chosen;
  float divisor = 1.0f;

  __device__ Chosen(const Scores<T>& all, const int32_t* own_ids, const Route& route)
      : scores(all), ids(own_ids), experts(route.experts) {
    if (route.score == kLogit) of_chosen = Softmax::of(route.topk, [&](int64_t i) { return scores(expert(i)); });
    if (route.renorm) divisor = warp_total(route.topk, [&](int64_t i) { return (*this)(i); }) + route.norm_eps;
  }
  /// An IndexCheck refuses ids out of range.
  __device__ int64_t expert(int64_t i) const { return ids[i] >= 0 && ids[i] < experts ? ids[i] : 0; }
  __device__ float operator()(int64_t i) const {
    const float score = scores(expert(i));
    return scores.score == kLogit ? of_chosen(score) : score;
  }
};

// --- kernels

extern __shared__ float shared_scratch[];

/// `scratch`: route.scratch() values for each warp of the grid, or null if they are in shared memory.
template <typename T>
__global__ __launch_bounds__(kThreads) void route_forward(const T* __restrict__ logits, const float* __restrict__ bias,
                                                          Route route, float* scratch, int32_t* ids,
                                                          float* __restrict__ weights, int32_t* __restrict__ counts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float* const biased = scratch == nullptr ? shared_scratch + warp * route.scratch()
                                           : scratch + (int64_t{blockIdx.x} * kTokens + warp) * route.scratch();
  float* const sums = biased + route.experts;
  const int64_t of_group = route.experts / route.groups;
  for (int64_t token = int64_t{blockIdx.x} * kTokens + warp; token < route.tokens;
       token += int64_t{gridDim.x} * kTokens) {
    const Scores<T> scores(logits + token * route.experts, route);
    for (int64_t e = lane; e < route.experts; e += kWarp) biased[e] = bias == nullptr ? scores(e) : scores(e) + bias[e];
    __syncwarp();
    unsigned long long last_group = 0;  // every group that is not behind it is open
    if (route.groups > 1) {
      const auto any = [](int64_t) { return true; };
      for (int64_t g = lane; g < route.groups; g += kWarp) {
        float sum = 0.0f;
        unsigned long long last = kBeforeAll;
        for (int64_t i = 0; i < route.group_top; ++i) {
          last = next_place(biased, g * of_group, (g + 1) * of_group, 1, last, any);
          sum += biased[index_at(last)];
        }
        sums[g] = sum;
      }
      __syncwarp();
      last_group = kBeforeAll;
      for (int64_t i = 0; i < route.groups_kept; ++i) last_group = warp_next_place(sums, route.groups, last_group, any);
    }
    const auto is_open = [&](int64_t e) {
      return route.groups == 1 || place_of(sums[e / of_group], e / of_group) >= last_group;
    };
    int32_t* const own = ids + token * route.topk;
    unsigned long long last = kBeforeAll;
    for (int64_t i = 0; i < route.topk; ++i) {
      last = warp_next_place(biased, route.experts, last, is_open);
      if (lane != 0) continue;
      own[i] = static_cast<int32_t>(index_at(last));
      // order-free: counts are integers.
      atomicAdd(counts + own[i], 1);
    }
    __syncwarp();  // all lanes see the ids, and the scores are not read any more
    const Chosen<T> chosen(scores, own, route);
    for (int64_t i = lane; i < route.topk; i += kWarp)
      weights[token * route.topk + i] = route.scale * chosen(i) / chosen.divisor;
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void route_backward(const T* __restrict__ logits,
                                                           const int32_t* __restrict__ ids,
                                                           const float* __restrict__ grad_weights, Route route,
                                                           T* dlogits) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t token = int64_t{blockIdx.x} * kTokens + threadIdx.x / kWarp; token < route.tokens;
       token += int64_t{gridDim.x} * kTokens) {
    const Scores<T> scores(logits + token * route.experts, route);
    const Chosen<T> chosen(scores, ids + token * route.topk, route);
    const float* const g = grad_weights + token * route.topk;
    T* const dz = dlogits + token * route.experts;
    const float of_norm =
        route.renorm
            ? route.scale * warp_total(route.topk, [&](int64_t i) { return g[i] * chosen(i); }) / chosen.divisor
            : 0.0f;
    const auto by_score = [&](int64_t i) { return (route.scale * g[i] - of_norm) / chosen.divisor; };
    const float mean =
        route.score == kSigmoid ? 0.0f : warp_total(route.topk, [&](int64_t i) { return by_score(i) * chosen(i); });
    for (int64_t e = lane; e < route.experts; e += kWarp)
      dz[e] = from_float<T>(route.score == kSoftmax ? -mean * scores(e) : 0.0f);
    __syncwarp();  // before the elements of the chosen experts are written again
    for (int64_t i = lane; i < route.topk; i += kWarp) {
      const float s = chosen(i), slope = route.score == kSigmoid ? s * (1.0f - s) : s;
      dz[chosen.expert(i)] = from_float<T>(slope * (by_score(i) - mean));
    }
    __syncwarp();
  }
}

// --- calls

checkop_status read_route(const checkop_call* call, Route& route) {
  struct Named {
    const char* name;
    double value;
  } given[] = {{"score", 0},  {"n_group", 0},  {"topk_group", 0}, {"group_top", 0},
               {"renorm", 0}, {"norm_eps", 0}, {"route_scale", 0}};
  for (Named& attribute : given)
    if (auto status = read_attribute(call, attribute.name, attribute.value)) return status;
  route.score = static_cast<int>(given[0].value);
  route.groups = static_cast<int64_t>(given[1].value), route.groups_kept = static_cast<int64_t>(given[2].value);
  route.group_top = static_cast<int64_t>(given[3].value);
  route.renorm = given[4].value != 0 && route.score != kLogit;
  route.norm_eps = static_cast<float>(given[5].value), route.scale = static_cast<float>(given[6].value);
  const bool fits = route.groups >= 1 && route.experts % route.groups == 0 && route.groups_kept >= 1 &&
                    route.groups_kept <= route.groups &&
                    route.topk <= route.experts / route.groups * route.groups_kept &&
                    (route.groups == 1 || route.group_top <= route.experts / route.groups);
  if (fits) return CHECKOP_OK;
  return say(call, CHECKOP_FAILED, "n_group, topk_group, group_top and topk do not fit the number of experts, %lld",
             static_cast<long long>(route.experts));
}

/// The sizes as far as the tensors give them; `ids` has the slots.
void read_sizes(const checkop_tensor& logits, const checkop_tensor& ids, Route& route) {
  if (logits.rank < 1 || ids.rank < 1) return;
  route.tokens = leading_count(logits), route.experts = last_extent(logits), route.topk = last_extent(ids);
}

checkop_status check_call(const checkop_call* call, const checkop_tensor& ids, const checkop_tensor& weights,
                          const char* weights_name, Route& route) {
  CallCheck check(call);
  const checkop_tensor &logits = call->inputs[0], &bias = call->inputs[1];
  if (check.rank_at_least(logits, "logits", 1).rank_at_least(ids, "ids", 1).failed()) return check.status();
  read_sizes(logits, ids, route);
  check.float_dtype(logits, "logits").contiguous(logits, "logits");
  const auto of_slots = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, logits, logits.rank - 1, {route.topk}).contiguous(t, name);
  };
  of_slots(ids, "ids", CHECKOP_I32);
  of_slots(weights, weights_name, CHECKOP_F32);
  if (bias.data != nullptr)
    check.dtype(bias, "bias", CHECKOP_F32).shape(bias, "bias", logits, 0, {route.experts}).contiguous(bias, "bias");
  if (check.failed()) return check.status();
  if (route.experts > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'logits': %lld experts, at most 2147483647 are supported",
               static_cast<long long>(route.experts));
  }
  return read_route(call, route);
}

size_t forward_bytes(const checkop_call* call) {
  Route route;
  if (call->n_inputs < 2 || call->n_outputs < 1) return 0;  // launch refuses it
  read_sizes(call->inputs[0], call->outputs[0], route);
  if (read_route(call, route) != CHECKOP_OK || route.fits_shared()) return 0;
  return static_cast<size_t>(route.blocks() * kTokens * route.scratch()) * sizeof(float);
}
size_t backward_bytes(const checkop_call*) { return kFindingsBytes; }

checkop_status launch_forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(2, 3).failed()) return check.status();
  const checkop_tensor &logits = call->inputs[0], &counts = call->outputs[2];
  Route route;
  if (auto status = check_call(call, call->outputs[0], call->outputs[1], "weights", route)) return status;
  check.dtype(counts, "counts", CHECKOP_I32).shape(counts, "counts", logits, 0, {route.experts});
  if (check.contiguous(counts, "counts").workspace(forward_bytes(call)).failed()) return check.status();
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto counts_bytes = static_cast<size_t>(route.experts) * sizeof(int32_t);
  if (auto status = cuda_status(call, cudaMemsetAsync(counts.data, 0, counts_bytes, stream), "clear counts"))
    return status;
  if (route.tokens == 0) return CHECKOP_OK;
  return with_float_type(logits.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const bool shared = route.fits_shared();
    const auto bytes = shared ? static_cast<size_t>(kTokens * route.scratch()) * sizeof(float) : 0;
    route_forward<T><<<static_cast<unsigned>(route.blocks()), kThreads, bytes, stream>>>(
        static_cast<const T*>(logits.data), static_cast<const float*>(call->inputs[1].data), route,
        shared ? nullptr : static_cast<float*>(call->workspace), static_cast<int32_t*>(call->outputs[0].data),
        static_cast<float*>(call->outputs[1].data), static_cast<int32_t*>(counts.data));
    return launch_status(call, "launch moe_route forward");
  });
}

checkop_status launch_backward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(4, 1).failed()) return check.status();
  const checkop_tensor &logits = call->inputs[0], &dlogits = call->outputs[0];
  Route route;
  if (auto status = check_call(call, call->inputs[2], call->inputs[3], "grad_weights", route)) return status;
  check.dtype(dlogits, "dlogits", logits.dtype).shape(dlogits, "dlogits", logits, logits.rank, {});
  if (check.contiguous(dlogits, "dlogits").workspace(backward_bytes(call)).failed()) return check.status();
  if (route.tokens == 0 || route.experts == 0) return CHECKOP_OK;
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const auto* ids = static_cast<const int32_t*>(call->inputs[2].data);
  IndexCheck index_check(call, ids, route.tokens * route.topk, 0, route.experts, "ids", call->workspace, stream);
  if (auto status = index_check.begin()) return status;
  return with_float_type(logits.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    constexpr int64_t kMostBlocks = int64_t{1} << 20;  // the kernel strides over the rest
    const int64_t needed = ceil_div(route.tokens, kTokens);
    const auto blocks = static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks);
    route_backward<T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(logits.data), ids,
                                                       static_cast<const float*>(call->inputs[3].data), route,
                                                       static_cast<T*>(dlogits.data));
    if (auto status = launch_status(call, "launch moe_route backward")) return status;
    return index_check.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "moe_route", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "moe_route", "backward", CHECKOP_CUDA, 80, 0, backward_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
