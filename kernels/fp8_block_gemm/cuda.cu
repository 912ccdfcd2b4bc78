// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm / cuda: tiles of 64 x 64 in fp32 units, codes decoded on their way to shared memory; portable CUDA.
//   d = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
//   a: [..., k_dim] e4m3   scale_a: [..., k_dim/128 rounded up] f32   b: [n_dim, k_dim] e4m3
//   scale_b: [n_dim/128, k_dim/128, both rounded up] f32   d: [..., n_dim] f32|bf16|f16
//   Limits: contiguous, fewer than 2^37 rows and 2^22 columns of d.   No workspace.
//   Expected error: a chain of 128 additions for each block of columns of a, and of one addition for each block.
//   An element's sums have the same order whatever the other rows are.
#include "cuda/fp8_product.cuh"

namespace checkop::kernels {
namespace {

using fp8::kBlock;
using fp8::kTile;

/// Two blocks on an SM: ptxas would otherwise aim at more, and spill.
template <typename T>
__global__ __launch_bounds__(fp8::kThreads, 2) void multiply(fp8::Codes<1> a, int64_t rows, fp8::Codes<kBlock> b,
                                                             int64_t n_dim, T* __restrict__ d) {
  fp8::multiply_tile(a, int64_t{blockIdx.x} * kTile, rows, b, int64_t{blockIdx.y} * kTile, n_dim, 0, a.length, d);
}

checkop_status forward(const checkop_call* call) {
  CallCheck check(call);
  if (check.counts(4, 1).failed()) return check.status();
  const checkop_tensor &a = call->inputs[0], &scale_a = call->inputs[1], &b = call->inputs[2],
                       &scale_b = call->inputs[3], &d = call->outputs[0];
  check.dtype(a, "a", CHECKOP_E4M3).rank_at_least(a, "a", 1).contiguous(a, "a");
  check.dtype(b, "b", CHECKOP_E4M3).rank_at_least(b, "b", 2).contiguous(b, "b").float_dtype(d, "d");
  if (check.failed()) return check.status();
  const int64_t rows = leading_count(a), k_dim = last_extent(a), n_dim = b.shape[0], blocks = ceil_div(k_dim, kBlock);
  const int32_t leading = a.rank - 1;
  check.shape(b, "b", b, 1, {k_dim});
  check.dtype(scale_a, "scale_a", CHECKOP_F32).shape(scale_a, "scale_a", a, leading, {blocks});
  check.contiguous(scale_a, "scale_a").dtype(scale_b, "scale_b", CHECKOP_F32);
  check.shape(scale_b, "scale_b", scale_b, 0, {ceil_div(n_dim, kBlock), blocks}).contiguous(scale_b, "scale_b");
  check.shape(d, "d", a, leading, {n_dim}).contiguous(d, "d");
  if (check.failed()) return check.status();
  if (auto status = fp8::check_bound_attributes(call)) return status;
  const int64_t tiles = ceil_div(rows, kTile), columns = ceil_div(n_dim, kTile);
  if (tiles > std::numeric_limits<int32_t>::max() || columns > 65535) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld columns, fewer than 2^37 and 2^22 are supported",
               static_cast<long long>(rows), static_cast<long long>(n_dim));
  }
  if (rows == 0 || n_dim == 0) return CHECKOP_OK;
  return with_float_type(d.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    multiply<T><<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(columns)), fp8::kThreads, 0,
                  static_cast<cudaStream_t>(call->stream)>>>(
        fp8::codes_of<1>(a, scale_a), rows, fp8::codes_of<kBlock>(b, scale_b), n_dim, static_cast<T*>(d.data));
    return launch_status(call, "launch fp8_block_gemm");
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "fp8_block_gemm", "forward", CHECKOP_CUDA, 80, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
