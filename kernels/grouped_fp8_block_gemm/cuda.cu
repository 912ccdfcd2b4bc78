// SPDX-License-Identifier: Apache-2.0
// grouped_fp8_block_gemm / cuda: tiles of 64 x 64 in fp32 units, one launch for all experts; portable CUDA.
//   d[r] = sum_k (a[r] scale_a[r, k/128]) (b[e] scale_b[e, n/128, k/128]) for offsets[e] <= r < offsets[e + 1]
//   d[r] = 0 from row offsets[experts] on
//   a: [rows, k_dim] e4m3              scale_a: [rows, k_dim/128 rounded up] f32
//   b: [experts, n_dim, k_dim] e4m3    scale_b: [experts, n_dim/128, k_dim/128, both rounded up] f32
//   offsets: [experts + 1] i32         d: [rows, n_dim] f32|bf16|f16         all contiguous
//   Limits: rows < 2^31, fewer than 2^22 columns of d. Offsets that do not start with 0, decrease or leave the rows
//   are CHECKOP_FAILED. A call that is recorded into a graph can't refuse them: the replay makes d NaN.
//   Workspace: 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are rows / 64 + experts at most.
//   Expected error: a chain of 128 additions for each block of columns of a, and of one addition for each block.
//   The bits of a row are those of fp8_block_gemm of this row alone with its expert's codes.
#include "cuda/fp8_product.cuh"
#include "gemm/grouped_rows.cuh"

namespace checkop::kernels {
namespace {

using fp8::kBlock;
using fp8::kTile;
using grouped_gemm::Groups;
using grouped_gemm::Shape;

/// Two blocks on an SM, as in fp8_block_gemm.
template <typename T>
__global__ __launch_bounds__(fp8::kThreads, 2) void multiply(fp8::Codes<1> a, fp8::Codes<kBlock> b,
                                                             const RowTile* __restrict__ tiles, int64_t n_dim,
                                                             T* __restrict__ d) {
  const RowTile tile = tiles[blockIdx.x];
  if (tile.group < 0) return;  // the whole block
  b.codes += tile.group * n_dim * b.length, b.scales += tile.group * ceil_div(n_dim, kBlock) * b.blocks;
  fp8::multiply_tile(a, tile.row, tile.end, b, int64_t{blockIdx.y} * kTile, n_dim, 0, a.length, d);
}

/// The shape as far as the tensors give it; zeros for tensors that are refused.
Shape shape_of(const checkop_call* call) {
  if (call->n_inputs < 5 || call->inputs[0].rank != 2 || call->inputs[2].rank != 3) return {};
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[2];
  return {a.shape[0], b.shape[0], a.shape[1], b.shape[1]};
}

size_t workspace_bytes(const checkop_call* call) { return grouped_gemm::Layout(shape_of(call), kTile).bytes; }

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(5, 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &scale_a = call->inputs[1], &b = call->inputs[2],
                       &scale_b = call->inputs[3], &offsets = call->inputs[4], &d = call->outputs[0];
  check.dtype(a, "a", CHECKOP_E4M3).rank_at_least(a, "a", 2).contiguous(a, "a");
  check.dtype(b, "b", CHECKOP_E4M3).rank_at_least(b, "b", 3).contiguous(b, "b").float_dtype(d, "d");
  if (check.failed()) return check.status();
  const Shape shape = shape_of(call);
  const int64_t blocks = ceil_div(shape.k_dim, kBlock);
  check.shape(a, "a", a, 0, {shape.rows, shape.k_dim}).shape(b, "b", b, 0, {shape.experts, shape.n_dim, shape.k_dim});
  check.dtype(scale_a, "scale_a", CHECKOP_F32).shape(scale_a, "scale_a", scale_a, 0, {shape.rows, blocks});
  check.contiguous(scale_a, "scale_a").dtype(scale_b, "scale_b", CHECKOP_F32);
  check.shape(scale_b, "scale_b", scale_b, 0, {shape.experts, ceil_div(shape.n_dim, kBlock), blocks});
  check.contiguous(scale_b, "scale_b").dtype(offsets, "offsets", CHECKOP_I32);
  check.shape(offsets, "offsets", offsets, 0, {shape.experts + 1}).contiguous(offsets, "offsets");
  check.shape(d, "d", d, 0, {shape.rows, shape.n_dim}).contiguous(d, "d");
  if (check.workspace(workspace_bytes(call)).failed()) return check.status();
  if (auto status = fp8::check_bound_attributes(call)) return status;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t columns = ceil_div(shape.n_dim, kTile);
  if (shape.rows > kMost || shape.experts > kMost || columns > 65535) {
    return say(call, CHECKOP_UNSUPPORTED,
               "%lld rows, %lld experts and %lld columns, fewer than 2^31, 2^31 and 2^22 are supported",
               static_cast<long long>(shape.rows), static_cast<long long>(shape.experts),
               static_cast<long long>(shape.n_dim));
  }
  return with_float_type(d.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    auto* const out = static_cast<T*>(d.data);
    Groups<T> groups(call, shape, 4);
    if (auto status = groups.list(kTile, out, shape.n_dim)) return status;
    const RowGroupList list = groups.listed();
    if (list.most_tiles > 0 && columns > 0) {
      multiply<T><<<dim3(static_cast<unsigned>(list.most_tiles), static_cast<unsigned>(columns)), fp8::kThreads, 0,
                    groups.stream()>>>(fp8::codes_of<1>(a, scale_a), fp8::codes_of<kBlock>(b, scale_b), list.tiles,
                                       shape.n_dim, out);
    }
    if (auto status = launch_status(call, "launch grouped_fp8_block_gemm")) return status;
    return groups.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "grouped_fp8_block_gemm", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes,
     forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
