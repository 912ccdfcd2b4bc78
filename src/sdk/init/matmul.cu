// matmul / @NAME@: one thread per element of a 16 x 16 tile, tiles of the inputs in shared memory, sums in fp32.
//   c[r,n] = sum_k a[r,k] * b[k,n]    a: [rows, k_dim], b: [k_dim, n_dim], c: [rows, n_dim], fp32 or bf16
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check_operator.h"

namespace {

constexpr int kTile = 16;

template <typename T>
__global__ void matmul(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, long long rows,
                       long long depth, long long columns) {
  __shared__ float a_tile[kTile][kTile], b_tile[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  // Row tiles go along x, where a grid may have 2^31 blocks.
  const long long row = static_cast<long long>(blockIdx.x) * kTile + y,
                  column = static_cast<long long>(blockIdx.y) * kTile + x;
  float sum = 0;
  for (long long first = 0; first < depth; first += kTile) {
    const bool in_a = row < rows && first + x < depth, in_b = column < columns && first + y < depth;
    a_tile[y][x] = in_a ? static_cast<float>(a[row * depth + first + x]) : 0.0f;
    b_tile[y][x] = in_b ? static_cast<float>(b[(first + y) * columns + column]) : 0.0f;
    __syncthreads();
    float part = 0;  // short chains of additions: rounding errors grow with their length
    for (int k = 0; k < kTile; ++k) part += a_tile[y][k] * b_tile[k][x];
    sum += part;
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = static_cast<T>(sum);
}

template <typename T>
checkop_status launch_as(const checkop_call* call) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1];
  const long long rows = a.shape[0] * a.shape[1], depth = a.shape[2], columns = b.shape[1];
  constexpr long long kMostColumns = 65535ll * kTile;  // the grid's limit in y
  if (columns > kMostColumns) return CHECKOP_UNSUPPORTED;
  if (rows == 0) return CHECKOP_OK;  // a grid without blocks is an error
  const dim3 grid(static_cast<unsigned>((rows + kTile - 1) / kTile),
                  static_cast<unsigned>((columns + kTile - 1) / kTile));
  matmul<<<grid, dim3(kTile, kTile), 0, static_cast<cudaStream_t>(call->stream)>>>(
      static_cast<const T*>(a.data), static_cast<const T*>(b.data), static_cast<T*>(call->outputs[0].data), rows, depth,
      columns);
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
    {sizeof(checkop_kernel), "@NAME@", "matmul", "forward", CHECKOP_CUDA, 0, 0, nullptr, launch},
};
const checkop_plugin kPlugin = {CHECKOP_ABI_VERSION, sizeof kKernels / sizeof kKernels[0], kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
