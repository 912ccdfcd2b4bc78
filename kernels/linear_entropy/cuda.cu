// SPDX-License-Identifier: Apache-2.0
// linear_entropy / cuda: logits in fp32 blocks of at most 1024 rows x 16384 columns, portable CUDA, fp32 throughout.
//   x = hidden * lm_head_weight^T + bias,  z = softcap tanhf(x / softcap) / temperature, or x / temperature if softcap
//   is 0;  b_c = max z[row,:] - z[row,c],  s = sum_c exp(-b_c),  M = sum_c exp(-b_c) b_c / s
//   forward   entropy[row] = log(s) + M
//   backward  dx[row,c] = g[row] exp(-b_c) / s (b_c - M) dz/dx,  g = grad_entropy;  dhidden = dx * lm_head_weight,
//             dlm_head_weight = dx^T * hidden,  dbias[c] = sum_row dx[row,c]
//   hidden, dhidden: [rows, hidden]   lm_head_weight, dlm_head_weight: [vocab, hidden]   bias, dbias: [vocab],
//   optional; all of one dtype, f32|f16|bf16, contiguous   mask: [rows] u8 or none   entropy, grad_entropy: [rows] f32
//   Where the mask is 0: entropy is 0 and the row adds nothing to any gradient, whatever hidden[row] holds.
//   Limits: hidden <= 65535 * 128.
//   Workspace: that of linear_logp / cuda with 12 bytes in place of 8, and 8 bytes per row.
//   Expected error: sums of n terms have chains of 512 + n/512 fp32 additions, those of the softmax of 8 + vocab/8192
//   and two trees over 32 lanes; x and dx are never rounded below fp32. The bits of a row depend only on the row and
//   the weights. The bits of the weights' gradients do not depend on how blocks are cut: see linear_logp/portable.cuh.
#include "linear_logp/entropy.cuh"
#include "linear_logp/portable.cuh"

namespace checkop::kernels {
namespace {

using linear_logp::blocks_for, linear_logp::EntropyPartial, linear_logp::LinearLogpParams, linear_logp::LinearLogpShape;

constexpr int64_t kLeftOut = -1;  // the id of a row where the mask is 0

/// ids[row] = kLeftOut where the mask is 0, else 0: linear_logp leaves out rows by their id.
__global__ __launch_bounds__(kThreads) void ids_of_mask(const uint8_t* __restrict__ mask, int64_t rows,
                                                        int64_t* __restrict__ ids) {
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < rows; row += int64_t{gridDim.x} * kThreads)
    ids[row] = mask != nullptr && mask[row] == 0 ? kLeftOut : 0;
}

/// entropy[row]; 0 in rows that are left out.
struct WriteEntropy {
  const int64_t* __restrict__ ids;
  float* __restrict__ entropy;

  __device__ void operator()(int64_t row, const EntropyPartial& total) const {
    entropy[row] = ids[row] == kLeftOut ? 0.0f : total.entropy();
  }
};

/// The gradient of the entropy by the transformed logits of rows.
struct EntropyGradient {
  const float* __restrict__ grad_entropy;
  const EntropyPartial* __restrict__ totals;

  EntropyGradient from(int64_t row) const { return {grad_entropy + row, totals + row}; }
  __device__ float operator()(int64_t row, float z, bool) const {
    const EntropyPartial total = totals[row];
    const float below = exp_shift(total.max) - z, p = expf(-below);
    return p == 0.0f ? 0.0f : grad_entropy[row] / total.sum * p * (below - total.mean());
  }
};

/// The workspace: first that of linear_logp, then the ids.
struct Layout {
  linear_logp::WorkspaceLayout blocks;
  size_t ids, bytes;

  Layout(const LinearLogpShape& shape, bool backward)
      : blocks(linear_logp::workspace_layout(shape, backward, sizeof(EntropyPartial))),
        ids(blocks.bytes),
        bytes(ids + static_cast<size_t>(round_up(shape.rows * static_cast<int64_t>(sizeof(int64_t)), 256))) {}
};

/// The shape as far as the tensors give it; zeros for tensors that check_call() will refuse.
LinearLogpShape shape_of(const checkop_call* call) {
  if (call->n_inputs < 4 || call->inputs[0].rank < 1 || call->inputs[1].rank != 2) return {};
  const size_t element_bytes = call->inputs[0].dtype == CHECKOP_F32 ? 4 : 2;
  return {leading_count(call->inputs[0]), last_extent(call->inputs[0]), call->inputs[1].shape[0], element_bytes};
}

checkop_status check_call(const checkop_call* call, bool backward, size_t workspace) {
  CallCheck check(call);
  if (check.counts(backward ? 5 : 4, backward ? 3 : 1).failed()) return check.status();
  const checkop_tensor &hidden = call->inputs[0], &weight = call->inputs[1], &bias = call->inputs[2];
  if (check.rank_at_least(hidden, "hidden", 1).rank_at_least(weight, "lm_head_weight", 2).failed())
    return check.status();
  const int64_t vocab = weight.shape[0];
  const auto matrix = [&](const checkop_tensor& t, const char* name, const checkop_tensor& like) {
    check.dtype(t, name, hidden.dtype).shape(t, name, like, like.rank - 1, {last_extent(hidden)}).contiguous(t, name);
  };
  const auto of_vocab = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, hidden.dtype).shape(t, name, weight, 0, {vocab}).contiguous(t, name);
  };
  const auto of_rows = [&](const checkop_tensor& t, const char* name, int32_t dtype) {
    check.dtype(t, name, dtype).shape(t, name, hidden, hidden.rank - 1, {}).contiguous(t, name);
  };
  check.float_dtype(hidden, "hidden").contiguous(hidden, "hidden").shape(weight, "lm_head_weight", weight, 2, {});
  matrix(weight, "lm_head_weight", weight);
  of_vocab(bias, "bias");
  if (call->inputs[3].data != nullptr) of_rows(call->inputs[3], "mask", CHECKOP_U8);
  if (backward) {
    of_rows(call->inputs[4], "grad_entropy", CHECKOP_F32);
    matrix(call->outputs[0], "dhidden", hidden);
    matrix(call->outputs[1], "dlm_head_weight", weight);
    of_vocab(call->outputs[2], "dbias");
  } else {
    of_rows(call->outputs[0], "entropy", CHECKOP_F32);
  }
  if (check.failed()) return check.status();
  if (last_extent(hidden) > kMaxGemmColumns) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'hidden': last extent %lld, at most %lld is supported",
               static_cast<long long>(last_extent(hidden)), static_cast<long long>(kMaxGemmColumns));
  }
  return check.workspace(workspace).status();
}

/// The weight gradients of a call without rows.
checkop_status clear_gradients(const checkop_call* call) {
  for (int i = 1; i < call->n_outputs; ++i) {
    const checkop_tensor& t = call->outputs[i];
    const auto bytes = static_cast<size_t>(leading_count(t) * last_extent(t)) * (t.dtype == CHECKOP_F32 ? 4 : 2);
    if (t.data == nullptr || bytes == 0) continue;
    const auto error = cudaMemsetAsync(t.data, 0, bytes, static_cast<cudaStream_t>(call->stream));
    if (auto status = cuda_status(call, error, "clear a weight gradient")) return status;
  }
  return CHECKOP_OK;
}

template <typename T>
checkop_status run(const checkop_call* call, LinearLogpParams<T> p, const Layout& layout, bool backward) {
  if (p.shape.rows == 0) return backward ? clear_gradients(call) : CHECKOP_OK;
  auto* ids = p.template in_workspace<int64_t>(layout.ids);
  ids_of_mask<<<blocks_for(p.shape.rows), kThreads, 0, p.stream>>>(static_cast<const uint8_t*>(call->inputs[3].data),
                                                                   p.shape.rows, ids);
  p.target_ids = ids;
  if (backward) {
    auto* totals = p.template in_workspace<EntropyPartial>(p.layout.totals);
    auto* hidden_sums = p.template in_workspace<float>(p.layout.hidden_sums);
    linear_logp::keep_hidden(p);
    linear_logp::launch_softmax<EntropyPartial>(
        p, [&](int64_t first) { return WriteSums<EntropyPartial>{totals + first}; });
    const linear_logp::WeightGradients<T> to{static_cast<T*>(call->outputs[1].data),
                                             static_cast<T*>(call->outputs[2].data), nullptr, nullptr};
    linear_logp::launch_gradients(p, EntropyGradient{static_cast<const float*>(call->inputs[4].data), totals},
                                  hidden_sums, to);
    linear_logp::launch_round_to<T>(hidden_sums, p.layout.ld_sums, p.shape.rows, p.shape.hidden,
                                    static_cast<T*>(call->outputs[0].data), p.stream);
  } else {
    auto* entropy = static_cast<float*>(call->outputs[0].data);
    linear_logp::launch_softmax<EntropyPartial>(p, [&](int64_t first) {
      return WriteEntropy{p.target_ids + first, entropy + first};
    });
  }
  return launch_status(call, backward ? "launch linear_entropy backward" : "launch linear_entropy forward");
}

checkop_status launch(const checkop_call* call, bool backward) {
  const LinearLogpShape shape = shape_of(call);
  const Layout layout(shape, backward);
  if (auto status = check_call(call, backward, layout.bytes)) return status;
  LogitTransform transform;
  if (auto status = read_transform(call, transform)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const LinearLogpParams<T> params{shape,
                                     layout.blocks,
                                     static_cast<const T*>(call->inputs[0].data),
                                     static_cast<const T*>(call->inputs[1].data),
                                     static_cast<const T*>(call->inputs[2].data),
                                     nullptr,
                                     kLeftOut,
                                     static_cast<std::byte*>(call->workspace),
                                     static_cast<cudaStream_t>(call->stream),
                                     transform};
    return run<T>(call, params, layout, backward);
  });
}

checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }
size_t forward_bytes(const checkop_call* call) { return Layout(shape_of(call), false).bytes; }
size_t backward_bytes(const checkop_call* call) { return Layout(shape_of(call), true).bytes; }

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "linear_entropy", "forward", CHECKOP_CUDA, 80, 0, forward_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "linear_entropy", "backward", CHECKOP_CUDA, 80, 0, backward_bytes,
     launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
