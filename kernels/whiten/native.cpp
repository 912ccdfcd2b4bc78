// SPDX-License-Identifier: Apache-2.0
// whiten / native: CPU; mean and variance in two passes, relative to the first element kept.
//   y = (x - mean) / sqrt(var + eps), plus the mean without shift, over elements whose mask is not 0; masked, or fewer
//   than two elements: 0;  var is divided by n - 1 if unbiased
//   x, y: [batch, seq] fp32   mask: [batch, seq] uint8, optional   Limits: contiguous.
//   Expected error: sums are chains of 68 additions in blocks of 1024 terms, then a tree over blocks.
#include "cpu/native.hpp"

namespace {

using native::Extent;

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 2, 1);
    Extent batch{"batch"}, seq{"seq"};
    native::check_matrix(c.inputs[0], "x", CHECKOP_F32, batch, seq);
    native::check_matrix(c.outputs[0], "y", CHECKOP_F32, batch, seq);
    const auto* mask = static_cast<const uint8_t*>(c.inputs[1].data);
    if (mask != nullptr) native::check_matrix(c.inputs[1], "mask", CHECKOP_U8, batch, seq);
    const auto* x = static_cast<const float*>(c.inputs[0].data);
    auto* y = static_cast<float*>(c.outputs[0].data);
    const bool shift = native::attribute(c, "shift") != 0, unbiased = native::attribute(c, "unbiased") != 0;
    const float eps = native::attribute(c, "eps");
    std::vector<float> kept;
    const int64_t all = batch.value * seq.value;
    for (int64_t i = 0; i < all; ++i)
      if (mask == nullptr || mask[i] != 0) kept.push_back(x[i]);
    std::fill_n(y, all, 0.0f);
    if (kept.size() < 2) return;
    const auto n = static_cast<int64_t>(kept.size());
    const float first = kept[0], count = static_cast<float>(n);
    const auto off = [&](int64_t i) { return kept[static_cast<size_t>(i)] - first; };
    const float mean = native::blocked_sum(n, off) / count;
    const float squares = native::blocked_sum(n, [&](int64_t i) { return (off(i) - mean) * (off(i) - mean); });
    const float deviation = std::sqrt(squares / (unbiased ? count - 1 : count) + eps);
    for (int64_t i = 0; i < all; ++i)
      if (mask == nullptr || mask[i] != 0) y[i] = ((x[i] - first) - mean) / deviation + (shift ? 0 : first + mean);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "whiten", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
