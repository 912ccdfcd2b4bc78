// SPDX-License-Identifier: Apache-2.0
// Multiplies given blocks on the device's tensor cores, by mma.sync m16n8k16 and wgmma m64n32k32.
#include "gpu/tensor_core.cuh"

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "sm90/barrier.cuh"
#include "sm90/wgmma.cuh"

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

/// One warpgroup per problem: c[64, 32] += x[64, 32] * y[32, 32]^T of codes.
__global__ __launch_bounds__(128) void multiply_codes(const uint8_t* x, const uint8_t* y, float* c) {
  using namespace kernels::sm90;
  using LayoutX = SmemLayout<true, 64, 64>;
  using LayoutY = SmemLayout<true, 32, 64>;
  constexpr int kLine = LayoutX::kLine;  // room for 128 codes, of which 32 are used
  __shared__ alignas(1024) uint8_t of_x[LayoutX::kBytes], of_y[LayoutY::kBytes];
  x += int64_t{blockIdx.x} * 64 * 32, y += int64_t{blockIdx.x} * 32 * 32, c += int64_t{blockIdx.x} * 64 * 32;
  const auto place = [](int row, int column) { return row * kLine + (column / 16 ^ row % 8) * 16 + column % 16; };
  for (int i = threadIdx.x; i < 64 * 32; i += 128) of_x[place(i / 32, i % 32)] = x[i];
  for (int i = threadIdx.x; i < 32 * 32; i += 128) of_y[place(i / 32, i % 32)] = y[i];
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const auto element = [&](int i) { return (row + i / 2 % 2 * 8) * 32 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; };
  float d[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) d[i] = c[element(i)];
  fence_proxy_async();
  __syncthreads();
  pin_registers(d);
  wgmma_fence();
  wgmma_e4m3<32>(d, LayoutX::descriptor(shared_address(of_x)), LayoutY::descriptor(shared_address(of_y)), 1);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  pin_registers(d);
#pragma unroll
  for (int i = 0; i < 16; ++i) c[element(i)] = d[i];
}

template <typename T>
T* upload(const std::vector<T>& from) {
  T* to = nullptr;
  require(cudaMalloc(&to, from.size() * sizeof(T)));
  require(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  return to;
}

/// Runs multiply(device x, device y, device c), and reads c back.
template <typename T, typename Multiply>
void run(const std::vector<T>& x, const std::vector<T>& y, std::vector<float>& c, const Multiply& multiply) {
  T *const device_x = upload(x), *const device_y = upload(y);
  float* const device_c = upload(c);
  multiply(device_x, device_y, device_c);
  require(cudaGetLastError());
  require(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (void* each : {static_cast<void*>(device_x), static_cast<void*>(device_y), static_cast<void*>(device_c)}) {
    require(cudaFree(each));
  }
}

}  // namespace

void multiply_on_tensor_cores(bool bf16, const std::vector<uint16_t>& x, const std::vector<uint16_t>& y,
                              std::vector<float>& c) {
  const auto problems = static_cast<unsigned>(c.size() / 128);
  run(x, y, c, [&](const uint16_t* on_x, const uint16_t* on_y, float* on_c) {
    if (bf16) {
      multiply<true><<<problems, 32>>>(on_x, on_y, on_c);
    } else {
      multiply<false><<<problems, 32>>>(on_x, on_y, on_c);
    }
  });
}

void multiply_codes_on_tensor_cores(const std::vector<uint8_t>& x, const std::vector<uint8_t>& y,
                                    std::vector<float>& c) {
  const auto problems = static_cast<unsigned>(c.size() / 2048);
  run(x, y, c, [&](const uint8_t* on_x, const uint8_t* on_y, float* on_c) {
    multiply_codes<<<problems, 128>>>(on_x, on_y, on_c);
  });
}

bool has_sm90() {
  int device = 0, major = 0;
  require(cudaGetDevice(&device));
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9;
}

}  // namespace checkop
