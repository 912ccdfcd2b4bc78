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
//   Expected error: sums of n terms have chains of 512 + n/512 fp32 additions, those of the softmax of 8 + vocab/8192
//   and two trees over 32 lanes; x and dx are never rounded below fp32. The bits of a row depend only on the row and
//   the weights, those of a gradient of weights not on how blocks are cut: see linear_logp/portable.cuh.
#include "linear_logp/portable.cuh"

namespace checkop::kernels {
namespace {

using linear_logp::blocks_for, linear_logp::LinearLogpParams, linear_logp::LinearLogpShape;

/// Maximum of the transformed logits of a segment or of a row; relative to shift = exp_shift(max), the sum of
/// exp(z - shift) and the sum of exp(z - shift) (shift - z). A logit of -inf adds nothing.
struct EntropySums {
  float max, sum = 0.0f, weighted = 0.0f;

  __device__ void add(float z, float shift) {
    const float below = shift - z, term = expf(-below);
    sum += term;
    weighted += term == 0.0f ? 0.0f : term * below;  // below may be infinite
  }
  __device__ void add(const EntropySums& part, float shift) {
    if (part.sum == 0.0f) return;  // only -inf
    const float up = shift - exp_shift(part.max), factor = expf(-up);
    sum += factor * part.sum;
    weighted += factor * fmaf(up, part.sum, part.weighted);
  }
  __device__ void add_lanes() { sum = warp_sum(sum), weighted = warp_sum(weighted); }
  __device__ float mean() const { return weighted / sum; }
};

constexpr int64_t kLeftOut = -1;  // the id of a row where the mask is 0

/// ids[row] = kLeftOut where the mask is 0, else 0: linear_logp leaves out rows by their id.
__global__ __launch_bounds__(kThreads) void ids_of_mask(const uint8_t* __restrict__ mask, int64_t rows,
                                                        int64_t* __restrict__ ids) {
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < rows; row += int64_t{gridDim.x} * kThreads)
    ids[row] = mask != nullptr && mask[row] == 0 ? kLeftOut : 0;
}

/// Computes partials[row, segment] of a block of logits. A warp per segment of kSegment columns.
///   x: [rows, ldx] f32, columns first_column .. first_column + n_columns - 1 of the weight   bias: [n_columns]
template <typename T>
__global__ __launch_bounds__(kThreads) void reduce_entropy(const float* __restrict__ x, int64_t ldx,
                                                           const T* __restrict__ bias, LogitTransform transform,
                                                           int64_t first_column, int64_t n_columns, int64_t n_segments,
                                                           EntropySums* __restrict__ partials) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = blockIdx.y;
  const int64_t segment = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;  // within the block of columns
  if (segment * kSegment >= n_columns) return;                                         // the whole warp
  float value[kSegment / kWarp], max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSegment / kWarp; ++i) {
    const int64_t column = segment * kSegment + i * kWarp + lane;
    value[i] = column < n_columns ? transform.apply(biased(x[row * ldx + column], bias, column)) : -INFINITY;
    max = fmaxf(max, value[i]);
  }
  EntropySums sums{warp_max(max)};
  const float shift = exp_shift(sums.max);
#pragma unroll
  for (int i = 0; i < kSegment / kWarp; ++i) sums.add(value[i], shift);
  sums.add_lanes();
  if (lane == 0) partials[row * n_segments + first_column / kSegment + segment] = sums;
}

/// Merges the segments of rows into totals[row], or, if `entropy` is given, into entropy[row]. A warp per row; lane l
/// takes segments l, l + 32, ...
__global__ __launch_bounds__(kThreads) void merge_entropy(const EntropySums* __restrict__ partials, int64_t rows,
                                                          int64_t n_segments, const int64_t* __restrict__ ids,
                                                          float* __restrict__ entropy,
                                                          EntropySums* __restrict__ totals) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarp;
  if (row >= rows) return;  // the whole warp
  const EntropySums* __restrict__ of_row = partials + row * n_segments;
  float max = -INFINITY;
  for (int64_t i = lane; i < n_segments; i += kWarp) max = fmaxf(max, of_row[i].max);
  EntropySums sums{warp_max(max)};
  const float shift = exp_shift(sums.max);
  for (int64_t i = lane; i < n_segments; i += kWarp) sums.add(of_row[i], shift);
  sums.add_lanes();
  if (lane != 0) return;
  if (entropy == nullptr) {
    totals[row] = sums;
  } else {
    entropy[row] = ids[row] == kLeftOut ? 0.0f : logf(sums.sum) + sums.mean();
  }
}

/// Turns logits into the gradients dx, in place; 0 in rows that are left out.
template <typename T>
__global__ __launch_bounds__(kThreads) void entropy_gradient(float* __restrict__ x, int64_t ldx,
                                                             const T* __restrict__ bias, LogitTransform transform,
                                                             const int64_t* __restrict__ ids,
                                                             const float* __restrict__ grad_entropy,
                                                             const EntropySums* __restrict__ totals,
                                                             int64_t n_columns) {
  const int64_t row = blockIdx.y, column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= n_columns) return;
  float* __restrict__ element = x + row * ldx + column;
  if (ids[row] == kLeftOut) {
    *element = 0.0f;
    return;
  }
  const EntropySums total = totals[row];
  const float logit = biased(*element, bias, column);
  const float below = exp_shift(total.max) - transform.apply(logit), p = expf(-below);
  *element = p == 0.0f ? 0.0f : grad_entropy[row] / total.sum * p * (below - total.mean()) * transform.slope(logit);
}

/// linear_logp's workspace, and behind it what this operator has besides.
struct Layout {
  linear_logp::WorkspaceLayout blocks;
  size_t ids, partials, totals, bytes;

  Layout(const LinearLogpShape& shape, bool backward) : blocks(linear_logp::workspace_layout(shape, backward)) {
    const auto after = [](size_t start, int64_t count, size_t element_bytes) {
      return start + static_cast<size_t>(round_up(count * static_cast<int64_t>(element_bytes), 256));
    };
    ids = blocks.bytes;
    partials = after(ids, shape.rows, sizeof(int64_t));
    totals = after(partials, blocks.block_rows * blocks.n_segments, sizeof(EntropySums));
    bytes = after(totals, backward ? shape.rows : 0, sizeof(EntropySums));
  }
};

/// Reduces the logits of all rows, a block at a time, into `entropy` or, if that is null, into `totals`.
template <typename T>
void launch_sums(const LinearLogpParams<T>& p, const Layout& layout, float* entropy, EntropySums* totals) {
  const auto* z = p.template in_workspace<float>(p.layout.z);
  auto* partials = p.template in_workspace<EntropySums>(layout.partials);
  for (int64_t row = 0; row < p.shape.rows; row += p.layout.block_rows) {
    const int64_t rows = p.rows_from(row);
    for (int64_t column = 0; column < p.shape.vocab; column += p.layout.block_columns) {
      const int64_t columns = p.columns_from(column);
      linear_logp::launch_logits(p, row, column);
      const dim3 grid(static_cast<unsigned>(ceil_div(columns, kSegment * kWarpsPerBlock)), static_cast<unsigned>(rows));
      reduce_entropy<T><<<grid, kThreads, 0, p.stream>>>(z, p.layout.block_columns, p.bias_from(column), p.transform,
                                                         column, columns, p.layout.n_segments, partials);
    }
    merge_entropy<<<static_cast<unsigned>(ceil_div(rows, kWarpsPerBlock)), kThreads, 0, p.stream>>>(
        partials, rows, p.layout.n_segments, p.target_ids + row, entropy == nullptr ? nullptr : entropy + row,
        totals + row);
  }
}

/// The loops of linear_logp::launch_gradients(), for the gradient of an entropy and without carries.
template <typename T>
void launch_entropy_gradients(const LinearLogpParams<T>& p, const EntropySums* totals, const float* grad_entropy,
                              T* dhidden, T* dweight, T* dbias) {
  const int64_t hidden = p.shape.hidden, ld = p.layout.ld_sums, ldz = p.layout.block_columns;
  auto* z = p.template in_workspace<float>(p.layout.z);
  auto* hidden_sums = p.template in_workspace<float>(p.layout.hidden_sums);
  auto* weight_sums = p.template in_workspace<float>(p.layout.weight_sums);
  auto* bias_sums = p.template in_workspace<float>(p.layout.bias_sums);
  for (int64_t column = 0; column < p.shape.vocab; column += p.layout.block_columns) {
    const int64_t columns = p.columns_from(column);
    const auto column_blocks = static_cast<unsigned>(ceil_div(columns, kThreads));
    for (int64_t row = 0; row < p.shape.rows; row += p.layout.block_rows) {
      const int64_t rows = p.rows_from(row);
      linear_logp::launch_logits(p, row, column);
      entropy_gradient<T><<<dim3(column_blocks, static_cast<unsigned>(rows)), kThreads, 0, p.stream>>>(
          z, ldz, p.bias_from(column), p.transform, p.target_ids + row, grad_entropy + row, totals + row, columns);
      launch_gemm(make_operand<true>(z, ldz, rows), make_operand<false>(p.weight + column * hidden, hidden, hidden),
                  columns, hidden_sums + row * ld, ld, column > 0, p.stream);
      launch_gemm(make_operand<false>(z, ldz, columns), make_operand<false>(p.hidden + row * hidden, hidden, hidden),
                  rows, weight_sums, ld, row > 0, p.stream);
      if (dbias != nullptr) linear_logp::launch_sum_columns(z, ldz, rows, columns, bias_sums, row > 0, p.stream);
    }
    linear_logp::launch_round_to<T>(weight_sums, ld, columns, hidden, dweight + column * hidden, p.stream);
    if (dbias != nullptr) linear_logp::launch_round_to<T>(bias_sums, columns, 1, columns, dbias + column, p.stream);
  }
  linear_logp::launch_round_to<T>(hidden_sums, ld, p.shape.rows, hidden, dhidden, p.stream);
}

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
  auto* totals = p.template in_workspace<EntropySums>(layout.totals);
  if (backward) {
    linear_logp::keep_hidden(p);  // 0 * NaN would reach dlm_head_weight
    launch_sums(p, layout, nullptr, totals);
    launch_entropy_gradients(p, totals, static_cast<const float*>(call->inputs[4].data),
                             static_cast<T*>(call->outputs[0].data), static_cast<T*>(call->outputs[1].data),
                             static_cast<T*>(call->outputs[2].data));
  } else {
    launch_sums(p, layout, static_cast<float*>(call->outputs[0].data), totals);
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
