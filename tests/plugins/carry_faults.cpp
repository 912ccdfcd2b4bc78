// SPDX-License-Identifier: Apache-2.0
// Correct gradients of linear_logp with carries, except that their bits depend on where the batch is cut.
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#define check_operator_plugin native_plugin
#include "linear_logp/native.cpp"
#undef check_operator_plugin

namespace {

/// Element `i`, in row-major order, of a tensor of rank 1 or 2.
float element(const checkop_tensor& t, int64_t i) {
  const int64_t columns = t.shape[t.rank - 1];
  const int64_t row = t.rank == 1 ? 0 : i / columns * t.strides[0];
  return static_cast<const float*>(t.data)[row + i % columns * t.strides[t.rank - 1]];
}

/// Launches the native candidate's backward pass with zero carries, then calls end(sum, carry) for each element of the
/// weight gradients.
template <class End>
checkop_status with_zero_carries(const checkop_call* call, const End& end) {
  std::vector<checkop_tensor> inputs(call->inputs, call->inputs + call->n_inputs);
  const float zero = 0;
  const std::array<int64_t, 2> expanded{};
  std::vector<int64_t> counts;
  for (const int32_t carry : {kWeightCarry, kBiasCarry}) {
    checkop_tensor& t = inputs[static_cast<size_t>(carry)];
    if (t.data == nullptr) continue;
    int64_t n = 1;
    for (int32_t d = 0; d < t.rank; ++d) n *= t.shape[d];
    counts.push_back(n);
    t.data = const_cast<float*>(&zero), t.strides = expanded.data();
  }
  checkop_call changed = *call;
  changed.inputs = inputs.data();
  const checkop_status status = native_plugin()->kernels[1].launch(&changed);
  if (status != CHECKOP_OK) return status;
  for (size_t i = 0; i < counts.size(); ++i) {
    auto* sums = static_cast<float*>(call->outputs[1 + i].data);
    const checkop_tensor& carry = call->inputs[static_cast<size_t>(kWeightCarry) + i];
    for (int64_t e = 0; e < counts[i]; ++e) sums[e] = end(sums[e], element(carry, e));
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
