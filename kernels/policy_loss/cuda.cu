// SPDX-License-Identifier: Apache-2.0
// policy_loss / cuda: one block per sequence for its sums, one thread per token, then fixed sums; portable CUDA, no
// floating-point atomics. policy_loss / native has the formulas.
//   forward   loss, policy_loss, kl (with ref_logps), clip_fraction     backward  dlogps, dentropy (with entropy)
//   logps, old_logps, advantages, ref_logps, rollout_logps, entropy, dlogps, dentropy: [batch, seq] f32, contiguous
//   mask: [batch, seq] u8   denom, grad_loss and the outputs of forward: scalars, f32
//   ref_logps, rollout_logps, entropy and denom may be absent.
//   Where the mask is 0 nothing is read, and gradients are 0. Without active tokens all results are 0.
//   Limits: batch < 2^31, batch*seq < 2^39.   Workspace: 12 bytes per sequence, 16 per 2048 tokens, and a float, each
//   array rounded up to 256.
//   Expected error: sums of a sequence are chains of seq/256 + 10 fp32 additions; sums over tokens of 8 + 10, then of
//   tokens/2^21 + 10.
//   The bits of the sums depend only on the shape and the values. The gradient of a token depends on its own values, on
//   the divisor of the mean, and, if the ratio or the weight is the sequence's, on its sequence.
#include "cuda/policy_loss.cuh"

namespace checkop::kernels {
namespace {

using namespace policy;

constexpr int kTermsPerThread = 8;
constexpr int64_t kTermsPerBlock = int64_t{kTokenThreads} * kTermsPerThread;

enum Input : int { kLogps, kOldLogps, kAdvantages, kMask, kRefLogps, kRolloutLogps, kEntropy, kDenom, kGradLoss };

/// Sums over tokens: those of the loss and its parts have the weight in the mean, `clipped` counts.
struct Sums {
  float loss, policy, kl, clipped;
};

/// All threads of the block must call. `shared` serves this reduction only.
__device__ Sums block_sums(const Sums& mine, float (&shared)[4][kWarp]) {
  return {block_sum(mine.loss, shared[0]), block_sum(mine.policy, shared[1]), block_sum(mine.kl, shared[2]),
          block_sum(mine.clipped, shared[3])};
}

__device__ void add(Sums& to, const Sums& x) {
  to.loss += x.loss, to.policy += x.policy, to.kl += x.kl, to.clipped += x.clipped;
}

/// to[block]: the sums of kTermsPerBlock tokens.
__global__ __launch_bounds__(kTokenThreads) void sum_blocks(PolicyBatch b, const Sequence* __restrict__ sequences,
                                                            const float* __restrict__ denom, Sums* __restrict__ to) {
  __shared__ float shared[4][kWarp];
  const int64_t first = int64_t{blockIdx.x} * kTermsPerBlock + threadIdx.x, count = b.sequences * b.seq;
  Sums mine{};
  for (int k = 0; k < kTermsPerThread; ++k) {
    const int64_t i = first + int64_t{k} * kTokenThreads;
    if (i >= count || b.in.mask[i] == 0) continue;
    const Sequence of = sequences[i / b.seq];
    const LossToken t = token_of(b, of, i);
    const float a = weight_of(b, of, *denom), entropy = b.in.entropy == nullptr ? 0.0f : b.in.entropy[i];
    add(mine, {a * (t.loss + b.set.kl_coef * t.kl - b.set.entropy_coef * entropy), a * t.loss, a * t.kl, t.clipped});
  }
  const Sums total = block_sums(mine, shared);
  if (threadIdx.x == 0) to[blockIdx.x] = total;
}

struct Results {
  float *loss, *policy_loss, *kl, *clip_fraction;  ///< kl: nullptr without ref_logps
};

/// In an order that depends only on the numbers of blocks and of sequences.
__global__ __launch_bounds__(kSumThreads) void sum_all(const Sums* __restrict__ of_blocks, int64_t blocks,
                                                       const Sequence* __restrict__ sequences, int64_t n_sequences,
                                                       Results to) {
  __shared__ float shared[4][kWarp], shared_n[kWarp];
  Sums mine{};
  float n = 0.0f;
  for (int64_t i = threadIdx.x; i < blocks; i += kSumThreads) add(mine, of_blocks[i]);
  for (int64_t i = threadIdx.x; i < n_sequences; i += kSumThreads) n += sequences[i].n;
  const Sums total = block_sums(mine, shared);
  n = block_sum(n, shared_n);
  if (threadIdx.x != 0) return;
  *to.loss = total.loss, *to.policy_loss = total.policy;
  if (to.kl != nullptr) *to.kl = total.kl;
  *to.clip_fraction = total.clipped / fmaxf(n, 1.0f);
}

/// dlogps and, where it is wanted, dentropy of one token per thread.
__global__ __launch_bounds__(kTokenThreads) void write_gradients(PolicyBatch b, const Sequence* __restrict__ sequences,
                                                                 const float* __restrict__ denom,
                                                                 const float* __restrict__ grad_loss,
                                                                 float* __restrict__ dlogps,
                                                                 float* __restrict__ dentropy) {
  const int64_t i = int64_t{blockIdx.x} * kTokenThreads + threadIdx.x;
  if (i >= b.sequences * b.seq) return;
  float by_logp = 0.0f, by_entropy = 0.0f;
  if (b.in.mask[i] != 0) {
    const Sequence of = sequences[i / b.seq];
    const LossToken t = token_of(b, of, i);
    const float a = *grad_loss * weight_of(b, of, *denom);
    by_logp = a * (t.dloss + b.set.kl_coef * t.dkl), by_entropy = -a * b.set.entropy_coef;
  }
  dlogps[i] = by_logp;
  if (dentropy != nullptr) dentropy[i] = by_entropy;
}

bool is_absent(const checkop_tensor& t) { return t.data == nullptr && t.rank == 0; }

const float* floats(const checkop_call* call, Input input) {
  return static_cast<const float*>(call->inputs[input].data);
}

checkop_status check_call(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(backward ? 9 : 8, backward ? 2 : 4).failed()) return check.status();
  const checkop_tensor& logps = call->inputs[kLogps];
  if (check.rank_at_least(logps, "logps", 1).failed()) return check.status();
  const auto of_tokens = [&](const checkop_tensor& t, const char* name, int32_t dtype = CHECKOP_F32) {
    check.dtype(t, name, dtype).shape(t, name, logps, logps.rank, {}).contiguous(t, name);
  };
  const auto scalar = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, CHECKOP_F32).shape(t, name, logps, 0, {});
  };
  of_tokens(logps, "logps");
  of_tokens(call->inputs[kOldLogps], "old_logps");
  of_tokens(call->inputs[kAdvantages], "advantages");
  of_tokens(call->inputs[kMask], "mask", CHECKOP_U8);
  const bool has_ref = !is_absent(call->inputs[kRefLogps]), has_entropy = !is_absent(call->inputs[kEntropy]);
  if (has_ref) of_tokens(call->inputs[kRefLogps], "ref_logps");
  if (!is_absent(call->inputs[kRolloutLogps])) of_tokens(call->inputs[kRolloutLogps], "rollout_logps");
  if (has_entropy) of_tokens(call->inputs[kEntropy], "entropy");
  if (call->inputs[kDenom].data != nullptr) scalar(call->inputs[kDenom], "denom");
  if (backward) {
    scalar(call->inputs[kGradLoss], "grad_loss");
    of_tokens(call->outputs[0], "dlogps");
    if (has_entropy) of_tokens(call->outputs[1], "dentropy");
  } else {
    scalar(call->outputs[0], "loss");
    scalar(call->outputs[1], "policy_loss");
    if (has_ref) scalar(call->outputs[2], "kl");
    scalar(call->outputs[3], "clip_fraction");
  }
  if (check.failed()) return check.status();
  const int64_t sequences = leading_count(logps), most = std::numeric_limits<int32_t>::max();
  if (sequences > most || ceil_div(sequences * last_extent(logps), kTokenThreads) > most) {
    return say(call, CHECKOP_UNSUPPORTED,
               "tensor 'logps': %lld sequences of %lld tokens, at most 2^31 - 1 sequences and 2^39 - 256 tokens are "
               "supported",
               static_cast<long long>(sequences), static_cast<long long>(last_extent(logps)));
  }
  return CHECKOP_OK;
}

int64_t blocks_of(int64_t tokens) { return ceil_div(tokens, kTermsPerBlock); }

/// What both passes begin with, then the sums of blocks.
struct Layout {
  PolicyLayout shared;
  size_t sums, bytes;

  Layout(int64_t sequences, int64_t tokens)
      : shared(0, sequences, 0),  // nothing per token
        sums(shared.end),
        bytes(sums + static_cast<size_t>(round_up(blocks_of(tokens) * static_cast<int64_t>(sizeof(Sums)), 256))) {}
};

size_t workspace_bytes(const checkop_call* call) {
  if (call->n_inputs < 1 || call->inputs[kLogps].rank < 1) return 0;  // launch() refuses such a call
  const int64_t sequences = leading_count(call->inputs[kLogps]);
  return Layout(sequences, sequences * last_extent(call->inputs[kLogps])).bytes;
}

checkop_status enqueue(const checkop_call* call, const PolicyBatch& b, bool backward) {
  auto* stream = static_cast<cudaStream_t>(call->stream);
  const Layout layout(b.sequences, b.tokens());
  if (auto status = CallCheck(call).workspace(layout.bytes).status()) return status;
  const auto output = [call](int index) { return static_cast<float*>(call->outputs[index].data); };
  auto* workspace = static_cast<std::byte*>(call->workspace);
  if (b.tokens() == 0) {
    if (backward) return CHECKOP_OK;
    for (int i = 0; i < 4; ++i) {
      if (output(i) == nullptr) continue;
      if (auto s = cuda_status(call, cudaMemsetAsync(output(i), 0, sizeof(float), stream), "clear results")) return s;
    }
    return CHECKOP_OK;
  }
  launch_statistics(b, layout.shared, workspace, stream);
  const auto* sequences = reinterpret_cast<const Sequence*>(workspace + layout.shared.sequences);
  const auto* denom = reinterpret_cast<const float*>(workspace + layout.shared.denom);
  if (backward) {
    write_gradients<<<token_blocks(b.tokens()), kTokenThreads, 0, stream>>>(
        b, sequences, denom, floats(call, kGradLoss), output(0), b.in.entropy == nullptr ? nullptr : output(1));
    return launch_status(call, "launch policy_loss backward");
  }
  auto* sums = reinterpret_cast<Sums*>(workspace + layout.sums);
  const int64_t blocks = blocks_of(b.tokens());
  sum_blocks<<<static_cast<unsigned>(blocks), kTokenThreads, 0, stream>>>(b, sequences, denom, sums);
  const Results to{output(0), output(1), b.in.ref_logps == nullptr ? nullptr : output(2), output(3)};
  sum_all<<<1, kSumThreads, 0, stream>>>(sums, blocks, sequences, b.sequences, to);
  return launch_status(call, "launch policy_loss forward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  if (auto status = check_call(call, backward)) return status;
  const native::PolicyInputs in{floats(call, kLogps),      floats(call, kOldLogps),
                                floats(call, kAdvantages), static_cast<const uint8_t*>(call->inputs[kMask].data),
                                floats(call, kRefLogps),   floats(call, kRolloutLogps),
                                floats(call, kEntropy),    floats(call, kDenom)};
  const checkop_tensor& logps = call->inputs[kLogps];
  try {
    return enqueue(call, {native::PolicySettings(*call), in, leading_count(logps), last_extent(logps)}, backward);
  } catch (const native::Refusal& refusal) {  // a missing attribute
    return say(call, refusal.status, "%s", refusal.what());
  }
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "policy_loss", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "policy_loss", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
