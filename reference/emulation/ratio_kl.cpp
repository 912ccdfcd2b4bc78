// SPDX-License-Identifier: Apache-2.0
// Emulates ratio_kl as kernels compute it.
#include <array>

#include "emulation/policy.hpp"

namespace checkop {
namespace ratio_kl {
namespace {

using namespace emulation;

constexpr FaultSpec kMaskedRatioZero{"masked_ratio_zero", "the ratio of a masked token is 0 instead of 1"};
constexpr FaultSpec kLogRatio{"log_ratio", "the ratio is left as a difference of logarithms"};
constexpr FaultSpec kRatioTermDropped{"ratio_term_dropped", "the ratio has no gradient"};
constexpr FaultSpec kUpstreamsSwapped{"upstreams_swapped",
                                      "grad_ratio is taken for grad_kl, and grad_kl for grad_ratio"};

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const emulation::PolicyInputs in(args);
  const bool logarithm = a.has(kLogRatio.name), unmasked = a.has(kMaskIgnored.name);
  std::vector<double>&ratio = args.out(0), &kl = args.out(1);
  std::fill(ratio.begin(), ratio.end(), a.has(kMaskedRatioZero.name) ? 0.0 : 1.0);
  args.parallel_for(in.tokens(), [&](int64_t r) {
    const auto i = static_cast<size_t>(r);
    const Fate fate = fate_of(a, in.mask[i] != 0 || unmasked);
    if (fate == Fate::left_out) return;
    const PolicyToken token = policy_token(a, in, r);
    ratio[i] = logarithm ? token.log_ratio : token.ratio;
    kl[i] = token.kl;
    if (fate == Fate::multiplied) ratio[i] = 0 * ratio[i] + 1, kl[i] *= 0;
  });
}

/// c = g_ratio ratio + g_kl (1 - exp(d))
void backward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const emulation::PolicyInputs in(args);
  std::vector<float> of_ratio = args.floats(5), of_kl = args.floats(6);
  if (a.has(kUpstreamsSwapped.name)) of_ratio.swap(of_kl);
  const bool dropped = a.has(kRatioTermDropped.name), unmasked = a.has(kMaskIgnored.name);
  args.parallel_for(in.tokens(), [&](int64_t r) {
    const auto i = static_cast<size_t>(r);
    const Fate fate = fate_of(a, in.mask[i] != 0 || unmasked);
    if (fate == Fate::left_out) return;
    const PolicyToken token = policy_token(a, in, r);
    float c = policy_coefficient(a, token, dropped ? 0 : of_ratio[i] * token.ratio, of_kl[i]);
    if (fate == Fate::multiplied) c *= 0;
    policy_gradient_row(a, in, r, c, &args.out(0)[static_cast<size_t>(r * in.policy.columns)]);
  });
}

constexpr std::array kForwardFaults{faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    kPaddedColumnCounted,
                                    kMaximumNotSubtracted,
                                    kMaximumOfFirstTile,
                                    kTileOfInfinities,
                                    kWrongLabel,
                                    kMaskIgnored,
                                    kMaskedMultiplied,
                                    kMaskedRatioZero,
                                    kOldIgnored,
                                    kRefForOld,
                                    kRatioInverted,
                                    kLogRatio,
                                    kBf16Logps,
                                    kKlReversed,
                                    kKlLinear,
                                    kKlSquare};
constexpr std::array kBackwardFaults{faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kBf16Exponential,
                                     kPaddedColumnCounted,
                                     kMaximumNotSubtracted,
                                     kMaximumOfFirstTile,
                                     kTileOfInfinities,
                                     kWrongLabel,
                                     kSoftmaxTermDropped,
                                     kSoftmaxSignFlipped,
                                     kRefSoftmax,
                                     kMaskIgnored,
                                     kMaskedMultiplied,
                                     kOldIgnored,
                                     kRefForOld,
                                     kRatioInverted,
                                     kBf16Logps,
                                     kRatioTermDropped,
                                     kUpstreamsSwapped,
                                     kKlReversed,
                                     kKlLinear,
                                     kKlSquare,
                                     kKlTermDropped,
                                     kKlSignFlipped};

}  // namespace
}  // namespace ratio_kl

extern const Emulation kRatioKlForward, kRatioKlBackward;
const Emulation kRatioKlForward{ratio_kl::forward, ratio_kl::kForwardFaults};
const Emulation kRatioKlBackward{ratio_kl::backward, ratio_kl::kBackwardFaults};

}  // namespace checkop
