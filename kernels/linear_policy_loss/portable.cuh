// SPDX-License-Identifier: Apache-2.0
// linear_policy_loss on any GPU: logits in blocks and their gradients as linear_logp / cuda computes them, with the
// mean of the logits beside the sum of their exponentials. cuda.cu has the formulas and the names used here.
#pragma once

#include "cuda/policy_loss.cuh"
#include "linear_logp/entropy.cuh"
#include "linear_logp/portable.cuh"

namespace checkop::kernels::linear_policy_loss {

using linear_logp::EntropyPartial;
using linear_logp::LinearLogpShape;
using linear_logp::shape_of;

enum Input : int {
  kHidden,
  kWeight,
  kTargetIds,
  kOldLogps,
  kAdvantages,
  kMask,
  kBias,
  kRefLogps,
  kRolloutLogps,
  kDenom,
  kGradLoss
};
enum Output : int { kLoss, kLogps, kEntropy };

/// The target of a masked token: what linear_logp's kernels take for an ignored row.
constexpr int64_t kMasked = -1;

/// Stores the results of a token's logits that the loss needs; arrays that are null are not written.
struct WriteTokens {
  const int64_t* __restrict__ target_ids;  ///< [rows], kMasked for masked tokens
  float* __restrict__ logps;               ///< [rows], 0 for masked tokens
  float* __restrict__ entropies;           ///< likewise
  EntropyPartial* __restrict__ totals;     ///< [rows]

  __device__ void operator()(int64_t row, const EntropyPartial& total, float target_logit) const {
    const bool is_masked = target_ids[row] == kMasked;
    logps[row] = is_masked ? 0.0f : log_probability(target_logit, total);
    if (entropies != nullptr) entropies[row] = is_masked ? 0.0f : total.entropy();
    if (totals != nullptr) totals[row] = total;
  }
};

/// The gradient of the loss by the logits of rows.
struct LossGradient {
  const policy::Coefficients* __restrict__ coefficients;
  const EntropyPartial* __restrict__ totals;

  LossGradient from(int64_t row) const { return {coefficients + row, totals + row}; }
  __device__ float operator()(int64_t row, float z, bool is_target) const {
    const EntropyPartial total = totals[row];
    const policy::Coefficients by = coefficients[row];
    const float below = exp_shift(total.max) - z, p = expf(-below) * (1.0f / total.sum);
    const float of_entropy = p == 0.0f ? 0.0f : p * (below - total.mean());
    return by.by_logp * ((is_target ? 1.0f : 0.0f) - p) + by.by_entropy * of_entropy;
  }
};

static __global__ __launch_bounds__(kThreads) void mask_ids(const int64_t* __restrict__ ids,
                                                            const uint8_t* __restrict__ mask, int64_t rows,
                                                            int64_t* __restrict__ to) {
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < rows; row += int64_t{gridDim.x} * kThreads) {
    to[row] = mask[row] == 0 ? kMasked : ids[row];
  }
}

/// The end of the workspace of both candidates, behind the part for the logits.
struct TokenLayout {
  size_t ids, logps;
  policy::PolicyLayout policy;

  TokenLayout(size_t begin, int64_t sequences, int64_t tokens)
      : ids((begin + 255) / 256 * 256),
        logps(ids + static_cast<size_t>(round_up(tokens * 8, 256))),
        policy(logps + static_cast<size_t>(round_up(tokens * 4, 256)), sequences, tokens) {}
  size_t bytes() const { return policy.end; }
};

/// Tokens of a sequence; the rows of hidden are the tokens of all sequences.
inline int64_t seq_of(const checkop_call* call) {
  const checkop_tensor& hidden = call->inputs[kHidden];
  return call->n_inputs > 0 && hidden.rank > 1 ? hidden.shape[hidden.rank - 2] : 1;
}
inline int64_t sequences_of(const checkop_call* call) {
  const int64_t seq = seq_of(call);
  return seq == 0 ? 0 : shape_of(call).rows / seq;
}
inline TokenLayout token_layout(const checkop_call* call, size_t begin) {
  return {begin, sequences_of(call), shape_of(call).rows};
}

inline checkop_status check_call(const checkop_call* call, bool backward, size_t workspace) {
  CallCheck check(call);
  if (check.counts(backward ? kGradLoss + 1 : kGradLoss, 3).failed()) return check.status();
  const auto* in = call->inputs;
  const auto* out = call->outputs;
  const checkop_tensor &hidden = in[kHidden], &weight = in[kWeight];
  if (check.rank_at_least(hidden, "hidden", 2).rank_at_least(weight, "lm_head_weight", 2).failed())
    return check.status();
  const int32_t n_leading = hidden.rank - 1;
  const auto of_tokens = [&](const checkop_tensor& t, const char* name, int32_t dtype, bool optional = false) {
    if (optional && t.data == nullptr) return;
    check.dtype(t, name, dtype).shape(t, name, hidden, n_leading, {}).contiguous(t, name);
  };
  const auto like = [&](const checkop_tensor& t, const char* name, const checkop_tensor& other, int32_t extents) {
    if (t.data == nullptr && extents == 1) return;  // a bias
    check.dtype(t, name, hidden.dtype).shape(t, name, other, extents, {}).contiguous(t, name);
  };
  const auto scalar = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, CHECKOP_F32).shape(t, name, hidden, 0, {});
  };
  check.float_dtype(hidden, "hidden").contiguous(hidden, "hidden");
  check.dtype(weight, "lm_head_weight", hidden.dtype)
      .shape(weight, "lm_head_weight", weight, 1, {last_extent(hidden)})
      .contiguous(weight, "lm_head_weight");
  of_tokens(in[kTargetIds], "target_ids", CHECKOP_I64);
  of_tokens(in[kOldLogps], "old_logps", CHECKOP_F32);
  of_tokens(in[kAdvantages], "advantages", CHECKOP_F32);
  of_tokens(in[kMask], "mask", CHECKOP_U8);
  like(in[kBias], "bias", weight, 1);
  of_tokens(in[kRefLogps], "ref_logps", CHECKOP_F32, /*optional=*/true);
  of_tokens(in[kRolloutLogps], "rollout_logps", CHECKOP_F32, /*optional=*/true);
  if (in[kDenom].data != nullptr) scalar(in[kDenom], "denom");
  if (backward) {
    scalar(in[kGradLoss], "grad_loss");
    like(out[0], "dhidden", hidden, hidden.rank);
    like(out[1], "dlm_head_weight", weight, 2);
    like(out[2], "dbias", weight, 1);
  } else {
    scalar(out[kLoss], "loss");
    of_tokens(out[kLogps], "logps", CHECKOP_F32);
    of_tokens(out[kEntropy], "entropy", CHECKOP_F32);
  }
  if (check.failed()) return check.status();
  if (last_extent(hidden) > kMaxGemmColumns) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'hidden': last extent %lld, at most %lld is supported",
               static_cast<long long>(last_extent(hidden)), static_cast<long long>(kMaxGemmColumns));
  }
  if (shape_of(call).rows > std::numeric_limits<int32_t>::max()) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'hidden': %lld tokens, at most 2147483647 are supported",
               static_cast<long long>(shape_of(call).rows));
  }
  return check.workspace(workspace).status();
}

/// The status of launch(), or that of a refusal that it throws.
template <typename Launch>
checkop_status refusing(const checkop_call* call, Launch&& launch) {
  checkop_status status = CHECKOP_OK;
  const checkop_status thrown = native::run(call, [&](const checkop_call&) { status = launch(); });
  return thrown == CHECKOP_OK ? status : thrown;
}

/// The tokens of a checked call, whose log-probabilities are `logps`.
inline policy::PolicyBatch batch_of(const checkop_call* call, const float* logps, const float* entropies) {
  const auto floats = [&](int index) { return static_cast<const float*>(call->inputs[index].data); };
  const native::PolicyInputs in{logps,
                                floats(kOldLogps),
                                floats(kAdvantages),
                                static_cast<const uint8_t*>(call->inputs[kMask].data),
                                floats(kRefLogps),
                                floats(kRolloutLogps),
                                entropies,
                                floats(kDenom)};
  return {native::PolicySettings(*call), in, sequences_of(call), seq_of(call)};
}

/// The results of a call without active tokens: zeros.
inline checkop_status clear_outputs(const checkop_call* call) {
  for (int i = 0; i < call->n_outputs; ++i) {
    const checkop_tensor& out = call->outputs[i];
    const size_t element_bytes = out.dtype == CHECKOP_F32 ? 4 : 2;
    const int64_t count = out.rank == 0 ? 1 : leading_count(out) * last_extent(out);
    if (out.data == nullptr || count == 0) continue;
    const auto error = cudaMemsetAsync(out.data, 0, static_cast<size_t>(count) * element_bytes,
                                       static_cast<cudaStream_t>(call->stream));
    if (auto status = cuda_status(call, error, "clear an output")) return status;
  }
  return CHECKOP_OK;
}

/// Replaces the ids of masked tokens by kMasked, in the workspace.
inline int64_t* launch_mask_ids(const checkop_call* call, int64_t rows, const TokenLayout& layout) {
  auto* to = reinterpret_cast<int64_t*>(static_cast<std::byte*>(call->workspace) + layout.ids);
  mask_ids<<<linear_logp::blocks_for(rows), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const int64_t*>(call->inputs[kTargetIds].data), static_cast<const uint8_t*>(call->inputs[kMask].data),
      rows, to);
  return to;
}

inline linear_logp::WorkspaceLayout logits_layout(const checkop_call* call, bool backward) {
  return linear_logp::workspace_layout(shape_of(call), backward, sizeof(EntropyPartial));
}
template <bool backward>
size_t workspace_bytes(const checkop_call* call) {
  return token_layout(call, logits_layout(call, backward).bytes).bytes();
}

template <typename T>
checkop_status run(const checkop_call* call, bool backward, const LogitTransform& transform) {
  const LinearLogpShape shape = shape_of(call);
  const linear_logp::WorkspaceLayout logits = logits_layout(call, backward);
  const TokenLayout layout = token_layout(call, logits.bytes);
  auto* const workspace = static_cast<std::byte*>(call->workspace);
  const auto stream = static_cast<cudaStream_t>(call->stream);
  IdCheck id_check(call, static_cast<const int64_t*>(call->inputs[kTargetIds].data), shape.rows, shape.vocab,
                   "target_ids", workspace, stream);
  if (auto status = id_check.begin({.mask = static_cast<const uint8_t*>(call->inputs[kMask].data)})) return status;
  if (auto status = id_check.finish()) return status;

  linear_logp::LinearLogpParams<T> p{shape,
                                     logits,
                                     static_cast<const T*>(call->inputs[kHidden].data),
                                     static_cast<const T*>(call->inputs[kWeight].data),
                                     static_cast<const T*>(call->inputs[kBias].data),
                                     launch_mask_ids(call, shape.rows, layout),
                                     kMasked,
                                     workspace,
                                     stream,
                                     transform};
  WriteTokens tokens{p.target_ids, reinterpret_cast<float*>(workspace + layout.logps), nullptr, nullptr};
  if (backward) {
    linear_logp::keep_hidden(p);
    tokens.totals = p.template in_workspace<EntropyPartial>(logits.totals);
  } else {
    tokens.logps = static_cast<float*>(call->outputs[kLogps].data);
    tokens.entropies = static_cast<float*>(call->outputs[kEntropy].data);
  }
  const auto* target_logit = p.template in_workspace<float>(logits.target_logit);
  linear_logp::launch_softmax<EntropyPartial>(p, [&](int64_t first) {
    const auto at = [first](auto* list) { return list == nullptr ? nullptr : list + first; };
    return WithTarget<WriteTokens>{target_logit,
                                   {at(tokens.target_ids), at(tokens.logps), at(tokens.entropies), at(tokens.totals)}};
  });
  const policy::PolicyBatch batch = batch_of(call, tokens.logps, tokens.entropies);
  if (!backward) {
    policy::launch_loss(batch, layout.policy, workspace, static_cast<float*>(call->outputs[kLoss].data), stream);
    return launch_status(call, "launch linear_policy_loss forward");
  }
  const policy::Coefficients* coefficients = policy::launch_coefficients(
      batch, layout.policy, workspace, static_cast<const float*>(call->inputs[kGradLoss].data), stream);
  auto* hidden_sums = p.template in_workspace<float>(logits.hidden_sums);
  linear_logp::launch_gradients(
      p, LossGradient{coefficients, tokens.totals}, hidden_sums,
      linear_logp::WeightGradients<T>{static_cast<T*>(call->outputs[1].data), static_cast<T*>(call->outputs[2].data),
                                      nullptr, nullptr});
  linear_logp::launch_round_to<T>(hidden_sums, logits.ld_sums, shape.rows, shape.hidden,
                                  static_cast<T*>(call->outputs[0].data), stream);
  return launch_status(call, "launch linear_policy_loss backward");
}

template <bool backward>
checkop_status launch(const checkop_call* call) {
  if (auto status = check_call(call, backward, workspace_bytes<backward>(call))) return status;
  LogitTransform transform;
  if (auto status = read_transform(call, transform)) return status;
  if (shape_of(call).rows == 0) return clear_outputs(call);
  return refusing(call, [&] {
    return with_float_type(call->inputs[kHidden].dtype,
                           [&]<typename Tag>(Tag) { return run<typename Tag::type>(call, backward, transform); });
  });
}

}  // namespace checkop::kernels::linear_policy_loss
