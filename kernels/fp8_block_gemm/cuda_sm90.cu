// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm / cuda-sm90: Hopper's FP8 tensor cores and TMA; sums of 128 products are added up in fp32.
//   d = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
//   a: [..., k_dim] e4m3   scale_a: [..., k_dim/128 rounded up] f32   b: [n_dim, k_dim] e4m3
//   scale_b: [n_dim/128, k_dim/128, both rounded up] f32   d: [..., n_dim] f32|bf16|f16
//   Limits: sm_90 only; contiguous; k_dim is a multiple of 16, a and b begin at 16-byte boundaries, and neither has
//   more than 2^30 rows or columns. acc_bits at most 14 and acc_terms at least 32: what these tensor cores keep. No
//   workspace. Expected error: an instruction adds 32 products to the sum before, of which each loses less than 2^-13
//   of the largest one, where a subnormal code counts as 2^-6; four of them make a block of 128 columns of a. Then one
//   multiply-add in fp32 for each block, and one rounding. sm90/fp8_product.cuh explains that, and why the bits of a
//   row do not depend on the other rows.
#include "fp8_block_gemm/call.cuh"
#include "sm90/fp8_product.cuh"

namespace checkop::kernels {
namespace {

checkop_status forward(const checkop_call* call) {
  fp8_block_gemm::Shape shape;
  if (auto status = fp8_block_gemm::check_call(call, shape)) return status;
  if (auto status = sm90::check_fp8_bound(call)) return status;
  const int64_t rows = shape.rows, k_dim = shape.k_dim, n_dim = shape.n_dim;
  if (rows == 0 || n_dim == 0) return CHECKOP_OK;
  const sm90::Matrix a_matrix{call->inputs[0].data, k_dim, rows, k_dim},
      b_matrix{call->inputs[2].data, k_dim, n_dim, k_dim};
  if (auto status = sm90::check_fp8_matrices(call, a_matrix, b_matrix)) return status;
  return with_float_type(call->outputs[0].dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    sm90::Fp8Params<T> p{};
    p.scale_a = static_cast<const float*>(call->inputs[1].data);
    p.scale_b = static_cast<const float*>(call->inputs[3].data);
    p.d = static_cast<T*>(call->outputs[0].data);
    p.rows = rows, p.n_dim = n_dim, p.k_dim = k_dim, p.blocks = static_cast<int>(ceil_div(k_dim, fp8::kBlock));
    const char* variant = "";
    const auto error = sm90::with_fp8_config(
        sm90::Problem{rows, n_dim, ceil_div(k_dim, 2), k_dim % 128 == 0}, [&]<typename Config>(Config) {
          variant = Config::kVariant;
          const int64_t tiles = ceil_div(rows, Config::kM * Config::kClusterM);
          return sm90::launch_fp8<Config>(p, a_matrix, b_matrix, tiles, static_cast<cudaStream_t>(call->stream));
        });
    if (auto status = cuda_status(call, error, "launch fp8_block_gemm")) return status;
    return say(call, CHECKOP_OK, "%s", variant);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda-sm90", "fp8_block_gemm", "forward", CHECKOP_CUDA, 90, 90, nullptr, forward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
