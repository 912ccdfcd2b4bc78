// SPDX-License-Identifier: Apache-2.0
// linear_logp on any GPU: gradients of weights, which are sums over rows: where they are stored, the carries that they
// may begin with, and column sums. Names as in cuda.cu.
#pragma once

#include "cpu/linear_logp_carry.hpp"
#include "gemm/tile.cuh"
#include "linear_logp/segments.cuh"

namespace checkop::kernels::linear_logp {

using native::linear::kBackwardInputs, native::linear::kBackwardOutputs, native::linear::kForwardInputs,
    native::linear::kForwardOutputs, native::linear::kBiasCarry, native::linear::kWeightCarry;

/// Number of blocks for `count` elements, at least one; the kernels stride over the elements beyond several waves.
inline unsigned blocks_for(int64_t count) {
  constexpr int64_t kMaxBlocks = 4096;
  const int64_t blocks = ceil_div(count, kThreads);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

/// sums[column] (+)= sum over rows of dz, by units of kSumUnit rows like the products.
static __global__ __launch_bounds__(kThreads) void sum_columns(const float* __restrict__ dz, int64_t ldz, int64_t rows,
                                                               int64_t n_columns, float* __restrict__ sums,
                                                               bool accumulate) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= n_columns) return;
  float total = accumulate ? sums[column] : 0.0f;
  for (int64_t first = 0; first < rows; first += kSumUnit) {
    const int64_t end = min(first + kSumUnit, rows);
    float unit = 0.0f;
#pragma unroll 8
    for (int64_t row = first; row < end; ++row) unit += dz[row * ldz + column];
    total += unit;
  }
  sums[column] = total;
}

/// sums[column] += sum over rows of dz, one row after another.
static __global__ __launch_bounds__(kThreads) void sum_columns_chain(const float* __restrict__ dz, int64_t ldz,
                                                                     int64_t rows, int64_t n_columns,
                                                                     float* __restrict__ sums) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= n_columns) return;
  float total = sums[column];
#pragma unroll 8
  for (int64_t row = 0; row < rows; ++row) total += dz[row * ldz + column];
  sums[column] = total;
}

inline void launch_sum_columns(const float* dz, int64_t ldz, int64_t rows, int64_t n_columns, float* sums,
                               bool accumulate, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(n_columns, kThreads));
  sum_columns<<<blocks, kThreads, 0, stream>>>(dz, ldz, rows, n_columns, sums, accumulate);
}

inline void launch_sum_columns_chain(const float* dz, int64_t ldz, int64_t rows, int64_t n_columns, float* sums,
                                     cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(n_columns, kThreads));
  sum_columns_chain<<<blocks, kThreads, 0, stream>>>(dz, ldz, rows, n_columns, sums);
}

/// to[row, column] = from[row, column], rounded once. from has leading dimension ld, to is contiguous.
template <typename T>
__global__ __launch_bounds__(kThreads) void round_to(const float* __restrict__ from, int64_t ld, int64_t rows,
                                                     int64_t columns, T* __restrict__ to) {
  const int64_t count = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    to[i] = from_float<T>(from[i / columns * ld + i % columns]);
  }
}

template <typename T>
void launch_round_to(const float* from, int64_t ld, int64_t rows, int64_t columns, T* to, cudaStream_t stream) {
  round_to<T><<<blocks_for(rows * columns), kThreads, 0, stream>>>(from, ld, rows, columns, to);
}

/// to[row, column] = from[row, column], with zeros in the columns up to ld, the leading dimension of `to`. `from` is
/// contiguous.
static __global__ __launch_bounds__(kThreads) void spread_rows(const float* __restrict__ from, int64_t rows,
                                                               int64_t columns, float* __restrict__ to, int64_t ld) {
  const int64_t count = rows * ld;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    to[i] = i % ld < columns ? from[i / ld * columns + i % ld] : 0.0f;
  }
}

inline void launch_spread(const float* from, int64_t rows, int64_t columns, float* to, int64_t ld,
                          cudaStream_t stream) {
  spread_rows<<<blocks_for(rows * ld), kThreads, 0, stream>>>(from, rows, columns, to, ld);
}

/// Destinations of the weight gradients, in their dtype, and the carries that they begin with; null when absent.
template <typename O>
struct WeightGradients {
  O *dweight, *dbias;
  const float *weight_carry, *bias_carry;

  /// The same for the columns from `column` on.
  WeightGradients from(int64_t column, int64_t hidden) const {
    const auto at = [](auto* list, int64_t i) { return list == nullptr ? nullptr : list + i; };
    return {at(dweight, column * hidden), at(dbias, column), at(weight_carry, column * hidden), at(bias_carry, column)};
  }
};

/// Calls f(WeightGradients of a checked call); the gradients are fp32 with carries and T without.
template <typename T, typename F>
void with_weight_gradients(const checkop_call& call, F&& f) {
  void *const dweight = call.outputs[1].data, *const dbias = call.outputs[2].data;
  if (native::linear::is_carried(call)) {
    f(WeightGradients<float>{static_cast<float*>(dweight), static_cast<float*>(dbias),
                             static_cast<const float*>(call.inputs[kWeightCarry].data),
                             static_cast<const float*>(call.inputs[kBiasCarry].data)});
  } else {
    f(WeightGradients<T>{static_cast<T*>(dweight), static_cast<T*>(dbias), nullptr, nullptr});
  }
}

/// Fills the weight gradients of a call without rows: zeros, or the carries.
inline checkop_status clear_weight_gradients(const checkop_call* call) {
  for (int i = 1; i < call->n_outputs; ++i) {
    const checkop_tensor& gradient = call->outputs[i];
    const size_t element_bytes = gradient.dtype == CHECKOP_F32 ? 4 : 2;
    const size_t bytes = static_cast<size_t>(leading_count(gradient) * last_extent(gradient)) * element_bytes;
    if (gradient.data == nullptr || bytes == 0) continue;
    const auto stream = static_cast<cudaStream_t>(call->stream);
    const auto error = native::linear::is_carried(*call)
                           ? cudaMemcpyAsync(gradient.data, call->inputs[kWeightCarry + i - 1].data, bytes,
                                             cudaMemcpyDeviceToDevice, stream)
                           : cudaMemsetAsync(gradient.data, 0, bytes, stream);
    if (auto status = cuda_status(call, error, "initialize a weight gradient")) return status;
  }
  return CHECKOP_OK;
}

}  // namespace checkop::kernels::linear_logp
