// SPDX-License-Identifier: Apache-2.0
// The entropy of a row of logits, and its gradient, as kernels compute them; masked rows; the faults in all of it.
#pragma once

#include <array>
#include <cmath>
#include <vector>

#include "emulation/logit_transform.hpp"
#include "recipes.hpp"

namespace checkop::emulation {

inline constexpr FaultSpec kMeanLeftOut{"mean_left_out", "the mean distance from the maximum is not added"};
inline constexpr FaultSpec kInBits{"in_bits", "logarithms are to base 2"};
inline constexpr FaultSpec kMeanOfLogits{"mean_of_logits",
                                         "the mean is that of all logits alike, without their probabilities"};
inline constexpr FaultSpec kEntropyRounded{"entropy_rounded", "the entropy is rounded to bf16", "accuracy", "", "",
                                           recipe::kEntropy};
inline constexpr FaultSpec kLogSumForMean{"log_sum_for_mean", "the gradient has the log-sum-exp in place of the mean"};
inline constexpr FaultSpec kRowMaskIgnored{"mask_ignored", "masked rows count like the others", "nonfinite", "",
                                           "mask"};
inline constexpr FaultSpec kMaskedRowMultiplied{"masked_multiplied", "a masked row is computed, then multiplied by 0",
                                                "nonfinite", "", "mask"};

inline constexpr auto kRowFaults =
    joined(kSoftmaxFaults, std::array{kMeanLeftOut, kMeanOfLogits, kRowMaskIgnored, kMaskedRowMultiplied});
inline constexpr auto kEntropyFaults =
    joined(joined(kRowFaults, std::array{kInBits, kEntropyRounded}), kTransformFaults);
inline constexpr auto kEntropyGradientFaults =
    joined(joined(kRowFaults, std::array{kLogSumForMean}), kTransformGradientFaults);

/// How the emulated kernel treats a row: whether it skips the row, and the factor of the row's results, 0 with a fault.
class MaskedRows {
 public:
  MaskedRows(const EmulationArgs& args, int mask)
      : a_(args.arithmetic), mask_(args.has(mask) ? args.integers(mask) : std::vector<int64_t>()) {}

  bool skips(int64_t r) const {
    return is_masked(r) && !a_.has(kRowMaskIgnored.name) && !a_.has(kMaskedRowMultiplied.name);
  }
  float scale(int64_t r) const { return is_masked(r) && a_.has(kMaskedRowMultiplied.name) ? 0.0F : 1.0F; }

 private:
  bool is_masked(int64_t r) const { return !mask_.empty() && mask_[static_cast<size_t>(r)] == 0; }

  const Arithmetic& a_;
  std::vector<int64_t> mask_;
};

/// exp(-below) * below of a logit that is `below` the maximum; 0 for one of -inf.
inline float weighted(const Arithmetic& a, float below) {
  const float weight = a.exponential(-below);
  return weight == 0 ? 0 : weight * below;
}

/// sum_v p_v (max - z_v)
inline float mean_spread(const Arithmetic& a, const SoftmaxRow& softmax, const std::vector<float>& z) {
  const auto n = std::ssize(z);
  const auto below = [&](int64_t v) { return softmax.max - z[static_cast<size_t>(v)]; };
  if (a.has(kMeanLeftOut.name)) return 0;
  if (a.has(kMeanOfLogits.name)) return a.sum(n, below) / static_cast<float>(n);
  return a.sum(n, [&](int64_t v) { return weighted(a, below(v)); }) / softmax.sum;
}

inline bool rounds_terms(const Arithmetic& a) { return a.rounds(recipe::kLogp) || a.rounds(recipe::kTerms); }

/// A log-probability, its exponential and their product in a kernel that rounds intermediate values; 0 for a logit of
/// -inf.
struct EntropyTerm {
  float l = 0, e = 0, product = 0;

  EntropyTerm(const Arithmetic& a, const SoftmaxRow& softmax, float z) {
    if (z == -INFINITY) return;
    l = a.rounded_if(a.rounds(recipe::kLogp), softmax.logp(z));
    e = a.rounded_if(a.rounds(recipe::kTerms), a.exponential(l));
    product = a.rounded_if(a.rounds(recipe::kTerms), e * l);
  }
};

inline float entropy_of(const Arithmetic& a, const TransformedRow& row) {
  const auto n = std::ssize(row.z);
  const SoftmaxRow softmax = softmax_row(a, row.z.data(), n);
  const bool of_terms = rounds_terms(a) && !a.has(kMeanLeftOut.name) && !a.has(kMeanOfLogits.name);
  const auto term = [&](int64_t v) { return EntropyTerm(a, softmax, row.z[static_cast<size_t>(v)]).product; };
  float entropy = of_terms ? -a.sum(n, term) : std::log(softmax.sum) + mean_spread(a, softmax, row.z);
  if (a.has(kInBits.name)) entropy *= 1.44269504F;
  if (a.has(kEntropyRounded.name)) entropy = Arithmetic::to_bf16(entropy);
  return a.rounded_if(a.rounds(recipe::kEntropy), entropy);
}

/// The gradient by the transformed logits in a kernel that rounds on the way.
inline std::vector<float> rounded_entropy_gradient(const Arithmetic& a, const SoftmaxRow& softmax,
                                                   const std::vector<float>& z, float g) {
  const auto rounded = [&](float x) { return a.rounded_if(a.rounds(recipe::kTerms), x); };
  std::vector<float> d;
  for (const float each : z) {
    const EntropyTerm term(a, softmax, each);
    // A logarithm may be too large for fp16; times 0 that is NaN.
    d.push_back(term.e == 0 ? 0 : rounded(rounded(-g * term.e) + rounded(rounded(-g * term.l) * term.e)));
  }
  const float sum = a.sum(std::ssize(d), [&](int64_t v) { return d[static_cast<size_t>(v)]; });
  for (size_t v = 0; v < z.size(); ++v) {
    const EntropyTerm term(a, softmax, z[v]);
    d[v] -= (term.e == 0 ? 0 : a.exponential(term.l)) * sum;
  }
  return d;
}

/// g times the derivative of the entropy by each transformed logit.
inline std::vector<float> entropy_gradient(const Arithmetic& a, const TransformedRow& row, float g) {
  const SoftmaxRow softmax = softmax_row(a, row.z.data(), std::ssize(row.z));
  g = a.rounded_if(a.rounds(recipe::kUpstream), g);
  const bool other_mean = a.has(kLogSumForMean.name) || a.has(kMeanLeftOut.name) || a.has(kMeanOfLogits.name);
  if (rounds_terms(a) && !other_mean) return rounded_entropy_gradient(a, softmax, row.z, g);
  const float mean = a.has(kLogSumForMean.name) ? -std::log(softmax.sum) : mean_spread(a, softmax, row.z);
  std::vector<float> gradient;
  for (size_t v = 0; v < row.z.size(); ++v) {
    const float below = softmax.max - row.z[v], p = a.exponential(-below) / softmax.sum;
    gradient.push_back(p == 0 ? 0 : g * p * (below - mean));
  }
  return gradient;
}

}  // namespace checkop::emulation
