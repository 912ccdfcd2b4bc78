// SPDX-License-Identifier: Apache-2.0
// Element by element: error, bound, gates; and the summary that does not depend on the order of rows or threads.
#include "compare.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

namespace checkop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRelFloor = 1e-3;  // of the gold's root mean square: below it a relative error says nothing
constexpr int kBinades = 2048;      // exponents of a double
constexpr size_t kBlock = 256;      // elements of one vectorised step: their arrays stay in the first-level cache
constexpr size_t kMaxFastGates = 4;

struct GateTally {
  double worst = 0;  ///< largest error over what is allowed; infinite for bits that differ
  int64_t out_of_bound = 0;
};

/// What one block of rows contributes; merging two tallies is commutative.
struct Tally {
  int64_t count = 0, out_of_bound = 0, nonfinite = 0;
  bool zero_fails = false, gold_is_zero = true;
  std::optional<ElementReport> first, worst, first_nonfinite;
  double max_abs = 0;
  uint64_t max_ulp = 0;
  std::vector<GateTally> gates;

  void take_first(const ElementReport& e) { take_lower(e, first); }
  void take_nonfinite(const ElementReport& e) { take_lower(e, first_nonfinite); }
  void take_worst(const ElementReport& e) {
    if (!worst || e.ratio > worst->ratio || (e.ratio == worst->ratio && e.index < worst->index)) worst = e;
  }
  void merge(const Tally& other) {
    count += other.count;
    out_of_bound += other.out_of_bound;
    nonfinite += other.nonfinite;
    zero_fails |= other.zero_fails;
    gold_is_zero &= other.gold_is_zero;
    max_abs = std::max(max_abs, other.max_abs);
    max_ulp = std::max(max_ulp, other.max_ulp);
    if (other.first) take_first(*other.first);
    if (other.first_nonfinite) take_nonfinite(*other.first_nonfinite);
    if (other.worst) take_worst(*other.worst);
    for (size_t k = 0; k < gates.size(); ++k) {
      gates[k].worst = std::max(gates[k].worst, other.gates[k].worst);
      gates[k].out_of_bound += other.gates[k].out_of_bound;
    }
  }

 private:
  static void take_lower(const ElementReport& e, std::optional<ElementReport>& place) {
    if (!place || e.index < place->index) place = e;
  }
};

int binade(double x) { return static_cast<int>((std::bit_cast<uint64_t>(x) >> 52) & 0x7ff); }

bool same_class(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

}  // namespace

/// Sums per row, so that the total can be taken in row order whatever the order of arrival.
struct OutputComparison::RowSums {
  double abs_error = 0, squared_error = 0, squared_gold = 0;
  int64_t finite = 0;
  bool seen = false;

  void add(double gold, double error) {
    abs_error += error;
    squared_error += error * error;
    squared_gold += gold * gold;
    ++finite;
  }
};

struct OutputComparison::State {
  DType dtype;
  const std::byte* got;
  MatrixView view;
  RowSet wanted;
  Gates gates;
  std::vector<PreparedGate> prepared;
  std::vector<RowSums> rows;
  std::mutex mutex;
  Tally total;                             // under mutex
  std::array<double, kBinades> max_rel{};  // under mutex: largest relative error by binade of the gold

  struct Block;
  struct RelativeErrors;
  void compare_row(int64_t row, const double* value, const double* magnitude, const double* rounding);
  bool compare_ordinary(const Block& block, Tally& tally, RowSums& sums, RelativeErrors& relative) const;
  void compare_any(const Block& block, Tally& tally, RowSums& sums, RelativeErrors& relative) const;
};

OutputComparison::OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms,
                                   RowSet rows)
    : state_(std::make_unique<State>()) {
  state_->dtype = dtype;
  state_->got = got;
  state_->view = view;
  state_->wanted = std::move(rows);
  state_->gates = std::move(gates);
  for (const Gate& gate : state_->gates.all) state_->prepared.emplace_back(gate, dtype, terms);
  state_->rows.resize(static_cast<size_t>(view.rows));
  state_->total.gates.resize(state_->prepared.size());
}
OutputComparison::~OutputComparison() = default;
OutputComparison::OutputComparison(OutputComparison&&) noexcept = default;

void OutputComparison::add(const GoldRows& block) {
  const int64_t columns = state_->view.columns, cut = columns > 0 ? block.columns / columns : 1;
  for (int64_t r = 0; r < block.n_rows * cut; ++r) {
    const int64_t at = r * columns;
    state_->compare_row(block.first_row * cut + r, block.value + at, block.magnitude + at, block.rounding + at);
  }
}

/// A block of one row's elements in the forms that the loops below need.
struct OutputComparison::State::Block {
  int64_t first_index;  ///< flat, of element 0
  size_t count;
  const double *got, *value, *magnitude, *rounding;
  const std::byte *stored, *expected;  ///< as the candidate wrote it; the gold rounded once
};

/// Relative errors of one row by binade of the gold.
struct OutputComparison::State::RelativeErrors {
  std::array<double, kBinades> largest{};
  int low = kBinades, high = -1;

  void add(double gold, double error) {
    if (gold == 0 || error == 0) return;
    const int b = binade(gold);
    double& place = largest[static_cast<size_t>(b)];
    place = std::max(place, error / std::abs(gold));
    low = std::min(low, b);
    high = std::max(high, b);
  }
};

/// The ordinary case: all finite, all within every gate, and none worse than what was seen. Loops without branches, so
/// that compilers vectorise them. Returns false, with nothing changed, when the block is not ordinary.
bool OutputComparison::State::compare_ordinary(const Block& block, Tally& tally, RowSums& sums,
                                               RelativeErrors& relative) const {
  std::array<double, kBlock> error, allowed;
  std::array<double, kMaxFastGates> worst{};
  bool zero_fails = false;
  if (!tally.worst || prepared.size() > kMaxFastGates) return false;
  double sum = 0;
  for (size_t i = 0; i < block.count; ++i) {
    error[i] = std::abs(block.got[i] - block.value[i]);
    sum += error[i];
  }
  if (!std::isfinite(sum)) return false;
  for (size_t k = 0; k < prepared.size(); ++k) {
    const PreparedGate& gate = prepared[k];
    if (gate.gate.metric == Metric::bits) return false;
    for (size_t i = 0; i < block.count; ++i) {
      allowed[i] = gate.allowed(block.value[i], block.magnitude[i], block.rounding[i]);
    }
    bool within = true;
    double largest = 0;
    for (size_t i = 0; i < block.count; ++i) {
      const double ratio = error[i] == 0 ? 0 : error[i] / allowed[i];
      within &= error[i] <= allowed[i] && ratio >= 0;
      largest = std::max(largest, ratio);
      zero_fails |= std::abs(block.value[i]) > allowed[i];
    }
    if (!within || largest > tally.worst->ratio) return false;
    worst[k] = largest;
  }
  for (size_t k = 0; k < prepared.size(); ++k) tally.gates[k].worst = std::max(tally.gates[k].worst, worst[k]);
  tally.zero_fails |= zero_fails;
  for (size_t i = 0; i < block.count; ++i) {
    const double g = block.value[i];
    tally.gold_is_zero &= g == 0;
    tally.max_abs = std::max(tally.max_abs, error[i]);
    sums.add(g, error[i]);
    relative.add(g, error[i]);
  }
  return true;
}

/// Element by element, whatever they are.
void OutputComparison::State::compare_any(const Block& block, Tally& tally, RowSums& sums,
                                          RelativeErrors& relative) const {
  const size_t width = info(dtype).bytes;
  for (size_t i = 0; i < block.count; ++i) {
    const double g = block.value[i], c = block.got[i];
    const bool equal_bits = std::memcmp(block.stored + i * width, block.expected + i * width, width) == 0;
    const bool finite = std::isfinite(g) && std::isfinite(c);
    // A finite gold beyond the output's range is infinity once rounded: then infinity is right.
    const bool match = finite || (equal_bits && std::isfinite(g)) || (gates.nonfinite_may_match && same_class(g, c));
    const double error = finite ? std::abs(c - g) : (match ? 0 : kInfinity);
    ElementReport element{block.first_index + static_cast<int64_t>(i), c, g, error, 0, -1, ""};
    bool passes = true;
    for (size_t k = 0; k < prepared.size(); ++k) {
      const bool by_bits = prepared[k].gate.metric == Metric::bits;
      const double allowed = prepared[k].allowed(g, block.magnitude[i], block.rounding[i]);
      const bool within = by_bits ? equal_bits || (match && !finite) : match && (!finite || error <= allowed);
      double ratio = by_bits ? (within ? 0 : kInfinity) : error / allowed;
      if (!(ratio >= 0)) ratio = error == 0 ? 0 : kInfinity;  // 0/0, or an error over a bound that is NaN
      tally.gates[k].worst = std::max(tally.gates[k].worst, ratio);
      if (!within) {
        ++tally.gates[k].out_of_bound;
        passes = false;
      }
      if (ratio > element.ratio) {
        element.ratio = ratio;
        element.bound = by_bits ? 0 : allowed;
        element.gate = to_string(prepared[k].gate.metric);
      }
      if (!(std::abs(g) <= allowed) && g != 0) tally.zero_fails = true;
    }
    if (g != 0) tally.gold_is_zero = false;
    if (!passes) {
      ++tally.out_of_bound;
      tally.take_first(element);
    }
    if (!match) {
      ++tally.nonfinite;
      tally.take_nonfinite(element);
    }
    tally.take_worst(element);
    if (!finite) continue;
    tally.max_abs = std::max(tally.max_abs, error);
    sums.add(g, error);
    relative.add(g, error);
  }
}

void OutputComparison::State::compare_row(int64_t row, const double* value, const double* magnitude,
                                          const double* rounding) {
  static thread_local std::vector<double> decoded;
  static thread_local std::vector<std::byte> expected;
  const auto n = static_cast<size_t>(view.columns);
  const DTypeInfo& type = info(dtype);
  const std::byte* stored = got + static_cast<size_t>(row) * n * type.bytes;
  decoded.resize(n);
  expected.resize(n * type.bytes);
  type.decode(stored, decoded.data(), n);
  type.encode(value, expected.data(), n);

  Tally tally;
  tally.gates.resize(prepared.size());
  tally.max_ulp = max_ulp_distance(dtype, stored, expected.data(), n);
  RowSums sums;
  RelativeErrors relative;
  for (size_t at = 0; at < n; at += kBlock) {
    const Block block{row * view.columns + static_cast<int64_t>(at),
                      std::min(kBlock, n - at),
                      &decoded[at],
                      value + at,
                      magnitude + at,
                      rounding + at,
                      stored + at * type.bytes,
                      &expected[at * type.bytes]};
    if (!compare_ordinary(block, tally, sums, relative)) compare_any(block, tally, sums, relative);
  }

  const std::lock_guard lock(mutex);
  RowSums& place = rows[static_cast<size_t>(row)];
  tally.count = place.seen ? 0 : view.columns;  // a row given twice counts once; the other one is missing then
  sums.seen = true;
  place = sums;
  total.merge(tally);
  for (int b = relative.low; b <= relative.high; ++b) {
    double& largest = max_rel[static_cast<size_t>(b)];
    largest = std::max(largest, relative.largest[static_cast<size_t>(b)]);
  }
}

Comparison OutputComparison::finish() const {
  const Tally& total = state_->total;
  Comparison result;
  result.count = total.count;
  result.total_rows = state_->view.rows;
  result.expected = state_->wanted.count(state_->view.rows) * state_->view.columns;
  result.rows = state_->wanted;
  result.out_of_bound = total.out_of_bound;
  result.nonfinite = total.nonfinite;
  result.first_nonfinite = total.first_nonfinite;
  result.gold_is_zero = total.count > 0 && total.gold_is_zero;
  result.zeros_would_pass = !total.zero_fails && !total.gold_is_zero;
  result.first = total.first;
  result.worst = total.worst;
  result.max_abs = total.nonfinite > 0 ? kInfinity : total.max_abs;
  result.max_ulp = total.max_ulp;
  RowSums sum;
  for (const RowSums& row : state_->rows) {
    sum.abs_error += row.abs_error;
    sum.squared_error += row.squared_error;
    sum.squared_gold += row.squared_gold;
    sum.finite += row.finite;
  }
  const auto finite = static_cast<double>(std::max<int64_t>(sum.finite, 1));
  result.mean_abs = total.nonfinite > 0 ? kInfinity : sum.abs_error / finite;
  result.rel_l2 =
      sum.squared_gold > 0 ? std::sqrt(sum.squared_error / sum.squared_gold) : (sum.squared_error > 0 ? kInfinity : 0);
  if (total.nonfinite > 0) result.rel_l2 = kInfinity;
  result.rel_floor = std::exp2(std::ceil(std::log2(kRelFloor * std::sqrt(sum.squared_gold / finite))));
  if (sum.squared_gold > 0) {
    for (int b = binade(result.rel_floor); b < kBinades; ++b) {
      result.max_rel = std::max(result.max_rel, state_->max_rel[static_cast<size_t>(b)]);
    }
  }
  if (total.nonfinite > 0) result.max_rel = kInfinity;
  for (size_t k = 0; k < state_->prepared.size(); ++k) {
    const Gate& gate = state_->prepared[k].gate;
    GateResult verdict;
    verdict.metric = gate.metric;
    verdict.source = gate.source;
    verdict.atol = gate.atol;
    verdict.rtol = gate.rtol;
    verdict.out_of_bound = total.gates[k].out_of_bound;
    // allowed() holds the limit already: a ratio of 1 stands for an error at the limit.
    verdict.limit = gate.metric == Metric::bound_ratio ? gate.limit : (gate.metric == Metric::bits ? 0 : 1);
    verdict.achieved = total.gates[k].worst * (gate.metric == Metric::bound_ratio ? gate.limit : 1);
    verdict.headroom = verdict.achieved > 0 ? verdict.limit / verdict.achieved : kInfinity;
    result.gates.push_back(verdict);
  }
  return result;
}

}  // namespace checkop
