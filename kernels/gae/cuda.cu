// SPDX-License-Identifier: Apache-2.0
// gae / cuda: one warp per sequence, one scan in fp32 from the last unmasked token to the first; portable CUDA.
//   A = r + gamma * V' - V + gamma * lambda * A', with A' and V' of the next unmasked token; after the last one 0 and
//   last_values, or 0;  returns = A + V;  masked tokens: 0, and their inputs are not read
//   rewards, values, advantages, returns: [batch, seq] f32   mask: [batch, seq] u8   last_values: [batch] f32, optional
//   Limits: contiguous, batch < 2^33.   No workspace.
//   Expected error: a chain of two additions per unmasked token.
//   The lanes load side by side, but the recurrence runs over one token after the other: a scan by pairs would make
//   the bits depend on where the unmasked tokens lie. A sequence's bits depend on its unmasked tokens alone.
#include "cuda/logit_transform.cuh"  // read_attribute

namespace checkop::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kSequences = kThreads / kWarp;  // of a block
constexpr int kSteps = 8;                     // loads of a lane in flight: the recurrence waits for memory once for all

enum Input : int { kRewards, kValues, kMask, kLastValues };

struct Params {
  const float *rewards, *values;
  const uint8_t* mask;
  const float* last_values;  ///< nullptr for none
  float *advantages, *returns;
  int64_t batch, seq;
  float gamma, decay;  ///< decay: gamma * lambda
};

__global__ __launch_bounds__(kThreads) void scan_sequences(Params p) {
  const int lane = threadIdx.x % kWarp;
  const int64_t sequence = int64_t{blockIdx.x} * kSequences + threadIdx.x / kWarp;
  if (sequence >= p.batch) return;  // a whole warp
  const int64_t first = sequence * p.seq;
  float later = 0.0f, next_value = p.last_values == nullptr ? 0.0f : p.last_values[sequence];
  for (int64_t end = p.seq; end > 0; end -= kSteps * kWarp) {
    float reward[kSteps], value[kSteps];
    bool active[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {  // step 0 has the last tokens; lane 31 the last one of a step
      const int64_t t = end - (s + 1) * kWarp + lane;
      active[s] = t >= 0 && p.mask[first + t] != 0;
      reward[s] = active[s] ? p.rewards[first + t] : 0.0f;
      value[s] = active[s] ? p.values[first + t] : 0.0f;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t t = end - (s + 1) * kWarp + lane;
      const unsigned all = __ballot_sync(kAllLanes, active[s]);
      const unsigned after = lane == kWarp - 1 ? 0u : all >> (lane + 1);
      const float neighbour = __shfl_sync(kAllLanes, value[s], (lane + __ffs(static_cast<int>(after))) % kWarp);
      const float following = after == 0u ? next_value : neighbour;
      const float delta = reward[s] + p.gamma * following - value[s];
      float mine = 0.0f;
#pragma unroll
      for (int k = kWarp - 1; k >= 0; --k) {
        const float of_k = __shfl_sync(kAllLanes, delta, k);
        if ((all >> k & 1u) == 0u) continue;  // the same for the whole warp
        later = of_k + p.decay * later;
        if (k == lane) mine = later;
      }
      if (all != 0u) next_value = __shfl_sync(kAllLanes, value[s], __ffs(static_cast<int>(all)) - 1);
      if (t < 0) continue;
      p.advantages[first + t] = mine;
      p.returns[first + t] = active[s] ? mine + value[s] : 0.0f;
    }
  }
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(4, 2).failed()) return check.status();
  const checkop_tensor &rewards = call->inputs[kRewards], &last_values = call->inputs[kLastValues];
  if (check.rank_at_least(rewards, "rewards", 1).failed()) return check.status();
  const auto expect = [&](const checkop_tensor& t, const char* name, int32_t dtype, int32_t rank) {
    check.dtype(t, name, dtype).shape(t, name, rewards, rank, {}).contiguous(t, name);
  };
  expect(rewards, "rewards", CHECKOP_F32, rewards.rank);
  expect(call->inputs[kValues], "values", CHECKOP_F32, rewards.rank);
  expect(call->inputs[kMask], "mask", CHECKOP_U8, rewards.rank);
  if (last_values.data != nullptr) expect(last_values, "last_values", CHECKOP_F32, rewards.rank - 1);
  expect(call->outputs[0], "advantages", CHECKOP_F32, rewards.rank);
  expect(call->outputs[1], "returns", CHECKOP_F32, rewards.rank);
  if (check.failed()) return check.status();
  double gamma = 0, lambda = 0;
  if (auto status = read_attribute(call, "gamma", gamma)) return status;
  if (auto status = read_attribute(call, "lambda", lambda)) return status;
  const int64_t batch = leading_count(rewards), seq = last_extent(rewards), blocks = ceil_div(batch, kSequences);
  if (blocks > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'rewards': %lld sequences, fewer than 2^33 are supported",
               static_cast<long long>(batch));
  }
  if (batch == 0 || seq == 0) return CHECKOP_OK;
  const Params params{static_cast<const float*>(rewards.data),
                      static_cast<const float*>(call->inputs[kValues].data),
                      static_cast<const uint8_t*>(call->inputs[kMask].data),
                      static_cast<const float*>(last_values.data),
                      static_cast<float*>(call->outputs[0].data),
                      static_cast<float*>(call->outputs[1].data),
                      batch,
                      seq,
                      static_cast<float>(gamma),
                      static_cast<float>(gamma) * static_cast<float>(lambda)};
  scan_sequences<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(params);
  return launch_status(call, "launch gae");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "gae", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
