// SPDX-License-Identifier: Apache-2.0
// The passes of the CUDA candidates of grouped_gemm and masked_grouped_gemm, templates over what computes the products;
// and PortableGroups, which computes them for the candidates cuda. Only the device knows the groups:
// gemm/row_groups.cuh lists them and their tiles. The list has room for the largest possible number of tiles.
// PortableGroups launches blocks for all of it; those whose entry is empty end at once.
#pragma once

#include <type_traits>

#include "gemm/grouped_rows.cuh"
#include "gemm/mma.cuh"

namespace checkop::kernels::grouped_gemm {

static_assert(mma::SmallTile::kM == kLeastTileRows);

constexpr int kMatrices = 1;  // the input b

template <RowLayout layout>
size_t workspace_bytes(const checkop_call* call) {
  return Layout(shape_of<layout>(call, kMatrices), kLeastTileRows).bytes;
}

/// The variant of a call with empty outputs.
constexpr const char* kEmpty = "empty output: nothing to compute";

// --- portable products -----------------------------------------------------------------------------------------------

/// The products of gemm/mma.cuh and gemm/tile.cuh, one tile each.
template <typename MmaTile, bool aligned>
struct TensorCores {
  static constexpr int kM = MmaTile::kM, kN = MmaTile::kN, kThreads = MmaTile::kThreads, kBlocks = MmaTile::kBlocks;

  template <typename A, typename B, typename T>
  static __device__ __forceinline__ void multiply(const A& a, const B& b, int64_t inner, int64_t m, int64_t n, T* c) {
    mma::multiply_tile<MmaTile, aligned>(a, b, inner, m, n, static_cast<const T*>(nullptr), c);
  }
};
template <bool quads>
struct CudaCores {
  static constexpr int kM = gemm::kTile, kN = gemm::kTile, kThreads = gemm::kThreads, kBlocks = gemm::kBlocksPerSM;

  template <typename A, typename B>
  static __device__ __forceinline__ void multiply(const A& a, const B& b, int64_t inner, int64_t m, int64_t n,
                                                  float* c) {
    gemm::multiply_tile<false, quads>(a, b, inner, m, n, c, b.extent, false);
  }
};

/// out[r, columns] = a[r, inner] * the matrix of r's expert, [columns, inner], or [inner, columns] when not b_along_k.
template <typename Product, bool b_along_k, typename T>
__global__ __launch_bounds__(Product::kThreads,
                             Product::kBlocks) void multiply_rows(const T* __restrict__ a, const T* __restrict__ b,
                                                                  const RowTile* __restrict__ tiles, int64_t most_tiles,
                                                                  int64_t inner, int64_t columns, bool aligned,
                                                                  T* __restrict__ out) {
  int64_t m, n;
  mma::tile_index(blockIdx.x, most_tiles, ceil_div(columns, Product::kN), m, n);
  const RowTile tile = tiles[m];
  if (tile.group < 0) return;  // the whole block
  const Operand<T, true> left{a, inner, tile.end, aligned};
  const Operand<T, b_along_k> right{b + tile.group * inner * columns, b_along_k ? inner : columns, columns, aligned};
  Product::multiply(left, right, inner, int64_t{tile.row}, n * Product::kN, out);
}

/// db[e] = grad_c[rows of e]^T a[rows of e]
template <typename Product, typename T>
__global__ __launch_bounds__(Product::kThreads,
                             Product::kBlocks) void multiply_groups(const T* __restrict__ grad_c,
                                                                    const T* __restrict__ a,
                                                                    const GroupRows* __restrict__ groups, int64_t n_dim,
                                                                    int64_t k_dim, bool aligned, T* __restrict__ db) {
  const int64_t tiles_m = ceil_div(n_dim, Product::kM), tiles_n = ceil_div(k_dim, Product::kN);
  const int64_t expert = blockIdx.x / (tiles_m * tiles_n);
  int64_t m, n;
  mma::tile_index(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n, m, n);
  const GroupRows group = groups[expert];
  const Operand<T, false> left{grad_c + group.begin * n_dim, n_dim, n_dim, aligned};
  const Operand<T, false> right{a + group.begin * k_dim, k_dim, k_dim, aligned};
  Product::multiply(left, right, int64_t{group.end - group.begin}, m * Product::kM, n * Product::kN,
                    db + expert * n_dim * k_dim);
}

/// The products of the candidate cuda. `variant` becomes the name of the variant that ran.
struct PortableGroups {
  /// Lists the groups; then out[rows, columns] = a[rows, inner] times the matrix of each row's expert, 0 in rows
  /// without one. Enqueues; with a status other than CHECKOP_OK, perhaps only a part.
  template <bool b_along_k, typename T>
  static checkop_status rows_by_matrices(Groups<T>& groups, const T* a, const T* b, int64_t inner, int64_t columns,
                                         T* out, const char*& variant) {
    const int64_t rows = groups.shape().rows;
    const int64_t large = ceil_div(rows, mma::LargeTile::kM) * ceil_div(columns, mma::LargeTile::kN);
    checkop_status listed = CHECKOP_OK;
    with_product<T>({a, b}, {inner, columns}, out, columns, large, variant,
                    [&]<typename Product>(Product, bool aligned) {
                      listed = groups.list(Product::kM, out, columns);
                      if (listed != CHECKOP_OK || rows == 0 || columns == 0) return;
                      const RowGroupList list = groups.listed();
                      const auto blocks = static_cast<unsigned>(list.most_tiles * ceil_div(columns, Product::kN));
                      multiply_rows<Product, b_along_k, T><<<blocks, Product::kThreads, 0, groups.stream()>>>(
                          a, b, list.tiles, list.most_tiles, inner, columns, aligned, out);
                    });
    return listed;
  }

  /// db, of the groups that rows_by_matrices() has listed.
  template <typename T>
  static cudaError_t groups_by_groups(const Groups<T>& groups, const T* grad_c, const T* a, T* db,
                                      const char*& variant) {
    const Shape& shape = groups.shape();
    const int64_t large =
        shape.experts * ceil_div(shape.n_dim, mma::LargeTile::kM) * ceil_div(shape.k_dim, mma::LargeTile::kN);
    if (large == 0) return cudaSuccess;
    with_product<T>({grad_c, a}, {shape.n_dim, shape.k_dim}, db, shape.k_dim, large, variant,
                    [&]<typename Product>(Product, bool aligned) {
                      const auto blocks = static_cast<unsigned>(shape.experts * ceil_div(shape.n_dim, Product::kM) *
                                                                ceil_div(shape.k_dim, Product::kN));
                      multiply_groups<Product, T><<<blocks, Product::kThreads, 0, groups.stream()>>>(
                          grad_c, a, groups.listed().groups, shape.n_dim, shape.k_dim, aligned, db);
                    });
    return cudaGetLastError();
  }

 private:
  /// Calls f(Product) with the product for tensors of these row lengths, and names it. The choice changes no bit.
  template <typename T, typename F>
  static void with_product(std::initializer_list<const void*> tensors, std::initializer_list<int64_t> row_lengths,
                           const void* out, int64_t columns, int64_t large_tiles, const char*& variant, F&& f) {
    constexpr int64_t kFewTiles = 128;  // as in launch_mma()
    bool aligned = true;
    for (const void* p : tensors) aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
    for (const int64_t n : row_lengths) aligned = aligned && n * static_cast<int64_t>(sizeof(T)) % 16 == 0;
    if constexpr (std::is_same_v<T, float>) {
      variant = "fp32 FMA on CUDA cores, tile 128x128";
      if (columns % 4 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
        f(CudaCores<true>{}, aligned);
      } else {
        f(CudaCores<false>{}, aligned);
      }
    } else if (!aligned) {
      variant = "mma.sync, tile 64x64, unaligned: element-wise loads";
      f(TensorCores<mma::SmallTile, false>{}, aligned);
    } else if (large_tiles < kFewTiles) {
      variant = "mma.sync, tile 64x64";
      f(TensorCores<mma::SmallTile, true>{}, aligned);
    } else {
      variant = "mma.sync, tile 128x128";
      f(TensorCores<mma::LargeTile, true>{}, aligned);
    }
  }
};

// --- passes ----------------------------------------------------------------------------------------------------------

template <RowLayout layout>
checkop_status check_call(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 3, backward ? 2 : 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1];
  check.rank_at_least(a, "a", rank_of(layout)).rank_at_least(b, "b", 3).float_dtype(a, "a");
  if (check.failed()) return check.status();
  const Shape shape = shape_of<layout>(call, kMatrices);
  const auto has_rows = [&](const checkop_tensor& t, const char* name, int64_t columns) {
    check.dtype(t, name, a.dtype);
    check_rows<layout>(check, shape, t, name, columns);
  };
  const auto has_matrices = [&](const checkop_tensor& t, const char* name) {
    check.dtype(t, name, a.dtype).shape(t, name, t, 0, {shape.experts, shape.n_dim, shape.k_dim}).contiguous(t, name);
  };
  has_rows(a, "a", shape.k_dim);
  has_matrices(b, "b");
  check_given<layout>(check, shape, call->inputs[2]);
  if (backward) {
    has_rows(call->inputs[3], "grad_c", shape.n_dim);
    has_rows(call->outputs[0], "da", shape.k_dim);
    has_matrices(call->outputs[1], "db");
  } else {
    has_rows(call->outputs[0], "c", shape.n_dim);
  }
  if (check.workspace(workspace_bytes<layout>(call)).failed()) return check.status();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // of what int32 numbers, and of blocks
  if (shape.rows > kMost || shape.experts > kMost) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld experts, at most %lld of each are supported",
               static_cast<long long>(shape.rows), static_cast<long long>(shape.experts),
               static_cast<long long>(kMost));
  }
  return CHECKOP_OK;
}

/// c = a b^T
template <typename Products, RowLayout layout = RowLayout::successive>
checkop_status launch_forward(const checkop_call* call) {
  if (auto status = check_call<layout>(call, false)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    Groups<T> groups(call, shape_of<layout>(call, kMatrices), 2);
    const Shape& shape = groups.shape();
    const char* variant = kEmpty;
    if (auto status = Products::template rows_by_matrices<true>(
            groups, static_cast<const T*>(call->inputs[0].data), static_cast<const T*>(call->inputs[1].data),
            shape.k_dim, shape.n_dim, static_cast<T*>(call->outputs[0].data), variant))
      return status;
    say(call, CHECKOP_OK, "%s", variant);
    if (auto launched = launch_status(call, "launch c = a b^T")) return launched;
    return groups.finish();
  });
}

/// da = grad_c b, db = grad_c^T a
template <typename Products, RowLayout layout = RowLayout::successive>
checkop_status launch_backward(const checkop_call* call) {
  if (auto status = check_call<layout>(call, true)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    Groups<T> groups(call, shape_of<layout>(call, kMatrices), 2);
    const Shape& shape = groups.shape();
    const auto* grad_c = static_cast<const T*>(call->inputs[3].data);
    const char *da = kEmpty, *db = kEmpty;
    if (auto status = Products::template rows_by_matrices<false>(
            groups, grad_c, static_cast<const T*>(call->inputs[1].data), shape.n_dim, shape.k_dim,
            static_cast<T*>(call->outputs[0].data), da))
      return status;
    const cudaError_t error = Products::groups_by_groups(groups, grad_c, static_cast<const T*>(call->inputs[0].data),
                                                         static_cast<T*>(call->outputs[1].data), db);
    say(call, CHECKOP_OK, "da: %s; db: %s", da, db);
    if (auto launched = cuda_status(call, error, "launch da = grad_c b, db = grad_c^T a")) return launched;
    return groups.finish();
  });
}

}  // namespace checkop::kernels::grouped_gemm
