// SPDX-License-Identifier: Apache-2.0
// Matrix products of the candidates named "cuda" in any dtype: fp16 and bf16 by gemm/mma.cuh, fp32 by gemm/tile.cuh;
// and the two passes that matmul and det_gemm share.
#pragma once

#include "gemm/matmul_call.cuh"
#include "gemm/mma.cuh"

namespace checkop::kernels {

/// Workspace bytes of a product with an output of these sizes: gemm/tile.cuh stores fp32 in groups of 4, so other
/// widths go through a padded copy.
inline size_t product_workspace(int32_t dtype, int64_t rows, int64_t columns) {
  const bool padded = dtype == CHECKOP_F32 && columns % 4 != 0;
  return padded ? static_cast<size_t>(rows * round_up(columns, 4)) * sizeof(float) : 0;
}

/// CHECKOP_UNSUPPORTED for an output that no product here can store. fp16 and bf16 outputs may have any alignment and
/// size.
inline checkop_status check_product(const checkop_call* call, const checkop_tensor& out, const char* name) {
  if (out.dtype != CHECKOP_F32) return CHECKOP_OK;
  if (last_extent(out) > kMaxGemmColumns) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor '%s': last extent %lld, at most %lld is supported in fp32", name,
               static_cast<long long>(last_extent(out)), static_cast<long long>(kMaxGemmColumns));
  }
  if (reinterpret_cast<uintptr_t>(out.data) % 16 != 0) {
    return say(call, CHECKOP_UNSUPPORTED, "tensor '%s': not aligned to 16 bytes, which fp32 needs", name);
  }
  return CHECKOP_OK;
}

/// to[row, column] = from[row, column] + bias[column]; bias may be null. `from` has leading dimension ld and may be
/// `to`.
static __global__ void finish_product(const float* from, int64_t ld, int64_t rows, int64_t columns,
                                      const float* __restrict__ bias, float* to) {
  const int64_t count = rows * columns;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const float value = from[i / columns * ld + i % columns];
    to[i] = bias == nullptr ? value : value + bias[i % columns];
  }
}

/// out[rows, columns] = a * b + bias[columns], summed over `inner`; `variant` becomes the name of the variant that ran.
/// The passes of a candidate are templates over a product like this one; sm90/select.cuh has another.
///   a: [rows, inner], or [inner, rows] when not a_along_k     b: [columns, inner], or [inner, columns] likewise
///   bias may be null     workspace: product_workspace() bytes
struct PortableProduct {
  template <bool a_along_k, bool b_along_k, typename T>
  static cudaError_t launch(const T* a, const T* b, int64_t rows, int64_t inner, int64_t columns, const T* bias, T* out,
                            void* workspace, cudaStream_t stream, const char*& variant) {
    const auto left = make_operand<a_along_k>(a, a_along_k ? inner : rows, rows);
    const auto right = make_operand<b_along_k>(b, b_along_k ? inner : columns, columns);
    if constexpr (!std::is_same_v<T, float>) {
      variant = launch_mma(left, right, inner, bias, out, stream);
    } else if (rows == 0 || columns == 0) {
      variant = "empty output: nothing to compute";
    } else {
      constexpr int kThreads = 256;         // full occupancy: a copy needs few registers
      constexpr int64_t kMaxBlocks = 4096;  // several waves; the kernel strides over the rest
      float* const sums = columns % 4 == 0 ? out : static_cast<float*>(workspace);
      const int64_t ld = round_up(columns, 4), blocks = ceil_div(rows * columns, kThreads);
      launch_gemm(left, right, inner, sums, ld, false, stream);
      if (sums != out || bias != nullptr) {
        finish_product<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
            sums, ld, rows, columns, bias, out);
      }
      variant = "fp32 FMA on CUDA cores, tile 128x128";
    }
    return cudaGetLastError();
  }
};

// --- matmul and det_gemm ---------------------------------------------------------------------------------------------

/// The products run one after the other, so they share a workspace.
inline size_t matmul_workspace(const checkop_call* call, bool backward) {
  const MatmulShape shape = matmul_shape(call);
  if (call->n_inputs < 1) return 0;
  const int32_t dtype = call->inputs[0].dtype;
  if (!backward) return product_workspace(dtype, shape.rows, shape.n_dim);
  const size_t da = product_workspace(dtype, shape.rows, shape.k_dim),
               db = product_workspace(dtype, shape.k_dim, shape.n_dim);
  return da > db ? da : db;
}

/// c = a b
template <typename Product>
checkop_status launch_matmul_forward(const checkop_call* call) {
  if (auto status = check_matmul(call, false, matmul_workspace(call, false))) return status;
  if (auto status = check_product(call, call->outputs[0], "c")) return status;
  const MatmulShape shape = matmul_shape(call);
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const char* variant = "";
    const cudaError_t error = Product::template launch<true, false, T>(
        static_cast<const T*>(call->inputs[0].data), static_cast<const T*>(call->inputs[1].data), shape.rows,
        shape.k_dim, shape.n_dim, nullptr, static_cast<T*>(call->outputs[0].data), call->workspace,
        static_cast<cudaStream_t>(call->stream), variant);
    say(call, CHECKOP_OK, "%s", variant);
    return cuda_status(call, error, "launch c = a b");
  });
}

/// da = grad_c b^T, db = a^T grad_c; nothing is transposed in global memory.
template <typename Product>
checkop_status launch_matmul_backward(const checkop_call* call) {
  if (auto status = check_matmul(call, true, matmul_workspace(call, true))) return status;
  if (auto status = check_product(call, call->outputs[0], "da")) return status;
  if (auto status = check_product(call, call->outputs[1], "db")) return status;
  const MatmulShape shape = matmul_shape(call);
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    const auto *a = static_cast<const T*>(call->inputs[0].data), *b = static_cast<const T*>(call->inputs[1].data);
    const auto* grad = static_cast<const T*>(call->inputs[2].data);
    const auto stream = static_cast<cudaStream_t>(call->stream);
    const char *da = "", *db = "";
    cudaError_t error =
        Product::template launch<true, true, T>(grad, b, shape.rows, shape.n_dim, shape.k_dim, nullptr,
                                                static_cast<T*>(call->outputs[0].data), call->workspace, stream, da);
    if (auto status = cuda_status(call, error, "launch da = grad_c b^T")) return status;
    error =
        Product::template launch<false, false, T>(a, grad, shape.k_dim, shape.rows, shape.n_dim, nullptr,
                                                  static_cast<T*>(call->outputs[1].data), call->workspace, stream, db);
    say(call, CHECKOP_OK, "da: %s; db: %s", da, db);
    return cuda_status(call, error, "launch db = a^T grad_c");
  });
}

inline size_t matmul_forward_workspace(const checkop_call* call) { return matmul_workspace(call, false); }
inline size_t matmul_backward_workspace(const checkop_call* call) { return matmul_workspace(call, true); }

}  // namespace checkop::kernels
