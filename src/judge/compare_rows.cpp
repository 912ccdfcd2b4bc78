// SPDX-License-Identifier: Apache-2.0
// Compares row by row and element by element: error, bound, gates.
#include <algorithm>
#include <cstring>

#include "judge/compare_state.hpp"

namespace checkop {
namespace {

constexpr size_t kBlock = 256;  // elements per vectorised step: their arrays stay in the L1 cache
constexpr size_t kMaxFastGates = 4;

bool same_class(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

constexpr size_t kLanes = 4;  // partial sums of a reduction, so that compilers vectorise it
using Lanes = std::array<double, kLanes>;

struct Sums {
  double sum, squares;
};
Sums sums_of(const double* x, size_t n) {
  Lanes sum{}, squares{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) sum[l] += x[i + l];
    for (size_t l = 0; l < kLanes; ++l) squares[l] += x[i + l] * x[i + l];
  }
  for (; i < n; ++i) sum[0] += x[i], squares[0] += x[i] * x[i];
  return {(sum[0] + sum[1]) + (sum[2] + sum[3]), (squares[0] + squares[1]) + (squares[2] + squares[3])};
}

void add_to(RowSums& sums, const Sums& errors, const Sums& golds) {
  sums.abs_error += errors.sum;
  sums.squared_error += errors.squares;
  sums.squared_gold += golds.squares;
}

/// ratios[i] = distance of a[i] and b[i] in numbers of the dtype, over `limit`.
void ulp_ratios(DType dtype, const std::byte* a, const std::byte* b, size_t n, uint64_t largest, double limit,
                double* ratios) {
  for (size_t i = 0; i < n; ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto distance = largest == 0 ? 0 : *ulp_distance(dtype, load_bits(dtype, a, at), load_bits(dtype, b, at));
    ratios[i] = distance == 0 ? 0 : static_cast<double>(distance) / limit;
  }
}

}  // namespace

/// One element as seen by the element-wise gates.
struct OutputComparison::State::Element {
  double gold, got, error;
  bool finite, equal_bits;
  bool match;  ///< finite, or non-finite where that is right

  /// Whether the element passes `gate`. `allowed` is the error that the gate allows, `distance` is in numbers of the
  /// output's dtype. Sets `over` to the error over the allowed error.
  bool passes(const PreparedGate& gate, double allowed, double distance, double& over) const {
    const Metric metric = gate.gate.metric;
    if (metric == Metric::bits) {
      const bool within = match && (equal_bits || !finite);
      over = within ? 0 : kInfinity;
      return within;
    }
    const bool by_ulp = metric == Metric::ulp;
    const double off = by_ulp ? distance : error, limit = by_ulp ? gate.gate.limit : allowed;
    over = off / limit;
    if (!(over >= 0)) over = off == 0 ? 0 : kInfinity;  // 0/0, or a NaN bound
    return match && (!finite || off <= limit);
  }
};

OutputComparison::State::Element OutputComparison::State::element_at(const Block& block, size_t i) const {
  const double g = block.value[i], c = block.got[i];
  const size_t width = info(dtype).bytes;
  const bool equal_bits = std::memcmp(block.stored + i * width, block.expected + i * width, width) == 0;
  const bool finite = std::isfinite(g) && std::isfinite(c);
  // A finite gold beyond the output's range rounds to infinity, so infinity is right.
  const bool match = finite || (equal_bits && std::isfinite(g)) || (gates.nonfinite_may_match && same_class(g, c));
  return {g, c, finite ? std::abs(c - g) : (match ? 0 : kInfinity), finite, equal_bits, match};
}

/// Calls at_gate(k, passes, error over allowed error, distance in numbers of the dtype) for every gate. The report
/// names the gate with the largest ratio of error to allowed error.
template <typename AtGate>
ElementReport OutputComparison::State::report_of(const Element& e, const Block& block, size_t i,
                                                 const AtGate& at_gate) const {
  const auto at = static_cast<int64_t>(i);
  ElementReport report{block.row * view.columns + block.first_column + at, e.got, e.gold, e.error, 0, -1, ""};
  for (size_t k = 0; k < prepared.size(); ++k) {
    const PreparedGate& gate = prepared[k];
    const double allowed = gate.allowed(e.gold, block.magnitude[i], block.rounding[i]);
    double distance = e.error;  // 0 or infinite if not finite
    if (gate.gate.metric == Metric::ulp && e.finite)
      distance = static_cast<double>(
          *ulp_distance(dtype, load_bits(dtype, block.stored, at), load_bits(dtype, block.expected, at)));
    double over = 0;
    const bool passes = e.passes(gate, allowed, distance, over);
    at_gate(k, passes, over, distance);
    if (over > report.ratio) {
      report.ratio = over;
      report.bound = std::max(allowed, 0.0);
      report.gate = to_string(gate.gate.metric);
    }
  }
  return report;
}

/// Fast path: all elements are finite and within every gate. The loops have no branches, so that compilers vectorise
/// them. Returns false, with nothing changed, if the block is not such a case.
bool OutputComparison::State::compare_ordinary(const Block& block, Tally& tally, RowSums& sums,
                                               RelativeErrors& relative) const {
  std::array<double, kBlock> size, error, allowed, other, most;
  std::array<double, kMaxFastGates> worst{};
  double most_of_all = 0;
  bool may_lean = false;
  double squared_ratio = 0;
  if (prepared.size() > kMaxFastGates) return false;
  const size_t n = block.count;
  for (size_t i = 0; i < n; ++i) {
    size[i] = std::abs(block.value[i]);
    error[i] = std::abs(block.got[i] - block.value[i]);
  }
  const Sums errors = sums_of(error.data(), n), golds = sums_of(size.data(), n);
  if (!std::isfinite(errors.sum)) return false;
  for (size_t k = 0; k < prepared.size(); ++k) {
    const PreparedGate& gate = prepared[k];
    if (gate.gate.metric == Metric::bits) return false;
    double largest = 0;
    if (gate.gate.metric == Metric::ulp) {
      worst[k] = static_cast<double>(block.max_ulp);
      largest = block.max_ulp == 0 ? 0 : worst[k] / gate.gate.limit;
      ulp_ratios(dtype, block.stored, block.expected, n, block.max_ulp, gate.gate.limit, other.data());
    } else {
      if (gate.gate.metric == Metric::bound_ratio) {
        gate.bounds(size.data(), block.magnitude, block.rounding, n, allowed.data(), other.data());
        may_lean = gate.gate.limit > 1 || !(largest_of(other.data(), n) < 0);
      } else {
        for (size_t i = 0; i < n; ++i) allowed[i] = gate.tolerance(size[i]);
      }
      // Error 0 gives ratio 0, or NaN if the allowed error is not finite.
      for (size_t i = 0; i < n; ++i) other[i] = error[i] == 0 ? 0 * allowed[i] : error[i] / allowed[i];
      const Sums ratios = sums_of(other.data(), n);
      if (!std::isfinite(ratios.sum)) return false;
      if (gate.gate.metric == Metric::bound_ratio) squared_ratio = ratios.squares * gate.gate.limit * gate.gate.limit;
      largest = worst[k] = largest_of(other.data(), n);
    }
    // Less than 1: a ratio of 1 may have been rounded down to it.
    if (!(largest < 1)) return false;
    most_of_all = std::max(most_of_all, largest);
    if (prepared.size() == 1) continue;
    for (size_t i = 0; i < n; ++i) most[i] = k == 0 || most[i] < other[i] ? other[i] : most[i];
  }
  const double* const ratios = prepared.size() == 1 ? other.data() : most.data();
  if (!tally.worst || most_of_all > tally.worst->ratio) {
    const size_t at = prepared.empty() ? 0 : static_cast<size_t>(std::find(ratios, ratios + n, most_of_all) - ratios);
    tally.take_worst(report_of(element_at(block, at), block, at, [](size_t, bool, double, double) {}));
  }
  if (!prepared.empty()) tally.map->add(block.first_column, ratios, n, most_of_all);
  for (size_t k = 0; k < prepared.size(); ++k) tally.gates[k].worst = std::max(tally.gates[k].worst, worst[k]);
  tally.max_abs = std::max(tally.max_abs, largest_of(error.data(), n));
  add_to(sums, errors, golds);
  sums.squared_ratio += squared_ratio;
  sums.finite += static_cast<int64_t>(n);
  for (size_t i = 0; i < n; ++i) other[i] = error[i] / size[i];
  for (size_t i = 0; i < n; ++i) relative.add(size[i], other[i]);
  if (bias != nullptr && may_lean) add_leaning(block, sums);
  return true;
}

/// Slow path: any elements, one by one.
void OutputComparison::State::compare_any(const Block& block, Tally& tally, RowSums& sums,
                                          RelativeErrors& relative) const {
  std::array<double, kBlock> error{}, size{};  // zeros where not finite
  for (size_t i = 0; i < block.count; ++i) {
    const Element e = element_at(block, i);
    bool passes = true;
    const ElementReport report = report_of(e, block, i, [&](size_t k, bool within, double over, double distance) {
      const Gate& gate = prepared[k].gate;
      if (!within) ++tally.gates[k].out_of_bound;
      passes &= within;
      if (e.finite && gate.metric == Metric::bound_ratio) sums.squared_ratio += over * over * gate.limit * gate.limit;
      tally.gates[k].worst = std::max(tally.gates[k].worst, gate.metric == Metric::ulp ? distance : over);
    });
    const auto column = block.first_column + static_cast<int64_t>(i);
    if (!passes) {
      ++tally.out_of_bound;
      tally.take_first(report);
      failures.note({block.row, column, e.got, e.gold, report.bound}, tally.failures);
    }
    if (!e.match) {
      ++tally.nonfinite;
      tally.take_nonfinite(report);
    }
    tally.take_worst(report);
    if (!prepared.empty()) {
      // An error above the bound may have been rounded to a ratio of 1.
      const double ratio = passes ? report.ratio : std::max(report.ratio, std::nextafter(1.0, 2.0));
      tally.map->add(column, &ratio, 1, ratio);
    }
    if (!e.finite) continue;
    tally.max_abs = std::max(tally.max_abs, e.error);
    ++sums.finite;
    error[i] = e.error, size[i] = e.gold;
    relative.add(e.gold, e.error / std::abs(e.gold));
  }
  add_to(sums, sums_of(error.data(), block.count), sums_of(size.data(), block.count));
  if (bias != nullptr) add_leaning(block, sums);
}

void OutputComparison::State::add_leaning(const Block& block, RowSums& sums) const {
  std::array<double, kBlock> stored_gold;
  info(dtype).decode(block.expected, stored_gold.data(), block.count);
  for (size_t i = 0; i < block.count; ++i) {
    const Leaning e = leaning_of(*bound, bias->one_sided, block.value[i], stored_gold[i], block.got[i],
                                 block.magnitude[i], block.rounding[i]);
    sums.leaning += e.leaning;
    sums.may_lean += e.may_lean;
  }
}

void OutputComparison::State::add_baseline(const Block& block, RowSums& sums) const {
  constexpr double kShift = 0.3;
  std::array<double, kBlock> stored_gold, shifted;
  std::array<std::byte, kBlock * 8> stored;
  const DTypeInfo& type = info(dtype);
  const auto store = [&](std::array<double, kBlock>& values) {
    type.encode(values.data(), stored.data(), block.count);
    type.decode(stored.data(), values.data(), block.count);
  };
  type.decode(block.expected, stored_gold.data(), block.count);
  for (size_t i = 0; i < block.count; ++i) shifted[i] = block.value[i] + kShift;
  store(shifted);
  for (size_t i = 0; i < block.count; ++i) shifted[i] -= kShift;
  store(shifted);
  std::array<double, kBlock> roundings{};
  for (size_t i = 0; i < block.count; ++i) {
    const double y = block.value[i], rounding = stored_gold[i] - y, error = std::abs(block.got[i] - y);
    if (!std::isfinite(rounding) || !std::isfinite(error)) continue;
    roundings[i] = rounding;
    sums.squared_got += block.got[i] * block.got[i];
    sums.largest_error = std::max(sums.largest_error, error);
    sums.largest_of_baseline = std::max(sums.largest_of_baseline, std::abs(rounding) + std::abs(shifted[i] - y));
  }
  sums.squared_rounding += sums_of(roundings.data(), block.count).squares;  // added in the order of squared_error
}

void OutputComparison::State::add_blocks(int64_t row, const double* decoded, const double* value) {
  static thread_local std::vector<RowSums> sums;
  sums.assign(blocks->blocks_per_row(), {});
  for (int64_t c = 0; c < view.columns; ++c) {
    const double error = std::abs(decoded[c] - value[c]);
    if (std::isfinite(error)) sums[static_cast<size_t>(c / blocks->width())].add(value[c], error);
  }
  blocks->add(row, sums);
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
  tally.map.emplace(stripes.front().map);
  RowSums sums;
  static thread_local RelativeErrors relative;  // 16 KiB: more than most rows
  relative.clear();
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    const std::byte *a = stored + at * type.bytes, *b = &expected[at * type.bytes];
    const Block block{row,
                      static_cast<int64_t>(at),
                      count,
                      &decoded[at],
                      value + at,
                      magnitude + at,
                      rounding + at,
                      a,
                      b,
                      max_ulp_distance(dtype, a, b, count)};
    tally.max_ulp = std::max(tally.max_ulp, block.max_ulp);
    if (!compare_ordinary(block, tally, sums, relative)) compare_any(block, tally, sums, relative);
    if (baseline) add_baseline(block, sums);
  }
  if (blocks) add_blocks(row, decoded.data(), value);
  trivial.look(row, value, magnitude, rounding);
  for (size_t i = 0; i < n && quantity != TokenQuantity::none; ++i) {
    tokens[static_cast<size_t>(row) * n + i] = {decoded[i], value[i], allowed(value[i], magnitude[i], rounding[i])};
  }

  Stripe& stripe = stripe_of(row);
  const std::lock_guard lock(stripe.mutex);
  RowSums& place = rows[static_cast<size_t>(row)];
  tally.count = place.seen ? 0 : view.columns;  // a row that comes twice counts once, so the missing row is noticed
  sums.seen = true;
  place = sums;
  stripe.total.merge(tally);
  stripe.map.add(row, *tally.map);
  stripe.relative.merge(relative);
  failures.add(tally.failures, row);
}

}  // namespace checkop
