// SPDX-License-Identifier: Apache-2.0
// Correct gradients of linear_logp with carries, except that their bits depend on where the batch is cut.
#define check_operator_plugin native_plugin
#include "linear_logp/native.cpp"
#undef check_operator_plugin

namespace {

/// Launches the native candidate's backward pass with zero carries, then calls end(sum, carry) for each element of the
/// weight gradients.
template <class End>
checkop_status with_zero_carries(const checkop_call* call, const End& end) {
  std::vector<checkop_tensor> inputs(call->inputs, call->inputs + call->n_inputs);
  std::vector<std::vector<float>> zeros;
  for (const int32_t carry : {kWeightCarry, kBiasCarry}) {
    checkop_tensor& t = inputs[static_cast<size_t>(carry)];
    if (t.data == nullptr) continue;
    int64_t n = 1;
    for (int32_t d = 0; d < t.rank; ++d) n *= t.shape[d];
    zeros.emplace_back(static_cast<size_t>(n));
    t.data = zeros.back().data();
  }
  checkop_call changed = *call;
  changed.inputs = inputs.data();
  const checkop_status status = native_plugin()->kernels[1].launch(&changed);
  if (status != CHECKOP_OK) return status;
  for (size_t i = 0; i < zeros.size(); ++i) {
    auto* sums = static_cast<float*>(call->outputs[1 + i].data);
    const auto* carry = static_cast<const float*>(call->inputs[static_cast<size_t>(kWeightCarry) + i].data);
    for (size_t e = 0; e < zeros[i].size(); ++e) sums[e] = end(sums[e], carry[e]);
  }
  return CHECKOP_OK;
}

/// Adds the carry after the sum of a launch's rows: every element is within its bound, but each cut gives other bits.
checkop_status carry_added_last(const checkop_call* call) {
  return with_zero_carries(call, [](float sum, float carry) { return carry + sum; });
}

constexpr checkop_kernel kFaulty[] = {
    {sizeof(checkop_kernel), "carry_added_last", "linear_logp", "backward", CHECKOP_CPU, 0, 0, nullptr,
     carry_added_last},
};
constexpr checkop_plugin kFaultyPlugin{CHECKOP_ABI_VERSION, std::size(kFaulty), kFaulty};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kFaultyPlugin; }
