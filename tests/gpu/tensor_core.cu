// SPDX-License-Identifier: Apache-2.0
// Multiplies given blocks on the device's tensor cores, by mma.sync m16n8k16.
#include "gpu/tensor_core.cuh"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace checkop {
namespace {

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// One warp per problem: c[16, 8] += x[16, 16] * y[8, 16]^T.
template <bool bf16>
__global__ void multiply(const uint16_t* x, const uint16_t* y, float* c) {
  x += int64_t{blockIdx.x} * 256, y += int64_t{blockIdx.x} * 128, c += int64_t{blockIdx.x} * 128;
  const int row = threadIdx.x / 4, at = threadIdx.x % 4 * 2;
  const auto pair = [](const uint16_t* from) { return uint32_t{from[0]} | uint32_t{from[1]} << 16; };
  const uint32_t a0 = pair(x + row * 16 + at), a1 = pair(x + (row + 8) * 16 + at), a2 = pair(x + row * 16 + at + 8),
                 a3 = pair(x + (row + 8) * 16 + at + 8), b0 = pair(y + row * 16 + at), b1 = pair(y + row * 16 + at + 8);
  float *upper = c + row * 8 + at, *lower = c + (row + 8) * 8 + at;
  float d0 = upper[0], d1 = upper[1], d2 = lower[0], d3 = lower[1];
  if constexpr (bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  upper[0] = d0, upper[1] = d1, lower[0] = d2, lower[1] = d3;
}

template <typename T>
T* upload(const std::vector<T>& from) {
  T* to = nullptr;
  require(cudaMalloc(&to, from.size() * sizeof(T)));
  require(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

}  // namespace

void multiply_on_tensor_cores(bool bf16, const std::vector<uint16_t>& x, const std::vector<uint16_t>& y,
                              std::vector<float>& c) {
  uint16_t *const device_x = upload(x), *const device_y = upload(y);
  float* const device_c = upload(c);
  const auto problems = static_cast<unsigned>(c.size() / 128);
  if (bf16) {
    multiply<true><<<problems, 32>>>(device_x, device_y, device_c);
  } else {
    multiply<false><<<problems, 32>>>(device_x, device_y, device_c);
  }
  require(cudaGetLastError());
  require(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (void* each : {static_cast<void*>(device_x), static_cast<void*>(device_y), static_cast<void*>(device_c)}) {
    require(cudaFree(each));
  }
}

bool has_sm90() {
  int device = 0, major = 0;
  require(cudaGetDevice(&device));
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9;
}

}  // namespace checkop
