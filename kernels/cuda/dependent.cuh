// SPDX-License-Identifier: Apache-2.0
// Kernels that start while the kernel before them still runs, and wait for its results later: programmatic dependent
// launch, from sm_90 on. Facts: PTX ISA 9.0, "griddepcontrol"; CUDA programming guide, programmatic dependent launch.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// Lets the kernel launched by launch_dependent() start beside this one, from sm_90 on.
__device__ inline void start_dependent_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until the kernel before is done and its results are visible.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Launches a kernel that calls wait_for_kernel_before(), and so may start early.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 threads, cudaStream_t stream,
                             Arguments... arguments) {
  int device = 0, major = 0;
  if (auto error = cudaGetDevice(&device)) return error;
  if (auto error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) return error;
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = threads, config.stream = stream;
  config.attrs = &early, config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace checkop::kernels
