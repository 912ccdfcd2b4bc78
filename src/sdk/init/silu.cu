// silu / @NAME@: one thread per element, in fp32.
//   y = x / (1 + exp(-x))    x, y: [batch, seq, hidden], fp32 or bf16
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check_operator.h"

namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void silu(const T* __restrict__ x, T* __restrict__ y, long long count) {
  const long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float value = static_cast<float>(x[i]);
  y[i] = static_cast<T>(value / (1 + expf(-value)));
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor& x = call->inputs[0];
  const long long count = x.shape[0] * x.shape[1] * x.shape[2], blocks = (count + kThreads - 1) / kThreads;
  if (count == 0) return CHECKOP_OK;  // a grid without blocks is an error
  silu<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const T*>(x.data), static_cast<T*>(call->outputs[0].data), count);
  return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

checkop_status launch(const checkop_call* call) {
  switch (call->inputs[0].dtype) {
    case CHECKOP_F32:
      return launch_as<float>(call);
    case CHECKOP_BF16:
      return launch_as<__nv_bfloat16>(call);
    default:
      return CHECKOP_UNSUPPORTED;
  }
}

const checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "@NAME@", "silu", "forward", CHECKOP_CUDA, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
