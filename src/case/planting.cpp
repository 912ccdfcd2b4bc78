// SPDX-License-Identifier: Apache-2.0
// Plants targets of given odds, logits of twelve kinds, and queries whose products are of seven kinds.
#include "case/planting.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/parallel.hpp"
#include "base/random.hpp"

namespace checkop {
namespace {

constexpr int64_t kRowsOfATask = 16;
constexpr double kPeakedFraction = 0.7;
/// Odds of the target in mode peaked: p / (1 - p) of the probabilities 0.5, 0.9, 0.999 and 1 - 1e-6.
constexpr double kOdds[] = {1, 9, 999, 999999};
/// In FP32 exp(kFar) overflows and exp(-kFar) is 0.
constexpr double kFar = 120;

/// Index of the first present input that satisfies `wanted`, or nullopt.
template <typename Wanted>
std::optional<size_t> find_input(const Case& c, const Wanted& wanted) {
  for (size_t i = 0; i < c.pass->inputs.size(); ++i) {
    if (is_present(c, c.pass->inputs[i]) && wanted(c.pass->inputs[i])) return i;
  }
  return std::nullopt;
}

std::optional<size_t> find_fill(const Case& c, Fill fill) {
  return find_input(c, [fill](const TensorSpec& spec) { return spec.fill == fill; });
}

std::optional<size_t> find_bias(const Case& c, std::string_view vocab) {
  return find_input(c, [&](const TensorSpec& spec) { return spec.fill == Fill::normal && spec.dims == vocab; });
}

/// Adds alpha * w to row `row` of `hidden`, where w is row `id` of `weight` with 0 before column `from`. alpha is
/// chosen so that the row's product with row `id` is `target`. Sums run from the first column to the last.
void align_hidden(int64_t row, const Tensor& weight, int64_t id, double target, size_t from, Tensor& hidden) {
  const auto columns = static_cast<size_t>(weight.shape.back());
  std::vector<double> w(columns), h(columns);
  decode_row(weight, id, w);
  decode_row(hidden, row, h);
  double square = 0.0, product = 0.0;
  for (size_t i = 0; i < columns; ++i) {
    product += h[i] * w[i];
    if (i >= from) square += w[i] * w[i];
  }
  if (square == 0.0) return;
  for (size_t i = from; i < columns; ++i) h[i] += (target - product) / square * w[i];
  encode_row(hidden, row, h);
}

}  // namespace

int64_t fan_in_of(const Case& c, const TensorSpec& spec) {
  const auto found = c.dims.find(spec.fan_in);
  if (found == c.dims.end() || found->second < 1) {
    throw std::out_of_range("'" + std::string(spec.name) + "' needs a size '" + std::string(spec.fan_in) + "'");
  }
  return found->second;
}

// The other V - 1 logits are near N(0, s), and their exponentials sum to about (V - 1) exp(s / 2). So a target logit of
// A + s / 2 with A = log(odds (V - 1)) has these odds. If logits are an input (s = 1), the target's logit is set. If
// logits are hidden * weight^T + bias, the hidden row is turned towards the target's weight row (align_hidden). Then
// s = 1 + A^2 / H, because the alignment changes the other logits too, plus 1 for a bias, whose value at the target is
// subtracted. This holds for H well above A^2.
void plant_targets(const Case& c, unsigned threads, std::vector<Tensor>& tensors) {
  const auto specs = c.pass->inputs;
  const auto ids_at = find_fill(c, Fill::ids), weight_at = find_fill(c, Fill::weight);
  if (!ids_at) return;
  const TensorSpec& ids_spec = specs[*ids_at];
  const int64_t vocab = fan_in_of(c, ids_spec);
  if (vocab < 2) return;
  const auto logits_at = find_fill(c, Fill::logits), hidden_at = find_fill(c, Fill::query),
             bias_at = find_bias(c, ids_spec.fan_in);
  if (!logits_at && !(weight_at && hidden_at)) return;

  const Stream chosen = Stream::derive(c.seed, c.op->name, std::string(ids_spec.name) + " peaked");
  const Tensor& ids = tensors[*ids_at];
  const size_t id_bytes = info(ids.dtype).bytes;
  parallel_for(threads, (ids.count() + kRowsOfATask - 1) / kRowsOfATask, [&](int64_t task) {
    const int64_t end = std::min((task + 1) * kRowsOfATask, ids.count());
    for (int64_t row = task * kRowsOfATask; row < end; ++row) {
      if (!(chosen.uniform(static_cast<uint64_t>(row)) < kPeakedFraction)) continue;
      const double level = natural_log(kOdds[row % std::ssize(kOdds)] * static_cast<double>(vocab - 1));
      int64_t id;
      decode_int(ids.dtype, ids.bytes.data() + static_cast<size_t>(row) * id_bytes, &id, 1);
      if (logits_at) {
        tensors[*logits_at].set(row * vocab + id, level + 0.5);
        continue;
      }
      const double spread = 1.0 + level * level / static_cast<double>(tensors[*weight_at].shape.back());
      const double target = level + 0.5 * spread + (bias_at ? 0.5 - tensors[*bias_at].at(id) : 0.0);
      align_hidden(row, tensors[*weight_at], id, target, 0, tensors[*hidden_at]);
    }
  });
}

/// What a row of logits is in mode extreme. Without ids, column V / 2 stands for the target.
enum class LogitKind : uint8_t {
  raised,        ///< 10^4 added
  lowered,       ///< 10^4 subtracted
  equal,         ///< all logits equal
  holes,         ///< -inf in about half of the columns, but not in the target's
  first,         ///< the first column far above the others
  last,          ///< the last column far above the others
  leading_run,   ///< -inf in all columns before the target
  trailing_run,  ///< -inf in all columns behind the target
  one_left,      ///< -inf in all columns but the target's
  improbable,    ///< the target far below the others
  large,         ///< magnitudes of 80 and random signs
  huge,          ///< times 10^4
  count
};

void plant_extreme_logits(const Case& c, unsigned threads, std::vector<Tensor>& tensors) {
  // A policy's logits lie close to its reference's, so all tensors of logits get the same large terms. They are
  // multiples of 256 up to 2^15, which are exact in every dtype.
  constexpr double kOffset = 1e4, kLarge = 80, kHuge = 1e4, kStep = 256, kLargest = 32768;
  const auto ids_at = find_fill(c, Fill::ids);
  const Stream shared = Stream::derive(c.seed, c.op->name, "extreme");
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.empty() || c.pass->inputs[i].fill != Fill::logits) continue;
    Tensor& logits = tensors[i];
    const auto columns = static_cast<size_t>(logits.shape.back());
    parallel_for(threads, logits.count() / logits.shape.back(), [&](int64_t row) {
      std::vector<double> z(columns);
      decode_row(logits, row, z);
      const auto target = ids_at ? static_cast<size_t>(tensors[*ids_at].at(row)) : columns / 2;
      const auto kind = static_cast<LogitKind>(row % static_cast<int64_t>(LogitKind::count));
      const double first = z.front();
      for (size_t v = 0; v < columns; ++v) {
        const uint64_t at = static_cast<uint64_t>(row) * columns + v;
        const bool is_target = v == target;
        if (kind == LogitKind::raised) z[v] += kOffset;
        if (kind == LogitKind::lowered) z[v] -= kOffset;
        if (kind == LogitKind::equal) z[v] = first;
        if (kind == LogitKind::holes && !is_target && shared.uniform(at) < 0.5) z[v] = -INFINITY;
        if (kind == LogitKind::leading_run && v < target) z[v] = -INFINITY;
        if (kind == LogitKind::trailing_run && v > target) z[v] = -INFINITY;
        if (kind == LogitKind::one_left && !is_target) z[v] = -INFINITY;
        if (kind == LogitKind::improbable && is_target) z[v] -= kFar;
        if (kind == LogitKind::large) z[v] += shared.uniform(at) < 0.5 ? kLarge : -kLarge;
        if (kind == LogitKind::huge)
          z[v] += kStep *
                  std::clamp(std::nearbyint(shared.normal(at) * kHuge / kStep), -kLargest / kStep, kLargest / kStep);
      }
      if (kind == LogitKind::first) z.front() = kFar;
      if (kind == LogitKind::last) z.back() = kFar;
      encode_row(logits, row, z);
    });
  }
}

/// Products in mode extreme: of a query with its keys, or of a row of hidden states with the rows of the weight.
enum class ProductKind : uint8_t {
  raised,       ///< far above 0, by about the same
  lowered,      ///< far below 0, by about the same
  equal,        ///< all 0
  spread,       ///< times 64: nearly all of the softmax goes to one product
  below_masks,  ///< of keys: below the numbers with which kernels replace -inf, such as -10^4 and -5 * 10^4
  first,        ///< of a weight: the first far above the others
  last,         ///< of a weight: the last far above the others
  target,       ///< of a weight, with ids: the target far above the others
};

void plant_extreme_products(const Case& c, std::vector<Tensor>& tensors) {
  using enum ProductKind;
  constexpr ProductKind kOfKeys[] = {raised, lowered, equal, spread, below_masks};
  constexpr ProductKind kOfWeight[] = {raised, lowered, equal, spread, first, last, target};
  // A hidden row that is turned towards one row of the weight has products with the other rows, too.
  constexpr double kSpread = 64, kAligned = 2 * kFar, kBelowMasks = 6e4;
  const auto query_at = find_fill(c, Fill::query);
  if (!query_at) return;
  Tensor& queries = tensors[*query_at];
  const auto columns = static_cast<size_t>(queries.shape.back());
  const auto ids_at = find_fill(c, Fill::ids), weight_at = find_fill(c, Fill::weight);
  // Element 0 is the same in all keys, so that element 0 of a query shifts all its products. Attention divides by the
  // root of the length: `shared` is a power of 2 that is no less, so that kBelowMasks is the most a query has to hold.
  const double root = std::sqrt(static_cast<double>(columns)),
               shared = weight_at ? 1 : std::exp2(std::ceil(std::log2(root)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.empty() || (c.pass->inputs[i].fill != Fill::key && weight_at != i)) continue;
    for (int64_t at = 0; at < tensors[i].count(); at += queries.shape.back()) tensors[i].set(at, shared);
  }
  const double one = weight_at ? 1 : root / shared;
  const auto kinds =
      !weight_at ? std::span(kOfKeys) : std::span(kOfWeight).first(std::size(kOfWeight) - (ids_at ? 0 : 1));
  for (int64_t row = 0; row < queries.count() / queries.shape.back(); ++row) {
    std::vector<double> q(columns);
    decode_row(queries, row, q);
    const ProductKind kind = kinds[static_cast<size_t>(row) % kinds.size()];
    if (kind == raised) q[0] = kFar * one;
    if (kind == lowered) q[0] = -kFar * one;
    if (kind == equal) std::fill(q.begin(), q.end(), 0.0);
    if (kind == spread) {
      for (double& x : q) x *= kSpread;
    }
    if (kind == below_masks) q[0] = -kBelowMasks * one;
    encode_row(queries, row, q);
    if (kind < first) continue;
    const int64_t last_row = tensors[*weight_at].shape.front() - 1;
    const int64_t id = kind == first ? 0 : kind == last ? last_row : static_cast<int64_t>(tensors[*ids_at].at(row));
    align_hidden(row, tensors[*weight_at], id, kAligned, 1, queries);
  }
}

bool takes_extremes(const Operator& op) {
  const auto inputs = op.passes.front().inputs;
  return std::any_of(inputs.begin(), inputs.end(), [](const TensorSpec& spec) {
    return spec.fill == Fill::logits || spec.fill == Fill::scores || spec.fill == Fill::query ||
           spec.fill == Fill::codes;
  });
}

}  // namespace checkop
