// SPDX-License-Identifier: Apache-2.0
// Emulates attention as kernels compute it. kv_cache_attention, varlen_attention and paged_attention use the same
// passes.
#include "emulation/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "recipes.hpp"

namespace checkop {
namespace emulation {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLn2 = 0x1.62e43p-1F;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// One key head of a batch entry and the query heads of its group, whose queries are contiguous.
struct Group {
  Group(const Arithmetic& arithmetic, const AttentionProblem& problem, int64_t batch, int64_t kv_head)
      : arithmetic(arithmetic),
        problem(problem),
        multiplied(arithmetic.has(kMaskedKeysMultiplied.name)),
        batch(batch),
        kv_head(kv_head),
        rows(problem.group() * problem.q_seq) {
    const int64_t masks = arithmetic.has(kMaskOfFirstEntry.name) ? 0 : batch * problem.kv_seq;
    for (int64_t j = 0; j < problem.kv_seq; ++j) {
      const bool keeps = problem.keep[static_cast<size_t>(masks + j)] != 0;
      if (keeps || multiplied) keys.push_back(j), kept.push_back(keeps);
    }
    if (arithmetic.has(kLastKeyDropped.name) && !keys.empty()) keys.pop_back();
    const int64_t head = arithmetic.has(kNextGroupRead.name) ? (kv_head + 1) % problem.kv_heads : kv_head;
    const auto n = static_cast<int64_t>(keys.size());
    k = Matrix::zeros(n, problem.head_dim), v = Matrix::zeros(n, problem.v_dim());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t j = keys[static_cast<size_t>(i)];
      const auto value = static_cast<size_t>(arithmetic.has(kValuesShifted.name) ? (i + 1) % n : i);
      std::copy_n(problem.k.row(key_row(head, j)), problem.head_dim, k.row(i));
      copy_value(key_row(head, keys[value]), v.row(i));
    }
  }

  /// Copies row `row` of the values.
  void copy_value(int64_t row, float* to) const {
    const bool stride_of_keys = arithmetic.has(kValueStrideOfKeys.name);
    const int64_t first = row * (stride_of_keys ? problem.head_dim : problem.v_dim()),
                  columns = arithmetic.has(kValueColumnsLost.name) ? problem.head_dim : problem.v_dim();
    for (int64_t d = 0; d < std::min(columns, problem.v_dim()); ++d)
      to[d] = problem.v.values[static_cast<size_t>(first + d) % problem.v.values.size()];
  }

  /// Row of the group's first query, in arrays shaped as q.
  int64_t first_query() const { return (batch * problem.kv_heads + kv_head) * rows; }
  /// Row of key j of a head in arrays shaped as k.
  int64_t key_row(int64_t head, int64_t j) const { return (batch * problem.kv_heads + head) * problem.kv_seq + j; }
  int64_t own_key_row(int64_t i) const { return key_row(kv_head, keys[static_cast<size_t>(i)]); }
  const float* query(int64_t row) const { return problem.q.row(first_query() + row); }

  /// The first of the keys that a window keeps for a row.
  int64_t first_seen(int64_t row) const {
    if (problem.window_left < 0 || arithmetic.has(kWindowIgnored.name)) return 0;
    const int64_t offset = arithmetic.has(kWindowOffsetIgnored.name) ? 0 : problem.kv_seq - problem.q_seq;
    const int64_t more = arithmetic.has(kWindowLong.name) ? 1 : arithmetic.has(kWindowShort.name) ? -1 : 0;
    return index_of(row % problem.q_seq + offset - problem.window_left - more);
  }
  /// The end of the keys that the causal mask or a window keeps for a row.
  int64_t end_seen(int64_t row) const {
    const auto all = static_cast<int64_t>(keys.size());
    const int64_t right = problem.causal ? 0 : problem.window_right;
    if (right < 0 || (problem.causal && arithmetic.has(kCausalMaskIgnored.name))) return all;
    const int64_t offset = arithmetic.has(kCausalOffsetIgnored.name) ? 0 : problem.kv_seq - problem.q_seq;
    return index_of(row % problem.q_seq + offset + right + (arithmetic.has(kOwnKeyUnseen.name) ? 0 : 1));
  }
  int64_t seen(int64_t row) const { return std::max<int64_t>(end_seen(row) - first_seen(row), 0); }

  /// The sink of a row's head; -inf: none.
  float sink(int64_t row) const {
    if (problem.sinks.empty() || arithmetic.has(kSinkLeftOut.name)) return -kInfinity;
    int64_t head = kv_head * problem.group() + row / problem.q_seq;
    if (arithmetic.has(kSinkOfNextHead.name)) head = (head + 1) % problem.q_heads;
    if (arithmetic.has(kSinkOfKeyHead.name)) head = kv_head;
    float sink = problem.sinks[static_cast<size_t>(head)], of_slope = 1;
    if (arithmetic.has(kSinkScaled.name)) sink *= scale_of_scores();
    return arithmetic.has(kSinkCapped.name) ? capped(sink, of_slope) : sink;
  }
  /// The softmax of n keys and the row's sink.
  SoftmaxRow with_sink(int64_t row, int64_t n, const SoftmaxRow& keys_alone) const {
    const float of_sink = sink(row);
    if (of_sink == -kInfinity) return keys_alone;
    const bool is_first = arithmetic.has(kSinkNotInMaximum.name) || arithmetic.has(kMaximumNotSubtracted.name);
    const float max = is_first ? keys_alone.max : std::max(keys_alone.max, of_sink);
    const int64_t tile = std::max<int64_t>(Arithmetic::tile_of(n), 1),
                  tiles = std::max<int64_t>((n + tile - 1) / tile, 1);
    const float times = arithmetic.has(kSinkOfEveryTile.name) ? static_cast<float>(tiles) : 1;
    const float before = keys_alone.max == max ? 1 : std::exp(keys_alone.max - max);
    return {max, keys_alone.sum * before + times * arithmetic.exponential(of_sink - max)};
  }

  /// Stores the probabilities of the seen(row) keys from first_seen(row) on in p, which holds zeros, and returns the
  /// row's log-sum-exp; -inf without keys and a sink. `saved`: a log-sum-exp to use in its place, or null. `slope`:
  /// gets the derivative of the cap for each key, or null.
  float probabilities(int64_t row, float* p, const float* saved = nullptr, float* slope = nullptr) const {
    const int64_t first = first_seen(row), n = seen(row);
    const int64_t counted = arithmetic.has(kCausalMaskLate.name) ? static_cast<int64_t>(keys.size()) - first : n;
    std::vector<float> score(static_cast<size_t>(counted));
    const float scale = scale_of_scores();
    const bool rounds = arithmetic.rounds(recipe::kScores), before = arithmetic.has(kScoreCapBeforeScale.name);
    arithmetic.dots(counted, score.data(), problem.head_dim, query(row), 1, k.row(first), 1, problem.head_dim);
    for (int64_t j = 0; j < counted; ++j) {
      const bool masked = multiplied && kept[static_cast<size_t>(first + j)] == 0;
      float of_slope = 1, &of_key = score[static_cast<size_t>(j)];
      of_key = arithmetic.rounded_if(rounds, of_key);
      if (before) of_key = capped(of_key, of_slope);
      of_key = arithmetic.rounded_if(rounds, scale * of_key);
      if (!before) of_key = capped(of_key, of_slope);
      if (masked) of_key = -kInfinity;
      if (slope != nullptr && j < n) slope[j] = of_slope;
    }
    const bool none = std::all_of(score.begin(), score.end(), [](float s) { return s == -kInfinity; });
    if (none && (sink(row) == -kInfinity || arithmetic.has(kSinkOfEmptyRowLost.name))) {
      constexpr float kSentinel = -10000;
      const auto all = static_cast<float>(problem.kv_seq);
      return arithmetic.has(kSentinelOfEmptyRow.name) ? kSentinel + std::log(all) : -kInfinity;
    }
    if (saved != nullptr) {
      const float lse = arithmetic.has(kLseBase2.name) ? *saved / kLn2 : *saved;
      for (int64_t j = 0; j < n; ++j) p[j] = arithmetic.exponential(score[static_cast<size_t>(j)] - lse);
      return lse;
    }
    SoftmaxRow keys_alone = none ? SoftmaxRow{-kInfinity, 0} : softmax_row(arithmetic, score.data(), counted);
    if (!none && arithmetic.has(kMaskedTileResetsMaximum.name) && begins_behind_tile(first)) {
      const float max = std::max(keys_alone.max, 0.0F);
      keys_alone = {max, keys_alone.sum * std::exp(keys_alone.max - max)};
    }
    if (!none && arithmetic.has(kFiniteMask.name)) keys_alone = with_masked(keys_alone);
    SoftmaxRow softmax = with_sink(row, counted, keys_alone);
    if (arithmetic.has(kFirstTileMasked.name) && !none && begins_behind_tile(first)) softmax.max = kNan;
    for (int64_t j = 0; j < n; ++j)
      p[j] = arithmetic.exponential(score[static_cast<size_t>(j)] - softmax.max) / softmax.sum;
    if (arithmetic.has(kLseWithoutSink.name)) softmax = keys_alone;
    if (softmax.sum == 0) return -kInfinity;
    const float lse = (arithmetic.has(kLseLessMaximum.name) ? 0 : softmax.max) + std::log(softmax.sum);
    return arithmetic.has(kLseBase2.name) ? lse / kLn2 : lse;
  }

  /// The softmax of keys and, with a finite score, of those that the padding mask leaves out.
  SoftmaxRow with_masked(const SoftmaxRow& keys_alone) const {
    constexpr float kOfMask = -50000;
    const auto masked = static_cast<float>(problem.kv_seq - static_cast<int64_t>(keys.size()));
    if (masked == 0) return keys_alone;
    const float max = std::max(keys_alone.max, kOfMask);
    return {max, keys_alone.sum * std::exp(keys_alone.max - max) + masked * std::exp(kOfMask - max)};
  }

  /// Whether no key in the first tile is read; `first`: index in `keys` of the first key that is.
  bool begins_behind_tile(int64_t first) const {
    return keys[static_cast<size_t>(first)] >= std::max<int64_t>(Arithmetic::tile_of(problem.kv_seq), 1);
  }

  /// A score after the cap, and the derivative of the cap there.
  float capped(float score, float& slope) const {
    const float cap = problem.softcap;
    slope = 1;
    if (cap == 0 || arithmetic.has(kScoreCapLeftOut.name)) return score;
    if (arithmetic.has(kScoreCapUndivided.name)) return score * std::tanh(score);
    const float tanh = std::tanh(score / cap);
    if (!arithmetic.has(kSlopeOfScoreCap.name)) slope = 1 - tanh * tanh;
    return cap * tanh;
  }

  float scale_of_scores() const {
    if (arithmetic.has(kScaleMissing.name)) return 1;
    return arithmetic.has(kScaleTwice.name) ? problem.scale * problem.scale : problem.scale;
  }

  /// The index of the first of the keys that is not before key j.
  int64_t index_of(int64_t j) const { return std::lower_bound(keys.begin(), keys.end(), j) - keys.begin(); }

  const Arithmetic& arithmetic;
  const AttentionProblem& problem;
  const bool multiplied;
  const int64_t batch, kv_head;
  const int64_t rows;         ///< queries of all heads of the group
  std::vector<int64_t> keys;  ///< keys that are read, ascending
  std::vector<char> kept;     ///< 0: read although masked, a planted fault
  Matrix k, v;                ///< one row per key
};

/// Rounds to bf16 with the fault, to the dtype of the case with the recipe.
void round_if(const Arithmetic& a, const FaultSpec& fault, std::string_view recipe, Matrix& m) {
  if (a.has(fault.name)) std::transform(m.values.begin(), m.values.end(), m.values.begin(), Arithmetic::to_bf16);
  if (!a.rounds(recipe)) return;
  for (float& x : m.values) x = a.rounded_if(true, x);
}

/// The row sum D of p*dp for row `row` of a group. Unless the kernel is eager: from the saved output o, or with the
/// recipe from its own, rounded.
float row_sum(const Arithmetic& a, const Group& group, int64_t row, const float* w, const float* dp, const float* grad,
              int64_t seen) {
  const Matrix& saved = group.problem.saved_o;
  if (!saved.values.empty() && !a.rounds(recipe::kScores)) {
    const int64_t read = group.first_query() + row + (a.has(kSavedOOfNextRow.name) ? 1 : 0);
    return a.dot(saved.columns, grad, 1, saved.row(read % saved.rows()), 1);
  }
  if (!a.rounds(recipe::kO) || a.rounds(recipe::kScores)) return a.dot(seen, w, 1, dp, 1);
  std::vector<float> o(static_cast<size_t>(group.v.columns));
  a.dots(group.v.columns, o.data(), seen, w, 1, group.v.row(group.first_seen(row)), group.v.columns, 1);
  for (float& x : o) x = a.rounded_if(true, x);
  return a.dot(group.v.columns, grad, 1, o.data(), 1);
}

/// to = the transpose of x times y; with the recipe the rows of each head, `head` of them, are a product of their own
/// that is rounded before the heads are added.
void add_up_rows(const Arithmetic& a, int64_t columns, float* to, int64_t rows, int64_t head, const float* x,
                 int64_t x_step, const float* y) {
  if (!a.rounds(recipe::kGroup)) return a.dots(columns, to, rows, x, x_step, y, columns, 1);
  std::vector<float> of_head(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; r += head) {
    a.dots(columns, of_head.data(), head, x + r * x_step, x_step, y + r * columns, columns, 1);
    for (size_t d = 0; d < of_head.size(); ++d) to[d] += a.rounded_if(true, of_head[d]);
  }
}

/// Stores the gradients of one group's queries and keys.
void differentiate(const Arithmetic& a, const AttentionProblem& p, const Group& group, const Matrix& grad,
                   AttentionGradients& to) {
  const int64_t rows = group.rows, first = group.first_query(), n = static_cast<int64_t>(group.keys.size());
  const float term = a.has(kRowSumDropped.name) ? 0.0F : a.has(kRowSumAdded.name) ? -1.0F : 1.0F;
  const float scale = a.has(kGradientNotScaled.name) ? 1 : p.scale;
  const bool eager = a.rounds(recipe::kScores), rounds_ds = a.rounds(recipe::kDs);
  Matrix weights = Matrix::zeros(rows, n), ds = weights;  // 0 beside the keys that a query sees
  std::vector<float> slope(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = group.seen(r), seen_from = group.first_seen(r);
    float *w = weights.row(r) + seen_from, *d = ds.row(r) + seen_from;
    const int64_t from = a.has(kSavedLseOfFirstHead.name) ? r % p.q_seq : r;
    const bool has_lse = !p.saved_lse.empty() && !eager;
    const float lse =
        group.probabilities(r, w, has_lse ? &p.saved_lse[static_cast<size_t>(first + from)] : nullptr, slope.data());
    a.dots(seen, d, p.v_dim(), grad.row(first + r), 1, group.v.row(seen_from), 1, p.v_dim());
    for (int64_t j = 0; j < seen; ++j) d[j] = a.rounded_if(eager, d[j]);
    const float d_of_row = term * row_sum(a, group, r, w, d, grad.row(first + r), seen);
    const float of_lse =
        p.grad_lse.empty() || a.has(kGradLseLeftOut.name)
            ? 0
            : (a.has(kGradLseSubtracted.name) ? -1.0F : 1.0F) * p.grad_lse[static_cast<size_t>(first + r)];
    const float mean = d_of_row - of_lse;
    if (const float sink = group.sink(r); sink != -kInfinity) {
      const float off = (a.has(kSinkGradientWithoutLse.name) ? 0 : of_lse) - d_of_row;
      const bool passed_over = seen == 0 && a.has(kSinkGradientOfKeys.name);
      const float value = passed_over ? 0 : a.exponential(sink - lse) * off;
      to.sinks[static_cast<size_t>(first + r)] = a.rounded_if(eager, a.has(kSinkGradientNegated.name) ? -value : value);
    }
    for (int64_t j = 0; j < seen; ++j)
      d[j] = a.rounded_if(eager, scale * a.rounded_if(rounds_ds, w[j] * (d[j] - mean) * slope[static_cast<size_t>(j)]));
  }
  round_if(a, kProbabilitiesRounded, recipe::kP, weights);
  if (a.has(kScoreGradientsRounded.name))
    std::transform(ds.values.begin(), ds.values.end(), ds.values.begin(), Arithmetic::to_bf16);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen_from = group.first_seen(r);
    a.dots(p.head_dim, to.dq.row(first + r), group.seen(r), ds.row(r) + seen_from, 1, group.k.row(seen_from),
           p.head_dim, 1);
    if (a.has(kEmptyRowNan.name) && group.seen(r) == 0) std::fill_n(to.dq.row(first + r), p.head_dim, kNan);
  }
  const int64_t from = a.has(kGroupOverwritten.name) ? rows - p.q_seq : 0;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t key = group.own_key_row(j);
    add_up_rows(a, p.head_dim, to.dk.row(key), rows - from, p.q_seq, ds.row(from) + j, n, group.query(from));
    add_up_rows(a, p.v_dim(), to.dv.row(key), rows - from, p.q_seq, weights.row(from) + j, n, grad.row(first + from));
  }
}

}  // namespace

float scale_of(const Arithmetic& arithmetic, float given, int64_t head_dim, int64_t v_dim) {
  const int64_t size = arithmetic.has(kScaleOfVDim.name) ? v_dim : head_dim;
  return given < 0 ? 1 / std::sqrt(static_cast<float>(size)) : given;
}

void read_window_and_cap(const EmulationArgs& args, AttentionProblem& p) {
  if (args.attrs.size() <= 2) return;
  p.window_left = static_cast<int64_t>(args.attrs[2]), p.window_right = static_cast<int64_t>(args.attrs[3]);
  p.softcap = static_cast<float>(args.attrs[4]);
}

void store_sink_gradients(const EmulationArgs& args, const std::vector<float>& terms, int64_t n, int64_t head_step,
                          int64_t query_step, std::vector<double>& to) {
  const Arithmetic& a = args.arithmetic;
  const int64_t from = a.has(kSinkGradientOverwritten.name) ? n - std::min<int64_t>(n, std::max<int64_t>(n / 8, 1)) : 0;
  for (int64_t head = 0; head < std::ssize(to); ++head) {
    to[static_cast<size_t>(head)] = a.sum(
        n - from, [&](int64_t i) { return terms[static_cast<size_t>(head * head_step + (from + i) * query_step)]; });
  }
}

AttentionProblem attention_problem(const EmulationArgs& args, Matrix k, Matrix v, int mask) {
  const Shape &q = args.in(0).shape, &keys = args.in(1).shape;
  const int64_t kv_seq = q[0] == 0 ? 0 : k.rows() / (q[0] * keys[1]);
  AttentionProblem p{q[0],
                     q[1],
                     keys[1],
                     q[2],
                     kv_seq,
                     q[3],
                     args.attrs[0] != 0,
                     scale_of(args.arithmetic, static_cast<float>(args.attrs[1]), q[3], v.columns),
                     factor(args, 0),
                     std::move(k),
                     std::move(v),
                     {}};
  read_window_and_cap(args, p);
  p.keep.assign(static_cast<size_t>(p.batch * p.kv_seq), 1);
  if (!args.has(mask) || args.arithmetic.has(kPaddingMaskIgnored.name)) return p;
  const bool ones_alone = args.arithmetic.has(kOnesAloneKept.name);
  const std::vector<int64_t> values = args.integers(mask);
  std::transform(values.begin(), values.end(), p.keep.begin(),
                 [&](int64_t value) { return ones_alone ? value == 1 : value != 0; });
  return p;
}

AttentionOutput attention_output(const EmulationArgs& args, const AttentionProblem& p) {
  const Arithmetic& a = args.arithmetic;
  AttentionOutput to{Matrix::zeros(p.q.rows(), p.v_dim()), std::vector<float>(static_cast<size_t>(p.q.rows()))};
  args.parallel_for(p.batch * p.kv_heads, [&](int64_t task) {
    const Group group(a, p, task / p.kv_heads, task % p.kv_heads);
    Matrix weights = Matrix::zeros(1, static_cast<int64_t>(group.keys.size()));
    for (int64_t r = 0; r < group.rows; ++r) {
      const int64_t seen = group.seen(r), row = group.first_query() + r;
      std::fill(weights.values.begin(), weights.values.end(), 0.0F);
      to.lse[static_cast<size_t>(row)] = group.probabilities(r, weights.row(0));
      round_if(a, kProbabilitiesRounded, recipe::kP, weights);
      a.dots(p.v_dim(), to.o.row(row), seen, weights.row(0), 1, group.v.row(group.first_seen(r)), p.v_dim(), 1);
      if (a.has(kEmptyRowNan.name) && seen == 0) std::fill_n(to.o.row(row), p.v_dim(), kNan);
      if (!a.has(kSinkAddedToOutput.name)) continue;
      const float added = a.exponential(group.sink(r) - to.lse[static_cast<size_t>(row)]);
      for (int64_t d = 0; d < p.v_dim() && group.sink(r) != -kInfinity; ++d) to.o.row(row)[d] += added;
    }
  });
  return to;
}

AttentionGradients attention_gradients(const EmulationArgs& args, const AttentionProblem& p, const Matrix& grad) {
  AttentionGradients to{Matrix::zeros(p.q.rows(), p.head_dim), Matrix::zeros(p.k.rows(), p.head_dim),
                        Matrix::zeros(p.k.rows(), p.v_dim()), std::vector<float>(static_cast<size_t>(p.q.rows()))};
  args.parallel_for(p.batch * p.kv_heads, [&](int64_t task) {
    const Group group(args.arithmetic, p, task / p.kv_heads, task % p.kv_heads);
    differentiate(args.arithmetic, p, group, grad, to);
  });
  return to;
}

}  // namespace emulation

namespace {

using namespace emulation;

enum Input : int { kOfMask = 3, kOfSinks, kOfGradO, kOfO, kOfLse, kOfGradLse };
constexpr int kOfDSinks = 3;

AttentionProblem problem(const EmulationArgs& args) {
  AttentionProblem p = attention_problem(args, factor(args, 1), factor(args, 2), kOfMask);
  if (args.has(kOfSinks)) p.sinks = args.floats(kOfSinks);
  return p;
}

void forward(const EmulationArgs& args) {
  const AttentionOutput output = attention_output(args, problem(args));
  store(output.o, args.out(0));
  std::copy_n(output.lse.begin(), args.out(1).size(), args.out(1).begin());
}

void backward(const EmulationArgs& args) {
  AttentionProblem p = problem(args);
  if (args.has(kOfO)) p.saved_o = factor(args, kOfO);
  if (args.has(kOfLse)) p.saved_lse = args.floats(kOfLse);
  if (args.has(kOfGradLse)) p.grad_lse = args.floats(kOfGradLse);
  const AttentionGradients gradients = attention_gradients(args, p, factor(args, kOfGradO));
  store(gradients.dq, args.out(0));
  store(gradients.dk, args.out(1));
  store(gradients.dv, args.out(2));
  std::vector<float> by_head;  // the queries of a head, of one batch entry after the other
  for (int64_t head = 0; head < p.q_heads; ++head)
    for (int64_t b = 0; b < p.batch; ++b) {
      const auto first = gradients.sinks.begin() + (b * p.q_heads + head) * p.q_seq;
      by_head.insert(by_head.end(), first, first + p.q_seq);
    }
  store_sink_gradients(args, by_head, p.batch * p.q_seq, p.batch * p.q_seq, 1, args.out(kOfDSinks));
}

constexpr std::array kMoreFaults = joined(kWindowFaults, kCapFaults);
constexpr std::array kForwardFaults =
    joined(joined(joined(kAttentionForwardFaults, kLseFaults), joined(kMoreFaults, kSinkForwardFaults)),
           std::array{kMaskedTileResetsMaximum, kFiniteMask, kSentinelOfEmptyRow});
constexpr std::array kBackwardFaults =
    joined(joined(joined(joined(kAttentionForwardFaults, kAttentionGradientFaults), kSavedFaults),
                  joined(kMoreFaults, kCapGradientFaults)),
           joined(kSinkBackwardFaults, std::array{kMaskedTileResetsMaximum, kFiniteMask}));

}  // namespace

extern const Emulation kAttentionForward, kAttentionBackward;
const Emulation kAttentionForward{forward, kForwardFaults};
const Emulation kAttentionBackward{backward, kBackwardFaults};

}  // namespace checkop
