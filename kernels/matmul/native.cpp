// SPDX-License-Identifier: Apache-2.0
// matmul / native: CPU, fp32 products and sums, tiled so that every block of b is converted once.
//   c[r,n] = sum_k a[r,k] b[k,n]     da[r,k] = sum_n g[r,n] b[k,n]     db[k,n] = sum_r a[r,k] g[r,n]
//   a, da: [..., k_dim]    b, db: [k_dim, n_dim]    c, grad_c: [..., n_dim]    fp32|bf16|fp16, one dtype for all
//   Limits: contiguous.   Expected error: chains of 67 to 68 additions, then a tree over blocks of 512 or 1024 terms.
#include "native.hpp"

namespace {

using native::Extent;

constexpr int64_t kTile = 128;  // columns a tile: with kTerms rows 256 KiB of fp32, which a second-level cache holds

size_t size(int64_t n) { return static_cast<size_t>(n); }

void multiply(const checkop_tensor& a, const checkop_tensor& b, const checkop_tensor& c, int64_t rows, int64_t k_dim,
              int64_t n_dim) {
  const std::vector<float> a32 = native::load_all(a, rows * k_dim);
  const int64_t tiles = (n_dim + kTile - 1) / kTile;
  native::parallel_for(tiles, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    std::vector<float> block(size(native::kTerms * kTile));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile, columns = std::min(kTile, n_dim - first);
      std::vector<native::VectorTree> sums(size(rows));
      for (int64_t k = 0; k < k_dim; k += native::kTerms) {
        const int64_t terms = std::min(native::kTerms, k_dim - k);
        for (int64_t i = 0; i < terms; ++i) native::load(b, (k + i) * n_dim + first, columns, &block[size(i * kTile)]);
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<float> partial(size(columns));
          native::combine(&a32[size(r * k_dim + k)], 1, block.data(), kTile, terms, columns, partial.data());
          sums[size(r)].add(std::move(partial));
        }
      }
      for (int64_t r = 0; r < rows; ++r) native::store(c, r * n_dim + first, columns, sums[size(r)].finish().data());
    }
  });
}

void multiply_da(const std::vector<float>& g, const checkop_tensor& b, const checkop_tensor& da, int64_t rows,
                 int64_t k_dim, int64_t n_dim) {
  native::parallel_for(k_dim, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    std::vector<float> b_row(size(n_dim));
    for (int64_t k = begin; k < end; ++k) {
      native::load(b, k * n_dim, n_dim, b_row.data());
      for (int64_t r = 0; r < rows; ++r) {
        const float sum = native::dot(&g[size(r * n_dim)], b_row.data(), n_dim);
        native::store(da, r * k_dim + k, 1, &sum);
      }
    }
  });
}

void multiply_db(const std::vector<float>& a, const std::vector<float>& g, const checkop_tensor& db, int64_t rows,
                 int64_t k_dim, int64_t n_dim) {
  native::parallel_for(k_dim, rows * k_dim * n_dim, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      native::VectorTree sum;
      for (int64_t r = 0; r < rows; r += native::kTerms) {
        std::vector<float> partial(size(n_dim));
        native::combine(&a[size(r * k_dim + k)], k_dim, &g[size(r * n_dim)], n_dim, std::min(native::kTerms, rows - r),
                        n_dim, partial.data());
        sum.add(std::move(partial));
      }
      native::store(db, k * n_dim, n_dim, sum.finish().data());
    }
  });
}

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 2, 1);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &c = args.outputs[0];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(a.dtype);
    native::check_matrix(a, "a", a.dtype, rows, k_dim);
    native::check_matrix(b, "b", a.dtype, k_dim, n_dim);
    native::check_matrix(c, "c", a.dtype, rows, n_dim);
    multiply(a, b, c, rows.value, k_dim.value, n_dim.value);
  });
}

checkop_status backward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& args) {
    native::check_counts(args, 3, 2);
    const checkop_tensor &a = args.inputs[0], &b = args.inputs[1], &grad_c = args.inputs[2];
    const checkop_tensor &da = args.outputs[0], &db = args.outputs[1];
    Extent rows{"rows"}, k_dim{"k_dim"}, n_dim{"n_dim"};
    native::check_computed_dtype(a.dtype);
    native::check_matrix(a, "a", a.dtype, rows, k_dim);
    native::check_matrix(b, "b", a.dtype, k_dim, n_dim);
    native::check_matrix(grad_c, "grad_c", a.dtype, rows, n_dim);
    native::check_matrix(da, "da", a.dtype, rows, k_dim);
    native::check_matrix(db, "db", a.dtype, k_dim, n_dim);
    const std::vector<float> a32 = native::load_all(a, rows.value * k_dim.value);
    const std::vector<float> g32 = native::load_all(grad_c, rows.value * n_dim.value);
    multiply_da(g32, b, da, rows.value, k_dim.value, n_dim.value);
    multiply_db(a32, g32, db, rows.value, k_dim.value, n_dim.value);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
    {sizeof(checkop_kernel), "native", "matmul", "backward", CHECKOP_CPU, 0, 0, nullptr, backward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
