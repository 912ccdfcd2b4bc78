// SPDX-License-Identifier: Apache-2.0
// fp8_block_gemm / cuda: tiles of 64 x 64 in fp32 units, codes decoded on their way to shared memory; portable CUDA.
//   d = sum_k (a scale_a[k/128]) (b scale_b[n/128, k/128])
//   a: [..., k_dim] e4m3   scale_a: [..., k_dim/128 rounded up] f32   b: [n_dim, k_dim] e4m3
//   scale_b: [n_dim/128, k_dim/128, both rounded up] f32   d: [..., n_dim] f32|bf16|f16
//   Limits: contiguous, fewer than 2^37 rows and 2^22 columns of d.   No workspace.
//   Expected error: a chain of 128 additions for each block of columns of a, and of one addition for each block.
//   An element's sums have the same order whatever the other rows are.
#include <cuda_fp8.h>

#include "cuda/group.cuh"

namespace checkop::kernels {
namespace {

constexpr int kBlock = 128;            // columns of a that share a scale
constexpr int kTile = 64, kStep = 32;  // rows and columns of d in a thread block; columns of a in shared memory
constexpr int kSide = 4;               // a thread has kSide x kSide elements of d
constexpr int kThreads = (kTile / kSide) * (kTile / kSide);

struct Params {
  const uint8_t *a, *b;
  const float *scale_a, *scale_b;
  int64_t rows, n_dim, k_dim, blocks;  ///< blocks of k_dim
};

__device__ float decode(uint8_t code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3))); }

/// Rows [first, first + kTile) and columns [k, k + kStep) of `codes`, as numbers, and 0 beyond them.
__device__ void load_tile(const uint8_t* __restrict__ codes, int64_t first, int64_t rows, int64_t k, int64_t k_dim,
                          float (&to)[kStep][kTile + 1]) {
  for (int i = threadIdx.x; i < kTile * kStep; i += kThreads) {
    const int row = i / kStep, column = i % kStep;
    const bool exists = first + row < rows && k + column < k_dim;
    to[column][row] = exists ? decode(codes[(first + row) * k_dim + k + column]) : 0.0f;
  }
}

/// Two blocks on an SM: ptxas would otherwise aim at more, and spill.
template <typename T>
__global__ __launch_bounds__(kThreads, 2) void multiply(Params p, T* __restrict__ d) {
  __shared__ float of_a[kStep][kTile + 1], of_b[kStep][kTile + 1];
  const int64_t first_row = int64_t{blockIdx.x} * kTile, first_column = int64_t{blockIdx.y} * kTile;
  const int row = threadIdx.x / (kTile / kSide) * kSide, column = threadIdx.x % (kTile / kSide) * kSide;
  float total[kSide][kSide] = {};
  for (int64_t block = 0; block < p.blocks; ++block) {
    float sum[kSide][kSide] = {};
    const int64_t begin = block * kBlock, end = begin + kBlock < p.k_dim ? begin + kBlock : p.k_dim;
    for (int64_t k = begin; k < end; k += kStep) {
      __syncthreads();  // the tiles before are read
      load_tile(p.a, first_row, p.rows, k, p.k_dim, of_a);
      load_tile(p.b, first_column, p.n_dim, k, p.k_dim, of_b);
      __syncthreads();
#pragma unroll 8
      for (int step = 0; step < kStep; ++step) {
        float x[kSide], y[kSide];
#pragma unroll
        for (int i = 0; i < kSide; ++i) x[i] = of_a[step][row + i], y[i] = of_b[step][column + i];
#pragma unroll
        for (int i = 0; i < kSide; ++i) {
#pragma unroll
          for (int j = 0; j < kSide; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
      }
    }
    // All columns of a thread block lie in the same 128.
    const float of_columns = p.scale_b[first_column / kBlock * p.blocks + block];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const int64_t r = first_row + row + i;
      const float factor = r < p.rows ? p.scale_a[r * p.blocks + block] * of_columns : 0.0f;
#pragma unroll
      for (int j = 0; j < kSide; ++j) total[i][j] = fmaf(factor, sum[i][j], total[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int64_t r = first_row + row + i;
    for (int j = 0; j < kSide && r < p.rows; ++j) {
      const int64_t n = first_column + column + j;
      if (n < p.n_dim) d[r * p.n_dim + n] = from_float<T>(total[i][j]);
    }
  }
}

checkop_status forward(const checkop_call* call) {
  static_assert(kBlock % kTile == 0 && kBlock % kStep == 0);
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
  for (const char* name : {"acc_bits", "acc_terms"}) {  // of the bound alone
    double value = 0;
    if (auto status = read_attribute(call, name, value)) return status;
  }
  const int64_t tiles = ceil_div(rows, kTile), columns = ceil_div(n_dim, kTile);
  if (tiles > std::numeric_limits<int32_t>::max() || columns > 65535) {
    return say(call, CHECKOP_UNSUPPORTED, "%lld rows and %lld columns, fewer than 2^37 and 2^22 are supported",
               static_cast<long long>(rows), static_cast<long long>(n_dim));
  }
  if (rows == 0 || n_dim == 0) return CHECKOP_OK;
  const Params params{static_cast<const uint8_t*>(a.data),
                      static_cast<const uint8_t*>(b.data),
                      static_cast<const float*>(scale_a.data),
                      static_cast<const float*>(scale_b.data),
                      rows,
                      n_dim,
                      k_dim,
                      blocks};
  return with_float_type(d.dtype, [&]<typename Tag>(Tag) {
    using T = typename Tag::type;
    multiply<T><<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(columns)), kThreads, 0,
                  static_cast<cudaStream_t>(call->stream)>>>(params, static_cast<T*>(d.data));
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
