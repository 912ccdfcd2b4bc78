// SPDX-License-Identifier: Apache-2.0
// Correct kernels that misread inputs of one layout each. All decline the layouts that they do not claim to take.
#include <algorithm>
#include <cmath>

#include "plugins/matmul.hpp"

namespace {

using namespace test_plugin;

const float* floats(const checkop_tensor& t) { return static_cast<const float*>(t.data); }
float* results(const checkop_call* call) { return static_cast<float*>(call->outputs[0].data); }

/// c = a b; both may have any row pitch. Element l of a row lies at l * step.
checkop_status multiply_pitched(const checkop_call* call, int64_t a_step, int64_t b_step) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (c.dtype != CHECKOP_F32 || !checkop_is_contiguous(&c) || a.strides[0] != a.shape[1] * a.strides[1])
    return CHECKOP_UNSUPPORTED;
  const int64_t k = b.shape[0], n = b.shape[1];
  for (int64_t i = 0; i < rows(c); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += floats(a)[i * a.strides[1] + l * a_step] * floats(b)[l * b.strides[0] + j * b_step];
      results(call)[i * n + j] = sum;
    }
  }
  return CHECKOP_OK;
}

/// Not a fault: follows the strides of both matrices.
checkop_status follows_strides(const checkop_call* call) {
  return multiply_pitched(call, call->inputs[0].strides[2], call->inputs[1].strides[1]);
}

checkop_status ignores_column_stride(const checkop_call* call) { return multiply_pitched(call, 1, 1); }

/// Takes every input for aligned if the first one is.
checkop_status ignores_storage_offset(const checkop_call* call) {
  if (!checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  constexpr uintptr_t kVector = 16;
  checkop_tensor inputs[] = {call->inputs[0], call->inputs[1]};
  if (reinterpret_cast<uintptr_t>(inputs[0].data) % kVector == 0)
    inputs[1].data = static_cast<char*>(inputs[1].data) - reinterpret_cast<uintptr_t>(inputs[1].data) % kVector;
  checkop_call aligned = *call;
  aligned.inputs = inputs;
  return multiply(&aligned);
}

/// Copies a tensor with strides of 0 as if it were contiguous.
checkop_status copies_expanded_rows(const checkop_call* call) {
  const checkop_tensor& a = call->inputs[0];
  const bool is_expanded = a.strides[0] == 0 || a.strides[1] == 0;
  if (!is_expanded && !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  return multiply(call);
}

/// silu's gradient, whose upstream gradient may be expanded from one element; it is read as if it were not.
checkop_status copies_expanded_gradient(const checkop_call* call) {
  const checkop_tensor &x = call->inputs[0], &grad = call->inputs[1];
  const bool is_expanded = std::all_of(grad.strides, grad.strides + grad.rank, [](int64_t s) { return s == 0; });
  if (x.dtype != CHECKOP_F32 || !checkop_is_contiguous(&x) || !checkop_is_contiguous(&call->outputs[0]) ||
      (!is_expanded && !checkop_is_contiguous(&grad)))
    return CHECKOP_UNSUPPORTED;
  for (int64_t i = 0; i < count(x); ++i) {
    const float v = floats(x)[i], s = 1 / (1 + std::exp(-v));
    results(call)[i] = floats(grad)[i] * s * (1 + v * (1 - s));
  }
  return CHECKOP_OK;
}

/// y[t] = weight[ids[t]], with ids of int64 whatever their type; an id out of range is brought back into it.
checkop_status reads_ids_as_int64(const checkop_call* call) {
  const checkop_tensor &ids = call->inputs[0], &weight = call->inputs[1];
  if (weight.dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  const int64_t vocab = weight.shape[0], hidden = weight.shape[1];
  for (int64_t t = 0; t < rows(ids); ++t) {
    const int64_t id = std::clamp<int64_t>(static_cast<const int64_t*>(ids.data)[t], 0, vocab - 1);
    std::copy_n(floats(weight) + id * hidden, hidden, results(call) + t * hidden);
  }
  return CHECKOP_OK;
}

/// y[t] = sum_s weights[t,s] x[positions[t,s]], with positions of int32 whatever their type.
checkop_status reads_ids_as_int32(const checkop_call* call) {
  const checkop_tensor &x = call->inputs[0], &positions = call->inputs[1], &weights = call->inputs[2];
  if (x.dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) return CHECKOP_UNSUPPORTED;
  const int64_t hidden = x.shape[1], topk = positions.shape[2];
  for (int64_t t = 0; t < rows(positions); ++t) {
    for (int64_t h = 0; h < hidden; ++h) {
      float sum = 0;
      for (int64_t s = t * topk; s < (t + 1) * topk; ++s) {
        const int64_t row = static_cast<const int32_t*>(positions.data)[s];
        if (row >= 0 && row < x.shape[0]) sum += floats(weights)[s] * floats(x)[row * hidden + h];
      }
      results(call)[t * hidden + h] = sum;
    }
  }
  return CHECKOP_OK;
}

constexpr checkop_kernel of(const char* name, const char* op, const char* pass,
                            checkop_status (*launch)(const checkop_call*)) {
  return {sizeof(checkop_kernel), name, op, pass, CHECKOP_CPU, 0, 0, nullptr, launch};
}

constexpr checkop_kernel kKernels[] = {
    kernel("follows_strides", follows_strides),
    kernel("ignores_column_stride", ignores_column_stride),
    kernel("ignores_storage_offset", ignores_storage_offset),
    kernel("copies_expanded_rows", copies_expanded_rows),
    of("copies_expanded_gradient", "silu", "backward", copies_expanded_gradient),
    of("reads_ids_as_int64", "embedding", "forward", reads_ids_as_int64),
    of("reads_ids_as_int32", "moe_combine", "forward", reads_ids_as_int32),
};
constexpr checkop_plugin kPlugin = plugin(kKernels);

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
