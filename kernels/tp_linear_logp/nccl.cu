// SPDX-License-Identifier: Apache-2.0
// tp_linear_logp / nccl: the vocabulary divided among ranks with a GPU each; portable CUDA, fp32 throughout.
//   z = hidden * lm_head_weight^T + bias,  t = target_ids[row],  g = grad_logp[row],  p = softmax(z[row,:])
//   forward   logp[row] = z[row,t] - lse(z[row,:])
//   backward  dz[row,c] = g * ((c == t) - p[c]);  dhidden = the sum over all ranks of dz * lm_head_weight,
//             dlm_head_weight = dz^T * hidden, dbias[c] = sum_row dz[row,c] of the rank's own part
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [part of vocab, hidden]   bias, dbias: [part of
//   vocab], optional; all of one dtype, f32|f16|bf16, contiguous   target_ids: [rows] i64, global
//   logp, grad_logp: [rows] f32
//   If target_ids[row] = ignore_index: logp is 0 and the row adds nothing to any gradient, whatever hidden[row] holds.
//   dlm_head_weight_carry, dbias_carry: as for linear_logp / cuda, of the rank's own part
//   Exchanges: an all-gather of 16 bytes per row and rank (or canonical segment), combined on every rank in the order
//   of the vocabulary. Backward, dhidden: a reduce-scatter of rows in fp32, added in that order and rounded once, then
//   an all-gather. With canonical segments bits do not depend on the number of ranks.
//   Limits: 64 ranks, 64 canonical segments; hidden <= 65535 * 128.
//   Workspace: that of linear_logp / cuda for the rank's part, and 16 * (ranks + 1) bytes per row; with n canonical
//   segments the latter n - ranks + 1 times. Backward also 4 bytes per row and hidden element for each own segment, and
//   for each other segment as much for 1 / ranks of the rows.
//   Expected error: as for linear_logp / cuda, plus one addition per part.
#include "tp_linear_logp/nccl.cuh"

namespace checkop::kernels::tp_linear_logp {
namespace {

template <bool backward>
size_t workspace(const checkop_call* call) {
  // The same for every dtype: the shape has the element's bytes.
  return workspace_bytes<Portable<float>>(call, backward);
}

template <bool backward>
checkop_status launch(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    with_float_type(c.n_inputs > 0 ? c.inputs[0].dtype : CHECKOP_F32, [&]<typename Tag>(Tag) {
      using T = typename Tag::type;
      run<Portable<T>, T>(c, backward);
      return CHECKOP_OK;
    });
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "nccl", "tp_linear_logp", "forward", CHECKOP_CUDA, 80, 0, workspace<false>, launch<false>},
    {sizeof(checkop_kernel), "nccl", "tp_linear_logp", "backward", CHECKOP_CUDA, 80, 0, workspace<true>, launch<true>},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels::tp_linear_logp

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::tp_linear_logp::kPlugin; }
