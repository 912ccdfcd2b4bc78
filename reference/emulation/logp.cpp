// SPDX-License-Identifier: Apache-2.0
// Emulates logp as kernels compute it.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "emulation/ignored_rows.hpp"
#include "emulation/logit_transform.hpp"
#include "emulation/ranks.hpp"
#include "recipes.hpp"

namespace checkop {
namespace logp {
namespace {

using namespace emulation;

constexpr FaultSpec kLogpFloor{
    "logp_floor", "log-probabilities are at least -100, as those of binary_cross_entropy", "accuracy", "", "", "",
    "extreme"};

constexpr FaultSpec kTopKTiesKept{"top_k_ties_kept", "every logit that equals the last one of top_k stays"};
constexpr FaultSpec kTopKOneMore{"top_k_one_more", "top_k leaves one logit more"};
constexpr FaultSpec kTopKOneLess{"top_k_one_less", "top_k leaves one logit less"};
constexpr FaultSpec kTiesLastFirst{"ties_last_first", "of equal logits the last ones stay"};
constexpr FaultSpec kTopPBelow{"top_p_below", "the logit with which probabilities reach top_p does not stay"};
constexpr FaultSpec kTopPOfAll{"top_p_of_all", "probabilities of top_p are those of all logits, not of the top_k ones"};
constexpr FaultSpec kTopPUntempered{"top_p_untempered", "probabilities of top_p do not know the temperature"};
constexpr FaultSpec kSumOfAll{"sum_of_all", "the sum of exponentials counts logits that do not stay"};
constexpr FaultSpec kTargetAlwaysKept{"target_always_kept", "the id's logit stays though keep_target is 0"};
constexpr FaultSpec kTargetNotKept{"target_not_kept", "keep_target is ignored"};
constexpr FaultSpec kDroppedRowCounted{"dropped_row_counted",
                                       "a row whose id does not stay has the gradients of its other logits"};

/// Whether top_k or top_p leaves out logits. tp_logp has no such attributes.
bool truncates(const EmulationArgs& args) {
  return args.attrs.size() >= 6 && (args.attrs[3] != 0 || args.attrs[4] != 1);
}

/// Columns that stay, in ascending order; all of them without top_k and top_p.
std::vector<size_t> kept_columns(const EmulationArgs& args, const LogitTransform& transform, const float* x,
                                 const TransformedRow& row, int64_t target) {
  const Arithmetic& a = args.arithmetic;
  std::vector<size_t> order(row.z.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!truncates(args)) return order;
  if (std::any_of(row.z.begin(), row.z.end(), [](float z) { return std::isnan(z); })) return order;
  const bool reverses = a.has(kTiesLastFirst.name);
  std::sort(order.begin(), order.end(),
            [&](size_t i, size_t j) { return x[i] != x[j] ? x[i] > x[j] : (i < j) != reverses; });
  size_t count = order.size();
  if (args.attrs[3] > 0) {
    auto k = static_cast<size_t>(args.attrs[3]);
    if (a.has(kTopKOneMore.name)) ++k;
    if (a.has(kTopKOneLess.name) && k > 1) --k;
    count = std::min(count, k);
    while (a.has(kTopKTiesKept.name) && count < order.size() && x[order[count]] == x[order[count - 1]]) ++count;
  }
  const size_t of_sum = a.has(kTopPOfAll.name) ? order.size() : count;
  const float scale = a.has(kTopPUntempered.name) ? transform.temperature : 1;
  const auto term = [&](size_t i) { return std::exp((row.z[order[i]] - row.z[order[0]]) * scale); };
  float total = 0, sum = 0;
  for (size_t i = 0; i < of_sum; ++i) total += term(i);
  for (size_t i = 0; args.attrs[4] < 1 && i < count; ++i) {
    sum += term(i);
    if (sum < static_cast<float>(args.attrs[4]) * total) continue;
    count = a.has(kTopPBelow.name) ? std::max<size_t>(i, 1) : i + 1;
  }
  order.resize(count);
  const bool adds_target = (args.attrs[5] != 0 && !a.has(kTargetNotKept.name)) || a.has(kTargetAlwaysKept.name);
  const auto own = static_cast<size_t>(target);
  if (adds_target && target >= 0 && std::find(order.begin(), order.end(), own) == order.end()) order.push_back(own);
  std::sort(order.begin(), order.end());
  return order;
}

/// A row whose softmax is that of the columns that stay.
struct KeptRow {
  TransformedRow all;
  std::vector<size_t> columns;  ///< those that stay
  std::vector<float> z;         ///< of these, or with a fault those that are summed

  KeptRow(const EmulationArgs& args, const LogitTransform& transform, const float* x, TransformedRow row,
          int64_t target)
      : all(std::move(row)), columns(kept_columns(args, transform, x, all, target)) {
    for (const size_t v : columns) z.push_back(all.z[v]);
  }
  bool is_whole() const { return columns.size() == all.z.size(); }
  /// The place of column `id` among those that stay; -1: it does not.
  int64_t place(int64_t id) const {
    if (id < 0) return -1;
    const auto found = std::lower_bound(columns.begin(), columns.end(), static_cast<size_t>(id));
    return found != columns.end() && *found == static_cast<size_t>(id) ? found - columns.begin() : -1;
  }
  SoftmaxRow softmax(const EmulationArgs& args) const {
    const std::vector<float>& summed = args.arithmetic.has(kSumOfAll.name) ? all.z : z;
    return rank_softmax_row(args, summed.data(), std::ssize(summed));
  }
};

/// body(r, row, id, scale) for every row that is not left out.
template <class Body>
void for_each_row(const EmulationArgs& args, const Body& body) {
  LogitTransform transform = LogitTransform::of(args);
  transform.has_recipe = !truncates(args);
  const Matrix x = matrix(args, 0);
  const std::vector<int64_t> ids = args.integers(1);
  const auto ignore_index = static_cast<int64_t>(args.attrs[0]);
  args.parallel_for(x.rows(), [&](int64_t r) {
    const TakenRow taken = take_row(args.arithmetic, ids[static_cast<size_t>(r)], ignore_index, x.columns);
    if (taken.skipped) return;
    const int64_t id = column_of(args, taken.id);
    body(r, KeptRow(args, transform, x.row(r), TransformedRow(args.arithmetic, transform, x.row(r), x.columns), id), id,
         taken.scale);
  });
}

void forward(const EmulationArgs& args) {
  for_each_row(args, [&](int64_t r, const KeptRow& row, int64_t id, float scale) {
    float logp = -INFINITY;
    if (id < 0 || row.place(id) >= 0) logp = row.softmax(args).logp(target_of(args, row.all.z.data(), id));
    if (args.arithmetic.has(kLogpFloor.name)) logp = std::max(logp, -100.0F);
    args.out(0)[static_cast<size_t>(r)] =
        scale * args.arithmetic.rounded_if(args.arithmetic.rounds(recipe::kLogp), logp);
  });
}

void backward(const EmulationArgs& args) {
  const std::vector<float> g = args.floats(2);
  for_each_row(args, [&](int64_t r, const KeptRow& row, int64_t id, float scale) {
    const int64_t place = row.place(id);
    if (place < 0 && !row.is_whole() && !args.arithmetic.has(kDroppedRowCounted.name)) return;
    std::vector<double> dz(row.z.size());
    logp_gradient_row(args.arithmetic, row.softmax(args), row.z.data(), std::ssize(row.z), place,
                      scale * g[static_cast<size_t>(r)], dz.data());
    double* const to = &args.out(0)[static_cast<size_t>(r * std::ssize(row.all.z))];
    for (size_t i = 0; i < dz.size(); ++i) {
      const size_t v = row.columns[i];
      to[v] = row.all.by_logit(args.arithmetic, static_cast<float>(dz[i]), v);
    }
  });
}

constexpr std::array kSumFaults{kTopKTiesKept, kSumOfAll};
constexpr std::array kSetFaults{kTopKOneMore, kTopKOneLess,    kTiesLastFirst,    kTopPBelow,
                                kTopPOfAll,   kTopPUntempered, kTargetAlwaysKept, kTargetNotKept};
/// kSetFaults in the forward pass, where they turn a number into -inf, or -inf into a number.
constexpr auto kForwardSetFaults = [] {
  auto faults = kSetFaults;
  for (FaultSpec& fault : faults) fault.kind = "nonfinite";
  return faults;
}();

constexpr auto kSharedForwardFaults =
    joined(kSoftmaxFaults, std::array{kLogpFloor, kTileOfInfinities, kWrongLabel, kIgnoredRowCounted, kIgnoredAsIdZero,
                                      kIgnoredRowMultiplied});
constexpr auto kSharedBackwardFaults =
    joined(kSoftmaxFaults, std::array{kTileOfInfinities, kWrongLabel, kSoftmaxTermDropped, kSoftmaxSignFlipped,
                                      kIgnoredRowCounted, kIgnoredAsIdZero, kIgnoredRowMultiplied});

constexpr auto kForwardFaults =
    joined(joined(kSharedForwardFaults, kTransformFaults), joined(kSumFaults, kForwardSetFaults));
constexpr auto kBackwardFaults = joined(joined(kSharedBackwardFaults, kTransformGradientFaults),
                                        joined(joined(kSumFaults, kSetFaults), std::array{kDroppedRowCounted}));
constexpr auto kTpForwardFaults =
    joined(kSharedForwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kTargetTwice, kShardOffset});
constexpr auto kTpBackwardFaults =
    joined(kSharedBackwardFaults, std::array{kRankLost, kRankTwice, kLocalMax, kShardOffset});

}  // namespace
}  // namespace logp

extern const Emulation kLogpForward, kLogpBackward, kTpLogpForward, kTpLogpBackward;
const Emulation kLogpForward{logp::forward, logp::kForwardFaults};
const Emulation kLogpBackward{logp::backward, logp::kBackwardFaults};
const Emulation kTpLogpForward{logp::forward, logp::kTpForwardFaults};
const Emulation kTpLogpBackward{logp::backward, logp::kTpBackwardFaults};

}  // namespace checkop
