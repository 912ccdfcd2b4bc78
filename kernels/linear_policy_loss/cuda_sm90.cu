// SPDX-License-Identifier: Apache-2.0
// linear_policy_loss / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, no logits in memory. The backward pass is a
// fused training step: it computes the logits once, then the loss's coefficients, then the gradients.
//   x = hidden * lm_head_weight^T + bias,  z = x / temperature,  t = target_ids[i],  p = softmax(z[i,:])
//   logps[i] = z[i,t] - lse(z[i,:]),  entropy[i] = -sum_v p_v ln p_v;  loss: of these two as in policy_loss / native
//   backward  dx[i,v] = (c ((v == t) - p_v) - e p_v (ln p_v + entropy[i])) / temperature,  c, e = grad_loss * dloss by
//             logps[i], by entropy[i];  dhidden = dx * lm_head_weight,  dlm_head_weight = dx^T * hidden,
//             dbias[v] = sum_i dx[i,v]
//   Tensors as for the candidate cuda. Masked tokens cost nothing: the others are gathered first.
//   No gradients in fp16: dx[i,v] is about c / vocab, where fp16 has few bits left or none. No softcap.
//   Limits: sm_90 only; |z| < 2^30, for gradients < 2^23; vocab < 2^30; tokens < 2^31. Active ids outside [0, vocab)
//   are CHECKOP_FAILED. fp32 and empty sums are computed as in the candidate cuda.
//   Workspace: that of linear_logp / cuda-sm90 with 12 bytes for 8 of every segment in the forward pass, and 68 bytes
//   per token and 12 per sequence. Backward: at most 300 MB at 4096 tokens x 4096.
//   Expected error: that of linear_logp / cuda-sm90; sums over tokens are chains of n/256 or n/1024.
// Without a bias and with entropy_coef 0 the logits are computed once for as many active tokens as hidden has columns,
// otherwise twice. The bits of a token's logps and entropy depend on nothing but the token; those of its dhidden also
// on its coefficient, which depends on denom and the sequence.
#include "linear_logp/sm90.cuh"
#include "linear_policy_loss/portable.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = linear_logp::hopper;
using linear_logp::AtListed;
using linear_logp::LinearLogpShape;
using linear_logp::RowList;
using linear_logp::WeightGradients;
using namespace linear_policy_loss;

bool is_portable(const checkop_call* call) {
  const LinearLogpShape shape = shape_of(call);
  return call->n_inputs == 0 || call->inputs[kHidden].dtype == CHECKOP_F32 || shape.rows == 0 || shape.hidden == 0;
}

/// The merged sums of the segments of an active token; in the workspace.
struct TokenSums {
  float exponent, sum, weighted, target_logit;
};

struct Layout {
  hopper::HopperWorkspaceLayout logits;
  size_t sums;
  TokenLayout tokens;

  Layout(const checkop_call* call, bool backward)
      : logits(hopper::workspace_layout<sm90::WeightedPowerSum, sm90::EntropyRowGradient>(shape_of(call), backward)),
        sums((logits.bytes + 255) / 256 * 256),
        tokens(
            token_layout(call, sums + (backward ? static_cast<size_t>(shape_of(call).rows) * sizeof(TokenSums) : 0))) {}
};

template <bool backward>
size_t workspace(const checkop_call* call) {
  return is_portable(call) ? workspace_bytes<backward>(call) : Layout(call, backward).tokens.bytes();
}

/// Results of a token in the forward pass.
struct WriteResults {
  float temperature_reciprocal;
  float* __restrict__ logps;
  float* __restrict__ entropies;

  __device__ void operator()(int64_t token, const sm90::WeightedPowerSum& total, float target_logit) const {
    logps[token] = log_probability(target_logit * temperature_reciprocal, total);
    entropies[token] = entropy(total);
  }
};

/// The log-probability of listed row `row`, and what its gradient is made of later.
struct WriteTokenSums {
  float temperature_reciprocal;
  const int64_t* __restrict__ index;
  float* __restrict__ logps;
  TokenSums* __restrict__ sums;

  template <typename Sum>
  __device__ void operator()(int64_t row, const Sum& total, float target_logit) const {
    logps[index[row]] = log_probability(target_logit * temperature_reciprocal, total);
    sums[row] = {total.exponent, total.sum, 0.0f, target_logit};
    if constexpr (std::is_same_v<Sum, sm90::WeightedPowerSum>) sums[row].weighted = total.weighted;
  }
};

template <typename Row>
__global__ __launch_bounds__(kThreads) void write_row_gradients(const TokenSums* __restrict__ sums,
                                                                const policy::Coefficients* __restrict__ coefficients,
                                                                RowList list, int64_t rows, int64_t vocab,
                                                                float temperature_reciprocal, float log2_scale,
                                                                Row* __restrict__ to) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  const TokenSums of = sums[row];
  const policy::Coefficients by = coefficients[list.index[row]];
  const int64_t id = list.ids[row];
  const int32_t target = id >= 0 && id < vocab ? static_cast<int32_t>(id) : sm90::kElsewhere;
  const float c = by.by_logp * temperature_reciprocal;
  if constexpr (std::is_same_v<Row, sm90::EntropyRowGradient>) {
    to[row] = row_gradient(sm90::WeightedPowerSum{of.exponent, of.sum, of.weighted}, c,
                           by.by_entropy * temperature_reciprocal, of.target_logit, log2_scale, target);
  } else {
    to[row] = row_gradient(sm90::PowerSum{of.exponent, of.sum}, c, of.target_logit, log2_scale, target);
  }
}

/// A checked call with active tokens.
template <typename T>
struct Step {
  const checkop_call* call;
  Layout layout;
  hopper::HopperParams<T> p;
  RowList list;
  int64_t count;  ///< of listed rows
  float temperature_reciprocal;

  const float* target_logits() const { return p.template in_workspace<float>(p.layout.target_logit); }
  template <typename O>
  O* output(int index) const {
    return static_cast<O*>(call->outputs[index].data);
  }

  cudaError_t forward(const char*& variant) const {
    const WriteResults results{temperature_reciprocal, output<float>(kLogps), output<float>(kEntropy)};
    for (const int i : {kLogps, kEntropy}) {
      const auto bytes = static_cast<size_t>(p.shape.rows) * sizeof(float);
      if (const auto error = cudaMemsetAsync(call->outputs[i].data, 0, bytes, p.stream)) return error;
    }
    const auto finish_at = [&](int64_t first) {
      return WithTarget<AtListed<WriteResults>>{target_logits(), {list.index + first, results}};
    };
    if (const auto error = hopper::reduce_listed<sm90::WeightedPowerSum>(p, list, count, finish_at, variant))
      return error;
    policy::launch_loss(batch_of(call, results.logps, results.entropies), layout.tokens.policy, p.workspace,
                        output<float>(kLoss), p.stream);
    return cudaGetLastError();
  }

  /// Sum, Row: with what the derivative of the entropy needs, or without.
  template <typename Sum, typename Row>
  cudaError_t backward(const char*& variant) const {
    constexpr bool kKeeps = std::is_same_v<Row, sm90::RowGradient>;
    const int64_t tokens = p.shape.rows, hidden = p.shape.hidden;
    auto* dhidden = output<T>(0);
    const WeightGradients<T> to{output<T>(1), output<T>(2), nullptr, nullptr};
    auto listed = p;
    auto* gathered = p.template in_workspace<T>(p.layout.kept_hidden);
    linear_logp::launch_gather_rows(p.hidden, list, 0, count, hidden, kMasked, gathered, p.stream);
    listed.hidden = gathered, listed.target_ids = list.ids, listed.shape.rows = count;

    auto* logps = p.template in_workspace<float>(layout.tokens.logps);
    auto* sums = p.template in_workspace<TokenSums>(layout.sums);
    const auto finish_at = [&](int64_t first) {
      return WithTarget<WriteTokenSums>{target_logits(),
                                        {temperature_reciprocal, list.index + first, logps, sums + first}};
    };
    const hopper::Kept kept = kKeeps ? hopper::kept_in(listed, to) : hopper::Kept{};
    if (const auto error = hopper::reduce_logits<Sum>(listed, kept, hopper::scratch_in<T>(to), finish_at, variant))
      return error;
    const policy::Coefficients* coefficients =
        policy::launch_coefficients(batch_of(call, logps, nullptr), layout.tokens.policy, p.workspace,
                                    static_cast<const float*>(call->inputs[kGradLoss].data), p.stream);
    write_row_gradients<Row><<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, p.stream>>>(
        sums, coefficients, list, count, p.shape.vocab, temperature_reciprocal, p.log2_scale,
        p.template in_workspace<Row>(p.layout.row_gradients));

    const bool is_all = count == tokens;
    if (!is_all) {
      const auto bytes = static_cast<size_t>(tokens * hidden) * sizeof(T);
      if (const auto error = cudaMemsetAsync(dhidden, 0, bytes, p.stream)) return error;
    }
    auto* hidden_sums = p.template in_workspace<float>(p.layout.hidden_sums);
    if (const auto error = hopper::launch_gradients<Row>(listed, kept, 0, hidden_sums, is_all ? dhidden : nullptr, to))
      return error;
    if (!is_all) linear_logp::launch_scatter_rows(hidden_sums, list, count, hidden, dhidden, p.stream);
    return cudaGetLastError();
  }
};

template <typename T>
checkop_status run(const checkop_call* call, bool backward, double temperature) {
  const Layout layout(call, backward);
  const LinearLogpShape shape = shape_of(call);
  const auto stream = static_cast<cudaStream_t>(call->stream);
  hopper::HopperParams<T> p{shape,
                            layout.logits,
                            static_cast<const T*>(call->inputs[kHidden].data),
                            static_cast<const T*>(call->inputs[kWeight].data),
                            static_cast<const T*>(call->inputs[kBias].data),
                            launch_mask_ids(call, shape.rows, layout.tokens),
                            kMasked,
                            static_cast<std::byte*>(call->workspace),
                            stream,
                            0,
                            layout.logits.exponents,
                            static_cast<float>(1.4426950408889634 / temperature)};
  unsigned long long* const extra = IdCheck::extra_of(call->workspace);
  const RowList list = hopper::row_list_in(p, extra);
  linear_logp::launch_list_rows(p.target_ids, nullptr, kMasked, shape.rows, 1, list, stream);
  IdCheck id_check(call, static_cast<const int64_t*>(call->inputs[kTargetIds].data), shape.rows, shape.vocab,
                   "target_ids", call->workspace, stream);
  const auto* mask = static_cast<const uint8_t*>(call->inputs[kMask].data);
  if (auto status = id_check.begin({.mask = mask, .extra = extra})) return status;
  if (auto status = id_check.finish()) return status;
  const unsigned long long count = id_check.extra();
  if (count == 0) return clear_outputs(call);

  const Step<T> step{call, layout, p, list, static_cast<int64_t>(count), static_cast<float>(1 / temperature)};
  const char* variant = "";
  cudaError_t error = cudaSuccess;
  if (!backward) {
    error = step.forward(variant);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    error = native::PolicySettings(*call).entropy_coef == 0.0f
                ? step.template backward<sm90::PowerSum, sm90::RowGradient>(variant)
                : step.template backward<sm90::WeightedPowerSum, sm90::EntropyRowGradient>(variant);
  }
  if (auto status = cuda_status(call, error, "launch linear_policy_loss")) return status;
  return say(call, CHECKOP_OK, "%s", variant);
}

template <bool backward>
checkop_status launch_hopper(const checkop_call* call) {
  if (is_portable(call)) return launch<backward>(call);
  const bool is_fp16 = call->inputs[kHidden].dtype == CHECKOP_F16;
  if (backward && is_fp16)
    return say(call, CHECKOP_UNSUPPORTED, "no gradients in fp16: gradients of logits underflow; use bf16 or fp32");
  if (auto status = check_call(call, backward, workspace<backward>(call))) return status;
  double temperature = 0, softcap = 0;
  if (auto status = read_attribute(call, "temperature", temperature)) return status;
  if (auto status = read_attribute(call, "softcap", softcap)) return status;
  if (softcap != 0) return say(call, CHECKOP_UNSUPPORTED, "logits are not capped");
  return refusing(call, [&] {
    return is_fp16 ? run<__half>(call, backward, temperature) : run<__nv_bfloat16>(call, backward, temperature);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "linear_policy_loss", "forward", CHECKOP_CUDA, 90, 90, workspace<false>,
     launch_hopper<false>},
    {sizeof(checkop_kernel), "cuda-sm90", "linear_policy_loss", "backward", CHECKOP_CUDA, 90, 90, workspace<true>,
     launch_hopper<true>, "dz_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
