// SPDX-License-Identifier: Apache-2.0
// lm_head on CUDA, for any product: PortableProduct (gemm/product.cuh) or another with the same interface.
#pragma once

#include "gemm/product.cuh"

namespace checkop::kernels::lm_head {

constexpr int kThreads = 128;  // of sum_rows: small blocks, so that even a small vocabulary has several

/// dbias[column] = sum over rows of grad: a thread per column, by units of kSumUnit rows like the products.
template <typename T>
static __global__ __launch_bounds__(kThreads) void sum_rows(const T* __restrict__ grad, int64_t rows, int64_t vocab,
                                                            T* __restrict__ dbias) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= vocab) return;
  float total = 0.0f;
  for (int64_t first = 0; first < rows; first += kSumUnit) {
    const int64_t end = min(first + kSumUnit, rows);
    float unit = 0.0f;
#pragma unroll 8
    for (int64_t row = first; row < end; ++row) unit += to_float(grad[row * vocab + column]);
    total += unit;
  }
  dbias[column] = from_float<T>(total);
}

constexpr int kForwardInputs = 3, kBackwardInputs = 4, kForwardOutputs = 1, kBackwardOutputs = 3;

struct LmHeadShape {
  int64_t rows = 0, hidden = 0, vocab = 0;
};

/// The shape as far as the tensors give it; zeros for tensors that check_call() will refuse.
inline LmHeadShape shape_of(const checkop_call* call) {
  if (call->n_inputs < kForwardInputs || call->inputs[0].rank < 1 || call->inputs[1].rank != 2) return {};
  return {leading_count(call->inputs[0]), last_extent(call->inputs[0]), call->inputs[1].shape[0]};
}

/// The products run one after the other, so they share a workspace.
inline size_t workspace_for(const checkop_call* call, bool backward) {
  if (call->n_inputs < 1) return 0;
  const LmHeadShape shape = shape_of(call);
  const int32_t dtype = call->inputs[0].dtype;
  if (!backward) return product_workspace(dtype, shape.rows, shape.vocab);
  return product_workspace(dtype, shape.rows > shape.vocab ? shape.rows : shape.vocab, shape.hidden);
}

/// Checks dtypes, shapes and strides.
inline checkop_status check_tensors(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(backward ? kBackwardInputs : kForwardInputs, backward ? kBackwardOutputs : kForwardOutputs).failed())
    return check.status();
  const checkop_tensor &hidden = call->inputs[0], &weight = call->inputs[1], &bias = call->inputs[2];
  if (check.rank_at_least(hidden, "hidden", 1).rank_at_least(weight, "weight", 2).failed()) return check.status();
  const int32_t dtype = hidden.dtype, n_leading = hidden.rank - 1;
  const int64_t vocab = weight.shape[0];
  check.float_dtype(hidden, "hidden").contiguous(hidden, "hidden");
  const auto like_weight = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, dtype).shape(t, name, weight, 1, {last_extent(hidden)}).contiguous(t, name);
  };
  const auto like_logits = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, dtype).shape(t, name, hidden, n_leading, {vocab}).contiguous(t, name);
  };
  const auto like_bias = [&](const checkop_tensor& t, const char* name) {
    if (t.data != nullptr) check.dtype(t, name, dtype).shape(t, name, weight, 1, {}).contiguous(t, name);
  };
  like_weight(weight, "weight");
  like_bias(bias, "bias");
  if (backward) {
    const checkop_tensor& dhidden = call->outputs[0];
    like_logits(call->inputs[3], "grad_logits");
    check.dtype(dhidden, "dhidden", dtype).shape(dhidden, "dhidden", hidden, hidden.rank, {});
    check.contiguous(dhidden, "dhidden");
    like_weight(call->outputs[1], "dweight");
    like_bias(call->outputs[2], "dbias");
  } else {
    like_logits(call->outputs[0], "logits");
  }
  return check.status();
}

inline checkop_status check_call(const checkop_call* call, bool backward) {
  if (auto status = check_tensors(call, backward)) return status;
  if (auto status = check_product(call, call->outputs[0], backward ? "dhidden" : "logits")) return status;
  if (backward) {
    if (auto status = check_product(call, call->outputs[1], "dweight")) return status;
  }
  return CallCheck(call).workspace(workspace_for(call, backward)).status();
}

template <typename Product>
checkop_status launch_forward(const checkop_call* call) {
  if (auto status = check_call(call, false)) return status;
  const LmHeadShape shape = shape_of(call);
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto in = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
    const char* variant = "";
    const cudaError_t error = Product::template launch<true, true, T>(
        in(0), in(1), shape.rows, shape.hidden, shape.vocab, in(2), static_cast<T*>(call->outputs[0].data),
        call->workspace, static_cast<cudaStream_t>(call->stream), variant);
    say(call, CHECKOP_OK, "%s", variant);
    return cuda_status(call, error, "launch logits = hidden weight^T");
  });
}

template <typename Product>
checkop_status launch_backward(const checkop_call* call) {
  if (auto status = check_call(call, true)) return status;
  const LmHeadShape shape = shape_of(call);
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto in = [&](int i) { return static_cast<const T*>(call->inputs[i].data); };
    const auto out = [&](int i) { return static_cast<T*>(call->outputs[i].data); };
    const auto stream = static_cast<cudaStream_t>(call->stream);
    const char *dhidden = "", *dweight = "";
    cudaError_t error = Product::template launch<true, false, T>(in(3), in(1), shape.rows, shape.vocab, shape.hidden,
                                                                 nullptr, out(0), call->workspace, stream, dhidden);
    if (auto status = cuda_status(call, error, "launch dhidden = grad_logits weight")) return status;
    error = Product::template launch<false, false, T>(in(3), in(0), shape.vocab, shape.rows, shape.hidden, nullptr,
                                                      out(1), call->workspace, stream, dweight);
    if (auto status = cuda_status(call, error, "launch dweight = grad_logits^T hidden")) return status;
    if (out(2) != nullptr && shape.vocab > 0) {
      sum_rows<T><<<static_cast<unsigned>(ceil_div(shape.vocab, kThreads)), kThreads, 0, stream>>>(in(3), shape.rows,
                                                                                                   shape.vocab, out(2));
    }
    say(call, CHECKOP_OK, "dhidden: %s; dweight: %s", dhidden, dweight);
    return launch_status(call, "launch dbias");
  });
}

inline size_t forward_workspace(const checkop_call* call) { return workspace_for(call, false); }
inline size_t backward_workspace(const checkop_call* call) { return workspace_for(call, true); }

}  // namespace checkop::kernels::lm_head
