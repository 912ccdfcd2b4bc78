// SPDX-License-Identifier: Apache-2.0
// fp8_block_wgrad / cuda: tiles of 64 x 64 in fp32 units, one launch for all experts; portable CUDA.
//   dw[e] = sum over offsets[e] <= r < offsets[e + 1] of (grad_t scale_grad_t[r/128]) (x_t scale_x_t[r/128])^T
//   grad_t: [n_dim, rows] e4m3   scale_grad_t: [n_dim, rows/128 rounded up] f32   x_t: [k_dim, rows] e4m3
//   scale_x_t: [k_dim, rows/128 rounded up] f32   offsets: [experts + 1] i32, multiples of 128
//   dw: [experts, n_dim, k_dim] f32|bf16|f16, zero for an expert without rows     all contiguous
//   Limits: rows < 2^31, fewer than 2^22 columns of dw. Offsets that do not start with 0, decrease, leave the rows or
//   are no multiples of 128 are CHECKOP_FAILED. A call that is recorded into a graph can't refuse them: the replay
//   makes dw 0.
//   Workspace: 256 bytes, 8 for an expert and 16 for a tile of rows, of which there are rows / 64 + experts at most.
//   Expected error: a chain of 128 additions for each block of rows, and of one addition for each block.
//   The bits of dw[e] are those of a product of the expert's columns alone.
#include "cuda/fp8_product.cuh"
#include "gemm/grouped_rows.cuh"

namespace checkop::kernels {
namespace {

using fp8::kBlock;
using fp8::kTile;
using grouped_gemm::Groups;
using grouped_gemm::Shape;

/// Two blocks on an SM, as in fp8_block_gemm. blockIdx.x has the experts, and for each its tiles of rows.
template <typename T>
__global__ __launch_bounds__(fp8::kThreads, 2) void multiply(fp8::Codes<1> grad, fp8::Codes<1> x,
                                                             const GroupRows* __restrict__ groups, int64_t n_dim,
                                                             int64_t k_dim, T* __restrict__ dw) {
  const int64_t tiles = ceil_div(n_dim, kTile), expert = blockIdx.x / tiles;
  const GroupRows group = groups[expert];
  fp8::multiply_tile(grad, blockIdx.x % tiles * kTile, n_dim, x, int64_t{blockIdx.y} * kTile, k_dim,
                     int64_t{group.begin}, int64_t{group.end}, dw + expert * n_dim * k_dim);
}

/// The shape as far as the tensors give it; zeros for tensors that are refused.
Shape shape_of(const checkop_call* call) {
  if (call->n_inputs < 5 || call->n_outputs < 1 || call->inputs[0].rank != 2 || call->inputs[2].rank != 2 ||
      call->outputs[0].rank != 3) {
    return {};
  }
  return {call->inputs[0].shape[1], call->outputs[0].shape[0], call->inputs[2].shape[0], call->inputs[0].shape[0]};
}

size_t workspace_bytes(const checkop_call* call) { return grouped_gemm::Layout(shape_of(call), kTile).bytes; }

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(5, 1).failed()) return check.status();
  const checkop_tensor &grad = call->inputs[0], &scale_grad = call->inputs[1], &x = call->inputs[2],
                       &scale_x = call->inputs[3], &dw = call->outputs[0];
  check.dtype(grad, "grad_t", CHECKOP_E4M3).rank_at_least(grad, "grad_t", 2).contiguous(grad, "grad_t");
  check.dtype(x, "x_t", CHECKOP_E4M3).rank_at_least(x, "x_t", 2).contiguous(x, "x_t");
  check.float_dtype(dw, "dw").rank_at_least(dw, "dw", 3);
  if (check.failed()) return check.status();
  const Shape shape = shape_of(call);
  const int64_t blocks = ceil_div(shape.rows, kBlock);
  check.shape(grad, "grad_t", grad, 0, {shape.n_dim, shape.rows}).shape(x, "x_t", x, 0, {shape.k_dim, shape.rows});
  check.dtype(scale_grad, "scale_grad_t", CHECKOP_F32);
  check.shape(scale_grad, "scale_grad_t", scale_grad, 0, {shape.n_dim, blocks}).contiguous(scale_grad, "scale_grad_t");
  check.dtype(scale_x, "scale_x_t", CHECKOP_F32);
  check.shape(scale_x, "scale_x_t", scale_x, 0, {shape.k_dim, blocks}).contiguous(scale_x, "scale_x_t");
  grouped_gemm::check_given<grouped_gemm::RowLayout::successive>(check, shape, call->inputs[4]);
  check.shape(dw, "dw", dw, 0, {shape.experts, shape.n_dim, shape.k_dim}).contiguous(dw, "dw");
  if (check.workspace(workspace_bytes(call)).failed()) return check.status();
  if (auto status = fp8::check_bound_attributes(call)) return status;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t tiles = shape.experts * ceil_div(shape.n_dim, kTile), columns = ceil_div(shape.k_dim, kTile);
  if (shape.rows > kMost || tiles > kMost || columns > 65535) {
    return say(call, CHECKOP_UNSUPPORTED,
               "%lld rows, %lld rows of dw and %lld columns, fewer than 2^31, 2^37 and 2^22 are supported",
               static_cast<long long>(shape.rows), static_cast<long long>(shape.experts * shape.n_dim),
               static_cast<long long>(shape.k_dim));
  }
  return with_float_type(dw.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    auto* const out = static_cast<T*>(dw.data);
    Groups<T> groups(call, shape, 4, kBlock);
    if (auto status = groups.list(kTile, out, 0)) return status;
    if (tiles > 0 && columns > 0) {
      multiply<T>
          <<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(columns)), fp8::kThreads, 0, groups.stream()>>>(
              fp8::codes_of<1>(grad, scale_grad), fp8::codes_of<1>(x, scale_x), groups.listed().groups, shape.n_dim,
              shape.k_dim, out);
    }
    if (auto status = groups.launched(cudaGetLastError())) return status;
    return groups.finish();
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "fp8_block_wgrad", "forward", CHECKOP_CUDA, 80, 0, workspace_bytes, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
