// SPDX-License-Identifier: Apache-2.0
// The gradients of linear_logp's weights in a call, and the sums of earlier calls that they may carry on. For every
// candidate of linear_logp and tp_linear_logp.
#pragma once

#include "cpu/native.hpp"

namespace native::linear {

constexpr int32_t kForwardInputs = 4, kBackwardInputs = 7, kForwardOutputs = 1, kBackwardOutputs = 3;
constexpr int32_t kWeightCarry = 5, kBiasCarry = 6;  // inputs of the backward pass

/// Whether a call brings carries; the gradients of weights are fp32 then.
inline bool is_carried(const checkop_call& c) {
  return c.n_inputs == kBackwardInputs && c.inputs[kWeightCarry].data != nullptr;
}

/// Checks the gradients of weights and their carries, of a call with right numbers of tensors.
inline void check_weight_gradients(const checkop_call& c, Extent& vocab, Extent& hidden) {
  const bool bias = c.inputs[3].data != nullptr, carried = is_carried(c);
  const int32_t dtype = carried ? static_cast<int32_t>(CHECKOP_F32) : c.inputs[0].dtype;
  if ((c.inputs[kBiasCarry].data != nullptr) != (carried && bias))
    throw Refusal(CHECKOP_FAILED, "all gradients of weights are carried or none");
  check_matrix(c.outputs[1], "dlm_head_weight", dtype, vocab, hidden);
  if (carried) check_matrix(c.inputs[kWeightCarry], "dlm_head_weight_carry", CHECKOP_F32, vocab, hidden);
  if (bias) check_list(c.outputs[2], "dbias", dtype, vocab);
  if (carried && bias) check_list(c.inputs[kBiasCarry], "dbias_carry", CHECKOP_F32, vocab);
}

}  // namespace native::linear
