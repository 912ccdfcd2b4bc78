// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm / cuda: tiles of 64 x 64 in fp32 units, codes decoded on their way to shared memory; portable CUDA.
//   d = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
//   a: [..., k_dim] e4m3   scale_a: [..., k_dim/128 rounded up] f32   b: [n_dim, k_dim] e4m3
//   scale_b: [n_dim/128, k_dim/128, both rounded up] f32   d: [..., n_dim] f32|bf16|f16
//   Limits: contiguous, fewer than 2^37 rows and 2^22 columns of d.   No workspace.
//   Expected error: a chain of 128 additions for each block of columns of a, and of one addition for each block.
//   An element's sums have the same order whatever the other rows are.
#include "fp8_block_gemm/call.cuh"

namespace checkop::kernels {
namespace {

using fp8::kBlock;
using fp8::kTile;
using fp8_block_gemm::check_call;
using fp8_block_gemm::Shape;

/// Two blocks on an SM: ptxas would otherwise aim at more, and spill.
template <typename T>
__global__ __launch_bounds__(fp8::kThreads, 2) void multiply(fp8::Codes<1> a, int64_t rows, fp8::Codes<kBlock> b,
                                                             int64_t n_dim, T* __restrict__ d) {
  fp8::multiply_tile(a, int64_t{blockIdx.x} * kTile, rows, b, int64_t{blockIdx.y} * kTile, n_dim, 0, a.length, d);
}

checkop_status forward(const checkop_call* call) {
  Shape shape;
  if (auto status = check_call(call, shape)) return status;
  if (auto status = fp8::check_bound_attributes(call)) return status;
  const int64_t rows = shape.rows, n_dim = shape.n_dim;
  const int64_t tiles = ceil_div(rows, kTile), columns = ceil_div(n_dim, kTile);
  if (tiles > std::numeric_limits<int32_t>::max() || columns > 65535) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld columns, fewer than 2^37 and 2^22 are supported",
               static_cast<long long>(rows), static_cast<long long>(n_dim));
  }
  if (rows == 0 || n_dim == 0) return CHECKOP_OK;
  const checkop_tensor *in = call->inputs, &d = call->outputs[0];
  return with_float_type(d.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    multiply<T><<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(columns)), fp8::kThreads, 0,
                  static_cast<cudaStream_t>(call->stream)>>>(
        fp8::codes_of<1>(in[0], in[1]), rows, fp8::codes_of<kBlock>(in[2], in[3]), n_dim, static_cast<T*>(d.data));
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
