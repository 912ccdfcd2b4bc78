// SPDX-License-Identifier: Apache-2.0
// Emulates policy_loss as kernels compute it.
#include "emulation/policy_loss.hpp"

namespace checkop {
namespace policy_loss {
namespace {

using namespace emulation;

emulation::PolicyTokens tokens_of(const EmulationArgs& args) {
  const auto read = [&](int index) { return args.has(index) ? args.floats(index) : std::vector<float>(); };
  return {args.arithmetic,
          args.attrs,
          {read(0), read(1), read(2), args.integers(3), read(4), read(5), read(6), read(7), args.in(0).shape.back()}};
}

void forward(const EmulationArgs& args) {
  const emulation::PolicyTokens tokens = tokens_of(args);
  const std::vector<LossToken> all = tokens.all();
  float active = 0;
  for (int64_t i = 0; i < tokens.count(); ++i) active += tokens.is_active(i) ? 1 : 0;
  args.out(0)[0] = tokens.mean_of(all, [&](const LossToken& t, int64_t i) { return tokens.loss(t, i); });
  args.out(1)[0] = tokens.mean_of(all, [](const LossToken& t, int64_t) { return t.loss; });
  if (args.has(4)) args.out(2)[0] = tokens.mean_of(all, [](const LossToken& t, int64_t) { return t.kl; });
  args.out(3)[0] = args.arithmetic.sum(tokens.count(), [&](int64_t i) {
    return all[static_cast<size_t>(i)].clipped ? 1.0F : 0.0F;
  }) / std::max(active, 1.0F);
}

void backward(const EmulationArgs& args) {
  const emulation::PolicyTokens tokens = tokens_of(args);
  const float g = args.floats(8)[0];
  for (int64_t i = 0; i < tokens.count(); ++i) {
    if (!tokens.takes(i)) continue;
    args.out(0)[static_cast<size_t>(i)] = tokens.by_logp(i, g);
    if (args.has(6)) args.out(1)[static_cast<size_t>(i)] = tokens.by_entropy(i, g);
  }
}

constexpr auto kForwardFaults =
    joined(std::array{faults::kLastTileSkipped, faults::kBf16Accumulator, faults::kBf16Partials, faults::kPartialLost,
                      faults::kBf16Exponential, kTokenRounded},
           kPolicyFaults);
constexpr auto kBackwardFaults = joined(std::array{faults::kBf16Exponential}, kPolicyGradientFaults);

}  // namespace
}  // namespace policy_loss

extern const Emulation kPolicyLossForward, kPolicyLossBackward;
const Emulation kPolicyLossForward{policy_loss::forward, policy_loss::kForwardFaults};
const Emulation kPolicyLossBackward{policy_loss::backward, policy_loss::kBackwardFaults};

}  // namespace checkop
