// SPDX-License-Identifier: Apache-2.0
// Turns CUDA statuses into exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>
#include <string_view>

#include "device/device.hpp"

namespace checkop {

/// "upload (16.0 MiB): cudaErrorMemoryAllocation: out of memory [cuda_device.cpp:41]"
inline std::string describe(cudaError_t status, std::string_view doing, const std::source_location& at) {
  const std::string_view path = at.file_name();
  std::string text(doing);
  text += std::string(": ") + cudaGetErrorName(status) + ": " + cudaGetErrorString(status) + " [";
  text += path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
  return text + ":" + std::to_string(at.line()) + "]";
}

/// Throws DeviceError unless `status` is cudaSuccess. Clears the runtime's last error first.
inline void check(cudaError_t status, std::string_view doing,
                  const std::source_location& at = std::source_location::current()) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  // After errors such as an illegal address, an assert or an ECC error, every later call fails too. A list of such
  // errors would be incomplete with the next driver, so this function tries a harmless call instead.
  const bool sticky = cudaDeviceSynchronize() != cudaSuccess;
  (void)cudaGetLastError();
  if (status == cudaErrorMemoryAllocation && !sticky) throw OutOfMemory(describe(status, doing, at));
  throw DeviceError(describe(status, doing, at), sticky);
}

}  // namespace checkop
