// SPDX-License-Identifier: Apache-2.0
// The cases that all attention kernels on Hopper compute, and those that they decline.
#pragma once

#include <algorithm>

#include "attention/sm90.cuh"

namespace checkop::kernels::attention::hopper {

/// The kernels know no window, no soft cap and no sinks.
inline checkop_status decline_options(const checkop_call* call, const AttentionParams& shape,
                                      const checkop_tensor& sinks) {
  const bool has_window = shape.window_left >= 0 || (!shape.causal && shape.window_right >= 0);
  if (has_window) return say(call, CHECKOP_UNSUPPORTED, "window_left and window_right: only -1 is supported");
  if (!shape.cap.is_none()) return say(call, CHECKOP_UNSUPPORTED, "softcap: only 0 is supported");
  if (sinks.data != nullptr) return say(call, CHECKOP_UNSUPPORTED, "sinks are not supported");
  return CHECKOP_OK;
}

/// Whether the kernels have this head_dim, v_dim and scale.
inline bool has_shape(const AttentionParams& shape) {
  return shape.scale > 0 && shape.scale < 1e30f && has_width(shape.width) && shape.v_width == shape.width;
}

/// CHECKOP_OK if all 16-bit arrays begin at multiples of 16 bytes.
inline checkop_status check_alignment(const checkop_call* call) {
  const auto check = [&](const checkop_tensor* tensors, int32_t n) {
    return std::all_of(tensors, tensors + n, [&](const checkop_tensor& tensor) {
      return tensor.dtype != call->inputs[0].dtype || reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
    });
  };
  if (check(call->inputs, call->n_inputs) && check(call->outputs, call->n_outputs)) return CHECKOP_OK;
  return say(call, CHECKOP_UNSUPPORTED, "16-bit tensors that do not begin at a multiple of 16 bytes");
}

/// Calls run(TypeTag<T>{}, columns), with the compile-time columns of a kernel, for a case that the kernels have in 16
/// bits and whose arrays TMA can read; portable() for others.
template <typename Run, typename Portable>
checkop_status with_shape(const checkop_call* call, const AttentionParams& shape, const Run& run,
                          const Portable& portable) {
  const int32_t dtype = call->inputs[0].dtype;
  if (!has_shape(shape) || (dtype != CHECKOP_F16 && dtype != CHECKOP_BF16)) return portable();
  if (auto status = check_alignment(call)) return status;
  const auto with_width = [&](auto tag) {
    return shape.width > 64 ? run(tag, std::integral_constant<int, 128>{})
                            : run(tag, std::integral_constant<int, 64>{});
  };
  return dtype == CHECKOP_F16 ? with_width(TypeTag<__half>{}) : with_width(TypeTag<__nv_bfloat16>{});
}

}  // namespace checkop::kernels::attention::hopper
