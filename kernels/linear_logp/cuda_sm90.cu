// SPDX-License-Identifier: Apache-2.0
// linear_logp / cuda-sm90: Hopper's wgmma and TMA for fp16 and bf16, no logits in memory.
//   z = hidden * lm_head_weight^T + bias,  t = target_ids[row],  g = grad_logp[row],  p = softmax(z[row,:])
//   forward   logp[row] = z[row,t] - lse(z[row,:])
//   backward  dz[row,c] = g * ((c == t) - p[c]);  dhidden = dz * lm_head_weight, dlm_head_weight = dz^T * hidden,
//             dbias[c] = sum_row dz[row,c]
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [vocab, hidden]   bias, dbias: [vocab],
//   optional; all of one dtype, f32|f16|bf16, contiguous      target_ids: [rows] i64      logp, grad_logp: [rows] f32
//   If target_ids[row] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[row] holds.
//   dlm_head_weight_carry: [vocab, hidden], dbias_carry: [vocab], f32, optional: with them dlm_head_weight and dbias
//   are f32, sums of the carry and then of 16 rows at a time. Their bits do not depend on how rows are cut into calls,
//   as long as the cuts are at multiples of 16. A carry must not share memory with an output.
//   No gradients in fp16: dz[row,c] is about g / vocab, where fp16 has few bits left or none.
//   Limits: sm_90 only; |z| < 2^30, for gradients < 2^23; vocab < 2^30. Other ids outside [0, vocab) are
//   CHECKOP_FAILED. fp32 and empty sums are computed as in the candidate cuda.
//   Workspace: 20 bytes per row. Forward: also 8 bytes per row and 128 columns of vocabulary, and 2 per row and hidden
//   element when rows are gathered, for as many rows at a time as fit 48 MiB. Backward: at most 300 MB at 4096 rows x
//   4096: 2 + 4 bytes per row and hidden element, 4 per row and 128 columns, 2 + 1/4 per row and column, for as many
//   columns at a time as fit 132 MiB or what is left of 300 MB.
//   Expected error: a logit is one chain of hidden / 16 additions that truncate (sm90/config.cuh); exponentials are
//   within 2 ulp; the 128 columns of a segment are added as a tree, then 1024 segments at a time as trees, whose sums
//   make a chain of vocab / 131072. dz is rounded once to the dtype of hidden, except in dbias. Without a bias, its
//   exponential is first rounded to 10 bits, except in the target's column. Then one chain of vocab / 16 or rows / 16.
// Without a bias, the logits are computed once for as many rows as hidden has columns (with a carry, twice as many):
// their exponentials are kept in the memory of dlm_head_weight until it is written. The logits of further rows are
// computed a second time, to the same bits. Ignored rows cost nothing in a forward pass of more than 128 rows, nor in
// the backward pass where they fill blocks of 16: row_list.cuh. The bits of a row's logp and dhidden do not depend on
// the other rows: sm90/segments.cuh, sm90/gradient.cuh.
#include <type_traits>

#include "linear_logp/sm90.cuh"

namespace checkop::kernels {
namespace {

namespace hopper = linear_logp::hopper;
using linear_logp::AtListed;
using linear_logp::check_call;
using linear_logp::LinearLogpShape;
using linear_logp::RowList;
using linear_logp::shape_of;
using linear_logp::WeightGradients;

bool is_16_bit(const checkop_call* call) { return call->n_inputs > 0 && call->inputs[0].dtype != CHECKOP_F32; }
/// fp32 and empty sums.
bool is_portable(const checkop_call* call) {
  const LinearLogpShape shape = shape_of(call);
  return !is_16_bit(call) || shape.rows == 0 || shape.hidden == 0;
}

size_t forward_workspace(const checkop_call* call) {
  return is_portable(call) ? linear_logp::forward_workspace(call)
                           : hopper::workspace_layout(shape_of(call), false).bytes;
}
size_t backward_workspace(const checkop_call* call) {
  return is_portable(call) ? linear_logp::backward_workspace(call)
                           : hopper::workspace_layout(shape_of(call), true).bytes;
}

/// logp of the `count` listed rows; 0 for the others and where the target is p.ignored.
template <typename T>
cudaError_t launch_logp(const hopper::HopperParams<T>& p, const RowList& list, int64_t count, float* logp,
                        const char*& variant) {
  const auto* target_logit = p.template in_workspace<float>(p.layout.target_logit);
  if (count == p.shape.rows) {
    const auto finish_at = [&](int64_t first) {
      return WithTarget<WriteLogp>{target_logit, {p.target_ids + first, p.ignored, logp + first}};
    };
    return hopper::reduce_logits(p, {}, static_cast<T*>(nullptr), finish_at, variant);
  }
  const auto bytes = static_cast<size_t>(p.shape.rows) * sizeof(float);
  if (const auto error = cudaMemsetAsync(logp, 0, bytes, p.stream)) return error;
  const auto finish_at = [&](int64_t first) {
    return WithTarget<AtListed<WriteLogp>>{target_logit, {list.index + first, {p.target_ids, p.ignored, logp}}};
  };
  return hopper::reduce_listed(p, list, count, finish_at, variant);
}

/// Gradients of the `count` listed rows. Listed rows that are ignored add zeros.
template <typename T, typename O>
cudaError_t launch_gradients(hopper::HopperParams<T> p, const RowList& list, int64_t count, T* dhidden,
                             const WeightGradients<O>& to, const char*& variant) {
  const int64_t rows = p.shape.rows, hidden = p.shape.hidden;
  const bool is_all = count == rows;
  if (!is_all) {
    const auto bytes = static_cast<size_t>(rows * hidden) * sizeof(T);
    if (const auto error = cudaMemsetAsync(dhidden, 0, bytes, p.stream)) return error;
  }
  auto* kept = p.template in_workspace<T>(p.layout.kept_hidden);
  linear_logp::launch_gather_rows(p.hidden, list, 0, count, hidden, p.ignored, kept, p.stream);
  p.hidden = kept, p.target_ids = list.ids, p.shape.rows = count;
  const auto* target_logit = p.template in_workspace<float>(p.layout.target_logit);
  const auto finish_at = [&](int64_t first) {
    const sm90::WriteRowGradients finish{list.grad_logp + first,
                                         list.ids + first,
                                         p.ignored,
                                         0,
                                         p.shape.vocab,
                                         p.template in_workspace<sm90::RowGradient>(p.layout.row_gradients) + first};
    return WithTarget<sm90::WriteRowGradients>{target_logit, finish};
  };
  const hopper::Kept exponentials = hopper::kept_in(p, to);
  T* scratch = hopper::scratch_in<T>(to);
  if (const auto error = hopper::reduce_logits(p, exponentials, scratch, finish_at, variant)) return error;
  auto* sums = p.template in_workspace<float>(p.layout.hidden_sums);
  if (const auto error = hopper::launch_gradients(p, exponentials, 0, sums, is_all ? dhidden : nullptr, to))
    return error;
  if (!is_all) linear_logp::launch_scatter_rows(sums, list, count, hidden, dhidden, p.stream);
  return cudaGetLastError();
}

template <typename T>
checkop_status run(const checkop_call* call, bool backward, const hopper::HopperWorkspaceLayout& layout,
                   int64_t ignored) {
  constexpr int64_t kFewRows = 128;  // forward: up to here reading the weights dominates, so rows are not listed
  const hopper::HopperParams<T> p = hopper::params_of<T>(call, shape_of(call), layout, ignored);
  const int64_t rows = p.shape.rows;
  auto count = static_cast<unsigned long long>(rows);
  const bool lists = backward || rows > kFewRows;
  unsigned long long* const extra = IdCheck::extra_of(call->workspace);
  const RowList list = hopper::row_list_in(p, extra);
  if (lists) {
    const auto* grad_logp = backward ? static_cast<const float*>(call->inputs[4].data) : nullptr;
    linear_logp::launch_list_rows(p.target_ids, grad_logp, ignored, rows, backward ? sm90::kBlockRows : 1, list,
                                  p.stream);
  }
  IdCheck id_check(call, p.target_ids, rows, p.shape.vocab, "target_ids", call->workspace, p.stream);
  if (auto status = id_check.begin({.except = ignored, .extra = lists ? extra : nullptr})) return status;
  if (lists) {
    if (auto status = id_check.finish()) return status;
    count = id_check.extra();
  }
  const auto n = static_cast<int64_t>(count);
  const char* variant = "every row is ignored: nothing to compute";
  cudaError_t error = cudaSuccess;
  if (backward && n == 0) {
    const auto bytes = static_cast<size_t>(rows * p.shape.hidden) * sizeof(T);
    error = cudaMemsetAsync(call->outputs[0].data, 0, bytes, p.stream);
    if (auto status = linear_logp::clear_weight_gradients(call)) return status;
  } else if (!backward) {
    error = launch_logp(p, list, n, static_cast<float*>(call->outputs[0].data), variant);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    auto* dhidden = static_cast<T*>(call->outputs[0].data);
    linear_logp::with_weight_gradients<T>(
        *call, [&](const auto& to) { error = launch_gradients(p, list, n, dhidden, to, variant); });
  }
  if (auto status = cuda_status(call, error, "launch linear_logp")) return status;
  if (!lists) {  // the host waits while the product runs
    if (auto status = id_check.finish()) return status;
  }
  return say(call, CHECKOP_OK, "%s", variant);
}

checkop_status launch(const checkop_call* call, bool backward) {
  const LinearLogpShape shape = shape_of(call);
  if (is_portable(call)) return linear_logp::launch(call, backward);
  if (backward && call->inputs[0].dtype == CHECKOP_F16) {
    return say(call, CHECKOP_UNSUPPORTED, "no gradients in fp16: gradients of logits underflow; use bf16 or fp32");
  }
  const hopper::HopperWorkspaceLayout layout = hopper::workspace_layout(shape, backward);
  if (auto status = check_call(call, backward, layout.bytes)) return status;
  int64_t ignored = 0;
  LogitTransform transform;
  if (auto status = read_attributes(call, ignored, transform)) return status;
  if (!transform.is_none()) {
    return say(call, CHECKOP_UNSUPPORTED, "logits are neither capped nor divided by a temperature");
  }
  return call->inputs[0].dtype == CHECKOP_F16 ? run<__half>(call, backward, layout, ignored)
                                              : run<__nv_bfloat16>(call, backward, layout, ignored);
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "linear_logp", "forward", CHECKOP_CUDA, 90, 90, forward_workspace,
     launch_forward},
    {sizeof(checkop_kernel), "cuda-sm90", "linear_logp", "backward", CHECKOP_CUDA, 90, 90, backward_workspace,
     launch_backward, "dz_in_16_bit"},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
