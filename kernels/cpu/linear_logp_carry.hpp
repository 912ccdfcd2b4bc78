// SPDX-License-Identifier: Apache-2.0
// The weight gradients of linear_logp in a call, and the sums of earlier calls (carries) that they may continue. For
// all candidates of linear_logp and tp_linear_logp.
#pragma once

#include "cpu/native.hpp"

namespace native::linear {

constexpr int32_t kForwardInputs = 4, kBackwardInputs = 7, kForwardOutputs = 1, kBackwardOutputs = 3;
constexpr int32_t kWeightCarry = 5, kBiasCarry = 6;  // inputs of the backward pass

/// Whether a call has carries; the weight gradients are then fp32.
inline bool is_carried(const checkop_call& c) {
  return c.n_inputs == kBackwardInputs && c.inputs[kWeightCarry].data != nullptr;
}

/// Checks the weight gradients and their carries. The numbers of tensors must have been checked.
inline void check_weight_gradients(const checkop_call& c, Extent& vocab, Extent& hidden) {
  const bool bias = c.inputs[3].data != nullptr, carried = is_carried(c);
  const int32_t dtype = carried ? static_cast<int32_t>(CHECKOP_F32) : c.inputs[0].dtype;
  if ((c.inputs[kBiasCarry].data != nullptr) != (carried && bias))
    throw Refusal(
        CHECKOP_FAILED,
        "dlm_head_weight_carry and dbias_carry: give both or neither with a bias, no dbias_carry without one");
  check_matrix(c.outputs[1], "dlm_head_weight", dtype, vocab, hidden);
  if (carried) check_matrix(c.inputs[kWeightCarry], "dlm_head_weight_carry", CHECKOP_F32, vocab, hidden);
  if (bias) check_list(c.outputs[2], "dbias", dtype, vocab);
  if (carried && bias) check_list(c.inputs[kBiasCarry], "dbias_carry", CHECKOP_F32, vocab);
}

}  // namespace native::linear
