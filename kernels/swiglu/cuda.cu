// SPDX-License-Identifier: Apache-2.0
// swiglu / cuda: element by element in fp32, 16 bytes a load, portable CUDA.
//   forward   y = gate s up,  s = 1/(1 + exp(-gate))
//   backward  dgate = grad_y up s (1 + gate (1 - s)),  dup = grad_y gate s
//   gate, up, y, grad_y, dgate, dup: any shape, f32|f16|bf16, all the same, contiguous
//   Limits: none beyond the grid's 2^31 blocks.   No workspace.
//   Expected error: a few fp32 roundings, one output rounding.
#include "cuda/pointwise.cuh"

namespace checkop::kernels {
namespace {

struct Forward {
  __device__ static void apply(const float (&in)[2], float (&out)[1]) { out[0] = in[0] * sigmoid(in[0]) * in[1]; }
};

struct Backward {
  __device__ static void apply(const float (&in)[3], float (&out)[2]) {
    const float gate = in[0], up = in[1], grad = in[2], s = sigmoid(gate);
    out[0] = grad * up * (s * (1.0f + gate * (1.0f - s)));
    out[1] = grad * (gate * s);
  }
};

checkop_status launch_forward(const checkop_call* call) {
  return launch_pointwise<Forward, 2, 1>(call, {"gate", "up", "y"}, "launch swiglu forward");
}
checkop_status launch_backward(const checkop_call* call) {
  return launch_pointwise<Backward, 3, 2>(call, {"gate", "up", "grad_y", "dgate", "dup"}, "launch swiglu backward");
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "cuda", "swiglu", "forward", CHECKOP_CUDA, 80, 0, nullptr, launch_forward},
    {sizeof(checkop_kernel), "cuda", "swiglu", "backward", CHECKOP_CUDA, 80, 0, nullptr, launch_backward},
};
constexpr checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, 2, kKernels};

}  // namespace
}  // namespace checkop::kernels

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &checkop::kernels::kPlugin; }
