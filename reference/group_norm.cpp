// SPDX-License-Identifier: Apache-2.0
// group_norm: the rewards of a group of completions as advantages, relative to their mean and deviation.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.hpp"
#include "groups.hpp"
#include "operator/operator.hpp"
#include "rearranged.hpp"

namespace checkop {

extern const Emulation kGroupNormForward;  // emulation/group_norm.cpp

namespace group_norm {
namespace {

constexpr TensorSpec kRewards{"rewards", "batch", Fill::normal, "", DType::f32, false, true};
constexpr TensorSpec kBoundaries{"group_boundaries", "group_bounds", Fill::positions, "", DType::i64, true};
constexpr int kOfRewards = 0, kOfBoundaries = 1;

constexpr std::array kForwardIn{kRewards, kBoundaries};
constexpr std::array kForwardOut{
    OutputSpec{{"advantages", "batch", Fill::normal, "", DType::f32}, Numerics::reduction, "batch"}};

enum Attr : size_t { kSamplesPerPrompt, kOfScale, kOfUnbiased, kOfEps, kOfLeaveOneOut, kOfSingleton };
constexpr std::array kAttrs{
    AttrSpec{"samples_per_prompt", 2, "completions per group, at least 2; has no effect with group_boundaries"},
    AttrSpec{"scale", 1, "1: divides by the deviation; 0: does not"},
    AttrSpec{"unbiased", 1, "1: the variance of n rewards is divided by n - 1; 0: by n"},
    AttrSpec{"eps", 1e-6, "is added to the deviation"},
    AttrSpec{"leave_one_out", 0, "1: mean and deviation of a reward are those of the others of its group"},
    AttrSpec{"singleton", 0, "the advantage of a group of one: 0: 0; 1: its reward"},
};

/// The advantage of reward x by the moments of its set. A set of equal rewards has no deviation to divide by.
GoldElement advantage(const GoldArgs& args, const Moments& set, double x) {
  if (set.equal && x == set.first) return {0, 0, 0};
  if (args.attrs[kOfScale] == 0 || set.equal) {
    GoldElement e = set.centred(x);
    if (set.equal) e.magnitude = 0;  // the mean of equal rewards is one of them
    return e;
  }
  const double deviation = std::sqrt(set.variance);
  return set.standardised(x, deviation + args.attrs[kOfEps], 0.5);
}

/// Gold of group_norm.
///   in:  rewards[batch], group_boundaries[group_bounds] optional: where groups begin, then the batch
///   out: advantages[batch] = (r - mean)/(std + eps), mean and std of the rewards of the same group, or with
///        leave_one_out of its other rewards;  r - mean if scale is 0
///        if these rewards are bit-equal: r - mean, so exactly 0 for a reward that equals them
///        for a group of one: 0, or r if singleton is 1
/// Throws InputError for boundaries that do not partition the batch.
/// Source: GRPO, arXiv 2402.03300; RLOO, arXiv 2402.14740, is leave_one_out without scale.
void forward(const GoldArgs& args) {
  const Tensor& rewards = args.in(kOfRewards);
  const bool unbiased = args.attrs[kOfUnbiased] != 0, leaves_out = args.attrs[kOfLeaveOneOut] != 0;
  const std::vector<int64_t> bounds =
      read_groups(args.inputs[kOfBoundaries], rewards.count(), args.attrs[kSamplesPerPrompt]);
  args.parallel_for(std::ssize(bounds) - 1, [&](int64_t group) {
    const int64_t begin = bounds[static_cast<size_t>(group)], end = bounds[static_cast<size_t>(group) + 1];
    Moments of_all;
    for (int64_t i = begin; i < end; ++i) of_all.add(rewards.at(i));
    of_all.finish(unbiased);
    for (int64_t i = begin; i < end; ++i) {
      const double x = rewards.at(i);
      GoldElement e{args.attrs[kOfSingleton] != 0 ? x : 0, 0, 0};
      if (end - begin > 1 && !leaves_out) e = advantage(args, of_all, x);
      if (end - begin > 1 && leaves_out) {
        Moments others;
        for (int64_t j = begin; j < end; ++j)
          if (j != i) others.add(rewards.at(j));
        others.finish(unbiased);
        e = advantage(args, others, x);
      }
      args.sink({0, i, 1, 1, &e.value, &e.magnitude, &e.rounding});
    }
  });
}

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, nullptr, &kGroupNormForward}};

void validate(const CaseSizes& sizes) {
  validate_groups(sizes, sizes.attrs[kSamplesPerPrompt]);
  for (const auto& [attr, flag] :
       {std::pair{kOfScale, "--scale"}, std::pair{kOfUnbiased, "--unbiased"},
        std::pair{kOfLeaveOneOut, "--leave-one-out"}, std::pair{kOfSingleton, "--singleton"}}) {
    if (sizes.attrs[attr] == 0 || sizes.attrs[attr] == 1) continue;
    throw InputError(flag, fmt::format("expected 0 or 1, got {}", sizes.attrs[attr]), "1: yes, 0: no");
  }
  if (!(sizes.attrs[kOfEps] > 0) || !std::isfinite(sizes.attrs[kOfEps])) {
    throw InputError("--eps", fmt::format("expected a number above 0, got {}", sizes.attrs[kOfEps]), "1e-6 is usual");
  }
}

/// Of every four groups, one has only rewards of 0.95, and one has them except for one reward, seldom the first or the
/// last. Sums of 0.95 are not exact, so the deviation of equal rewards is 0 only in a kernel that subtracts one of them
/// first.
void refine(const FillArgs& args) {
  constexpr double kUsual = 0.95;
  Tensor& rewards = *args.find("rewards");
  plant_boundaries(args, rewards.count());
  if (args.mode != InputMode::random) return;
  const std::vector<int64_t> bounds =
      read_groups(args.find("group_boundaries"), rewards.count(), args.attrs[kSamplesPerPrompt]);
  for (size_t group = 0; group + 1 < bounds.size(); ++group) {
    const int64_t size = bounds[group + 1] - bounds[group];
    const int64_t other = bounds[group] + (static_cast<int64_t>(group) / 4 + 1) % size;
    for (int64_t i = bounds[group]; i < bounds[group + 1]; ++i) {
      if (group % 4 == 1) rewards.set(i, kUsual);
      if (group % 4 == 2) rewards.set(i, i == other ? 0 : kUsual);
    }
  }
}

/// The groups among others, or in another order. Groups of a fixed size can't be longer.
template <Documents change>
std::optional<Rearranged> among_others(const RearrangeArgs& args) {
  const Tensor &rewards = args.in(kOfRewards), *const boundaries = args.inputs[kOfBoundaries];
  if (boundaries == nullptr && change == Documents::longer) return {};
  const SequenceBounds bounds = read_groups(boundaries, rewards.count(), args.attrs[kSamplesPerPrompt]);
  Packing packing = repack(bounds, rewards.count(), change, others_of(bounds));
  if (packing.from.empty() || !is_changed(packing, bounds)) return {};
  Rearranged other;
  other.inputs.resize(args.inputs.size());
  other.inputs[kOfRewards] = with_rows(rewards, packing.from);
  other.dims = {{"batch", std::ssize(packing.from)}};
  if (boundaries != nullptr) {
    other.dims["group_bounds"] = std::ssize(packing.bounds);
    other.inputs[kOfBoundaries] = of_integers(*boundaries, {std::ssize(packing.bounds)}, packing.bounds);
  }
  other.rows = {{"batch", std::move(packing.rows)}};
  return other;
}

constexpr std::array kRearrangements{
    Rearrangement{"documents", "the groups in reverse", "batch", 2, among_others<Documents::reversed>},
    Rearrangement{"documents", "without every second group", "batch", 2, among_others<Documents::removed>},
    Rearrangement{"documents", "every second group in reverse", "batch", 2, among_others<Documents::replaced>},
    Rearrangement{"documents", "every second group twice as long", "batch", 2, among_others<Documents::longer>},
};

}  // namespace
}  // namespace group_norm

extern const Operator kGroupNorm;
constexpr Operator kGroupNorm{"group_norm",
                              "reduction",
                              "advantages = (r - mean)/(std + eps) of the rewards r of each group; equal ones: 0",
                              "",
                              group_norm::kAttrs,
                              group_norm::kPasses,
                              group_norm::validate,
                              group_norm::refine,
                              /*parallel_dim=*/"",
                              /*left_out=*/"",
                              group_norm::kRearrangements};

}  // namespace checkop
