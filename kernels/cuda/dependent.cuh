// SPDX-License-Identifier: Apache-2.0
// Launches with attributes. Kernels that start while the kernel before them still runs, and wait for its results later:
// programmatic dependent launch, from sm_90 on. Facts: PTX ISA 9.0, "griddepcontrol"; CUDA programming guide,
// programmatic dependent launch.
#pragma once

#include "cuda/common.cuh"

namespace checkop::kernels {

/// Lets the next kernel, if it starts early, start beside this one. Does something only if compiled for sm_90 or more.
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

/// How blocks are launched.
struct Launch {
  dim3 grid, threads;
  cudaStream_t stream;
  int shared_bytes = 0;       ///< dynamic shared memory of a block
  int cluster = 1;            ///< blocks of a cluster; more than one from sm_90 on
  bool starts_early = false;  ///< beside the kernel before it; wait_for_kernel_before() waits for that one's results
};

/// Whether the code of a kernel that the current device runs is compiled for sm_90 or more: a device may run code for
/// an older one.
template <typename Kernel>
cudaError_t is_for_sm90(Kernel* kernel, bool& is) {
  cudaFuncAttributes attributes;
  if (auto error = cudaFuncGetAttributes(&attributes, kernel)) return error;
  is = attributes.ptxVersion >= 90;
  return cudaSuccess;
}

/// Launches a kernel; without the last two members of `launch` as <<<>>> does.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), const Launch& launch, Arguments... arguments) {
  bool may_start_early = false;
  if (launch.starts_early) {
    if (auto error = is_for_sm90(kernel, may_start_early)) return error;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid, config.blockDim = launch.threads, config.stream = launch.stream;
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes), config.attrs = attributes;
  if (may_start_early) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(launch.cluster);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

/// Launches a kernel that calls wait_for_kernel_before(), and so may start early.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 threads, cudaStream_t stream,
                             Arguments... arguments) {
  return launch_kernel(kernel, Launch{grid, threads, stream, 0, 1, true}, arguments...);
}

}  // namespace checkop::kernels
