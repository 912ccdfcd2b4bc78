// SPDX-License-Identifier: Apache-2.0
// Emulates logp as kernels compute it.
#include <algorithm>
#include <array>

#include "emulation/ignored_rows.hpp"
#include "emulation/logit_transform.hpp"
#include "emulation/ranks.hpp"
#include "recipes.hpp"

namespace checkop {
namespace {

using namespace emulation;

constexpr FaultSpec kLogpFloor{
    "logp_floor", "log-probabilities are at least -100, as those of binary_cross_entropy", "accuracy", "", "", "",
    "extreme"};

/// body(r, row, id, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const Body& body) {
  const LogitTransform transform = LogitTransform::of(args);
  const Matrix x = matrix(args, 0);
  const std::vector<int64_t> ids = args.integers(1);
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  args.parallel_for(x.rows(), [&](int64_t r) {
    const TakenRow taken = take_row(args.arithmetic, ids[static_cast<size_t>(r)], ignore_index, x.columns);
    if (taken.skipped) return;
    body(r, TransformedRow(args.arithmetic, transform, x.row(r), x.columns), column_of(args, taken.id), taken.scale);
  });
}

void forward(const EmulationArgs& args) {
  for_each_row(args, [&](int64_t r, const TransformedRow& row, int64_t id, float scale) {
    const SoftmaxRow softmax = rank_softmax_row(args, row.z.data(), std::ssize(row.z));
    float logp = softmax.logp(target_of(args, row.z.data(), id));
    if (args.arithmetic.has(kLogpFloor.name)) logp = std::max(logp, -100.0F);
    args.out(0)[static_cast<size_t>(r)] =
        scale * args.arithmetic.rounded_if(args.arithmetic.rounds(recipe::kLogp), logp);
  });
}

void backward(const EmulationArgs& args) {
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](int64_t r, const TransformedRow& row, int64_t id, float scale) {
    const int64_t vocab = std::ssize(row.z);
    double* const to = &args.out(0)[static_cast<size_t>(r * vocab)];
    logp_gradient_row(args.arithmetic, rank_softmax_row(args, row.z.data(), vocab), row.z.data(), vocab, id,
                      scale * g[static_cast<size_t>(r)], to);
    for (int64_t v = 0; v < vocab; ++v)
      to[v] = row.by_logit(args.arithmetic, static_cast<float>(to[v]), static_cast<size_t>(v));
  });
}

constexpr auto kSharedForwardFaults =
    joined(kSoftmaxFaults, std::array{kLogpFloor, kTileOfInfinities, kWrongLabel, kIgnoredRowCounted, kIgnoredAsIdZero,
                                      kIgnoredRowMultiplied});
constexpr auto kSharedBackwardFaults =
    joined(kSoftmaxFaults, std::array{kTileOfInfinities, kWrongLabel, kSoftmaxTermDropped, kSoftmaxSignFlipped,
                                      kIgnoredRowCounted, kIgnoredAsIdZero, kIgnoredRowMultiplied});

constexpr auto kForwardFaults = joined(kSharedForwardFaults, kTransformFaults);
constexpr auto kBackwardFaults = joined(kSharedBackwardFaults, kTransformGradientFaults);
constexpr auto kTpForwardFaults =
    joined(kSharedForwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kTargetTwice, kShardOffset});
constexpr auto kTpBackwardFaults =
    joined(kSharedBackwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kShardOffset});

}  // namespace

extern const Emulation kLogpForward, kLogpBackward, kTpLogpForward, kTpLogpBackward;
const Emulation kLogpForward{forward, kForwardFaults};
const Emulation kLogpBackward{backward, kBackwardFaults};
const Emulation kTpLogpForward{forward, kTpForwardFaults};
const Emulation kTpLogpBackward{backward, kTpBackwardFaults};

}  // namespace checkop
