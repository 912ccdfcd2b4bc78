// SPDX-License-Identifier: Apache-2.0
// Positive control: a correct product of fp32 matrices that splits its sums by the number of rows, as libraries do.
// A check of batch invariance that does not catch it proves nothing.
#include <cstdint>
#include <cstdio>

#include "check_operator.h"

namespace {

checkop_status split_k_by_rows(const checkop_call* call) {
  const checkop_tensor &a = call->inputs[0], &b = call->inputs[1], &c = call->outputs[0];
  if (c.dtype != CHECKOP_F32 || !checkop_all_contiguous(call)) {
    std::snprintf(call->message, call->message_bytes, "only contiguous fp32 tensors are supported");
    return CHECKOP_UNSUPPORTED;
  }
  const int64_t m = c.shape[0] * c.shape[1], k = b.shape[0], n = b.shape[1], parts = m <= 16 ? 4 : m <= 48 ? 2 : 1;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float total = 0;
      for (int64_t part = 0; part < parts; ++part) {
        float sum = 0;
        for (int64_t l = part * k / parts; l < (part + 1) * k / parts; ++l) {
          sum += static_cast<const float*>(a.data)[i * k + l] * static_cast<const float*>(b.data)[l * n + j];
        }
        total += sum;
      }
      static_cast<float*>(c.data)[i * n + j] = total;
    }
  }
  return CHECKOP_OK;
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "split_k_by_rows", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, split_k_by_rows}};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, 1, kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
