// SPDX-License-Identifier: Apache-2.0
// group_norm / cuda: one block per group; mean and deviation in two passes, relative to one of the rewards; portable
// CUDA, no floating-point atomics.
//   advantages = (r - mean) / (std + eps), mean and std of the group's rewards, or with leave_one_out of the group's
//   other rewards;
//   r - mean if scale is 0 or all those rewards are bit-equal; a group of one: 0, or r with singleton
//   rewards, advantages: [batch] f32   group_boundaries: [group_bounds] i64|i32, may be absent
//   Limits: contiguous, fewer than 2^31 groups. Boundaries that do not cut the batch are CHECKOP_FAILED.
//   Workspace: 256 bytes.   Expected error: sums are chains of n/128 + 10 fp32 additions for a group of n, with
//   leave_one_out of n/32 + 5. leave_one_out takes n passes over the group: a deviation derived from the whole group's
//   would not be exactly 0 when the other rewards are equal.
//   A group's bits depend only on its rewards.
#include "cuda/group_boundaries.cuh"
#include "cuda/logit_transform.cuh"  // read_attribute

namespace checkop::kernels {
namespace {

constexpr int kThreads = 128;  // a group is often 8 to 64 rewards
constexpr size_t kFlagBytes = 256;

struct Settings {
  bool scale, unbiased, leave_one_out, singleton;
  float eps;
};

/// Group i consists of rewards [at(i), at(i + 1)).
template <typename Index>
struct Groups {
  const Index* bounds;  ///< nullptr: all have `samples`
  int64_t samples, count;

  __device__ int64_t at(int64_t i) const { return bounds == nullptr ? i * samples : static_cast<int64_t>(bounds[i]); }
};

/// The advantage of a reward that is `away` from the mean of a set of n with this sum of squared distances.
__device__ float advantage(const Settings& settings, float away, float squares, float n) {
  if (!settings.scale || squares == 0.0f) return away;
  return away / (sqrtf(squares / (settings.unbiased ? fmaxf(n - 1.0f, 1.0f) : n)) + settings.eps);
}

/// The advantages of a group from the mean and deviation of all its rewards, by all threads of the block.
__device__ void by_all(const Settings& settings, const float* __restrict__ r, int64_t n, float* __restrict__ to) {
  __shared__ float shared[2][kWarp];
  const float first = r[0], count = static_cast<float>(n);
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += r[i] - first;
  const float mean = block_sum(sum, shared[0]) / count;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float away = (r[i] - first) - mean;
    squares += away * away;
  }
  squares = block_sum(squares, shared[1]);
  for (int64_t i = threadIdx.x; i < n; i += kThreads)
    to[i] = advantage(settings, (r[i] - first) - mean, squares, count);
}

/// leave_one_out: from the mean and deviation of the other rewards. Each warp takes one reward after the other.
__device__ void by_others(const Settings& settings, const float* __restrict__ r, int64_t n, float* __restrict__ to) {
  const int64_t lane = threadIdx.x % kWarp;
  const float count = static_cast<float>(n - 1);
  for (int64_t i = threadIdx.x / kWarp; i < n; i += kThreads / kWarp) {
    const float first = r[i == 0 ? 1 : 0];
    float sum = 0.0f, squares = 0.0f;
    for (int64_t k = lane; k + 1 < n; k += kWarp) sum += r[k < i ? k : k + 1] - first;
    const float mean = warp_sum(sum) / count;
    for (int64_t k = lane; k + 1 < n; k += kWarp) {
      const float away = (r[k < i ? k : k + 1] - first) - mean;
      squares += away * away;
    }
    squares = warp_sum(squares);
    if (lane == 0) to[i] = advantage(settings, (r[i] - first) - mean, squares, count);
  }
}

template <typename Index>
__global__ __launch_bounds__(kThreads) void normalise(Groups<Index> groups, Settings settings,
                                                      const float* __restrict__ rewards,
                                                      float* __restrict__ advantages) {
  const int64_t begin = groups.at(blockIdx.x), n = groups.at(int64_t{blockIdx.x} + 1) - begin;
  const float* __restrict__ r = rewards + begin;
  float* __restrict__ to = advantages + begin;
  if (n == 1) {
    if (threadIdx.x == 0) to[0] = settings.singleton ? r[0] : 0.0f;
  } else if (settings.leave_one_out) {
    by_others(settings, r, n, to);
  } else {
    by_all(settings, r, n, to);
  }
}

checkop_status read_settings(const checkop_call* call, Settings& settings) {
  double scale = 0, unbiased = 0, leave_one_out = 0, singleton = 0, eps = 0;
  if (auto status = read_attribute(call, "scale", scale)) return status;
  if (auto status = read_attribute(call, "unbiased", unbiased)) return status;
  if (auto status = read_attribute(call, "leave_one_out", leave_one_out)) return status;
  if (auto status = read_attribute(call, "singleton", singleton)) return status;
  if (auto status = read_attribute(call, "eps", eps)) return status;
  settings = {scale != 0, unbiased != 0, leave_one_out != 0, singleton != 0, static_cast<float>(eps)};
  return CHECKOP_OK;
}

template <typename Index>
checkop_status launch(const checkop_call* call, const Settings& settings, const Groups<Index>& groups) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const int64_t batch = call->inputs[0].shape[0];
  if (groups.count > std::numeric_limits<int32_t>::max()) {  // a group is a block
    return say(call, CHECKOP_UNSUPPORTED, "%lld groups, at most 2147483647 are supported",
               static_cast<long long>(groups.count));
  }
  if (groups.bounds != nullptr) {
    if (auto s = check_boundaries(call, groups.bounds, groups.count + 1, batch, call->workspace, stream)) return s;
  }
  if (batch == 0) return CHECKOP_OK;
  normalise<<<static_cast<unsigned>(groups.count), kThreads, 0, stream>>>(
      groups, settings, static_cast<const float*>(call->inputs[0].data), static_cast<float*>(call->outputs[0].data));
  return launch_status(call, "launch group_norm");
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(2, 1).failed()) return check.status();
  const checkop_tensor &rewards = call->inputs[0], &bounds = call->inputs[1], &advantages = call->outputs[0];
  if (check.rank_at_least(rewards, "rewards", 1).failed()) return check.status();
  check.dtype(rewards, "rewards", CHECKOP_F32).shape(rewards, "rewards", rewards, 1, {}).contiguous(rewards, "rewards");
  check.dtype(advantages, "advantages", CHECKOP_F32).shape(advantages, "advantages", rewards, 1, {});
  check.contiguous(advantages, "advantages").workspace(kFlagBytes);
  const bool has_bounds = bounds.data != nullptr || bounds.rank != 0;
  if (has_bounds && bounds.dtype != CHECKOP_I32) check.dtype(bounds, "group_boundaries", CHECKOP_I64);
  if (has_bounds) check.contiguous(bounds, "group_boundaries");
  if (check.failed()) return check.status();
  Settings settings{};
  double samples = 0;
  if (auto status = read_settings(call, settings)) return status;
  if (auto status = read_attribute(call, "samples_per_prompt", samples)) return status;
  const int64_t batch = rewards.shape[0];
  if (!has_bounds) {
    if (!(samples >= 2) || batch % static_cast<int64_t>(samples) != 0) {
      return say(call, CHECKOP_FAILED,
                 "samples_per_prompt is %g, expected a divisor of the batch of %lld that is at least 2", samples,
                 static_cast<long long>(batch));
    }
    const auto each = static_cast<int64_t>(samples);
    return launch<int64_t>(call, settings, {nullptr, each, batch / each});
  }
  if (bounds.rank != 1 || bounds.shape[0] < 2) {
    return say(call, CHECKOP_FAILED, "tensor 'group_boundaries': expected rank 1 and at least 2 elements");
  }
  const int64_t count = bounds.shape[0] - 1;
  if (bounds.dtype == CHECKOP_I32)
    return launch<int32_t>(call, settings, {static_cast<const int32_t*>(bounds.data), 0, count});
  return launch<int64_t>(call, settings, {static_cast<const int64_t*>(bounds.data), 0, count});
}

size_t workspace_bytes(const checkop_call*) { return kFlagBytes; }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "group_norm", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
