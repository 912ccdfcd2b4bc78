// SPDX-License-Identifier: Apache-2.0
// linear_logp on any GPU: logits in fp32 blocks of at most 1024 rows x 16384 columns, fp32 throughout. cuda.cu has the
// formulas and the names used here.
//
// A row's bits, and those of every gradient, do not depend on how the blocks are cut: sums go by fixed units (512 terms
// of a product, 256 columns of the softmax), the cuts are multiples of the units, and units are added in order. A
// gradient with a carry is one chain of multiply-adds that begins with the carry, so its bits do not depend on how rows
// are cut into calls either.
#pragma once

#include "cuda/ids.cuh"
#include "gemm/tile.cuh"
#include "linear_logp/segments.cuh"
#include "linear_logp/weight_gradients.cuh"

namespace checkop::kernels::linear_logp {

// A block of logits is at most 64 MiB: eight tiles of rows by 128 of columns, several waves of blocks on any GPU.
constexpr int64_t kBlockRows = 1024, kBlockColumns = 16384;
static_assert(kBlockRows % kSumUnit == 0 && kBlockColumns % kSumUnit == 0);
// The fp32 sums of dlm_head_weight are held for one block of columns at a time, in about 256 MiB.
constexpr int64_t kWeightSums = int64_t{64} << 20;

/// The gradient of logp by the logits of rows.
struct LogpGradient {
  const float* __restrict__ grad_logp;
  const Partial* __restrict__ totals;

  LogpGradient from(int64_t row) const { return {grad_logp + row, totals + row}; }
  __device__ float operator()(int64_t row, float z, bool is_target) const {
    const Partial total = totals[row];
    const float p = expf(z - exp_shift(total.max)) * (1.0f / total.sum);
    return grad_logp[row] * ((is_target ? 1.0f : 0.0f) - p);
  }
};

/// Turns logits x into their gradients, in place; 0 in ignored rows. first_id: vocabulary index of the first column.
/// gradient(row, z, is target) is the derivative with respect to z.
template <typename T, typename Gradient>
__global__ __launch_bounds__(kThreads) void logits_to_gradient(float* __restrict__ x, int64_t ldx,
                                                               const T* __restrict__ bias, LogitTransform transform,
                                                               const int64_t* __restrict__ target_ids, int64_t ignored,
                                                               Gradient gradient, int64_t first_id, int64_t n_columns) {
  const int64_t row = blockIdx.y;
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= n_columns) return;
  const int64_t target = target_ids[row];
  float* __restrict__ element = x + row * ldx + column;
  if (target == ignored) {
    *element = 0.0f;
    return;
  }
  const float logit = biased(*element, bias, column);
  *element = gradient(row, transform.apply(logit), first_id + column == target) * transform.slope(logit);
}

/// Copies hidden with ignored rows replaced by zeros: otherwise 0 * NaN would reach dlm_head_weight.
template <typename T>
__global__ __launch_bounds__(kThreads) void keep_rows(const T* __restrict__ hidden,
                                                      const int64_t* __restrict__ target_ids, int64_t ignored,
                                                      int64_t rows, int64_t columns, T* __restrict__ kept) {
  const int64_t count = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    kept[i] = target_ids[i / columns] == ignored ? from_float<T>(0.0f) : hidden[i];
  }
}

template <typename T>
void launch_keep_rows(const T* hidden, const int64_t* target_ids, int64_t ignored, int64_t rows, int64_t columns,
                      T* kept, cudaStream_t stream) {
  keep_rows<T><<<blocks_for(rows * columns), kThreads, 0, stream>>>(hidden, target_ids, ignored, rows, columns, kept);
}

struct LinearLogpShape {
  int64_t rows = 0, hidden = 0, vocab = 0;
  size_t element_bytes = 0;
};

/// Byte offsets into the workspace, each a multiple of 256.
struct WorkspaceLayout {
  int64_t block_rows, block_columns, n_segments;
  int64_t ld_sums;  ///< leading dimension of hidden_sums and weight_sums: a multiple of 4, as the products need
  size_t target_logit, partials, totals, z, kept_hidden, hidden_sums, weight_sums, bias_sums, bytes;
};

/// sum_bytes: of what segments and rows are reduced to.
inline WorkspaceLayout workspace_layout(const LinearLogpShape& shape, bool backward,
                                        size_t sum_bytes = sizeof(Partial)) {
  WorkspaceLayout layout{};
  layout.block_rows = shape.rows < kBlockRows ? shape.rows : kBlockRows;
  layout.block_columns = round_up(shape.vocab, kSumUnit);
  if (layout.block_columns > kBlockColumns) layout.block_columns = kBlockColumns;
  layout.ld_sums = round_up(shape.hidden, 4);
  if (backward && layout.ld_sums > 0) {
    int64_t fit = kWeightSums / layout.ld_sums / kSumUnit * kSumUnit;
    if (fit < kSumUnit) fit = kSumUnit;
    if (layout.block_columns > fit) layout.block_columns = fit;
  }
  layout.n_segments = ceil_div(shape.vocab, kSegment);
  size_t end = kIdCheckBytes;
  const auto reserve = [&end](int64_t count, size_t element_bytes) {
    const size_t start = end;
    end += static_cast<size_t>(round_up(count * static_cast<int64_t>(element_bytes), 256));
    return start;
  };
  layout.target_logit = reserve(layout.block_rows, sizeof(float));
  layout.partials = reserve(layout.block_rows * layout.n_segments, sum_bytes);
  layout.z = reserve(layout.block_rows * layout.block_columns, sizeof(float));
  if (backward) {
    layout.totals = reserve(shape.rows, sum_bytes);
    layout.kept_hidden = reserve(shape.rows * shape.hidden, shape.element_bytes);
    layout.hidden_sums = reserve(shape.rows * layout.ld_sums, sizeof(float));
    layout.weight_sums = reserve(layout.block_columns * layout.ld_sums, sizeof(float));
    layout.bias_sums = reserve(layout.block_columns, sizeof(float));
  }
  layout.bytes = end;
  return layout;
}

/// Arguments common to both passes.
template <typename T>
struct LinearLogpParams {
  LinearLogpShape shape;
  WorkspaceLayout layout;
  const T *hidden, *weight, *bias;  ///< bias is null when absent
  const int64_t* target_ids;
  int64_t ignored;
  std::byte* workspace;
  cudaStream_t stream;
  LogitTransform transform = {};
  int64_t first_id = 0;  ///< vocabulary index of the weight's first column

  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(workspace + offset);
  }
  const T* bias_from(int64_t column) const { return bias == nullptr ? nullptr : bias + column; }
  /// The same for `columns` columns of the weight, from `first` on.
  LinearLogpParams part(int64_t first, int64_t columns) const {
    LinearLogpParams p = *this;
    p.weight += first * shape.hidden;
    p.bias = bias_from(first);
    p.first_id += first;
    p.shape.vocab = columns;
    p.layout.n_segments = ceil_div(columns, kSegment);
    return p;
  }
  int64_t rows_from(int64_t first) const {
    return shape.rows - first < layout.block_rows ? shape.rows - first : layout.block_rows;
  }
  int64_t columns_from(int64_t first) const {
    return shape.vocab - first < layout.block_columns ? shape.vocab - first : layout.block_columns;
  }
};

/// Computes a block of logits, without bias, into the workspace.
template <typename T>
void launch_logits(const LinearLogpParams<T>& p, int64_t first_row, int64_t first_column) {
  const int64_t hidden = p.shape.hidden;
  launch_gemm(make_operand<true>(p.hidden + first_row * hidden, hidden, p.rows_from(first_row)),
              make_operand<true>(p.weight + first_column * hidden, hidden, p.columns_from(first_column)), hidden,
              p.template in_workspace<float>(p.layout.z), p.layout.block_columns, false, p.stream);
}

/// finish_at(first row) returns the functor that merge_segments() calls with every row's Sum.
template <typename Sum = Partial, typename T, typename FinishAt>
void launch_softmax(const LinearLogpParams<T>& p, FinishAt&& finish_at) {
  auto* z = p.template in_workspace<float>(p.layout.z);
  auto* partials = p.template in_workspace<Sum>(p.layout.partials);
  auto* target_logit = p.template in_workspace<float>(p.layout.target_logit);
  for (int64_t row = 0; row < p.shape.rows; row += p.layout.block_rows) {
    const int64_t rows = p.rows_from(row);
    for (int64_t column = 0; column < p.shape.vocab; column += p.layout.block_columns) {
      const int64_t columns = p.columns_from(column);
      launch_logits(p, row, column);
      const dim3 grid(static_cast<unsigned>(ceil_div(columns, kSegment * kWarpsPerBlock)), static_cast<unsigned>(rows));
      reduce_segments<Sum, T><<<grid, kThreads, 0, p.stream>>>(
          z, p.layout.block_columns, p.bias_from(column), p.transform, p.target_ids + row, p.first_id + column, column,
          columns, p.layout.n_segments, partials, target_logit);
    }
    merge_segments<<<static_cast<unsigned>(ceil_div(rows, kWarpsPerBlock)), kThreads, 0, p.stream>>>(
        partials, rows, p.layout.n_segments, finish_at(row));
  }
}

/// Replaces the ignored rows of hidden by zeros, in a copy that p.hidden then points to.
template <typename T>
void keep_hidden(LinearLogpParams<T>& p) {
  auto* kept = p.template in_workspace<T>(p.layout.kept_hidden);
  launch_keep_rows(p.hidden, p.target_ids, p.ignored, p.shape.rows, p.shape.hidden, kept, p.stream);
  p.hidden = kept;
}

/// The outer loop is over column blocks, so that the sums of one block of dlm_head_weight are finished before the next
/// begins; the inner loop is over row blocks. The logits are computed a second time, because storing them would take
/// [rows, vocab]. `gradient` as for logits_to_gradient(), with from(row).
///   hidden_sums: [rows, ld_sums], dhidden not yet rounded
template <typename T, typename O, typename Gradient>
void launch_gradients(const LinearLogpParams<T>& p, const Gradient& gradient, float* hidden_sums,
                      const WeightGradients<O>& all) {
  const int64_t hidden = p.shape.hidden, ld = p.layout.ld_sums, ldz = p.layout.block_columns;
  auto* z = p.template in_workspace<float>(p.layout.z);
  auto* weight_sums = p.template in_workspace<float>(p.layout.weight_sums);
  auto* bias_sums = p.template in_workspace<float>(p.layout.bias_sums);
  for (int64_t column = 0; column < p.shape.vocab; column += p.layout.block_columns) {
    const int64_t columns = p.columns_from(column);
    const auto column_blocks = static_cast<unsigned>(ceil_div(columns, kThreads));
    const WeightGradients<O> to = all.from(column, hidden);
    const bool carried = to.weight_carry != nullptr;
    if (carried) launch_spread(to.weight_carry, columns, hidden, weight_sums, ld, p.stream);
    if (to.bias_carry != nullptr) launch_spread(to.bias_carry, 1, columns, bias_sums, columns, p.stream);
    for (int64_t row = 0; row < p.shape.rows; row += p.layout.block_rows) {
      const int64_t rows = p.rows_from(row);
      launch_logits(p, row, column);
      logits_to_gradient<T><<<dim3(column_blocks, static_cast<unsigned>(rows)), kThreads, 0, p.stream>>>(
          z, ldz, p.bias_from(column), p.transform, p.target_ids + row, p.ignored, gradient.from(row),
          p.first_id + column, columns);
      launch_gemm(make_operand<true>(z, ldz, rows), make_operand<false>(p.weight + column * hidden, hidden, hidden),
                  columns, hidden_sums + row * ld, ld, column > 0, p.stream);
      const auto dz = make_operand<false>(z, ldz, columns);
      const auto of_rows = make_operand<false>(p.hidden + row * hidden, hidden, hidden);
      if (carried) {
        launch_gemm_chain(dz, of_rows, rows, weight_sums, ld, p.stream);
      } else {
        launch_gemm(dz, of_rows, rows, weight_sums, ld, row > 0, p.stream);
      }
      if (to.bias_carry != nullptr) {
        launch_sum_columns_chain(z, ldz, rows, columns, bias_sums, p.stream);
      } else if (to.dbias != nullptr) {
        launch_sum_columns(z, ldz, rows, columns, bias_sums, row > 0, p.stream);
      }
    }
    launch_round_to<O>(weight_sums, ld, columns, hidden, to.dweight, p.stream);
    if (to.dbias != nullptr) launch_round_to<O>(bias_sums, columns, 1, columns, to.dbias, p.stream);
  }
}

/// The shape as far as the tensors give it; zeros for tensors that check_call() will refuse.
inline LinearLogpShape shape_of(const checkop_call* call) {
  if (call->n_inputs < kForwardInputs || call->inputs[0].rank < 1 || call->inputs[1].rank != 2) return {};
  const size_t element_bytes = call->inputs[0].dtype == CHECKOP_F32 ? 4 : 2;
  return {leading_count(call->inputs[0]), last_extent(call->inputs[0]), call->inputs[1].shape[0], element_bytes};
}

/// `workspace`: bytes that the call must provide.
inline checkop_status check_call(const checkop_call* call, bool backward, size_t workspace) {
  CallCheck check(call);
  if (check.counts(backward ? kBackwardInputs : kForwardInputs, backward ? kBackwardOutputs : kForwardOutputs).failed())
    return check.status();
  const checkop_tensor &hidden = call->inputs[0], &weight = call->inputs[1], &ids = call->inputs[2];
  const checkop_tensor& bias = call->inputs[3];
  if (check.rank_at_least(hidden, "hidden", 1).rank_at_least(weight, "lm_head_weight", 2).failed())
    return check.status();
  const int32_t n_leading = hidden.rank - 1;
  check.float_dtype(hidden, "hidden").contiguous(hidden, "hidden");
  check.dtype(weight, "lm_head_weight", hidden.dtype)
      .shape(weight, "lm_head_weight", weight, 1, {last_extent(hidden)})
      .contiguous(weight, "lm_head_weight");
  check.dtype(ids, "target_ids", CHECKOP_I64).shape(ids, "target_ids", hidden, n_leading, {});
  check.contiguous(ids, "target_ids");
  if (bias.data != nullptr) {
    check.dtype(bias, "bias", hidden.dtype).shape(bias, "bias", weight, 1, {}).contiguous(bias, "bias");
  }
  if (backward) {
    const checkop_tensor &grad = call->inputs[4], &dhidden = call->outputs[0], &dweight = call->outputs[1];
    const checkop_tensor& dbias = call->outputs[2];
    check.dtype(grad, "grad_logp", CHECKOP_F32).shape(grad, "grad_logp", hidden, n_leading, {});
    check.contiguous(grad, "grad_logp");
    check.dtype(dhidden, "dhidden", hidden.dtype).shape(dhidden, "dhidden", hidden, hidden.rank, {});
    check.contiguous(dhidden, "dhidden");
    const bool carried = native::linear::is_carried(*call);
    const int32_t of_weights = carried ? static_cast<int32_t>(CHECKOP_F32) : hidden.dtype;
    check.dtype(dweight, "dlm_head_weight", of_weights).shape(dweight, "dlm_head_weight", weight, 2, {});
    check.contiguous(dweight, "dlm_head_weight");
    if (dbias.data != nullptr) {
      check.dtype(dbias, "dbias", of_weights).shape(dbias, "dbias", weight, 1, {}).contiguous(dbias, "dbias");
    }
    const checkop_tensor &weight_carry = call->inputs[kWeightCarry], &bias_carry = call->inputs[kBiasCarry];
    if (carried) {
      check.dtype(weight_carry, "dlm_head_weight_carry", CHECKOP_F32);
      check.shape(weight_carry, "dlm_head_weight_carry", weight, 2, {})
          .contiguous(weight_carry, "dlm_head_weight_carry");
    }
    if (bias_carry.data != nullptr) {
      check.dtype(bias_carry, "dbias_carry", CHECKOP_F32).shape(bias_carry, "dbias_carry", weight, 1, {});
      check.contiguous(bias_carry, "dbias_carry");
    }
    if ((bias_carry.data != nullptr) != (carried && bias.data != nullptr))
      return say(call, CHECKOP_FAILED,
                 "dlm_head_weight_carry and dbias_carry: give both or neither with a bias, no dbias_carry without one");
  } else {
    const checkop_tensor& logp = call->outputs[0];
    check.dtype(logp, "logp", CHECKOP_F32).shape(logp, "logp", hidden, n_leading, {}).contiguous(logp, "logp");
  }
  if (check.failed()) return check.status();
  if (last_extent(hidden) > kMaxGemmColumns) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor 'hidden': last extent %lld, at most %lld is supported",
               static_cast<long long>(last_extent(hidden)), static_cast<long long>(kMaxGemmColumns));
  }
  return check.workspace(workspace).status();
}

template <typename T>
checkop_status run(const checkop_call* call, LinearLogpParams<T> p, bool backward) {
  if (p.shape.rows == 0) return clear_weight_gradients(call);
  if (auto status =
          check_ids(call, p.target_ids, p.shape.rows, p.shape.vocab, "target_ids", p.workspace, p.stream, p.ignored)) {
    return status;
  }
  if (backward) {
    auto* totals = p.template in_workspace<Partial>(p.layout.totals);
    auto* hidden_sums = p.template in_workspace<float>(p.layout.hidden_sums);
    keep_hidden(p);
    launch_softmax(p, [&](int64_t first) { return WriteSums<Partial>{totals + first}; });
    with_weight_gradients<T>(*call, [&](const auto& to) {
      launch_gradients(p, LogpGradient{static_cast<const float*>(call->inputs[4].data), totals}, hidden_sums, to);
    });
    launch_round_to<T>(hidden_sums, p.layout.ld_sums, p.shape.rows, p.shape.hidden,
                       static_cast<T*>(call->outputs[0].data), p.stream);
  } else {
    auto* logp = static_cast<float*>(call->outputs[0].data);
    const auto* target_logit = p.template in_workspace<float>(p.layout.target_logit);
    launch_softmax(p, [&](int64_t first) {
      return WithTarget<WriteLogp>{target_logit, {p.target_ids + first, p.ignored, logp + first}};
    });
  }
  return launch_status(call, backward ? "launch linear_logp backward" : "launch linear_logp forward");
}

/// From a call whose shapes have been checked.
template <typename T>
LinearLogpParams<T> params_of(const checkop_call* call, const LinearLogpShape& shape, const WorkspaceLayout& layout,
                              int64_t ignored) {
  return {shape,
          layout,
          static_cast<const T*>(call->inputs[0].data),
          static_cast<const T*>(call->inputs[1].data),
          static_cast<const T*>(call->inputs[3].data),
          static_cast<const int64_t*>(call->inputs[2].data),
          ignored,
          static_cast<std::byte*>(call->workspace),
          static_cast<cudaStream_t>(call->stream)};
}

inline checkop_status launch(const checkop_call* call, bool backward) {
  const LinearLogpShape shape = shape_of(call);
  const WorkspaceLayout layout = workspace_layout(shape, backward);
  if (auto status = check_call(call, backward, layout.bytes)) return status;
  int64_t ignored = 0;
  LogitTransform transform;
  if (auto status = read_attributes(call, ignored, transform)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    LinearLogpParams<T> params = params_of<T>(call, shape, layout, ignored);
    params.transform = transform;
    return run<T>(call, params, backward);
  });
}

inline checkop_status launch_forward(const checkop_call* call) { return launch(call, false); }
inline checkop_status launch_backward(const checkop_call* call) { return launch(call, true); }
inline size_t forward_workspace(const checkop_call* call) { return workspace_layout(shape_of(call), false).bytes; }
inline size_t backward_workspace(const checkop_call* call) { return workspace_layout(shape_of(call), true).bytes; }

}  // namespace checkop::kernels::linear_logp
