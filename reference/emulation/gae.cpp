// SPDX-License-Identifier: Apache-2.0
// Emulates gae as kernels compute it: every advantage as a sum over later tokens.
#include <array>
#include <cmath>

#include "emulation/common.hpp"

namespace checkop {
namespace gae {
namespace {

using namespace emulation;

constexpr FaultSpec kMaskIgnored{"mask_ignored", "masked tokens count like the others", "nonfinite"};
constexpr FaultSpec kMaskedMultiplied{"masked_multiplied", "what a masked token adds is multiplied by 0", "nonfinite"};
constexpr FaultSpec kMaskedBootstraps{"masked_bootstraps", "the next value is that of the next token, masked or not",
                                      "nonfinite"};
constexpr FaultSpec kDecayOverMasked{"decay_over_masked", "the discount counts masked tokens too"};
constexpr FaultSpec kLastRewardMoved{"last_reward_moved", "the reward of the last token counts though it is masked",
                                     "nonfinite"};
constexpr FaultSpec kGammaLeftOut{"gamma_left_out", "the next value is not discounted"};
constexpr FaultSpec kLambdaLeftOut{"lambda_left_out", "later errors are discounted by gamma alone"};
constexpr FaultSpec kGammaNotInDecay{"gamma_not_in_decay", "later errors are discounted by lambda alone"};
constexpr FaultSpec kOneStep{"one_step", "advantages are the errors of value, without later ones"};
constexpr FaultSpec kLastValueIgnored{"last_value_ignored", "sequences end with the value 0", "accuracy", "",
                                      "last_values"};
constexpr FaultSpec kLastValueAtEnd{"last_value_at_end", "last_values count only where the last token is unmasked",
                                    "accuracy", "", "last_values"};
constexpr FaultSpec kSequencesJoined{"sequences_joined", "a sequence goes on with the first value of the next",
                                     "nonfinite"};
constexpr FaultSpec kReturnsWithoutValues{"returns_without_values", "returns are advantages"};
constexpr FaultSpec kReturnsMinusValues{"returns_minus_values", "values are subtracted from returns"};

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<float> rewards = args.floats(0), values = args.floats(1);
  const std::vector<int64_t> mask = args.integers(2);
  const std::vector<float> last = args.has(3) ? args.floats(3) : std::vector<float>();
  const int64_t seq = args.in(2).shape.back(), batch = std::ssize(mask) / seq;
  const auto gamma = static_cast<float>(args.attrs[0]), lambda = static_cast<float>(args.attrs[1]);
  const float decay = a.has(kLambdaLeftOut.name) ? gamma : a.has(kGammaNotInDecay.name) ? lambda : gamma * lambda;
  args.parallel_for(batch, [&](int64_t b) {
    const auto base = static_cast<size_t>(b * seq);
    std::vector<size_t> tokens;
    std::vector<float> factors;
    for (int64_t t = 0; t < seq; ++t) {
      const bool kept = mask[base + static_cast<size_t>(t)] != 0;
      const bool stays =
          a.has(kMaskIgnored.name) || a.has(kMaskedMultiplied.name) || (a.has(kLastRewardMoved.name) && t == seq - 1);
      if (!kept && !stays) continue;
      tokens.push_back(base + static_cast<size_t>(t));
      factors.push_back(kept || !a.has(kMaskedMultiplied.name) ? 1.0F : 0.0F);
    }
    float end = last.empty() || a.has(kLastValueIgnored.name) ? 0 : last[static_cast<size_t>(b)];
    if (a.has(kLastValueAtEnd.name) && mask[base + static_cast<size_t>(seq) - 1] == 0) end = 0;
    if (a.has(kSequencesJoined.name) && b + 1 < batch) end = values[base + static_cast<size_t>(seq)];
    std::vector<float> errors;
    for (size_t i = 0; i < tokens.size(); ++i) {
      float next = i + 1 < tokens.size() ? values[tokens[i + 1]] : end;
      if (a.has(kMaskedBootstraps.name) && tokens[i] + 1 < base + static_cast<size_t>(seq))
        next = values[tokens[i] + 1];
      if (!a.has(kGammaLeftOut.name)) next *= gamma;
      errors.push_back(factors[i] * (rewards[tokens[i]] + next - values[tokens[i]]));
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto later = a.has(kOneStep.name) ? 1 : std::ssize(tokens) - static_cast<int64_t>(i);
      const float advantage = a.sum(later, [&](int64_t k) {
        const size_t j = i + static_cast<size_t>(k);
        const auto steps = a.has(kDecayOverMasked.name) ? tokens[j] - tokens[i] : static_cast<size_t>(k);
        return std::pow(decay, static_cast<float>(steps)) * errors[j];
      });
      const float value = values[tokens[i]];
      if (mask[tokens[i]] == 0) continue;
      args.out(0)[tokens[i]] = advantage;
      args.out(1)[tokens[i]] = a.has(kReturnsWithoutValues.name) ? advantage
                               : a.has(kReturnsMinusValues.name) ? advantage - value
                                                                 : advantage + value;
    }
  });
}

constexpr std::array kFaults{faults::kLastTileSkipped,
                             faults::kBf16Accumulator,
                             faults::kBf16Partials,
                             faults::kPartialLost,
                             kMaskIgnored,
                             kMaskedMultiplied,
                             kMaskedBootstraps,
                             kDecayOverMasked,
                             kLastRewardMoved,
                             kGammaLeftOut,
                             kLambdaLeftOut,
                             kGammaNotInDecay,
                             kOneStep,
                             kLastValueIgnored,
                             kLastValueAtEnd,
                             kSequencesJoined,
                             kReturnsWithoutValues,
                             kReturnsMinusValues};

}  // namespace
}  // namespace gae

extern const Emulation kGaeForward;
const Emulation kGaeForward{gae::forward, gae::kFaults};

}  // namespace checkop
