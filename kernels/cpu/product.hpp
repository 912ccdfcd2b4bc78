// SPDX-License-Identifier: Apache-2.0
// Matrix products of the CPU candidates named "native": fp32 products and sums of stored tensors, row-major.
//   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#pragma once

#include "cpu/native.hpp"

namespace native {

inline size_t size(int64_t n) { return static_cast<size_t>(n); }

/// out[r,n] = sum_k a[r,k] b[k,n], tiled so that every block of b is converted only once.
inline void multiply(const std::vector<float>& a, const checkop_tensor& b, const checkop_tensor& out, int64_t rows,
                     int64_t k_dim, int64_t n_dim) {
  constexpr int64_t kTile = 128;  // columns per tile: with kTerms rows 256 KiB of fp32, which fits in the L2 cache
  const int64_t tiles = (n_dim + kTile - 1) / kTile, stride = std::min(kTile, n_dim);
  parallel_for(tiles, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    std::vector<float> block(size(std::min(kTerms, k_dim) * stride));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile, columns = std::min(kTile, n_dim - first);
      std::vector<VectorTree> sums(size(rows));
      for (int64_t k = 0; k < k_dim; k += kTerms) {
        const int64_t terms = std::min(kTerms, k_dim - k);
        for (int64_t i = 0; i < terms; ++i) load(b, (k + i) * n_dim + first, columns, &block[size(i * stride)]);
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<float> partial(size(columns));
          combine(&a[size(r * k_dim + k)], 1, block.data(), stride, terms, columns, partial.data());
          sums[size(r)].add(std::move(partial));
        }
      }
      for (int64_t r = 0; r < rows; ++r) store(out, r * n_dim + first, columns, sums[size(r)].finish().data());
    }
  });
}

/// out[r,k] = sum_n a[r,n] b[k,n] + bias[k]; an empty bias adds nothing.
inline void multiply_by_transposed(const std::vector<float>& a, const checkop_tensor& b, const std::vector<float>& bias,
                                   const checkop_tensor& out, int64_t rows, int64_t n_dim, int64_t k_dim) {
  parallel_for(k_dim, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    std::vector<float> b_row(size(n_dim));
    for (int64_t k = begin; k < end; ++k) {
      load(b, k * n_dim, n_dim, b_row.data());
      for (int64_t r = 0; r < rows; ++r) {
        float sum = dot(&a[size(r * n_dim)], b_row.data(), n_dim);
        if (!bias.empty()) sum += bias[size(k)];
        store(out, r * k_dim + k, 1, &sum);
      }
    }
  });
}

/// out[k,n] = sum_r a[r,k] b[r,n]
inline void multiply_transposed(const std::vector<float>& a, const std::vector<float>& b, const checkop_tensor& out,
                                int64_t rows, int64_t k_dim, int64_t n_dim) {
  parallel_for(k_dim, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      VectorTree sum;
      for (int64_t r = 0; r < rows; r += kTerms) {
        std::vector<float> partial(size(n_dim));
        combine(&a[size(r * k_dim + k)], k_dim, &b[size(r * n_dim)], n_dim, std::min(kTerms, rows - r), n_dim,
                partial.data());
        sum.add(std::move(partial));
      }
      store(out, k * n_dim, n_dim, finish(sum, n_dim).data());
    }
  });
}

// --- the passes of matmul and det_gemm

/// c = a b, as matmul and det_gemm define it.
inline checkop_status product_forward(const checkop_call* call) {
  return run(call, [](const checkop_call& args) {
    check_counts(args, 2, 1);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &c = args.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    check_computed_dtype(a.dtype);
    check_matrix(a, "a", a.dtype, rows, k_dim);
    check_matrix(b, "b", a.dtype, k_dim, n_dim);
    check_matrix(c, "c", a.dtype, rows, n_dim);
    const std::vector<float> a32 = load_all(a, rows.value * k_dim.value);
    multiply(a32, b, c, rows.value, k_dim.value, n_dim.value);
  });
}

/// da = grad_c b^T, db = a^T grad_c
inline checkop_status product_backward(const checkop_call* call) {
  return run(call, [](const checkop_call& args) {
    check_counts(args, 3, 2);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &grad_c = args.inputs[2];
    const checkop_tensor &da = args.outputs[0], &db = args.outputs[1];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    check_computed_dtype(a.dtype);
    check_matrix(a, "a", a.dtype, rows, k_dim);
    check_matrix(b, "b", a.dtype, k_dim, n_dim);
    check_matrix(grad_c, "grad_c", a.dtype, rows, n_dim);
    check_matrix(da, "da", a.dtype, rows, k_dim);
    check_matrix(db, "db", a.dtype, k_dim, n_dim);
    const std::vector<float> a32 = load_all(a, rows.value * k_dim.value);
    const std::vector<float> g32 = load_all(grad_c, rows.value * n_dim.value);
    multiply_by_transposed(g32, b, {}, da, rows.value, n_dim.value, k_dim.value);
    multiply_transposed(a32, g32, db, rows.value, k_dim.value, n_dim.value);
  });
}

}  // namespace native
