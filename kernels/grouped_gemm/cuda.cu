// SPDX-License-Identifier: Apache-2.0
// grouped_gemm / cuda: portable CUDA, one launch for all experts; fp16 and bf16 on tensor cores, fp32 on CUDA cores.
//   c[r] = a[r] b[e]^T, da[r] = grad_c[r] b[e] for offsets[e] <= r < offsets[e + 1], zero from row offsets[experts] on
//   db[e] = grad_c[rows of e]^T a[rows of e], zero for an expert without rows
//   a, da: [rows, k_dim]   b, db: [experts, n_dim, k_dim]   c, grad_c: [rows, n_dim]   f32|f16|bf16, one dtype for all
//   offsets: [experts + 1] i32     all contiguous
//   Limits: rows < 2^31. Offsets that do not start with 0, decrease or leave the rows are CHECKOP_FAILED.
//   Workspace: 256 bytes, 8 for an expert and 8 for a tile of rows, of which there are rows / 64 + experts at most.
//   Expected error: contraction class; fp16 and bf16: a chain of n/16 blocks for n terms, fp32: chains of 512 + n/512,
//   then one rounding. The bits of a row are those of a product of this row alone with its expert's matrix, those of
//   db[e] of a product of the expert's rows alone: see gemm/mma.cuh and gemm/tile.cuh.
//
// Only the device knows the groups. One block lists the tiles of rows, each within one group. The list has room for the
// largest possible number of tiles; blocks whose entry is empty end at once.
#include <type_traits>

#include "cuda/findings.cuh"
#include "cuda/scan.cuh"
#include "gemm/mma.cuh"

namespace checkop::kernels {
namespace {

constexpr int kThreads = 256;

/// Rows [begin, end) of an expert.
struct GroupRows {
  int32_t begin, end;
};
/// A tile of rows of an expert, whose first row is `row` of its group; expert -1: none.
struct RowTile {
  int32_t expert, row;
};

struct Shape {
  int64_t rows = 0, experts = 0, k_dim = 0, n_dim = 0;
};

/// Byte offsets into the workspace, each a multiple of 256.
struct Layout {
  int64_t most_tiles;
  size_t groups, end, tiles, bytes;

  Layout(const Shape& shape, int tile_rows) : most_tiles(ceil_div(shape.rows, tile_rows) + shape.experts) {
    const auto padded = [](int64_t bytes) { return static_cast<size_t>(round_up(bytes, 256)); };
    groups = kFindingsBytes;
    end = groups + padded(shape.experts * static_cast<int64_t>(sizeof(GroupRows)));
    tiles = end + 256;
    bytes = tiles + padded(most_tiles * static_cast<int64_t>(sizeof(RowTile)));
  }
};

/// Lists the groups and the tiles of their rows. If an offset is bad, notes the first such offset and leaves all groups
/// empty. One block.
__global__ __launch_bounds__(kScanThreads) void list_tiles(const int32_t* __restrict__ offsets, int64_t experts,
                                                           int64_t rows, int tile_rows, int64_t most_tiles,
                                                           GroupRows* __restrict__ groups, int64_t* __restrict__ end,
                                                           RowTile* __restrict__ tiles,
                                                           unsigned long long* __restrict__ first_bad) {
  __shared__ int64_t of_warp[kWarp];
  bool bad = false;
  for (int64_t i = threadIdx.x; i <= experts; i += kScanThreads) {
    const bool is_bad = i == 0 ? offsets[0] != 0 : offsets[i] < offsets[i - 1] || offsets[i] > rows;
    // order-free: the smallest bad element is an integer minimum, independent of the order of the threads.
    if (is_bad) atomicMin(first_bad, static_cast<unsigned long long>(i));
    bad = bad || is_bad;
  }
  bad = __syncthreads_or(bad) != 0;
  int64_t before = 0;
  for (int64_t first = 0; first < experts; first += kScanThreads) {
    const int64_t expert = first + threadIdx.x;
    GroupRows group{0, 0};
    if (expert < experts && !bad) group = {offsets[expert], offsets[expert + 1]};
    if (expert < experts) groups[expert] = group;
    int64_t of_step = 0;
    const int64_t own = ceil_div(group.end - group.begin, tile_rows);
    const int64_t earlier = before + block_sum_before(own, of_warp, of_step);
    for (int64_t i = 0; i < own; ++i)
      tiles[earlier + i] = {static_cast<int32_t>(expert), static_cast<int32_t>(i * tile_rows)};
    before += of_step;
    __syncthreads();  // before the sums are written again
  }
  for (int64_t i = before + threadIdx.x; i < most_tiles; i += kScanThreads) tiles[i] = {-1, 0};
  if (threadIdx.x == 0) *end = bad ? 0 : offsets[experts];
}

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
                                                                  const GroupRows* __restrict__ groups,
                                                                  const RowTile* __restrict__ tiles, int64_t most_tiles,
                                                                  int64_t inner, int64_t columns, bool aligned,
                                                                  T* __restrict__ out) {
  int64_t m, n;
  mma::tile_index(blockIdx.x, most_tiles, ceil_div(columns, Product::kN), m, n);
  const RowTile tile = tiles[m];
  if (tile.expert < 0) return;  // the whole block
  const GroupRows group = groups[tile.expert];
  const Operand<T, true> left{a + group.begin * inner, inner, group.end - group.begin, aligned};
  const Operand<T, b_along_k> right{b + tile.expert * inner * columns, b_along_k ? inner : columns, columns, aligned};
  Product::multiply(left, right, inner, int64_t{tile.row}, n * Product::kN, out + group.begin * columns);
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

/// Zeros in the rows of `to` from *end on.
template <typename T>
__global__ __launch_bounds__(kThreads) void clear_rest(const int64_t* __restrict__ end, int64_t rows, int64_t columns,
                                                       T* __restrict__ to) {
  for (int64_t i = *end * columns + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * columns;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = from_float<T>(0.0f);
  }
}

/// A call whose tensors have been checked, and what its kernels share.
template <typename T>
struct Launcher {
  const checkop_call* call;
  Shape shape;
  cudaStream_t stream = static_cast<cudaStream_t>(call->stream);
  const int32_t* offsets = static_cast<const int32_t*>(call->inputs[2].data);
  Findings<1> findings{call, call->workspace, stream};
  const char* variant = "empty output: nothing to compute";

  template <typename U>
  U* in_workspace(size_t offset) const {
    return reinterpret_cast<U*>(static_cast<std::byte*>(call->workspace) + offset);
  }

  /// Calls f(Product) with the product for tensors of these row lengths, and names it. The choice changes no bit.
  template <typename F>
  void with_product(std::initializer_list<const void*> tensors, std::initializer_list<int64_t> row_lengths,
                    const void* out, int64_t columns, int64_t large_tiles, F&& f) {
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

  /// Lists the groups; then out[rows, columns] = a[rows, inner] times the matrix of each row's expert, zero in rows
  /// without one.
  template <bool b_along_k>
  checkop_status rows_by_matrices(const T* a, const T* b, int64_t inner, int64_t columns, T* out) {
    checkop_status listed = findings.begin();
    if (listed != CHECKOP_OK) return listed;
    const int64_t large = ceil_div(shape.rows, mma::LargeTile::kM) * ceil_div(columns, mma::LargeTile::kN);
    with_product({a, b}, {inner, columns}, out, columns, large, [&]<typename Product>(Product, bool aligned) {
      const Layout layout(shape, Product::kM);
      auto* groups = in_workspace<GroupRows>(layout.groups);
      auto* end = in_workspace<int64_t>(layout.end);
      auto* tiles = in_workspace<RowTile>(layout.tiles);
      list_tiles<<<1, kScanThreads, 0, stream>>>(offsets, shape.experts, shape.rows, Product::kM, layout.most_tiles,
                                                 groups, end, tiles, findings.on_device());
      listed = findings.found();
      if (listed != CHECKOP_OK || shape.rows == 0 || columns == 0) return;
      const auto blocks = static_cast<unsigned>(layout.most_tiles * ceil_div(columns, Product::kN));
      multiply_rows<Product, b_along_k, T><<<blocks, Product::kThreads, 0, stream>>>(
          a, b, groups, tiles, layout.most_tiles, inner, columns, aligned, out);
      constexpr int64_t kMostBlocks = 4096;  // the kernel strides over the rest
      const int64_t needed = ceil_div(shape.rows * columns, kThreads);
      clear_rest<T><<<static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks), kThreads, 0, stream>>>(
          end, shape.rows, columns, out);
    });
    return listed;
  }

  /// db, of the groups that rows_by_matrices() has listed.
  void groups_by_groups(const T* grad_c, const T* a, T* db) {
    const int64_t large =
        shape.experts * ceil_div(shape.n_dim, mma::LargeTile::kM) * ceil_div(shape.k_dim, mma::LargeTile::kN);
    if (large == 0) return;
    with_product({grad_c, a}, {shape.n_dim, shape.k_dim}, db, shape.k_dim, large,
                 [&]<typename Product>(Product, bool aligned) {
                   const Layout layout(shape, Product::kM);
                   const auto blocks = static_cast<unsigned>(shape.experts * ceil_div(shape.n_dim, Product::kM) *
                                                             ceil_div(shape.k_dim, Product::kN));
                   multiply_groups<Product, T><<<blocks, Product::kThreads, 0, stream>>>(
                       grad_c, a, in_workspace<GroupRows>(layout.groups), shape.n_dim, shape.k_dim, aligned, db);
                 });
  }

  /// Waits for the list, and refuses bad offsets.
  checkop_status finish() {
    if (auto status = findings.wait()) return status;
    const unsigned long long bad = findings[0];
    if (bad == kNothingFound) return CHECKOP_OK;
    int32_t offset = 0;
    if (auto status = findings.read(&offset, offsets + bad, sizeof(offset))) return status;
    return say(call, CHECKOP_FAILED,
               "input 'offsets': element %llu is %d: offsets start with 0, do not decrease and end "
               "within the %lld rows",
               bad, offset, static_cast<long long>(shape.rows));
  }
};

/// The shape as far as the tensors give it; zeros for tensors that check_call() will refuse.
Shape shape_of(const checkop_call* call) {
  if (call->n_inputs < 3 || call->inputs[0].rank != 2 || call->inputs[1].rank != 3) return {};
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1];
  return {a.shape[0], b.shape[0], a.shape[1], b.shape[1]};
}

/// For the smallest tiles, which are the most.
size_t workspace_bytes(const checkop_call* call) { return Layout(shape_of(call), mma::SmallTile::kM).bytes; }

checkop_status check_call(const checkop_call* call, bool backward) {
  CallCheck check(call);
  if (check.counts(backward ? 4 : 3, backward ? 2 : 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &offsets = call->inputs[2];
  check.rank_at_least(a, "a", 2).rank_at_least(b, "b", 3).float_dtype(a, "a").contiguous(a, "a");
  if (check.failed()) return check.status();
  const int64_t rows = a.shape[0], k_dim = last_extent(a), experts = b.shape[0], n_dim = b.shape[1];
  check.shape(a, "a", a, 0, {rows, k_dim});
  const auto like = [&](const checkop_tensor& t, const char* name, std::initializer_list<int64_t> shape) {
    check.dtype(t, name, a.dtype).shape(t, name, t, 0, shape).contiguous(t, name);
  };
  like(b, "b", {experts, n_dim, k_dim});
  check.dtype(offsets, "offsets", CHECKOP_I32).shape(offsets, "offsets", offsets, 0, {experts + 1});
  check.contiguous(offsets, "offsets");
  if (backward) {
    like(call->inputs[3], "grad_c", {rows, n_dim});
    like(call->outputs[0], "da", {rows, k_dim});
    like(call->outputs[1], "db", {experts, n_dim, k_dim});
  } else {
    like(call->outputs[0], "c", {rows, n_dim});
  }
  if (check.workspace(workspace_bytes(call)).failed()) return check.status();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // of what int32 numbers, and of blocks
  if (rows > kMost || experts > kMost) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld experts, at most %lld of each are supported",
               static_cast<long long>(rows), static_cast<long long>(experts), static_cast<long long>(kMost));
  }
  return CHECKOP_OK;
}

checkop_status launch_forward(const checkop_call* call) {
  if (auto status = check_call(call, false)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    Launcher<T> launcher{call, shape_of(call)};
    const Shape& shape = launcher.shape;
    const auto status = launcher.template rows_by_matrices<true>(
        static_cast<const T*>(call->inputs[0].data), static_cast<const T*>(call->inputs[1].data), shape.k_dim,
        shape.n_dim, static_cast<T*>(call->outputs[0].data));
    if (status != CHECKOP_OK) return status;
    say(call, CHECKOP_OK, "%s", launcher.variant);
    if (auto launched = launch_status(call, "launch c = a b^T")) return launched;
    return launcher.finish();
  });
}

checkop_status launch_backward(const checkop_call* call) {
  if (auto status = check_call(call, true)) return status;
  return with_float_type(call->inputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    Launcher<T> launcher{call, shape_of(call)};
    const Shape& shape = launcher.shape;
    const auto* grad_c = static_cast<const T*>(call->inputs[3].data);
    const auto status =
        launcher.template rows_by_matrices<false>(grad_c, static_cast<const T*>(call->inputs[1].data), shape.n_dim,
                                                  shape.k_dim, static_cast<T*>(call->outputs[0].data));
    if (status != CHECKOP_OK) return status;
    const char* const of_da = launcher.variant;
    launcher.groups_by_groups(grad_c, static_cast<const T*>(call->inputs[0].data),
                              static_cast<T*>(call->outputs[1].data));
    say(call, CHECKOP_OK, "da: %s; db: %s", of_da, launcher.variant);
    if (auto launched = launch_status(call, "launch da = grad_c b, db = grad_c^T a")) return launched;
    return launcher.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "grouped_gemm", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_forward},
    {sizeof(checkop_kernel), "cuda", "grouped_gemm", "backward", CHECKOP_CUDA, 80, 0, workspace_bytes, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
