// SPDX-License-Identifier: Apache-2.0
// attention: softmax(scale q k^T) v with grouped query heads, a causal mask, a window, a soft cap, a key padding mask
// and sinks. kv_cache_attention, varlen_attention and paged_attention use the same passes.
#include "attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/vector_clones.hpp"
#include "left_out.hpp"
#include "logit_transform.hpp"
#include "recipes.hpp"
#include "softmax.hpp"

namespace checkop {

extern const Emulation kAttentionForward, kAttentionBackward;  // emulation/attention.cpp

namespace {

constexpr std::string_view kQueries = "batch q_heads q_seq head_dim", kKeys = "batch kv_heads kv_seq head_dim",
                           kRows = "batch q_heads q_seq", kOutputs = "batch q_heads q_seq v_dim",
                           kValues = "batch kv_heads kv_seq v_dim";
constexpr TensorSpec kQ{"q", kQueries, Fill::query}, kK{"k", kKeys, Fill::key}, kV{"v", kValues};
constexpr TensorSpec kMask{"key_padding_mask", "batch kv_seq", Fill::mask, "", DType::u8, /*optional=*/true};
constexpr TensorSpec kLse{"lse", kRows, Fill::saved, "", DType::f32, /*optional=*/true};

constexpr std::array kForwardIn{kQ, kK, kV, kMask, kSinks};
constexpr std::array kForwardOut{
    OutputSpec{{"o", kOutputs}, Numerics::contraction, "head_dim kv_seq", /*sampled=*/true},
    OutputSpec{{"lse", kRows, Fill::normal, "", DType::f32, /*optional=*/true},
               Numerics::logprob,
               "head_dim kv_seq",
               /*sampled=*/true,
               /*sampled_whole=*/"batch q_heads"}};
constexpr std::array kBackwardIn{kQ,
                                 kK,
                                 kV,
                                 kMask,
                                 kSinks,
                                 TensorSpec{"grad_o", kOutputs, Fill::upstream},
                                 TensorSpec{"o", kOutputs, Fill::saved, "", {}, /*optional=*/true},
                                 kLse,
                                 TensorSpec{"grad_lse", kRows, Fill::upstream, "", DType::f32, /*optional=*/true}};
// A key's gradient sums over the queries of its group of heads, each of which takes the whole softmax of that query:
// so all keys of a head cost as much as one. The spec names all heads, because extents have no quotients.
constexpr std::array kBackwardOut{
    OutputSpec{{"dq", kQueries}, Numerics::contraction, "head_dim v_dim kv_seq", /*sampled=*/true},
    OutputSpec{{"dk", kKeys},
               Numerics::contraction,
               "head_dim v_dim kv_seq q_heads*q_seq",
               /*sampled=*/true,
               /*sampled_whole=*/"batch kv_heads"},
    OutputSpec{{"dv", kValues},
               Numerics::contraction,
               "head_dim kv_seq q_heads*q_seq",
               /*sampled=*/true,
               /*sampled_whole=*/"batch kv_heads"},
    OutputSpec{kDSinks, Numerics::reduction, "head_dim v_dim kv_seq batch*q_seq"},
};

constexpr std::string_view kFlash = "FlashAttention 2 and 3, cuDNN, PyTorch's SDPA with them, xFormers, FlashInfer";
constexpr std::string_view kEager = "eager attention of Hugging Face: matmul, softmax in fp32, matmul";

/// Indices of the attributes; see kAttrs.
constexpr size_t kCausal = 0, kScale = 1, kWindowLeft = 2, kWindowRight = 3, kSoftcapOfScores = 4;

constexpr int64_t kRowsOfATask = 16;
constexpr int64_t kTasksOfAHead = 16;  // of the queries of a head, where few heads or long ones are computed
constexpr int64_t kLongHead = 1024;    // from so many queries on, a key head is too much for one thread
constexpr double kScaleRounding = 3;   // 1/sqrt(head_dim) rounds twice, the product with it once

/// Indices of a pass's inputs, for keys stored in `parts` parts. With several parts, as in kv_cache_attention, the
/// upstream gradient is the only input from sinks on.
struct Inputs {
  static constexpr int kNone = -1;
  int parts;

  static int k(int part) { return 1 + 2 * part; }
  static int v(int part) { return 2 + 2 * part; }
  int mask() const { return 1 + 2 * parts; }
  int sinks() const { return of_one_part(0); }
  int grad() const { return parts == 1 ? of_one_part(1) : 2 + 2 * parts; }
  int o() const { return of_one_part(2); }
  int lse() const { return of_one_part(3); }
  int grad_lse() const { return of_one_part(4); }

 private:
  int of_one_part(int behind_mask) const { return parts == 1 ? 4 + behind_mask : kNone; }
};
constexpr int kLseOut = 1;     // output of the forward pass
constexpr int kDSinksOut = 3;  // output of the backward pass

bool has(const GoldArgs& args, int input) {
  return input != Inputs::kNone && input < std::ssize(args.inputs) && args.has(input);
}
bool has_lse_out(const GoldArgs& args) {
  return kLseOut < std::ssize(args.output_shapes) && !args.output_shapes[kLseOut].empty();
}

struct Sizes {
  int64_t batch, q_heads, kv_heads, q_seq, kv_seq, head_dim, v_dim;

  int64_t queries() const { return q_heads * q_seq * head_dim; }  // elements per batch entry
  int64_t outputs() const { return q_heads * q_seq * v_dim; }
  int64_t keys() const { return kv_heads * kv_seq * head_dim; }
  int64_t values() const { return kv_heads * kv_seq * v_dim; }
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

void decode(const Tensor& t, int64_t first, int64_t n, double* to) {
  info(t.dtype).decode(t.bytes.data() + at(first) * info(t.dtype).bytes, to, at(n));
}

/// Elements [first, first + n) of a tensor, decoded.
std::vector<double> decoded(const Tensor& t, int64_t first, int64_t n) {
  std::vector<double> values(at(n));
  decode(t, first, n, values.data());
  return values;
}

// Loops over head_dim, in which the gold spends its time.

constexpr int64_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));  // g++ shuffles an array of four instead

/// sums[l] = sum x*y and sizes[l] = sum |x*y| over the elements l, l + kLanes, ... of the first n, a multiple of
/// kLanes.
CHECKOP_VECTOR_CLONES void sum_products(const double* x, const double* y, int64_t n, double* sums, double* sizes) {
  Lanes sum{}, size{};
  for (int64_t i = 0; i < n; i += kLanes) {
    Lanes a, b;
    std::memcpy(&a, x + i, sizeof a), std::memcpy(&b, y + i, sizeof b);
    const Lanes term = a * b;
    sum += term, size += term < 0 ? -term : term;
  }
  std::memcpy(sums, &sum, sizeof sum), std::memcpy(sizes, &size, sizeof size);
}

constexpr size_t kDotsAtOnce = 4;  // one alone would wait for each of its additions

/// dots[r] = sum x*rows[r], with the bits of Dot::value.
CHECKOP_VECTOR_CLONES void multiply_rows(const double* x, const std::array<const double*, kDotsAtOnce>& rows, int64_t n,
                                         double* dots) {
  std::array<Lanes, kDotsAtOnce> sums{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes a;
    std::memcpy(&a, x + i, sizeof a);
    for (size_t row = 0; row < kDotsAtOnce; ++row) {
      Lanes b;
      std::memcpy(&b, rows[row] + i, sizeof b);
      sums[row] += a * b;
    }
  }
  for (size_t row = 0; row < kDotsAtOnce; ++row) {
    for (int64_t k = i; k < n; ++k) sums[row][0] += x[k] * rows[row][k];
    dots[row] = (sums[row][0] + sums[row][1]) + (sums[row][2] + sums[row][3]);
  }
}

/// Sums of the squares and of the sizes of errors.
struct Errors {
  double squares = 0, sizes = 0;

  void add(double error) { squares += error * error, sizes += std::abs(error); }
  /// Errors that `factor` multiplies.
  void add(const Errors& errors, double factor) {
    squares += factor * factor * errors.squares, sizes += std::abs(factor) * errors.sizes;
  }
};

/// A row x times a factor, one of the terms of a sum of rows; see Block.
struct Term {
  const double* x;
  double value, magnitude, rounding;  ///< the factor and the coefficients of its error
  double by_o = 0, by_lse = 0;        ///< by how much saved values move the factor
  Errors errors = {};                 ///< of the roundings to 16 bits in x times the factor
};

/// Adds the terms to the first n elements of `to`: add(term, x, |x|, sums) with a vector of x, or one element, and the
/// sums of these elements. A few vectors at a time take all terms, so that their sums stay in registers.
template <size_t kSums, typename Add>
[[gnu::always_inline]] inline void add_rows(std::span<const Term> terms, int64_t n,
                                            const std::array<double*, kSums>& to, const Add& add) {
  constexpr int64_t kVectors = kSums == 1 ? 4 : 2;
  int64_t i = 0;
  for (; i + kVectors * kLanes <= n; i += kVectors * kLanes) {
    std::array<std::array<Lanes, kSums>, kVectors> sums;
    for (size_t vector = 0; vector < kVectors; ++vector)
      for (size_t sum = 0; sum < kSums; ++sum)
        std::memcpy(&sums[vector][sum], to[sum] + at(i) + vector * kLanes, sizeof(Lanes));
    for (const Term& term : terms) {
      for (size_t vector = 0; vector < kVectors; ++vector) {
        Lanes x;
        std::memcpy(&x, term.x + at(i) + vector * kLanes, sizeof x);
        add(term, x, x < 0 ? -x : x, sums[vector].data());
      }
    }
    for (size_t vector = 0; vector < kVectors; ++vector)
      for (size_t sum = 0; sum < kSums; ++sum)
        std::memcpy(to[sum] + at(i) + vector * kLanes, &sums[vector][sum], sizeof(Lanes));
  }
  for (; i < n; ++i) {
    std::array<double, kSums> sums;
    for (size_t sum = 0; sum < kSums; ++sum) sums[sum] = to[sum][i];
    for (const Term& term : terms) add(term, term.x[i], std::abs(term.x[i]), sums.data());
    for (size_t sum = 0; sum < kSums; ++sum) to[sum][i] = sums[sum];
  }
}

CHECKOP_VECTOR_CLONES void add_terms(std::span<const Term> terms, int64_t n, double* value, double* magnitude,
                                     double* rounding) {
  add_rows<3>(
      terms, n, {value, magnitude, rounding},
      [](const Term& term, const auto& x, const auto& size, auto* sums) __attribute__((always_inline)) {
        sums[0] += term.value * x, sums[1] += term.magnitude * size, sums[2] += term.rounding * size;
      });
}

CHECKOP_VECTOR_CLONES void add_values(std::span<const Term> terms, int64_t n, double* value) {
  add_rows<1>(
      terms, n, {value}, [](const Term& term, const auto& x, const auto&, auto* sums) __attribute__((always_inline)) {
        sums[0] += term.value * x;
      });
}

CHECKOP_VECTOR_CLONES void add_moves(std::span<const Term> terms, int64_t n, double* by_o, double* by_lse) {
  add_rows<2>(
      terms, n, {by_o, by_lse},
      [](const Term& term, const auto& x, const auto&, auto* sums) __attribute__((always_inline)) {
        if (term.by_o == 0 && term.by_lse == 0) return;
        sums[0] += term.by_o * x, sums[1] += term.by_lse * x;
      });
}

CHECKOP_VECTOR_CLONES void add_errors(std::span<const Term> terms, int64_t n, double* squares, double* sizes) {
  add_rows<2>(
      terms, n, {squares, sizes},
      [](const Term& term, const auto& x, const auto& size, auto* sums) __attribute__((always_inline)) {
        if (term.errors.sizes == 0) return;
        sums[0] += term.errors.squares * x * x, sums[1] += term.errors.sizes * size;
      });
}

/// sum x*y and sum |x*y|.
struct Dot {
  double value, magnitude;

  Dot(const double* x, const double* y, int64_t n) {
    std::array<double, kLanes> sum, size;
    const int64_t whole = n / kLanes * kLanes;
    sum_products(x, y, whole, sum.data(), size.data());
    for (int64_t i = whole; i < n; ++i) sum[0] += x[i] * y[i], size[0] += std::abs(x[i] * y[i]);
    value = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    magnitude = (size[0] + size[1]) + (size[2] + size[3]);
  }
};

/// Values and their two error coefficients; see GoldRows. With recipes, also the roundings to 16 bits in the sums: the
/// sum of their squared errors and that of the errors' sizes, in units of the unit roundoff of the dtype of the case.
/// With saved inputs, also by how much each of them moves the values of a kernel that uses it.
///
/// Holds `n` elements, from number `first` on. A block without elements ignores what is added to it.
struct Block {
  std::vector<double> value, magnitude, rounding, squares, sizes, by_o, by_lse, spread, deviation;
  explicit Block(int64_t n, bool recipes = false, bool saved = false, int64_t first = 0)
      : value(at(n)),
        magnitude(at(n)),
        rounding(at(n)),
        squares(recipes ? at(n) : 0),
        sizes(squares.size()),
        by_o(saved ? at(n) : 0),
        by_lse(by_o.size()),
        first_(first) {}

  /// Adds terms, in their order, to [first, first + n).
  void add(int64_t first, int64_t n, std::span<const Term> terms) {
    if (value.empty()) return;
    first -= first_;
    add_terms(terms, n, &value[at(first)], &magnitude[at(first)], &rounding[at(first)]);
    if (!by_o.empty()) add_moves(terms, n, &by_o[at(first)], &by_lse[at(first)]);
    if (!squares.empty()) add_errors(terms, n, &squares[at(first)], &sizes[at(first)]);
  }
  /// [first, first + n) carry x times these errors.
  void add_roundings(int64_t first, int64_t n, const Errors& errors, const double* x) {
    if (value.empty()) return;
    const Term term{.x = x, .value = 0, .magnitude = 0, .rounding = 0, .errors = errors};
    add_errors({&term, 1}, n, &squares[at(first - first_)], &sizes[at(first - first_)]);
  }
  /// Element i carries `factor` times these errors.
  void add_rounding(int64_t i, const Errors& errors, double factor = 1) {
    if (value.empty()) return;
    squares[at(i - first_)] += factor * factor * errors.squares, sizes[at(i - first_)] += factor * errors.sizes;
  }
  /// Adds a block that holds some of these elements, before finish().
  void add(const Block& part) {
    const auto add_to = [&](std::vector<double>& to, const std::vector<double>& from) {
      for (size_t i = 0; i < from.size(); ++i) to[at(part.first_ - first_) + i] += from[i];
    };
    add_to(value, part.value), add_to(magnitude, part.magnitude), add_to(rounding, part.rounding);
    add_to(squares, part.squares), add_to(sizes, part.sizes), add_to(by_o, part.by_o), add_to(by_lse, part.by_lse);
  }
  /// Turns roundings and moves into their spread, once they are all there.
  /// `equal`: all probabilities of a query are equal.
  void finish(const GoldArgs& args, int output, bool equal) {
    spread.resize(std::max(squares.size(), by_o.size())), deviation.resize(spread.size());
    for (size_t i = 0; i < spread.size(); ++i) {
      const Spread all = squares.empty() ? Spread{} : args.recipes.of_terms(output, squares[i], sizes[i], equal);
      const double moved = by_o.empty() ? 0 : std::abs(by_o[i]) + std::abs(by_lse[i]);
      spread[i] = all.most + moved, deviation[i] = std::hypot(all.deviation, moved);
    }
  }
  /// Emits all elements as one row, or elements [first, first + n).
  void sink(const GoldArgs& args, int output, int64_t row) const { sink(args, output, row, 0, std::ssize(value)); }
  void sink(const GoldArgs& args, int output, int64_t row, int64_t first, int64_t n) const {
    const auto from = [&](const std::vector<double>& all) { return all.empty() ? nullptr : &all[at(first)]; };
    args.sink({output, row, 1, n, from(value), from(magnitude), from(rounding), from(spread), from(deviation)});
  }
  /// Emits the rows of batch entry `entry` that are to be computed: all as one, or rows of `columns` elements.
  void sink_rows(const GoldArgs& args, int output, int64_t entry, int64_t columns) const {
    if (args.rows(output).all) return sink(args, output, entry);
    const int64_t rows = std::ssize(value) / columns;
    for (int64_t i = 0; i < rows; ++i)
      if (args.rows(output).has(entry * rows + i)) sink(args, output, entry * rows + i, i * columns, columns);
  }

 private:
  int64_t first_;
};

/// The softmax of one query over its visible keys and the sink of its head. `growth` and `rounding` are coefficients of
/// the relative error of a probability p = exp(s - lse). With sums that grow by G, and u the unit roundoff, p errs by
///   p*(G*growth + u*rounding),  growth = S_j + 1 + sum_j p_j S_j,  S = |scale| slope sum_d |q_d k_d|
/// S_j comes from the score's own sum, 1 from the sum of exponentials, the last term from the scores' errors in lse.
/// The sink is one more term of the sums whose own S is 0. `rounding` is that of LogitGradient, plus the rounding of
/// the scale and that of the cap in both places. `slope` is the derivative of a capped score by the score, 1 without a
/// cap; `size` and `growth` are those of capped scores.
struct QueryRow {
  std::vector<int64_t> keys;
  std::vector<double> score, capped, size, of_cap, p, growth, rounding;
  std::vector<GoldElement> slope;
  /// Log-sum-exp of the capped scores and the sink; -inf without any.
  double lse = 0, lse_magnitude = 0, lse_rounding = 0;
  double sink = -INFINITY;                                ///< -inf: none
  double sink_p = 0, sink_growth = 0, sink_rounding = 0;  ///< of the sink's probability
  bool has_rounded_scores = false;                        ///< by scores_in_16_bit; see ScoreErrors

  void resize() {
    for (auto* array : {&score, &capped, &size, &of_cap, &p, &growth, &rounding}) array->resize(keys.size());
    slope.resize(keys.size());
  }
};

/// How far rounding a query's scores moves what is computed from them. `of_capped`: |s| u, or with a cap, which is
/// applied to the rounded scores, the distance by which that moves a capped score. `of_slope`: the same of the cap's
/// derivative.
struct ScoreErrors {
  ScoreErrors(const ActiveRecipes& recipes, const LogitTransform& cap, const QueryRow& row)
      : of_capped(row.score.size()), of_slope(row.score.size()) {
    for (size_t j = 0; j < row.score.size(); ++j) {
      const double score = row.score[j], error = recipes.case_unit() * recipes.size(score);
      if (cap.is_linear()) of_capped[j] = error;
      for (const double other : {score - error, score + error}) {
        if (cap.is_linear()) break;
        const TransformedLogit moved = cap(other);
        of_capped[j] = std::max(of_capped[j], std::abs(moved.z.value - row.capped[j]));
        of_slope[j] = std::max(of_slope[j], std::abs(moved.slope.value - row.slope[j].value));
      }
      if (is_seen(row.p[j])) largest = std::max(largest, of_capped[j]);
    }
  }

  /// Whether a first-order formula describes what these errors do to probabilities. If not, the gold itself rounds the
  /// scores at two points, before and after the scale, as a kernel does.
  bool are_small() const { return largest <= 1.0 / 8; }
  /// Whether a probability is large enough to be seen in a sum.
  static bool is_seen(double p) { return p > 0x1p-100; }

  std::vector<double> of_capped, of_slope;
  double largest = 0;
};

/// One batch entry, decoded.
class Entry {
 public:
  Entry(const GoldArgs& args, const Inputs& inputs, const Sizes& sizes, int64_t batch)
      : s_(sizes),
        q(decoded(args.in(0), batch * sizes.queries(), sizes.queries())),
        k(joined(args, inputs.parts, Inputs::k, sizes, sizes.head_dim, batch)),
        v(joined(args, inputs.parts, Inputs::v, sizes, sizes.v_dim, batch)),
        attrs_(args.attrs),
        recipes_(args.recipes),
        sinks(has(args, inputs.sinks()) ? decoded(args.in(inputs.sinks()), 0, sizes.q_heads) : std::vector<double>()),
        cap(/*temperature=*/1, attrs_.softcap),
        scale(attrs_.scale < 0 ? 1 / std::sqrt(static_cast<double>(sizes.head_dim)) : attrs_.scale) {
    for (int64_t j = 0; j < s_.kv_seq; ++j) {
      if (!args.has(inputs.mask()) || args.in(inputs.mask()).at(batch * s_.kv_seq + j) != 0) kept_.push_back(j);
    }
  }

  int64_t query_at(int64_t head, int64_t i) const { return (head * s_.q_seq + i) * s_.head_dim; }
  int64_t output_at(int64_t head, int64_t i) const { return (head * s_.q_seq + i) * s_.v_dim; }
  int64_t key_at(int64_t head, int64_t j) const { return key_row(head, j) * s_.head_dim; }
  int64_t value_at(int64_t head, int64_t j) const { return key_row(head, j) * s_.v_dim; }

  void load(int64_t head, int64_t i, QueryRow& row) const {
    find_keys(head, i, row);
    std::vector<Dot> dots;
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const Dot& dot = dots.emplace_back(&q[at(query_at(head, i))], &k[at(key_at(head, row.keys[j]))], s_.head_dim);
      set_score(row, j, scale * dot.value, cap(scale * dot.value, std::abs(scale) * dot.magnitude));
    }
    set_probabilities(row);
    row.has_rounded_scores = false;
    if (recipes_.has(recipe::kScores) && !ScoreErrors(recipes_, cap, row).are_small()) round_scores(row, dots);
  }
  /// Sets the keys, p and lse, with the bits that load() gives them. Errors, scores and slopes stay those of another
  /// row.
  void load_values(int64_t head, int64_t i, QueryRow& row) const {
    find_keys(head, i, row);
    const size_t n = row.keys.size();
    for (size_t j = 0; j < n; j += kDotsAtOnce) {
      std::array<const double*, kDotsAtOnce> rows;
      for (size_t r = 0; r < kDotsAtOnce; ++r) rows[r] = &k[at(key_at(head, row.keys[std::min(j + r, n - 1)]))];
      std::array<double, kDotsAtOnce> dots;
      multiply_rows(&q[at(query_at(head, i))], rows, s_.head_dim, dots.data());
      for (size_t r = 0; r < std::min(kDotsAtOnce, n - j); ++r) row.capped[j + r] = cap(scale * dots[r]).z.value;
    }
    SoftmaxRow softmax;
    softmax.add(row.capped.data(), static_cast<int64_t>(n));
    if (row.sink != -INFINITY) softmax.add(&row.sink, 1);
    row.lse = softmax.lse();
    for (size_t j = 0; j < n; ++j) row.p[j] = std::exp(row.capped[j] - softmax.max) / softmax.sum;
  }

 private:
  int64_t key_row(int64_t head, int64_t j) const { return head / (s_.q_heads / s_.kv_heads) * s_.kv_seq + j; }
  void find_keys(int64_t head, int64_t i, QueryRow& row) const {
    const AttentionAttrs::Range seen = attrs_.keys_of(i, s_.q_seq, s_.kv_seq);
    row.keys.assign(std::lower_bound(kept_.begin(), kept_.end(), seen.begin),
                    std::lower_bound(kept_.begin(), kept_.end(), seen.end));
    row.resize();
    row.sink = sinks.empty() ? -INFINITY : sinks[at(head)];
  }
  static bool is_fp32(double x) { return static_cast<double>(static_cast<float>(x)) == x; }
  static void set_score(QueryRow& row, size_t j, double score, const TransformedLogit& capped) {
    row.score[j] = score, row.capped[j] = capped.z.value, row.slope[j] = capped.slope;
    row.size[j] = capped.z.magnitude, row.of_cap[j] = capped.z.rounding;
  }

  /// Sets the probabilities and the log-sum-exp of a row with scores.
  static void set_probabilities(QueryRow& row) {
    const auto n = static_cast<int64_t>(row.keys.size());
    SoftmaxRow softmax;
    softmax.add(row.capped.data(), n, {row.size.data(), row.of_cap.data()});
    const bool has_sink = row.sink != -INFINITY;
    if (has_sink) softmax.add(&row.sink, 1);
    row.lse = softmax.lse(), row.lse_magnitude = row.lse_rounding = 0;
    if (n > 0 || has_sink) {
      row.lse_magnitude = softmax.mean_magnitude() + 1;
      row.lse_rounding = softmax.lse_rounding() + kScaleRounding * softmax.mean_magnitude();
    }
    const double fixed = softmax.lse_rounding() + kExpUnits + 2 + kScaleRounding * softmax.mean_magnitude();
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const double below = row.capped[j] - softmax.max;
      row.p[j] = std::exp(below) / softmax.sum;
      row.growth[j] = row.size[j] + 1 + softmax.mean_magnitude();
      row.rounding[j] = fixed + kArgumentUnits * std::abs(below) + std::abs(below - softmax.log_sum()) +
                        kScaleRounding * row.size[j] + row.of_cap[j];
    }
    row.sink_p = row.sink_growth = row.sink_rounding = 0;
    if (!has_sink) return;
    const double below = row.sink - softmax.max;
    row.sink_p = std::exp(below) / softmax.sum;
    row.sink_growth = 1 + softmax.mean_magnitude();
    row.sink_rounding = fixed + kArgumentUnits * std::abs(below) + std::abs(below - softmax.log_sum());
  }

  /// Rounds the scores before and after the scale, unless one is too large for the dtype of the case. A product with a
  /// scale that fp32 holds, such as 1/8, is exact if fp32 holds it, too: every kernel has the same ties. Scores near a
  /// tie may be off by d_j. That moves lse by log sum_j p_j exp(d_j) at most, and p_j by exp(that + d_j) - 1 of itself;
  /// there is room for the product of such errors.
  void round_scores(QueryRow& row, const std::vector<Dot>& dots) const {
    std::vector<Rounded> scores;
    for (const Dot& dot : dots) {
      const Rounded product = recipes_.round(0, dot.value, dot.magnitude, 0);
      const double score = scale * product.value, of_scale = is_fp32(scale) && is_fp32(score) ? 0 : kScaleRounding;
      scores.push_back(
          recipes_.round(0, score, 0, recipes_.in_units(std::abs(scale) * product.slack) + of_scale * std::abs(score)));
      if (!std::isfinite(scores.back().value)) return;
    }
    std::vector<double> slack;
    for (size_t j = 0; j < scores.size(); ++j) {
      const TransformedLogit capped = cap(scores[j].value, scores[j].slack, recipes_);
      set_score(row, j, scores[j].value, capped);
      slack.push_back(capped.slack);
    }
    set_probabilities(row);
    double of_sum = 0;
    for (size_t j = 0; j < slack.size(); ++j) of_sum += row.p[j] * std::expm1(slack[j]);
    const double of_lse = std::log1p(of_sum);
    row.lse_rounding += recipes_.in_units(of_lse);
    for (size_t j = 0; j < slack.size(); ++j) {
      const double off = std::expm1(of_lse + slack[j]);
      row.rounding[j] += recipes_.in_units(off * (1 + off));
    }
    row.has_rounded_scores = true;
  }

  /// Joins the parts of a key or value array: [kv_heads, kv_seq, width] of this batch entry.
  static std::vector<double> joined(const GoldArgs& args, int parts, int (*input)(int), const Sizes& s, int64_t width,
                                    int64_t batch) {
    std::vector<double> all(at(s.kv_heads * s.kv_seq * width));
    for (int64_t head = 0; head < s.kv_heads; ++head) {
      double* to = &all[at(head * s.kv_seq * width)];
      for (int part = 0; part < parts; ++part) {
        const Tensor& t = args.in(input(part));
        const int64_t n = t.shape[2] * width;
        decode(t, (batch * s.kv_heads + head) * n, n, to);
        to += n;
      }
    }
    return all;
  }

  const Sizes& s_;
  std::vector<int64_t> kept_;  ///< keys that the padding mask keeps, ascending

 public:
  const std::vector<double> q, k, v;

 private:
  const AttentionAttrs attrs_;
  const ActiveRecipes& recipes_;

 public:
  const std::vector<double> sinks;  ///< of every query head; empty: none
  const LogitTransform cap;
  const double scale;
};

Sizes sizes_of(const GoldArgs& args, int parts) {
  const Shape &q = args.in(0).shape, &k = args.in(1).shape;
  int64_t kv_seq = 0;
  for (int part = 0; part < parts; ++part) kv_seq += args.in(Inputs::k(part)).shape[2];
  return {q[0], q[1], k[1], q[2], kv_seq, q[3], args.in(Inputs::v(0)).shape[3]};
}

/// The errors of a query's probabilities when its scores are rounded by a little. A score s is rounded twice, before
/// and after the scale, and each rounding multiplies exp(s) by a factor that is off by at most exp(u|s|) - 1.
/// `amplitude` is that over u, with room for the products of errors, which a first-order formula leaves out: (1 +
/// e)^kOrders for e = exp(u max|s|) - 1. `slope` is by how much the roundings move the derivative of the cap, over u.
/// Both are 0 where the row has rounded scores, and for a key too far below the largest score to be seen in a sum.
struct RoundedScores {
  RoundedScores(const ActiveRecipes& recipes, const LogitTransform& cap, const QueryRow& row)
      : amplitude(row.score.size()), slope(row.score.size()) {
    constexpr double kOrders = 4;
    const ScoreErrors errors(recipes, cap, row);
    if (row.has_rounded_scores || !errors.are_small()) return;
    const double orders = std::exp(kOrders * errors.largest) / recipes.case_unit();
    for (size_t j = 0; j < row.score.size(); ++j) {
      if (!ScoreErrors::is_seen(row.p[j])) continue;
      amplitude[j] = std::expm1(errors.of_capped[j]) * orders, slope[j] = errors.of_slope[j] * orders;
    }
  }
  static constexpr double kRoundings = 2;
  std::vector<double> amplitude, slope;
};

/// Keys of a query with the same score and the same values: a kernel rounds their probabilities alike. They come from
/// page tables above all, which no backward pass has: gradients take each key for itself.
struct EqualKeys {
  size_t first;  ///< of one of them
  double n;
};

/// All keys of a row. v_of(j): the `width` values of a key. In an order that also has a place for NaN.
template <typename ValuesOf>
std::vector<EqualKeys> equal_keys(const QueryRow& row, const ValuesOf& v_of, int64_t width) {
  const auto compare = [&](size_t a, size_t b) {
    const auto of_scores = std::strong_order(row.score[a], row.score[b]);
    if (of_scores != 0) return of_scores;
    const double *of_a = v_of(a), *of_b = v_of(b);
    return std::lexicographical_compare_three_way(of_a, of_a + width, of_b, of_b + width, std::strong_order);
  };
  std::vector<size_t> order(row.score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return compare(a, b) < 0; });
  std::vector<EqualKeys> groups;
  for (const size_t j : order) {
    if (!groups.empty() && compare(groups.back().first, j) == 0) {
      ++groups.back().n;
    } else {
      groups.push_back({j, 1});
    }
  }
  return groups;
}

/// p_in_16_bit: each p_j v_j has one rounding, equal keys one together. `terms`: p_j v_j of all keys, `width` values
/// each.
void round_probabilities(const ActiveRecipes& recipes, const QueryRow& row, int64_t width, std::vector<Term>& terms) {
  const auto v_of = [&](size_t j) { return terms[j].x; };
  for (const EqualKeys& keys : equal_keys(row, v_of, width))
    terms[keys.first].errors.add(keys.n * recipes.size(row.p[keys.first]));
}

/// scores_in_16_bit: an error d_j of exp(s_j) moves o, from element `to` on, by p_j (v_j - o) d_j, and lse, in row `r`,
/// by p_j d_j.
void round_scores(const ActiveRecipes& recipes, const LogitTransform& cap, const QueryRow& row, int64_t width,
                  const std::vector<Term>& terms, int64_t to, int64_t r, Block& o, Block& lse) {
  const RoundedScores scores(recipes, cap, row);
  for (size_t j = 0; j < row.keys.size(); ++j) {
    for (int64_t i = 0; i < width; ++i) {
      const double error = std::abs(row.p[j] * scores.amplitude[j] * (terms[j].x[i] - o.value[at(to + i)]));
      o.add_rounding(to + i, {scores.kRoundings * error * error, scores.kRoundings * error});
    }
    const double error = row.p[j] * scores.amplitude[j];
    lse.add_rounding(r, {scores.kRoundings * error * error, scores.kRoundings * error});
  }
}

}  // namespace

void attention_forward(const GoldArgs& args, int parts) {
  const Sizes s = sizes_of(args, parts);
  const int64_t rows = s.q_heads * s.q_seq;  // of a batch entry
  const bool rounds = !args.recipes.none();
  for (int64_t b = 0; b < s.batch; ++b) {
    std::vector<int64_t> wanted;
    for (int64_t r = 0; r < rows; ++r) {
      const bool of_lse = has_lse_out(args) && args.rows(kLseOut).has(b * s.q_heads + r / s.q_seq);
      if (of_lse || args.rows(0).has(b * rows + r)) wanted.push_back(r);
    }
    const int64_t n_wanted = std::ssize(wanted);
    if (n_wanted == 0) continue;
    const Entry entry(args, {parts}, s, b);
    Block o(n_wanted * s.v_dim, rounds), lse(has_lse_out(args) ? rows : 0, rounds);
    args.parallel_for((n_wanted + kRowsOfATask - 1) / kRowsOfATask, [&](int64_t task) {
      QueryRow row;
      std::vector<Term> terms;
      for (int64_t i = task * kRowsOfATask; i < std::min(n_wanted, (task + 1) * kRowsOfATask); ++i) {
        const int64_t r = wanted[at(i)], to = i * s.v_dim;
        terms.clear();
        if (args.values_only) {
          entry.load_values(r / s.q_seq, r % s.q_seq, row);
          for (size_t j = 0; j < row.keys.size(); ++j)
            terms.push_back({&entry.v[at(entry.value_at(r / s.q_seq, row.keys[j]))], row.p[j], 0, 0});
          add_values(terms, s.v_dim, &o.value[at(to)]);
          if (has_lse_out(args)) lse.value[at(r)] = row.lse;
          continue;
        }
        entry.load(r / s.q_seq, r % s.q_seq, row);
        for (size_t j = 0; j < row.keys.size(); ++j) {
          const double p = row.p[j];
          const double* v = &entry.v[at(entry.value_at(r / s.q_seq, row.keys[j]))];
          terms.push_back({v, p, p * (1 + row.growth[j]), p * row.rounding[j]});
        }
        if (args.recipes.has(recipe::kP)) round_probabilities(args.recipes, row, s.v_dim, terms);
        o.add(to, s.v_dim, terms);
        if (has_lse_out(args))
          lse.value[at(r)] = row.lse, lse.magnitude[at(r)] = row.lse_magnitude, lse.rounding[at(r)] = row.lse_rounding;
        if (args.recipes.has(recipe::kScores))
          round_scores(args.recipes, entry.cap, row, s.v_dim, terms, to, r, o, lse);
      }
    });
    o.finish(args, 0, entry.scale == 0);
    if (args.rows(0).all) o.sink(args, 0, b);
    for (int64_t i = 0; i < n_wanted && !args.rows(0).all; ++i) {
      const int64_t r = b * rows + wanted[at(i)];
      if (args.rows(0).has(r)) o.sink(args, 0, r, i * s.v_dim, s.v_dim);
    }
    if (!has_lse_out(args)) continue;
    lse.finish(args, kLseOut, entry.scale == 0);
    lse.sink_rows(args, kLseOut, b, s.q_seq);
  }
}

namespace {

/// The roundings of a query's row in its gradients. Errors d_j of exp(s_j) and e_j of dp_j move
///   p_j by p_j (d_j - sum_l p_l d_l)
///   dt_j by dt_j d_j - dt_j sum_l p_l d_l - p_j sum_l dt_l d_l  and by  scale p_j (e_j - sum_l p_l e_l)
/// to first order, for dt_j = scale p_j (dp_j - D + g) with the gradient g of lse, where the last sum has dt_l without
/// its g; ds_j is dt_j times the slope of the cap, whose own error counts, too. o_in_16_bit moves D = sum_d g_d o_d,
/// and each dt_j by -scale p_j times that. The gradient of a sink moves as D and its probability do.
class RoundedGradients {
 public:
  /// `grad`: of the query's output.
  RoundedGradients(const ActiveRecipes& recipes, const Entry& entry, const Sizes& s, int64_t head, const QueryRow& row,
                   const double* grad, double d, double of_lse)
      : recipes_(recipes),
        entry_(entry),
        n_(s.head_dim),
        v_n_(s.v_dim),
        head_(head),
        row_(row),
        grad_(grad),
        d_(d),
        of_lse_(of_lse),
        rounds_p_(recipes.has(recipe::kP)),
        rounds_ds_(recipes.has(recipe::kDs)),
        rounds_o_(recipes.has(recipe::kO)) {
    if (!rounds_o_) return;
    const std::vector<double> o = mean_value(row.p);
    for (int64_t i = 0; i < v_n_; ++i) of_d_.add(std::abs(grad[i]) * recipes.size(o[at(i)]));
  }

  /// Errors of the terms that key j adds to dq, dk and dv. finish() adds those of scores_in_16_bit, and those that
  /// o_in_16_bit adds to dq and dsinks.
  struct OfKey {
    Errors dq, dk, dv;
  };
  OfKey of_key(size_t j, double dt) const {
    OfKey errors;
    if (rounds_p_) errors.dv.add(recipes_.size(row_.p[j]));
    if (rounds_ds_) errors.dq.add(rounded_ds(slope(j) * dt)), errors.dk = errors.dq;
    if (rounds_o_) errors.dk.add(of_d_, std::abs(entry_.scale) * row_.p[j] * slope(j));
    return errors;
  }

  /// `dp`, `dt`: of all keys.
  void finish(int64_t query, const std::vector<Dot>& dp, const std::vector<double>& dt, Block& dq, Block& dk, Block& dv,
              Block& dsinks) const {
    if (rounds_o_) {
      const std::vector<double> k = mean_key(times_slope(row_.p));
      for (int64_t i = 0; i < n_; ++i) dq.add_rounding(query + i, of_d_, std::abs(entry_.scale * k[at(i)]));
      if (row_.sink_p != 0) dsinks.add_rounding(head_, of_d_, row_.sink_p);
    }
    if (!recipes_.has(recipe::kScores)) return;
    add_scores(query, dp, dt, dq, dk, dv);
    if (row_.sink_p != 0) add_scores_of_sink(dp, dsinks);
  }

 private:
  int64_t key(size_t j) const { return entry_.key_at(head_, row_.keys[j]); }
  int64_t value(size_t j) const { return entry_.value_at(head_, row_.keys[j]); }
  double slope(size_t j) const { return row_.slope[j].value; }
  std::vector<double> times_slope(std::vector<double> x) const {
    for (size_t j = 0; j < x.size(); ++j) x[j] *= slope(j);
    return x;
  }
  /// ds as it is rounded, which is before the scale in FlashAttention and after it in cuDNN: the smallest normal number
  /// counts by the larger share. Also where ds is 0, as with one key, for kernels compute some small number there.
  double rounded_ds(double ds) const {
    return std::max(std::abs(ds), std::max(std::abs(entry_.scale), 1.0) * recipes_.size(0));
  }
  /// sum_j weight_j k_j, and of the values.
  std::vector<double> mean_key(const std::vector<double>& weight) const {
    std::vector<double> sum(at(n_));
    for (size_t j = 0; j < weight.size(); ++j) {
      for (int64_t d = 0; d < n_; ++d) sum[at(d)] += weight[j] * entry_.k[at(key(j) + d)];
    }
    return sum;
  }
  std::vector<double> mean_value(const std::vector<double>& weight) const {
    std::vector<double> sum(at(v_n_));
    for (size_t j = 0; j < weight.size(); ++j) {
      for (int64_t d = 0; d < v_n_; ++d) sum[at(d)] += weight[j] * entry_.v[at(value(j) + d)];
    }
    return sum;
  }

  /// p_sink (g - D) moves by -p_sink sum_l p_l d_l (g - D + dp_l - D) and by -p_sink sum_l p_l e_l. It is rounded, too,
  /// before it is added to those of other queries.
  void add_scores_of_sink(const std::vector<Dot>& dp, Block& dsinks) const {
    const RoundedScores scores(recipes_, entry_.cap, row_);
    const double off = of_lse_ - d_, own = recipes_.size(row_.sink_p * off);
    Errors errors;
    errors.add(own);
    for (size_t j = 0; j < dp.size(); ++j) {
      const double weight = row_.sink_p * row_.p[j];
      const double by_score = weight * scores.amplitude[j] * std::abs(off + dp[j].value - d_);
      errors.squares += RoundedScores::kRoundings * by_score * by_score;
      errors.sizes += RoundedScores::kRoundings * by_score;
      errors.add(weight * recipes_.size(dp[j].value));
    }
    dsinks.add_rounding(head_, errors);
  }

  void add_scores(int64_t query, const std::vector<Dot>& dp, const std::vector<double>& dt, Block& dq, Block& dk,
                  Block& dv) const {
    constexpr double kTwice = RoundedScores::kRoundings;
    const RoundedScores scores(recipes_, entry_.cap, row_);
    const std::vector<double>&a = scores.amplitude, &p = row_.p;
    std::vector<double> b(p.size());        // of scale p_j e_j
    double pp = 0, pd = 0, dd = 0, bb = 0;  // sums of squares and products of a p, a dt and b
    double p1 = 0, d1 = 0, b1 = 0;          // sums of their sizes
    std::vector<double> by_d(p.size());     // dt without the gradient of lse
    for (size_t j = 0; j < p.size(); ++j) {
      by_d[j] = dt[j] - entry_.scale * p[j] * of_lse_;
      const double ap = a[j] * p[j], ad = a[j] * by_d[j];
      b[j] = std::abs(entry_.scale) * p[j] * recipes_.size(dp[j].value);
      pp += ap * ap, pd += ap * ad, dd += ad * ad, bb += b[j] * b[j];
      p1 += ap, d1 += std::abs(ad), b1 += b[j];
    }
    const std::vector<double> k = mean_key(times_slope(p)), dq_of_row = mean_key(times_slope(dt));
    for (size_t j = 0; j < p.size(); ++j) {
      const double ap = a[j] * p[j], own = recipes_.size(slope(j) * dt[j]);
      const double by_own = std::abs(a[j] * (dt[j] * (1 - p[j]) - p[j] * by_d[j]));
      const double of_slope = std::abs(dt[j]) * scores.slope[j];
      const auto square = [](double x) { return x * x; };
      const double p_square = square(ap * (1 - p[j])) + square(p[j]) * (pp - square(ap));
      const double p_size = ap * (1 - p[j]) + p[j] * (p1 - ap);
      dv.add_roundings(value(j), v_n_, {kTwice * p_square, kTwice * p_size}, grad_);
      const double others =
          square(dt[j]) * pp + 2 * dt[j] * p[j] * pd + square(p[j]) * dd - square(ap * (dt[j] + by_d[j]));
      const double of_scores = square(slope(j) * by_own + of_slope) + square(slope(j)) * std::max(0.0, others);
      const double of_scores_size = slope(j) * (by_own + std::abs(dt[j]) * p1 + p[j] * d1) + of_slope;
      const double of_dp = square(slope(j)) * (square(b[j] * (1 - p[j])) + square(p[j]) * (bb - square(b[j])));
      const double of_dp_size = slope(j) * (b[j] * (1 - p[j]) + p[j] * (b1 - b[j]));
      dk.add_roundings(key(j), n_, {kTwice * of_scores + of_dp + own * own, kTwice * of_scores_size + of_dp_size + own},
                       &entry_.q[at(query)]);
      for (int64_t d = 0; d < n_; ++d) {
        const double of_key = entry_.k[at(key(j) + d)], off = slope(j) * of_key - k[at(d)];
        const double by_score =
            std::abs(a[j] * (dt[j] * slope(j) * of_key - by_d[j] * k[at(d)] - p[j] * dq_of_row[at(d)])) +
            of_slope * std::abs(of_key);
        const double by_dp = b[j] * std::abs(off), by_ds = own * std::abs(of_key);
        dq.add_rounding(query + d,
                        {kTwice * square(by_score) + square(by_dp) + square(by_ds), kTwice * by_score + by_dp + by_ds});
      }
    }
  }

  const ActiveRecipes& recipes_;
  const Entry& entry_;
  const int64_t n_, v_n_, head_;  ///< head_dim, v_dim, and the query head
  const QueryRow& row_;
  const double* grad_;
  const double d_, of_lse_;  ///< the row sum D, and the gradient of lse
  const bool rounds_p_, rounds_ds_, rounds_o_;
  Errors of_d_;  ///< by o_in_16_bit
};

/// The gradients of one head of a group, summed over its queries, are rounded before the heads are added up.
class RoundedHeads {
 public:
  /// Elements [first, first + n) of `all` are those of the group's key head. Make one before the head's queries are
  /// added.
  RoundedHeads(Block& all, int64_t first, int64_t n)
      : all_(all), first_(at(first)), value_(copy(all.value, n)), magnitude_(copy(all.magnitude, n)) {}
  void add(const ActiveRecipes& recipes) {
    for (size_t i = 0; i < value_.size(); ++i) {
      if (all_.magnitude[first_ + i] == magnitude_[i]) continue;  // no query reads the key: the zero is exact
      Errors errors;
      errors.add(recipes.size(all_.value[first_ + i] - value_[i]));
      all_.add_rounding(static_cast<int64_t>(first_ + i), errors);
    }
  }

 private:
  std::vector<double> copy(const std::vector<double>& from, int64_t n) const {
    return {from.begin() + static_cast<int64_t>(first_), from.begin() + static_cast<int64_t>(first_) + n};
  }

  Block& all_;
  size_t first_;
  std::vector<double> value_, magnitude_;  ///< of the heads before
};

/// What a batch entry's forward pass saved; empty where it is not given.
struct Saved {
  std::vector<double> o, lse;
  double smallest = 0;  ///< normal number of the dtype of o

  Saved(const GoldArgs& args, const Inputs& inputs, const Sizes& s, int64_t batch) {
    if (has(args, inputs.o())) {
      o = decoded(args.in(inputs.o()), batch * s.outputs(), s.outputs());
      smallest = std::ldexp(1.0, info(args.in(inputs.o()).dtype).min_exponent);
    }
    const int64_t rows = s.q_heads * s.q_seq;
    if (has(args, inputs.lse())) lse = decoded(args.in(inputs.lse()), batch * rows, rows);
  }
  bool any() const { return !o.empty() || !lse.empty(); }

  /// How much larger the saved lse makes the probabilities of row `r`: exp(lse - saved) - 1. NaN belongs to a query
  /// that is NaN, even if it sees the sink alone.
  double growth_of_p(const QueryRow& row, int64_t r, const double* query) const {
    constexpr double kMost = 0x1p-5, kOfSize = 0x1p-20;
    // An lse beyond fp32's range can't be saved.
    if (lse.empty() || !(std::abs(row.lse) <= std::numeric_limits<float>::max())) return 0;
    const double off = row.lse - lse[at(r)];
    if (std::isnan(off) && std::isnan(*query)) return off;
    if (!(std::abs(off) <= kMost + kOfSize * std::abs(row.lse))) {
      throw InputError("input 'lse'",
                       fmt::format("row {} of a batch entry has {}, q and k give {:.9g}", r, lse[at(r)], row.lse),
                       "give natural logarithms, of a forward pass over the same inputs");
    }
    return std::expm1(off);
  }
  /// What the saved o adds to D = sum_d grad_d o_d of row `r`. `size`: sum_j p_j sum_d |grad_d v_jd|.
  double added_to_d(const double* grad, int64_t n, double d, double size, int64_t r) const {
    constexpr double kMost = 0x1p-5;
    if (o.empty() || size == 0 || !std::isfinite(d)) return 0;  // size 0: no keys, or none that counts
    double saved = 0;
    for (int64_t i = 0; i < n; ++i) saved += grad[i] * o[at(r * n + i)], size += std::abs(grad[i]) * smallest;
    if (!(std::abs(saved - d) <= kMost * size)) {
      throw InputError(
          "input 'o'",
          fmt::format("row {} of a batch entry gives grad_o o = {:.9g}, q, k and v give {:.9g}", r, saved, d),
          "give the output of a forward pass over the same inputs");
    }
    return saved - d;
  }
};

/// What a batch entry's backward pass is computed from.
struct Upstream {
  std::vector<double> grad, grad_lse;  ///< grad_lse: empty if it is not given
  Saved saved;
};

/// The contribution of a query to the gradients, key by key in ascending order:
///   dp_j = grad.v_j, summed over d;  D = sum_j p_j dp_j (grad.o would be as accurate);
///   dt_j = p_j (dp_j - D + g) with the gradient g of lse;  ds_j = dt_j times the slope of the cap;
///   dsink = sum over queries of p_sink (g - D)
/// Errors, with E_j = sum_d |grad v_j|:
///   D: sum_j p_j (2 E_j + |dp_j| growth_j), rounding sum_j p_j (2 E_j + |dp_j| rounding_j) + |D|, and |g| where both
///     are added first. An error e of p_j moves D by e dp_j, also where D = sum_d grad_d o_d, since all columns of o
///     have the same p_j. 2 E_j: the sums in dp_j and over j, or those in o_d and over d; o_d is divided by the sum of
///     exponentials, and stored;
///   dt_j: p_j (E_j + error of D + |dp_j - D + g| growth_j),
///     rounding p_j (that of D + |dp_j - D + g| (rounding_j + 2));
///   ds_j: see by_logit(); the scale rounds in the score, of which the slope is a function;
///   dsink: as dt without E_j, and the sum's own
/// A kernel that takes D or p from what the forward pass saved has the roundings of these; the gold knows them, for it
/// has the exact values, too. Their products are far below the other errors.
class QueryGradient {
 public:
  QueryGradient(const ActiveRecipes& recipes, const Entry& entry, const Sizes& s, const Upstream& up)
      : recipes_(recipes), entry_(entry), s_(s), up_(up) {}

  /// Begins with query i of `head`.
  void begin(int64_t head, int64_t i) {
    entry_.load(head, i, row_);
    head_ = head, query_ = entry_.query_at(head, i);
    grad_ = &up_.grad[at(entry_.output_at(head, i))];
    dp_.clear(), dt_.clear();
    d_ = d_magnitude_ = d_rounding_ = 0;
    double d_size = 0;
    for (size_t j = 0; j < row_.keys.size(); ++j) {
      const Dot& dp = dp_.emplace_back(grad_, &entry_.v[at(entry_.value_at(head, row_.keys[j]))], s_.v_dim);
      d_ += row_.p[j] * dp.value;
      d_size += row_.p[j] * dp.magnitude;
      d_magnitude_ += row_.p[j] * (2 * dp.magnitude + std::abs(dp.value) * row_.growth[j]);
      d_rounding_ += row_.p[j] * (2 * dp.magnitude + std::abs(dp.value) * row_.rounding[j]);
    }
    const int64_t r = head * s_.q_seq + i;
    g_ = up_.grad_lse.empty() ? 0 : up_.grad_lse[at(r)];
    d_rounding_ += std::abs(d_) + std::abs(g_);
    // A kernel with rounded scores computes its own lse and D.
    uses_saved_ = up_.saved.any() && !row_.has_rounded_scores;
    of_lse_ = uses_saved_ ? up_.saved.growth_of_p(row_, r, &entry_.q[at(query_)]) : 0;
    of_o_ = uses_saved_ ? up_.saved.added_to_d(grad_, s_.v_dim, d_, d_size, r) : 0;
    rounded_.reset();
    if (!recipes_.none()) rounded_.emplace(recipes_, entry_, s_, head_, row_, grad_, d_, g_);
  }

  /// Adds the next keys, those below `end`, to dq.
  void add_keys(int64_t end, Block& dq) {
    shares_.clear(), terms_.clear(), next_ = 0;
    for (size_t j = dt_.size(); j < row_.keys.size() && row_.keys[j] < end; ++j) {
      const Share& share = shares_.emplace_back(share_of(j));
      terms_.push_back(share.term(&entry_.k[at(entry_.key_at(head_, share.key))], share.rounded.dq));
    }
    dq.add(query_, s_.head_dim, terms_);
  }
  /// Appends the terms of the query in dk and dv of `key`, one of those keys, if the query sees it. The next call is
  /// for a later key.
  void append_terms(int64_t key, std::vector<Term>& of_k, std::vector<Term>& of_v) {
    if (next_ == shares_.size() || shares_[next_].key != key) return;
    const Share& share = shares_[next_++];
    of_k.push_back(share.term(&entry_.q[at(query_)], share.rounded.dk));
    const GoldElement& p = share.p;
    of_v.push_back({grad_, p.value, p.magnitude, p.rounding, 0, uses_saved_ ? p.value * of_lse_ : 0, share.rounded.dv});
  }

  /// Adds what belongs to no key, after all keys.
  void finish(Block& dq, Block& dk, Block& dv, Block& dsinks) const {
    if (row_.sink_p != 0) {
      const double p = row_.sink_p, off = g_ - d_, value = p * off, one = 1;
      const Term term{&one,
                      value,
                      std::abs(value) + p * (d_magnitude_ + std::abs(off) * row_.sink_growth),
                      p * (d_rounding_ + std::abs(off) * (row_.sink_rounding + 2)) + kFlushUnits * (std::abs(off) + 1),
                      uses_saved_ ? -p * of_o_ : 0,
                      uses_saved_ ? p * of_lse_ * (off - of_o_) : 0};
      dsinks.add(head_, 1, {&term, 1});
    }
    if (rounded_) rounded_->finish(query_, dp_, dt_, dq, dk, dv, dsinks);
  }

 private:
  /// What a key and the query have of each other: `ds` is the factor of the key in dq and of the query in dk, `p` that
  /// of grad in dv.
  struct Share {
    int64_t key;
    GoldElement ds, p;
    double by_o, by_lse;  ///< by how much saved values move ds
    RoundedGradients::OfKey rounded;

    Term term(const double* x, const Errors& errors) const {
      return {x, ds.value, ds.magnitude, ds.rounding, by_o, by_lse, errors};
    }
  };
  Share share_of(size_t j) {
    const double p = row_.p[j], growth = row_.growth[j], rounding = row_.rounding[j], off = dp_[j].value - d_ + g_;
    const double dt = entry_.scale * p * off, weight = std::abs(entry_.scale) * p;
    const double dt_magnitude = std::abs(dt) + weight * (dp_[j].magnitude + d_magnitude_ + std::abs(off) * growth);
    // A probability below the smallest normal number may be flushed to 0, as may its products.
    const double flushed = dt == 0 ? 0 : kFlushUnits * (std::abs(entry_.scale * off) + 2);
    const double dt_rounding = weight * (d_rounding_ + std::abs(off) * (rounding + 2 + kScaleRounding)) + flushed;
    GoldElement slope = row_.slope[j];
    slope.rounding += kScaleRounding * slope.magnitude;
    dt_.push_back(dt);
    const double scaled = entry_.scale * p * slope.value;
    return {.key = row_.keys[j],
            .ds = by_logit({dt, dt_magnitude, dt_rounding}, {{}, slope}),
            .p = {p, p * (1 + growth), p * rounding + kFlushUnits},
            .by_o = uses_saved_ ? -scaled * of_o_ : 0,
            .by_lse = uses_saved_ ? scaled * of_lse_ * (off - of_o_) : 0,
            .rounded = rounded_ ? rounded_->of_key(j, dt) : RoundedGradients::OfKey{}};
  }

  const ActiveRecipes& recipes_;
  const Entry& entry_;
  const Sizes& s_;
  const Upstream& up_;
  QueryRow row_;
  std::vector<Dot> dp_;
  std::vector<double> dt_;        // of the keys added so far
  std::vector<Share> shares_;     // of those that were added last
  std::vector<Term> terms_;       // of these in dq
  size_t next_ = 0;               // of shares_, in append_terms()
  int64_t head_ = 0, query_ = 0;  // query_: of its first element in q
  const double* grad_ = nullptr;  // of the query's output
  double d_ = 0, d_magnitude_ = 0, d_rounding_ = 0, g_ = 0;
  bool uses_saved_ = false;
  double of_lse_ = 0, of_o_ = 0;             // what saved values add to p, relative to it, and to D
  std::optional<RoundedGradients> rounded_;  // with recipes
};

/// Adds the contributions of queries [begin, end) of `head`: some queries to some keys at a time. A key takes the
/// queries, and a query its keys, in ascending order.
void differentiate(const ActiveRecipes& recipes, const Entry& entry, const Sizes& s, const Upstream& up, int64_t head,
                   int64_t begin, int64_t end, Block& dq, Block& dk, Block& dv, Block& dsinks) {
  constexpr int64_t kQueries = 16, kKeys = 32;
  std::vector<QueryGradient> queries;
  for (int64_t i = 0; i < std::min(kQueries, end - begin); ++i) queries.emplace_back(recipes, entry, s, up);
  std::vector<Term> of_k, of_v;
  for (; begin < end; begin += kQueries) {
    const std::span<QueryGradient> some(queries.data(), at(std::min(kQueries, end - begin)));
    for (size_t i = 0; i < some.size(); ++i) some[i].begin(head, begin + static_cast<int64_t>(i));
    for (int64_t first = 0; first < s.kv_seq; first += kKeys) {
      const int64_t last = std::min(s.kv_seq, first + kKeys);
      for (QueryGradient& query : some) query.add_keys(last, dq);
      for (int64_t key = first; key < last; ++key) {
        of_k.clear(), of_v.clear();
        for (QueryGradient& query : some) query.append_terms(key, of_k, of_v);
        if (of_k.empty()) continue;
        dk.add(entry.key_at(head, key), s.head_dim, of_k);
        dv.add(entry.value_at(head, key), s.v_dim, of_v);
      }
    }
    for (const QueryGradient& query : some) query.finish(dq, dk, dv, dsinks);
  }
}

/// Emits keys [first, first + n) of every head of `all`, which has `width` elements of each, as row `row` of an output.
void sink_keys(const GoldArgs& args, int output, int64_t row, const Block& all, const Sizes& s, int64_t width,
               int64_t first, int64_t n) {
  Block part(s.kv_heads * n * width);
  part.spread.resize(all.spread.empty() ? 0 : part.value.size()), part.deviation.resize(part.spread.size());
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    const int64_t from = (head * s.kv_seq + first) * width, to = head * n * width;
    std::copy_n(&all.value[at(from)], n * width, &part.value[at(to)]);
    std::copy_n(&all.magnitude[at(from)], n * width, &part.magnitude[at(to)]);
    std::copy_n(&all.rounding[at(from)], n * width, &part.rounding[at(to)]);
    if (all.spread.empty()) continue;
    std::copy_n(&all.spread[at(from)], n * width, &part.spread[at(to)]);
    std::copy_n(&all.deviation[at(from)], n * width, &part.deviation[at(to)]);
  }
  part.sink(args, output, row);
}

}  // namespace

void attention_backward(const GoldArgs& args, int parts) {
  const Inputs inputs{parts};
  const Sizes s = sizes_of(args, parts);
  const int64_t group = s.q_heads / s.kv_heads, rows = s.q_heads * s.q_seq;
  const bool rounds = !args.recipes.none(), has_saved = has(args, inputs.o()) || has(args, inputs.lse());
  Block dsinks(s.q_heads, rounds, has_saved);
  for (int64_t b = 0; b < s.batch; ++b) {
    const Entry entry(args, inputs, s, b);
    const ActiveRecipes& recipes = args.recipes;
    const Upstream up{
        decoded(args.in(inputs.grad()), b * s.outputs(), s.outputs()),
        has(args, inputs.grad_lse()) ? decoded(args.in(inputs.grad_lse()), b * rows, rows) : std::vector<double>(),
        Saved(args, inputs, s, b)};
    const bool rounds_heads = recipes.has(recipe::kGroup) && group > 1;
    Block dq(s.queries(), rounds, has_saved), dk(s.keys(), rounds, has_saved), dv(s.values(), rounds, has_saved);
    const int64_t of_key_head = s.kv_seq * s.head_dim, of_value_head = s.kv_seq * s.v_dim;
    const auto differentiate_queries = [&](int64_t head, int64_t begin, int64_t end, Block& to_dk, Block& to_dv,
                                           Block& to_dsinks) {
      differentiate(recipes, entry, s, up, head, begin, end, dq, to_dk, to_dv, to_dsinks);
    };
    // Calls run(head), which differentiates the queries of a head, for every head of a group.
    const auto differentiate_group = [&](int64_t kv_head, const std::function<void(int64_t)>& run) {
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        RoundedHeads of_k(dk, kv_head * of_key_head, rounds_heads ? of_key_head : 0);
        RoundedHeads of_v(dv, kv_head * of_value_head, rounds_heads ? of_value_head : 0);
        run(head);
        of_k.add(recipes), of_v.add(recipes);
      }
    };
    const RowSet &of_keys = args.rows(inputs.k(0)), &of_queries = args.rows(0);
    const bool one_thread_each = s.q_seq < kLongHead || s.kv_heads >= kTasksOfAHead;
    if ((of_keys.all && one_thread_each) || has(args, inputs.sinks())) {  // a sink's gradient needs all queries
      args.parallel_for(s.kv_heads, [&](int64_t kv_head) {
        differentiate_group(kv_head, [&](int64_t head) { differentiate_queries(head, 0, s.q_seq, dk, dv, dsinks); });
      });
    } else {
      std::vector<int64_t> others;  // queries whose keys are not asked for
      for (int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
        const int64_t first_row = (b * s.kv_heads + kv_head) * s.kv_seq;
        if (!of_keys.has_any(first_row, first_row + s.kv_seq)) {
          for (int64_t r = kv_head * group * s.q_seq; r < (kv_head + 1) * group * s.q_seq; ++r)
            if (of_queries.has(b * rows + r)) others.push_back(r);
          continue;
        }
        differentiate_group(kv_head, [&](int64_t head) {
          constexpr int64_t kSlices = 2 * kTasksOfAHead;
          const int64_t each = (s.q_seq + kSlices - 1) / kSlices;
          std::vector<std::pair<Block, Block>> parts_of_head(at(kTasksOfAHead), {Block(0), Block(0)});
          args.parallel_for(kTasksOfAHead, [&](int64_t task) {
            auto& [to_dk, to_dv] = parts_of_head[at(task)];
            to_dk = Block(of_key_head, rounds, has_saved, kv_head * of_key_head);
            to_dv = Block(of_value_head, rounds, has_saved, kv_head * of_value_head);
            Block no_sinks(0);
            for (const int64_t slice : {task, kSlices - 1 - task}) {  // late queries see more keys where causal
              differentiate_queries(head, std::min(s.q_seq, slice * each), std::min(s.q_seq, (slice + 1) * each), to_dk,
                                    to_dv, no_sinks);
            }
          });
          for (const auto& [of_dk, of_dv] : parts_of_head) dk.add(of_dk), dv.add(of_dv);
        });
      }
      args.parallel_for(std::ssize(others), [&](int64_t i) {
        Block no_keys(0), no_values(0), no_sinks(0);
        const int64_t head = others[at(i)] / s.q_seq, query = others[at(i)] % s.q_seq;
        differentiate_queries(head, query, query + 1, no_keys, no_values, no_sinks);
      });
    }
    const bool equal = entry.scale == 0;
    dq.finish(args, 0, equal), dk.finish(args, inputs.k(0), equal), dv.finish(args, inputs.v(0), equal);
    dq.sink_rows(args, 0, b, s.head_dim);
    if (parts == 1) {
      dk.sink_rows(args, Inputs::k(0), b, s.head_dim);
      dv.sink_rows(args, Inputs::v(0), b, s.v_dim);
      continue;
    }
    int64_t first = 0;
    for (int part = 0; part < parts; ++part) {  // outputs have the order of the inputs that they belong to
      const int64_t n = args.in(Inputs::k(part)).shape[2];
      sink_keys(args, Inputs::k(part), b, dk, s, s.head_dim, first, n);
      sink_keys(args, Inputs::v(part), b, dv, s, s.v_dim, first, n);
      first += n;
    }
  }
  if (!has(args, inputs.sinks())) return;
  dsinks.finish(args, kDSinksOut, /*equal=*/false);
  dsinks.sink(args, kDSinksOut, 0);
}

AttentionAttrs::AttentionAttrs(std::span<const double> attrs)
    : causal(attrs[kCausal] != 0), scale(attrs[kScale]), window_left(-1), window_right(-1), softcap(0) {
  if (attrs.size() == kAttentionAttrs.size()) return;
  window_left = static_cast<int64_t>(attrs[kWindowLeft]), window_right = static_cast<int64_t>(attrs[kWindowRight]);
  softcap = attrs[kSoftcapOfScores];
}

AttentionAttrs::Range AttentionAttrs::keys_of(int64_t i, int64_t q_seq, int64_t kv_seq) const {
  const int64_t own = i + kv_seq - q_seq, right = causal ? 0 : window_right;
  const int64_t begin = window_left < 0 ? 0 : std::clamp<int64_t>(own - window_left, 0, kv_seq);
  return {begin, right < 0 ? kv_seq : std::clamp(own + right + 1, begin, kv_seq)};
}

void check_attention_sizes(const CaseSizes& sizes) {
  const int64_t q_heads = sizes.dim("q_heads"), kv_heads = sizes.dim("kv_heads");
  if (q_heads % kv_heads != 0) {
    throw InputError("--q-heads", fmt::format("{} query heads are not a multiple of {} key heads", q_heads, kv_heads),
                     "give a multiple of --kv-heads");
  }
  if (sizes.attrs[kCausal] != 0 && sizes.attrs[kCausal] != 1) {
    throw InputError("--causal", fmt::format("expected 0 or 1, got {}", sizes.attrs[kCausal]));
  }
  if (!std::isfinite(sizes.attrs[kScale])) {
    throw InputError("--scale", fmt::format("expected a finite number, got {}", sizes.attrs[kScale]),
                     "leave it out for 1/sqrt(head_dim)");
  }
}

void plant_masked_keys(const FillArgs& args, const std::vector<std::string_view>& keys,
                       const std::vector<std::string_view>& values) {
  const Tensor* mask = args.find("key_padding_mask");
  if (mask == nullptr) return;
  const int64_t all = mask->shape.back();
  int64_t first = 0;  // where the part begins in the mask
  for (size_t part = 0; part < keys.size(); ++part) {
    const Shape& shape = args.find(keys[part])->shape;
    for (int64_t row = 0; row < shape[0] * shape[1] * shape[2]; ++row) {
      const int64_t at = row / (shape[1] * shape[2]) * all + first + row % shape[2];
      if (mask->at(at) != 0) continue;
      const uint64_t kind = payload_kind(args, static_cast<uint64_t>(at));
      for (const std::string_view name : {keys[part], values[part]}) {
        Tensor& tensor = *args.find(name);
        plant_payload(args, tensor, tensor.shape[3], row, kind);
      }
    }
    first += shape[2];
  }
}

void plant_sinks(const FillArgs& args) {
  constexpr std::array<double, 3> kPlanted{100, -INFINITY, -100};
  Tensor* const sinks = args.find(kSinks.name);
  if (sinks == nullptr || args.mode != InputMode::extreme) return;
  for (int64_t head = 0; head < sinks->count(); ++head)
    if (const auto kind = static_cast<size_t>(head % 4); kind > 0) sinks->set(head, kPlanted[kind - 1]);
}

Work attention_work(const GoldArgs& args, int parts, const AttentionProducts& products) {
  const Sizes s = sizes_of(args, parts);
  const AttentionAttrs attrs(args.attrs);
  double pairs = 0;
  for (int64_t i = 0; i < s.q_seq; ++i) {
    const AttentionAttrs::Range seen = attrs.keys_of(i, s.q_seq, s.kv_seq);
    pairs += static_cast<double>(seen.end - seen.begin);
  }
  return {products.operations(s.head_dim, s.v_dim) * static_cast<double>(s.batch * s.q_heads) * pairs};
}

constexpr std::array<Recipe, 2> kAttentionForwardRecipes{
    Recipe{recipe::kP, "o", k16Bit, /*exact=*/false, "o = sum_j round(p_j) v_j", kFlash, "", kRows},
    Recipe{recipe::kScores, "o lse", k16Bit, /*exact=*/false, "p = softmax(round(scale round(q k^T)))", kEager, "",
           kRows, /*rounds_large=*/true},
};
constexpr std::array<Recipe, 5> kAttentionBackwardRecipes{
    Recipe{recipe::kP, "dv dv_cache dv_new", k16Bit, /*exact=*/false, "dv = sum_i round(p_i) grad_i", kFlash, "",
           kRows},
    Recipe{recipe::kDs, "dq dk dk_cache dk_new", k16Bit, /*exact=*/false,
           "dq = scale sum_j round(ds_j) k_j, dk = scale sum_i round(ds_i) q_i", kFlash, "", kRows},
    Recipe{recipe::kO, "dq dk dk_cache dk_new dsinks", k16Bit, /*exact=*/false, "ds = p (dp - sum_d grad_d round(o_d))",
           kFlash, "", kRows},
    Recipe{recipe::kGroup, "dk dv dk_cache dv_cache dk_new dv_new", k16Bit, /*exact=*/false,
           "dk = sum over the group's heads of round(dk of the head), dv likewise",
           "FlashAttention 2 with grouped heads, autograd of repeat_kv"},
    // A kernel that stores the scores stores P too, and takes the row sum of dP*P from it.
    Recipe{recipe::kScores, "dq dk dv dk_cache dv_cache dk_new dv_new dsinks", k16Bit, /*exact=*/false,
           "p = softmax(round(scale round(q k^T))), ds = round(scale p (round(dp) - D))", kEager,
           /*excludes=*/recipe::kO, kRows, /*rounds_large=*/true},
};

constexpr std::array<AttrSpec, 2> kAttentionAttrs{
    AttrSpec{"causal", 1, "attention: 1 keeps key j <= i + (kv_seq - q_seq) of query i, 0 keeps all"},
    AttrSpec{"scale", -1, "attention: factor of the scores, 0 included; below 0: 1/sqrt(head_dim)"},
};

constexpr std::array<AttrSpec, 5> kWindowAttrs{
    kAttentionAttrs[kCausal], kAttentionAttrs[kScale],
    AttrSpec{"window_left", -1, "a query sees its own key and this many before it; -1: all before it"},
    AttrSpec{"window_right", -1, "a query sees its own key and this many after it; -1: all after it; with causal none"},
    AttrSpec{"softcap", 0, "c: scores s become c tanh(s/c), after the scale; 0: they stay as they are"}};

void check_window_sizes(const CaseSizes& sizes) {
  constexpr double kLongest = 0x1p31;
  check_attention_sizes(sizes);
  for (const auto& [attr, flag] : {std::pair{kWindowLeft, "--window-left"}, {kWindowRight, "--window-right"}}) {
    const double keys = sizes.attrs[attr];
    if (keys >= -1 && keys < kLongest && keys == std::floor(keys)) continue;
    throw InputError(flag, fmt::format("expected an integer from -1 to 2147483647, got {}", keys),
                     "-1 is for a window without this end");
  }
  const double softcap = sizes.attrs[kSoftcapOfScores];
  if (softcap >= 0 && std::isfinite(softcap)) return;
  throw InputError("--softcap", fmt::format("expected 0 or a finite number above it, got {}", softcap),
                   "0 leaves scores as they are");
}

namespace {

void forward(const GoldArgs& args) { attention_forward(args, 1); }
void backward(const GoldArgs& args) { attention_backward(args, 1); }

void refine(const FillArgs& args) {
  plant_masked_keys(args, {"k"}, {"v"});
  plant_sinks(args);
}

Work forward_work(const GoldArgs& args) { return attention_work(args, 1, kForwardProducts); }
Work backward_work(const GoldArgs& args) { return attention_work(args, 1, kBackwardProducts); }

constexpr std::array kPasses{Pass{"forward", kForwardIn, kForwardOut, forward, nullptr, forward_work,
                                  &kAttentionForward, nullptr, kAttentionForwardRecipes},
                             Pass{"backward", kBackwardIn, kBackwardOut, backward, nullptr, backward_work,
                                  &kAttentionBackward, nullptr, kAttentionBackwardRecipes}};

}  // namespace

extern const Operator kAttention;
constexpr Operator kAttention{"attention",
                              "reduction",
                              "o = softmax(scale q k^T, over the keys that the masks keep) v",
                              "batch",
                              kWindowAttrs,
                              kPasses,
                              check_window_sizes,
                              refine,
                              /*parallel_dim=*/"",
                              /*left_out=*/"masked keys"};

}  // namespace checkop
