// SPDX-License-Identifier: Apache-2.0
// silu / cuda: element by element in fp32, 16 bytes a load, portable CUDA.
//   forward   y = x s,  s = 1/(1 + exp(-x))
//   backward  dx = grad_y s (1 + x (1 - s))
//   x, y, grad_y, dx: any shape, f32|f16|bf16, all the same, contiguous
//   Limits: none beyond the grid's 2^31 blocks.   No workspace.
//   Expected error: a few fp32 roundings, one output rounding.
#include "cuda/pointwise.cuh"

namespace checkop::kernels {
namespace {

struct Forward {
  __device__ static void apply(const float (&in)[1], float (&out)[1]) { out[0] = in[0] * sigmoid(in[0]); }
};

struct Backward {
  __device__ static void apply(const float (&in)[2], float (&out)[1]) {
    const float x = in[0], grad = in[1], s = sigmoid(x);
    out[0] = grad * (s * (1.0f + x * (1.0f - s)));
  }
};

checkop_status launch_forward(const checkop_call* call) {
  return launch_pointwise<Forward, 1, 1>(call, {"x", "y"}, "launch silu forward");
}
checkop_status launch_backward(const checkop_call* call) {
  return launch_pointwise<Backward, 2, 1>(call, {"x", "grad_y", "dx"}, "launch silu backward");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "silu", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "silu", "backward", CHECKOP_CUDA, 80, 0, nullptr, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
