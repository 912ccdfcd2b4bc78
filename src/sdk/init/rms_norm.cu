// rms_norm / @NAME@: one block per row, sums in fp32.
//   y[r,h] = x[r,h] * weight[h] / sqrt(mean_h x[r,h]^2 + eps)    x, y: [rows, hidden], weight: [hidden], fp32 or bf16
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check_operator.h"

namespace {

constexpr int kThreads = 256;  // a power of two, for the tree below

template <typename T>
__global__ void rms_norm(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, long long hidden,
                         float eps) {
  const long long row = blockIdx.x * hidden;
  // Each thread adds its own elements, then a tree adds the threads: the same order for any batch.
  __shared__ float sums[kThreads];
  float sum = 0;
  for (long long h = threadIdx.x; h < hidden; h += kThreads) {
    const float value = static_cast<float>(x[row + h]);
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const float scale = rsqrtf(sums[0] / static_cast<float>(hidden) + eps);
  for (long long h = threadIdx.x; h < hidden; h += kThreads) {
    y[row + h] = static_cast<T>(static_cast<float>(x[row + h]) * scale * static_cast<float>(weight[h]));
  }
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor &x = call->inputs[0], &weight = call->inputs[1], &y = call->outputs[0];
  const long long rows = x.shape[0] * x.shape[1], hidden = x.shape[2];
  if (rows == 0) return CHECKOP_OK;  // a grid without blocks is an error
  rms_norm<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const T*>(x.data), static_cast<const T*>(weight.data), static_cast<T*>(y.data), hidden,
      static_cast<float>(call->attrs[0].value));
  return cudaGetLastError() == cudaSuccess ? CHECKOP_OK : CHECKOP_FAILED;
}

checkop_status launch(const checkop_call* call) {
  if (!checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
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
    {sizeof(checkop_kernel), "@NAME@", "rms_norm", "forward", CHECKOP_CUDA, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
