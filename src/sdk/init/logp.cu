// logp / @NAME@: one block per row, sums in fp32.
//   logp[r] = z[r,t] - max_v z[r,v] - log(sum_v exp(z[r,v] - max)),  t = token_ids[r]; 0 if t = ignore_index
//   z: [rows, vocab], fp32 or bf16; token_ids: [rows], int64; logp: [rows], fp32
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check_operator.h"

namespace {

constexpr int kThreads = 256;  // a power of two, for the trees below

template <typename T>
__global__ void logp(const T* __restrict__ logits, const long long* __restrict__ ids, long long ignored,
                     float* __restrict__ out, long long vocab) {
  const long long row = blockIdx.x;
  if (ids[row] == ignored) {  // an ignored row must not be read: it may hold NaN
    if (threadIdx.x == 0) out[row] = 0;
    return;
  }
  const T* z = logits + row * vocab;
  // Each thread reduces its own elements, then a tree combines the threads: the same order for any batch.
  __shared__ float parts[kThreads];
  float max = -INFINITY;
  for (long long v = threadIdx.x; v < vocab; v += kThreads) max = fmaxf(max, static_cast<float>(z[v]));
  parts[threadIdx.x] = max;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + half]);
    __syncthreads();
  }
  max = parts[0];
  __syncthreads();
  float sum = 0;
  for (long long v = threadIdx.x; v < vocab; v += kThreads) sum += expf(static_cast<float>(z[v]) - max);
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[row] = static_cast<float>(z[ids[row]]) - max - logf(parts[0]);
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor& z = call->inputs[0];
  const long long rows = z.shape[0] * z.shape[1], vocab = z.shape[2];
  if (rows == 0) return CHECKOP_OK;  // a grid without blocks is an error
  logp<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const T*>(z.data), static_cast<const long long*>(call->inputs[1].data),
      static_cast<long long>(call->attrs[0].value), static_cast<float*>(call->outputs[0].data), vocab);
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
    {sizeof(checkop_kernel), "@NAME@", "logp", "forward", CHECKOP_CUDA, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
