// SPDX-License-Identifier: Apache-2.0
// Emulates linear_logp as kernels compute it.
#include <array>

#include "emulation/ignored_rows.hpp"
#include "emulation/linear_logits.hpp"
#include "emulation/logit_transform.hpp"
#include "emulation/ranks.hpp"
#include "recipes.hpp"

namespace checkop {
namespace linear_logp {
namespace {

using namespace emulation;

constexpr FaultSpec kTargetWithoutBias{
    "target_without_bias", "the bias is in the softmax sum but not in the target's logit", "accuracy", "", "bias"};
constexpr FaultSpec kUpstreamShifted{"upstream_shifted", "a row is scaled by the upstream gradient of the next one"};

constexpr std::string_view kCarry = "dlm_head_weight_carry";
constexpr FaultSpec kCarryIgnored{"carry_ignored", "the sums of earlier calls are left out", "accuracy", "", kCarry};
constexpr FaultSpec kCarryTwice{"carry_twice", "the sums of earlier calls are added twice", "accuracy", "", kCarry};
constexpr FaultSpec kCarryRounded{"carry_rounded", "the sums of earlier calls are rounded to bf16", "accuracy", "",
                                  kCarry};
constexpr FaultSpec kCarriedSumRounded{
    "carried_sum_rounded", "the sums with those of earlier calls are rounded to bf16", "accuracy", "", kCarry};

struct Problem {
  LinearProblem linear;
  std::vector<TakenRow> rows;
};

Problem load(const EmulationArgs& args) {
  Problem p;
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  for (const int64_t id : args.integers(2))
    p.rows.push_back(take_row(args.arithmetic, id, ignore_index, args.in(1).shape[0]));
  p.linear = load_linear(args, 3, [&](int64_t r) { return p.rows[static_cast<size_t>(r)].skipped; });
  return p;
}

void forward(const EmulationArgs& args) {
  const Problem p = load(args);
  const LogitTransform transform = LogitTransform::of(args);
  const Arithmetic& a = args.arithmetic;
  const std::vector<float>& bias = p.linear.bias;
  const bool without_bias = !bias.empty() && a.has(kTargetWithoutBias.name);
  args.parallel_for(p.linear.logits.rows(), [&](int64_t r) {
    const TakenRow& taken = p.rows[static_cast<size_t>(r)];
    if (taken.skipped) return;
    const float* x = p.linear.logits.row(r);
    const TransformedRow row(a, transform, x, p.linear.logits.columns);
    float target = target_of(args, row.z.data(), column_of(args, taken.id));
    if (without_bias) {
      const float lacking = x[taken.id] - bias[static_cast<size_t>(taken.id)];
      target = TransformedRow(a, transform, &lacking, 1).z[0];
    }
    const SoftmaxRow softmax = rank_softmax_row(args, row.z.data(), std::ssize(row.z));
    args.out(0)[static_cast<size_t>(r)] = taken.scale * a.rounded_if(a.rounds(recipe::kLogp), softmax.logp(target));
  });
}

/// The gradients of the logits; 0 in skipped rows.
Matrix logit_gradients(const EmulationArgs& args, const Problem& p) {
  const LogitTransform transform = LogitTransform::of(args);
  const std::vector<float> g = args.floats(4);
  const size_t shift = args.arithmetic.has(kUpstreamShifted.name) ? 1 : 0;
  const Matrix& logits = p.linear.logits;
  Matrix dx = Matrix::zeros(logits.rows(), logits.columns);
  args.parallel_for(dx.rows(), [&](int64_t r) {
    const TakenRow& taken = p.rows[static_cast<size_t>(r)];
    if (taken.skipped) return;
    std::vector<double> dz(static_cast<size_t>(dx.columns));
    const TransformedRow row(args.arithmetic, transform, logits.row(r), dx.columns);
    const float upstream = taken.scale * g[(static_cast<size_t>(r) + shift) % g.size()];
    logp_gradient_row(args.arithmetic, rank_softmax_row(args, row.z.data(), dx.columns), row.z.data(), dx.columns,
                      column_of(args, taken.id), upstream, dz.data());
    for (size_t v = 0; v < dz.size(); ++v)
      dx.row(r)[v] = as_factor(args.arithmetic, row.by_logit(args.arithmetic, static_cast<float>(dz[v]), v));
  });
  return dx;
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
  if (!args.has(carry) || gradient.empty() || a.has(kCarryIgnored.name)) return;
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
  const Matrix dx = logit_gradients(args, p);
  const int64_t chunk_rows = recipe::rows_of_chunk(dx.rows(), p.linear.hidden.columns, dx.columns);
  store_linear_gradients(args, p.linear, own_part(args, dx), dx, args.has(3), args.has(5) ? 0 : chunk_rows);
  carry_on(args, 5, args.out(1));
  if (args.has(3)) carry_on(args, 6, args.out(2));
}

constexpr auto kSharedForwardFaults =
    joined(joined(kLinearFaults, kSoftmaxFaults),
           std::array{kWrongLabel, kTargetWithoutBias, kIgnoredRowCounted, kIgnoredAsIdZero, kIgnoredRowMultiplied});
constexpr auto kSharedBackwardFaults = joined(
    joined(kLinearGradientFaults, kSoftmaxFaults),
    std::array{kWrongLabel, kSoftmaxTermDropped, kSoftmaxSignFlipped, kUpstreamShifted, kIgnoredRowCounted,
               kIgnoredAsIdZero, kIgnoredRowMultiplied, kCarryIgnored, kCarryTwice, kCarryRounded, kCarriedSumRounded});

constexpr auto kForwardFaults = joined(kSharedForwardFaults, kTransformFaults);
constexpr auto kBackwardFaults =
    joined(joined(kSharedBackwardFaults, kTransformGradientFaults), std::array{kWeightChunksRounded});
constexpr auto kTpForwardFaults =
    joined(kSharedForwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kTargetTwice, kShardOffset});
constexpr auto kTpBackwardFaults =
    joined(kSharedBackwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kShardOffset, kNotReduced});

}  // namespace
}  // namespace linear_logp

extern const Emulation kLinearLogpForward, kLinearLogpBackward, kTpLinearLogpForward, kTpLinearLogpBackward;
const Emulation kLinearLogpForward{linear_logp::forward, linear_logp::kForwardFaults};
const Emulation kLinearLogpBackward{linear_logp::backward, linear_logp::kBackwardFaults, /*skips_empty=*/true};
const Emulation kTpLinearLogpForward{linear_logp::forward, linear_logp::kTpForwardFaults};
const Emulation kTpLinearLogpBackward{linear_logp::backward, linear_logp::kTpBackwardFaults, /*skips_empty=*/true};

}  // namespace checkop
