// SPDX-License-Identifier: Apache-2.0
// Emulates linear_logp as kernels compute it.
#include <array>

#include "emulation/ignored_rows.hpp"
#include "emulation/ranks.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kLogitsRounded{"logits_rounded", "the logits are rounded to bf16 before the softmax", "accuracy",
                                   "fp32 fp16"};  // in bf16 it is a recipe
constexpr FaultSpec kTargetWithoutBias{
    "target_without_bias", "the bias is in the softmax sum but not in the target's logit", "accuracy", "", "bias"};
constexpr FaultSpec kDlogitsRounded{"dlogits_rounded", "the gradient of the logits is rounded to bf16", "accuracy",
                                    "fp32 fp16"};  // in bf16 it is a recipe
constexpr FaultSpec kUpstreamShifted{"upstream_shifted", "a row is scaled by the upstream gradient of the next one"};
constexpr FaultSpec kIgnoredRowReachesWeight{
    "ignored_row_reaches_weight", "an ignored row's gradient is 0, and multiplied with its hidden state", "nonfinite"};

constexpr std::string_view kCarry = "dlm_head_weight_carry";
constexpr FaultSpec kCarryIgnored{"carry_ignored", "the sums of earlier calls are left out", "accuracy", "", kCarry};
constexpr FaultSpec kCarryTwice{"carry_twice", "the sums of earlier calls are added twice", "accuracy", "", kCarry};
constexpr FaultSpec kCarryRounded{"carry_rounded", "the sums of earlier calls are rounded to bf16", "accuracy", "",
                                  kCarry};
constexpr FaultSpec kCarriedSumRounded{
    "carried_sum_rounded", "the sums with those of earlier calls are rounded to bf16", "accuracy", "", kCarry};

struct Problem {
  Matrix hidden, weight, logits;
  std::vector<float> bias;  ///< empty where absent
  std::vector<TakenRow> rows;
};

/// Loads hidden, with zeros in skipped rows, and computes the logits.
Problem load(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  Problem p{factor(args, 0), factor(args, 1), {}, {}, {}};
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  for (const int64_t id : args.integers(2)) p.rows.push_back(take_row(a, id, ignore_index, p.weight.rows()));
  for (int64_t r = 0; r < p.hidden.rows(); ++r)
    if (p.rows[static_cast<size_t>(r)].skipped) std::fill_n(p.hidden.row(r), p.hidden.columns, 0.0F);
  p.logits = product(args, {p.hidden}, {p.weight, true});
  if (args.has(3) && !a.has(kBiasLeftOut.name)) p.bias = args.floats(3);
  const bool rounded = a.has(kLogitsRounded.name), rounds = a.rounds(recipe::kLogits);
  for (size_t i = 0; i < p.logits.values.size(); ++i) {
    float& z = p.logits.values[i];
    if (!p.bias.empty()) z += p.bias[i % p.bias.size()];
    z = rounded ? Arithmetic::to_bf16(z) : a.rounded_if(rounds, z);
  }
  return p;
}

void forward(const EmulationArgs& args) {
  const Problem p = load(args);
  const bool without_bias = !p.bias.empty() && args.arithmetic.has(kTargetWithoutBias.name);
  args.parallel_for(p.logits.rows(), [&](int64_t r) {
    const TakenRow& taken = p.rows[static_cast<size_t>(r)];
    if (taken.skipped) return;
    const float* z = p.logits.row(r);
    float target = target_of(args, z, column_of(args, taken.id));
    if (without_bias) target -= p.bias[static_cast<size_t>(taken.id)];
    const SoftmaxRow softmax = rank_softmax_row(args, z, p.logits.columns);
    const Arithmetic& a = args.arithmetic;
    args.out(0)[static_cast<size_t>(r)] = taken.scale * a.rounded_if(a.rounds(recipe::kLogp), softmax.logp(target));
  });
}

/// dz; 0 in skipped rows.
Matrix logit_gradients(const EmulationArgs& args, const Problem& p) {
  const std::vector<float> g = args.floats(4);
  const size_t shift = args.arithmetic.has(kUpstreamShifted.name) ? 1 : 0;
  const bool rounded = args.arithmetic.has(kDlogitsRounded.name), rounds = args.arithmetic.rounds(recipe::kDz);
  Matrix dz = Matrix::zeros(p.logits.rows(), p.logits.columns);
  args.parallel_for(dz.rows(), [&](int64_t r) {
    const TakenRow& taken = p.rows[static_cast<size_t>(r)];
    if (taken.skipped) return;
    std::vector<double> row(static_cast<size_t>(dz.columns));
    const float upstream = taken.scale * g[(static_cast<size_t>(r) + shift) % g.size()];
    logp_gradient_row(args.arithmetic, rank_softmax_row(args, p.logits.row(r), dz.columns), p.logits.row(r), dz.columns,
                      column_of(args, taken.id), upstream, row.data());
    std::transform(row.begin(), row.end(), dz.row(r), [&](double x) {
      const auto value = static_cast<float>(x);
      return rounded ? Arithmetic::to_bf16(value) : args.arithmetic.rounded_if(rounds, value);
    });
  });
  return dz;
}

/// dz, or with the fault kNotReduced one rank's part of it.
Matrix own_part(const EmulationArgs& args, Matrix dz) {
  if (args.bounds.size() < 3 || !args.arithmetic.has(kNotReduced.name)) return dz;
  for (int64_t r = 0; r < dz.rows(); ++r) std::fill(dz.row(r) + args.bounds[1], dz.row(r) + dz.columns, 0.0F);
  return dz;
}

/// Adds input `carry`, if present, to an output.
void carry_on(const EmulationArgs& args, int carry, std::vector<double>& gradient) {
  const Arithmetic& a = args.arithmetic;
  if (!args.has(carry) || a.has(kCarryIgnored.name)) return;
  const std::vector<float> carried = args.floats(carry);
  const bool twice = a.has(kCarryTwice.name);
  for (size_t i = 0; i < carried.size(); ++i) {
    const float c = a.has(kCarryRounded.name) ? Arithmetic::to_bf16(carried[i]) : carried[i];
    const float sum = c + static_cast<float>(gradient[i]) + (twice ? c : 0);
    gradient[i] = a.has(kCarriedSumRounded.name) ? Arithmetic::to_bf16(sum) : sum;
  }
}

void backward(const EmulationArgs& args) {
  const Problem p = load(args);
  const Matrix dz = logit_gradients(args, p);
  store(product(args, {own_part(args, dz)}, {p.weight}), args.out(0));
  const bool reaches_weight = args.arithmetic.has(kIgnoredRowReachesWeight.name);
  store(product(args, {dz, true}, {reaches_weight ? factor(args, 0) : p.hidden}), args.out(1));
  carry_on(args, 5, args.out(1));
  if (!args.has(3)) return;
  for (int64_t v = 0; v < dz.columns; ++v)
    args.out(2)[static_cast<size_t>(v)] = args.arithmetic.sum(dz.rows(), [&](int64_t r) { return dz.row(r)[v]; });
  carry_on(args, 6, args.out(2));
}

constexpr std::array kForwardFaults{faults::kLastKDropped,
                                    faults::kLastKTileDropped,
                                    faults::kLastTileSkipped,
                                    faults::kBf16Accumulator,
                                    faults::kBf16Partials,
                                    faults::kPartialLost,
                                    faults::kBf16Exponential,
                                    faults::kTf32Factors,
                                    kPaddedColumnCounted,
                                    kSumNotRescaled,
                                    kMaximumNotSubtracted,
                                    kMaximumOfFirstTile,
                                    kWrongLabel,
                                    kLogitsRounded,
                                    kBiasLeftOut,
                                    kTargetWithoutBias,
                                    kIgnoredRowCounted,
                                    kIgnoredAsIdZero,
                                    kIgnoredRowMultiplied};
constexpr std::array kBackwardFaults{faults::kLastKDropped,
                                     faults::kLastKTileDropped,
                                     faults::kLastTileSkipped,
                                     faults::kBf16Accumulator,
                                     faults::kBf16Partials,
                                     faults::kPartialLost,
                                     faults::kBf16Exponential,
                                     faults::kTf32Factors,
                                     kPaddedColumnCounted,
                                     kSumNotRescaled,
                                     kMaximumNotSubtracted,
                                     kMaximumOfFirstTile,
                                     kWrongLabel,
                                     kSoftmaxTermDropped,
                                     kSoftmaxSignFlipped,
                                     kLogitsRounded,
                                     kDlogitsRounded,
                                     kUpstreamShifted,
                                     kBiasLeftOut,
                                     kIgnoredRowCounted,
                                     kIgnoredAsIdZero,
                                     kIgnoredRowMultiplied,
                                     kIgnoredRowReachesWeight,
                                     kCarryIgnored,
                                     kCarryTwice,
                                     kCarryRounded,
                                     kCarriedSumRounded};

constexpr auto kTpForwardFaults =
    joined(kForwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kTargetTwice, kShardOffset});
constexpr auto kTpBackwardFaults =
    joined(kBackwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kShardOffset, kNotReduced});

}  // namespace

extern const Emulation kLinearLogpForward, kLinearLogpBackward, kTpLinearLogpForward, kTpLinearLogpBackward;
const Emulation kLinearLogpForward{forward, kForwardFaults};
const Emulation kLinearLogpBackward{backward, kBackwardFaults};
const Emulation kTpLinearLogpForward{forward, kTpForwardFaults};
const Emulation kTpLinearLogpBackward{backward, kTpBackwardFaults};

}  // namespace checkop
