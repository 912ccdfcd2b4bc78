// SPDX-License-Identifier: Apache-2.0
// Compares an output with its gold, row by row and element by element; the order of rows and threads has no effect.
// In this order: tallies of rows; the state of a comparison; one element; blocks of a row; a row; gates; the result.
#include "judge/compare.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "judge/summary.hpp"
#include "judge/trivial.hpp"

namespace checkop {

struct GateTally {
  double worst = 0;  ///< largest error over allowed error, infinite for different bits; for ulp: the largest distance
  int64_t out_of_bound = 0;
};

/// Results of one or more rows. Merging two tallies is commutative.
struct Tally {
  int64_t count = 0, out_of_bound = 0, nonfinite = 0;
  std::optional<ElementReport> first, worst, first_nonfinite;
  double max_abs = 0, computed = 0;
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
    max_abs = std::max(max_abs, other.max_abs);
    computed = std::max(computed, other.computed);
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

inline constexpr int kBinades = 2048;  // exponents of a double
inline int binade(double x) { return static_cast<int>((std::bit_cast<uint64_t>(x) >> 52) & 0x7ff); }

/// The largest relative error of each binade of the gold.
struct RelativeErrors {
  std::array<double, kBinades> largest{};
  int low = kBinades, high = -1;

  /// `error` is the relative error.
  void add(double gold, double error) {
    if (!(error > 0) || gold == 0) return;
    const int b = binade(gold);
    double& place = largest[static_cast<size_t>(b)];
    place = std::max(place, error);
    low = std::min(low, b);
    high = std::max(high, b);
  }
  void merge(const RelativeErrors& other) {
    for (int b = other.low; b <= other.high; ++b) {
      double& place = largest[static_cast<size_t>(b)];
      place = std::max(place, other.largest[static_cast<size_t>(b)]);
    }
    low = std::min(low, other.low), high = std::max(high, other.high);
  }
};

/// Results of some of the rows, in any order.
struct Share {
  Share(MatrixView view, size_t gates) : map(view.rows, view.columns) { total.gates.resize(gates); }

  Tally total;
  ErrorMapper map;
  RelativeErrors relative;
  RatioHistogram ratios;  ///< of error over bound; empty without a bound_ratio gate

  void merge(const Share& other) {
    total.merge(other.total);
    map.merge(other.map);
    relative.merge(other.relative);
    ratios.merge(other.ratios);
  }
};

constexpr size_t kCacheLine = 64;  // bytes

/// A share for each of up to kPlaces threads that compare rows, so that none waits for another; made when first needed.
class Shares {
 public:
  /// A share that only the caller uses while it holds `lock`.
  Share& take(MatrixView view, size_t gates, std::unique_lock<std::mutex>& lock) {
    static std::atomic<size_t> threads{0};
    static thread_local const size_t thread = threads++;
    // A thread begins at its own place. If all are taken it tries again; no loop has so many threads.
    for (size_t i = thread;; ++i) {
      Place& place = places_[i % kPlaces];
      lock = std::unique_lock(place.mutex, std::try_to_lock);
      if (!lock) continue;
      if (!place.share) place.share = std::make_unique<Share>(view, gates);
      return *place.share;
    }
  }
  /// Adds all to `total`. No thread may hold one.
  void add_to(Share& total) const {
    for (const Place& place : places_)
      if (place.share) total.merge(*place.share);
  }

 private:
  static constexpr size_t kPlaces = 64;
  struct alignas(kCacheLine) Place {
    std::mutex mutex;
    std::unique_ptr<Share> share;
  };
  std::array<Place, kPlaces> places_;
};

/// Some consecutive elements of one row, in the forms that the loops below need.
struct Block {
  int64_t row, first_column;
  size_t count;
  const double *got, *value, *magnitude, *rounding, *spread, *deviation, *reference;
  const std::byte *stored, *expected;  ///< as the candidate wrote it; the gold rounded once
  uint64_t max_ulp;                    ///< the largest distance between `stored` and `expected`
};

struct OutputComparison::State {
  State(DType dtype, const std::byte* got, MatrixView view, Gates all_gates, int64_t terms, RowSet set,
        TokenQuantity tokens);

  DType dtype;
  const std::byte* got;
  MatrixView view;
  RowSet wanted;
  Gates gates;
  std::vector<PreparedGate> prepared;  ///< of the element-wise gates
  std::optional<PreparedGate> bound;   ///< the bound_ratio gate, needed by bias_t
  const Gate *baseline = nullptr, *bias = nullptr, *noise = nullptr,
             *clip = nullptr;  ///< gates of the output that need extra sums
  std::unique_ptr<BlockSums> blocks;
  TokenQuantity quantity;
  std::vector<Token> tokens;
  std::vector<RowSums> rows;
  FailureRecorder failures;
  TrivialAnswers trivial;
  Shares shares;
  struct alignas(kCacheLine) RowMutex {
    std::mutex mutex;
  };
  std::array<RowMutex, 64> row_mutexes;  ///< that of row modulo their number guards `rows` of the row

  struct Element;
  Element element_at(const Block& block, size_t i) const;
  template <typename AtGate>
  ElementReport report_of(const Element& e, const Block& block, size_t i, const AtGate& at_gate) const;
  void compare_row(int64_t row, const GoldRow& gold);
  bool compare_ordinary(const Block& block, Share& share, RowSums& sums) const;
  void compare_any(const Block& block, Share& share, RowSums& sums, RowFailures& row_failures) const;
  void add_bias(const Block& block, RowSums& sums) const;
  void add_baseline(const Block& block, RowSums& sums) const;
  void add_noise(const Block& block, RowSums& sums) const;
  void add_blocks(int64_t row, const double* decoded, const double* value);
  double allowed(double value, double magnitude, double rounding, double spread) const;
  Achieved achieved(const Gate& gate, const RowSums& sum, const std::optional<PolicyMetrics>& policy) const;
  std::optional<PolicyMetrics> policy() const;
};

OutputComparison::State::State(DType dtype, const std::byte* got, MatrixView view, Gates all_gates, int64_t terms,
                               RowSet set, TokenQuantity tokens)
    : dtype(dtype),
      got(got),
      view(view),
      wanted(std::move(set)),
      gates(std::move(all_gates)),
      quantity(tokens),
      failures(view.rows, view.columns),
      trivial(dtype, got, view, prepared) {
  for (const Gate& gate : gates.all) {
    if (is_elementwise(gate.metric)) prepared.emplace_back(gate, dtype, terms);
    if (gate.metric == Metric::bound_ratio) bound.emplace(gate, dtype, terms);
    if (gate.metric == Metric::vs_baseline || gate.metric == Metric::max_vs_baseline ||
        gate.metric == Metric::vs_reference || gate.metric == Metric::cosine)
      baseline = &gate;
    if (gate.metric == Metric::bias_t) bias = &gate;
    if (gate.metric == Metric::noise_rms) noise = &gate;
    if (gate.metric == Metric::clip_flips) clip = &gate;
    if (gate.metric == Metric::block_rel_l2)
      blocks = std::make_unique<BlockSums>(gate.rows, gate.columns, view, wanted);
  }
  rows.resize(static_cast<size_t>(view.rows));
  if (quantity != TokenQuantity::none) this->tokens.resize(static_cast<size_t>(view.rows * view.columns));
}
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
    const double allowed = gate.allowed(e.gold, block.magnitude[i], block.rounding[i], block.spread[i]);
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
bool OutputComparison::State::compare_ordinary(const Block& block, Share& share, RowSums& sums) const {
  std::array<double, kBlock> size, error, allowed, other, most, of_bound;
  std::array<double, kMaxFastGates> worst{};
  double most_of_all = 0, computed = 0, signed_error = 0;
  bool may_be_biased = false;
  double squared_ratio = 0;
  if (prepared.size() > kMaxFastGates) return false;
  const size_t n = block.count;
  for (size_t i = 0; i < n; ++i) {
    size[i] = std::abs(block.value[i]);
    other[i] = block.got[i] - block.value[i];
    error[i] = std::abs(other[i]);
  }
  signed_error = sums_of(other.data(), n).sum;
  const Sums errors = sums_of(error.data(), n), golds = sums_of(size.data(), n);
  if (!std::isfinite(errors.sum)) return false;
  for (size_t k = 0; k < prepared.size(); ++k) {
    const PreparedGate& gate = prepared[k];
    double largest = 0;
    if (gate.gate.metric == Metric::bits) {
      if (std::memcmp(block.stored, block.expected, n * info(dtype).bytes) != 0) return false;
      std::fill_n(other.begin(), n, 0.0);
    } else if (gate.gate.metric == Metric::ulp) {
      worst[k] = static_cast<double>(block.max_ulp);
      largest = block.max_ulp == 0 ? 0 : worst[k] / gate.gate.limit;
      ulp_ratios(dtype, block.stored, block.expected, n, block.max_ulp, gate.gate.limit, other.data());
    } else {
      if (gate.gate.metric == Metric::bound_ratio) {
        gate.bounds(size.data(), block.magnitude, block.rounding, block.spread, n, allowed.data(), other.data());
        may_be_biased = gate.gate.limit > 1 || !(largest_of(other.data(), n) < 0);
        for (size_t i = 0; i < n; ++i) {
          // `allowed` is the limit times (E + half an ulp), `other` is E minus half an ulp.
          const double bound = allowed[i] / gate.gate.limit, e = (bound + other[i]) / 2,
                       beyond = error[i] - (bound - e);
          of_bound[i] = error[i] > 0 && beyond > 0 ? beyond / e : 0;
        }
        computed = largest_of(of_bound.data(), n);
      } else {
        for (size_t i = 0; i < n; ++i) allowed[i] = gate.tolerance(size[i]);
      }
      // Error 0 gives ratio 0, or NaN if the allowed error is not finite.
      for (size_t i = 0; i < n; ++i) other[i] = error[i] == 0 ? 0 * allowed[i] : error[i] / allowed[i];
      const Sums ratios = sums_of(other.data(), n);
      if (!std::isfinite(ratios.sum)) return false;
      if (gate.gate.metric == Metric::bound_ratio) {
        squared_ratio = ratios.squares * gate.gate.limit * gate.gate.limit;
        for (size_t i = 0; i < n; ++i) of_bound[i] = other[i] * gate.gate.limit;
      }
      largest = worst[k] = largest_of(other.data(), n);
    }
    // Less than 1: a ratio of 1 may have been rounded down to it.
    if (!(largest < 1)) return false;
    most_of_all = std::max(most_of_all, largest);
    if (prepared.size() == 1) continue;
    for (size_t i = 0; i < n; ++i) most[i] = k == 0 || most[i] < other[i] ? other[i] : most[i];
  }
  const double* const ratios = prepared.size() == 1 ? other.data() : most.data();
  Tally& tally = share.total;
  const int64_t first = block.row * view.columns + block.first_column;
  if (!tally.worst || most_of_all > tally.worst->ratio ||
      (most_of_all == tally.worst->ratio && first < tally.worst->index)) {
    const size_t at = prepared.empty() ? 0 : static_cast<size_t>(std::find(ratios, ratios + n, most_of_all) - ratios);
    tally.take_worst(report_of(element_at(block, at), block, at, [](size_t, bool, double, double) {}));
  }
  if (!prepared.empty()) share.map.add(block.row, block.first_column, ratios, n, most_of_all);
  for (size_t k = 0; k < prepared.size(); ++k) tally.gates[k].worst = std::max(tally.gates[k].worst, worst[k]);
  tally.max_abs = std::max(tally.max_abs, largest_of(error.data(), n));
  tally.computed = std::max(tally.computed, computed);
  if (bound) share.ratios.add(of_bound.data(), n);
  add_to(sums, errors, golds);
  sums.signed_error += signed_error;
  sums.squared_ratio += squared_ratio;
  sums.finite += static_cast<int64_t>(n);
  for (size_t i = 0; i < n; ++i) other[i] = error[i] / size[i];
  for (size_t i = 0; i < n; ++i) share.relative.add(size[i], other[i]);
  if (bias != nullptr && may_be_biased) add_bias(block, sums);
  return true;
}

/// Slow path: any elements, one by one.
void OutputComparison::State::compare_any(const Block& block, Share& share, RowSums& sums,
                                          RowFailures& row_failures) const {
  Tally& tally = share.total;
  std::array<double, kBlock> error{}, size{};  // zeros where not finite
  for (size_t i = 0; i < block.count; ++i) {
    const Element e = element_at(block, i);
    bool passes = true;
    const ElementReport report = report_of(e, block, i, [&](size_t k, bool within, double over, double distance) {
      const Gate& gate = prepared[k].gate;
      if (!within) ++tally.gates[k].out_of_bound;
      passes &= within;
      if (e.finite && gate.metric == Metric::bound_ratio) {
        const double ratio = over * gate.limit;
        sums.squared_ratio += ratio * ratio;
        share.ratios.add(&ratio, 1);
        tally.computed = std::max(tally.computed, prepared[k].least_computed(e.error, e.gold, block.magnitude[i],
                                                                             block.rounding[i], block.spread[i]));
      }
      tally.gates[k].worst = std::max(tally.gates[k].worst, gate.metric == Metric::ulp ? distance : over);
    });
    const auto column = block.first_column + static_cast<int64_t>(i);
    if (!passes) {
      ++tally.out_of_bound;
      tally.take_first(report);
      failures.note({block.row, column, e.got, e.gold, report.bound}, row_failures);
    }
    if (!e.match) {
      ++tally.nonfinite;
      tally.take_nonfinite(report);
    }
    tally.take_worst(report);
    if (!prepared.empty()) {
      // An error above the bound may have been rounded to a ratio of 1.
      const double ratio = passes ? report.ratio : std::max(report.ratio, std::nextafter(1.0, 2.0));
      share.map.add(block.row, column, &ratio, 1, ratio);
    }
    if (!e.finite) continue;
    tally.max_abs = std::max(tally.max_abs, e.error);
    ++sums.finite;
    error[i] = e.error, size[i] = e.gold;
    sums.signed_error += e.got - e.gold;
    share.relative.add(e.gold, e.error / std::abs(e.gold));
  }
  add_to(sums, sums_of(error.data(), block.count), sums_of(size.data(), block.count));
  if (bias != nullptr) add_bias(block, sums);
}

void OutputComparison::State::add_bias(const Block& block, RowSums& sums) const {
  std::array<double, kBlock> stored_gold;
  info(dtype).decode(block.expected, stored_gold.data(), block.count);
  for (size_t i = 0; i < block.count; ++i) {
    const ElementBias e = bias_of(*bound, bias->one_sided, block.value[i], stored_gold[i], block.got[i],
                                  block.magnitude[i], block.rounding[i], block.spread[i]);
    sums.bias += e.bias;
    sums.allowed_bias += e.allowed;
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
    sums.largest_rounding = std::max(sums.largest_rounding, std::abs(rounding));
    const double of_reference = block.reference == nullptr ? 0 : std::abs(block.reference[i] - y);
    if (!std::isfinite(of_reference)) continue;
    sums.largest_of_reference = std::max(sums.largest_of_reference, of_reference);
    sums.squared_of_reference += of_reference * of_reference;
  }
  sums.squared_rounding += sums_of(roundings.data(), block.count).squares;  // added in the order of squared_error
}

void OutputComparison::State::add_noise(const Block& block, RowSums& sums) const {
  for (size_t i = 0; i < block.count; ++i) {
    const double error = block.got[i] - block.value[i], size = std::abs(block.value[i]);
    const double variance =
        bound->variance(size, block.magnitude[i], block.rounding[i], block.spread[i], block.deviation[i]);
    if (!std::isfinite(error) || bound->bound(size, block.magnitude[i], block.rounding[i], block.spread[i]) == 0)
      continue;
    sums.squared_noise += error * error / variance;
    ++sums.noisy;
  }
  sums.noisy_rows = sums.noisy > 0 ? 1 : 0;
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

void OutputComparison::State::compare_row(int64_t row, const GoldRow& gold) {
  static thread_local std::vector<double> decoded;
  static thread_local std::vector<std::byte> expected;
  const auto n = static_cast<size_t>(view.columns);
  const DTypeInfo& type = info(dtype);
  const std::byte* stored = got + static_cast<size_t>(row) * n * type.bytes;
  decoded.resize(n);
  expected.resize(n * type.bytes);
  type.decode(stored, decoded.data(), n);
  type.encode(gold.value, expected.data(), n);

  RowSums sums;
  RowFailures row_failures;
  std::unique_lock<std::mutex> of_share;
  Share& share = shares.take(view, prepared.size(), of_share);
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    const std::byte *a = stored + at * type.bytes, *b = &expected[at * type.bytes];
    const Block block{row,
                      static_cast<int64_t>(at),
                      count,
                      &decoded[at],
                      gold.value + at,
                      gold.magnitude + at,
                      gold.rounding + at,
                      gold.spread + at,
                      gold.deviation + at,
                      gold.reference == nullptr ? nullptr : gold.reference + at,
                      a,
                      b,
                      max_ulp_distance(dtype, a, b, count)};
    share.total.max_ulp = std::max(share.total.max_ulp, block.max_ulp);
    if (!compare_ordinary(block, share, sums)) compare_any(block, share, sums, row_failures);
    if (baseline) add_baseline(block, sums);
    if (noise) add_noise(block, sums);
  }
  if (blocks) add_blocks(row, decoded.data(), gold.value);
  trivial.look(row, gold);
  for (size_t i = 0; i < n && quantity != TokenQuantity::none; ++i) {
    tokens[static_cast<size_t>(row) * n + i] = {
        decoded[i], gold.value[i], allowed(gold.value[i], gold.magnitude[i], gold.rounding[i], gold.spread[i])};
  }

  failures.add(row_failures, row);
  sums.seen = true;
  const std::lock_guard lock(row_mutexes[static_cast<size_t>(row) % row_mutexes.size()].mutex);
  RowSums& place = rows[static_cast<size_t>(row)];
  if (!place.seen)
    share.total.count += view.columns;  // a row that comes twice counts once, so a missing one is noticed
  place = sums;
}
namespace {

constexpr double kRelFloor = 1e-3;  // times the gold's root mean square; relative errors below it mean nothing

}  // namespace

double round_up(double x, int digits) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(x)));
  // 1e-15 allows for the rounding of the product, so that whole numbers stay.
  const double rounded = std::ceil(x * scale * (1 - 1e-15)) / scale;
  return rounded < x ? std::nextafter(x, kInfinity) : rounded;
}

GateResult gate_result(const Gate& gate, double achieved) {
  GateResult result;
  result.metric = gate.metric;
  result.source = gate.source;
  result.atol = gate.atol;
  result.rtol = gate.rtol;
  result.limit = gate.metric == Metric::atol_rtol ? 1 : (is_of_bits(gate.metric) ? 0 : gate.limit);
  result.achieved = achieved;
  result.headroom = achieved > 0 ? result.limit / achieved : kInfinity;
  result.passing = round_up(achieved, 4);
  result.holds = achieved <= result.limit;
  return result;
}

OutputComparison::OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms,
                                   RowSet rows, TokenQuantity tokens)
    : state_(std::make_unique<State>(dtype, got, view, std::move(gates), terms, std::move(rows), tokens)) {}
OutputComparison::~OutputComparison() = default;
OutputComparison::OutputComparison(OutputComparison&&) noexcept = default;

FailureSummary OutputComparison::failures() const { return state_->failures.summary(); }

double OutputComparison::allowed(double value, double magnitude, double rounding, double spread) const {
  return state_->allowed(value, magnitude, rounding, spread);
}

void OutputComparison::add(const GoldRows& block) {
  const int64_t columns = state_->view.columns, cut = columns > 0 ? block.columns / columns : 1;
  for (int64_t r = 0; r < block.n_rows * cut; ++r) {
    const int64_t at = r * columns;
    static thread_local std::vector<double> zeros;
    if (block.spread == nullptr || block.deviation == nullptr) zeros.resize(static_cast<size_t>(columns));
    const auto row_of = [&](const double* array) { return array == nullptr ? zeros.data() : array + at; };
    state_->compare_row(block.first_row * cut + r,
                        {row_of(block.value), row_of(block.magnitude), row_of(block.rounding), row_of(block.spread),
                         row_of(block.deviation), block.reference == nullptr ? nullptr : block.reference + at});
  }
}

double OutputComparison::State::allowed(double value, double magnitude, double rounding, double spread) const {
  double least = kInfinity;
  for (const PreparedGate& gate : prepared) least = std::min(least, gate.allowed(value, magnitude, rounding, spread));
  return least;
}

std::optional<PolicyMetrics> OutputComparison::State::policy() const {
  if (quantity == TokenQuantity::none) return {};
  std::vector<Token> seen;
  const auto n = static_cast<size_t>(view.columns);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].seen) seen.insert(seen.end(), &tokens[r * n], &tokens[r * n] + n);
  }
  return policy_metrics(quantity, seen, clip != nullptr ? clip->clip_eps : Gate().clip_eps);
}

/// The result of a gate that is neither element-wise nor of identities.
Achieved OutputComparison::State::achieved(const Gate& gate, const RowSums& sum,
                                           const std::optional<PolicyMetrics>& policy) const {
  const auto of_tokens = [&](double PolicyMetrics::*value) -> Achieved {
    return {policy ? (*policy).*value : kInfinity};
  };
  switch (gate.metric) {  // no default: the compiler asks for a metric that is not here
    case Metric::rel_l2:
      return checkop::rel_l2(sum);
    case Metric::block_rel_l2:
      return blocks->worst(gate.limit);
    case Metric::vs_baseline:
      return checkop::vs_baseline(sum);
    case Metric::cosine:
      return checkop::cosine(sum);
    case Metric::max_vs_baseline:
      return checkop::max_vs_baseline(sum);
    case Metric::vs_reference:
      return checkop::vs_reference(sum);
    case Metric::bound_rms:
      return checkop::bound_rms(rows);
    case Metric::bias_t:
      return bias_statistic(rows, gates.independent);
    case Metric::noise_rms:
      return checkop::noise_rms(sum, gates.independent);
    case Metric::max_abs_dlogp:
      return of_tokens(&PolicyMetrics::max_abs_dlogp);
    case Metric::k3_mean:
      return of_tokens(&PolicyMetrics::k3_mean);
    case Metric::k3_max:
      return of_tokens(&PolicyMetrics::k3_max);
    case Metric::ratio_deviation:
      return of_tokens(&PolicyMetrics::ratio_deviation);
    case Metric::clip_flips:
      return of_tokens(&PolicyMetrics::clip_flips);
    case Metric::identities:     // judged by check_residuals()
    case Metric::bits_of_model:  // until check_model() sets it
    case Metric::bound_ratio:    // of single elements
    case Metric::atol_rtol:
    case Metric::bits:
    case Metric::ulp:
      break;
  }
  return {kInfinity};
}

Comparison OutputComparison::finish() const {
  Share all(state_->view, state_->prepared.size());
  state_->shares.add_to(all);
  const Tally& total = all.total;
  Comparison result;
  result.count = total.count;
  result.total_rows = state_->view.rows;
  result.expected = state_->wanted.count(state_->view.rows) * state_->view.columns;
  result.rows = state_->wanted;
  result.out_of_bound = total.out_of_bound;
  result.nonfinite = total.nonfinite;
  result.first_nonfinite = total.first_nonfinite;
  for (const Trivial answer : kTrivialAnswers) {
    if (state_->trivial.is_wrong(answer) && !state_->trivial.is_rejected(answer)) result.would_pass.push_back(answer);
  }
  result.gold_is_zero = total.count > 0 && !state_->trivial.is_wrong(Trivial::zeros);
  const bool told = state_->view.rows > 1 && total.count > 1;
  result.rows_are_equal = told && !state_->trivial.is_wrong(Trivial::next_row);
  if (!state_->prepared.empty()) result.map = all.map.map();
  result.first = total.first;
  result.worst = total.worst;
  result.max_abs = total.nonfinite > 0 ? kInfinity : total.max_abs;
  result.max_ulp = total.max_ulp;
  result.policy = state_->policy();
  RowSums sum;
  for (const RowSums& row : state_->rows) sum += row;
  const auto finite = static_cast<double>(std::max<int64_t>(sum.finite, 1));
  result.mean_abs = total.nonfinite > 0 ? kInfinity : sum.abs_error / finite;
  result.mean_error = total.nonfinite > 0 ? std::nan("") : sum.signed_error / finite;
  if (state_->bound) result.quantiles = all.ratios.quantiles();
  result.computed = total.nonfinite > 0 ? kInfinity : total.computed;
  result.rel_l2 = total.nonfinite > 0 ? kInfinity : rel_l2(sum).value;
  result.rel_floor = std::exp2(std::ceil(std::log2(kRelFloor * std::sqrt(sum.squared_gold / finite))));
  if (sum.squared_gold > 0) {
    for (int b = binade(result.rel_floor); b < kBinades; ++b) {
      result.max_rel = std::max(result.max_rel, all.relative.largest[static_cast<size_t>(b)]);
    }
  }
  if (total.nonfinite > 0) result.max_rel = kInfinity;
  size_t k = 0;
  for (const Gate& gate : state_->gates.all) {
    if (is_elementwise(gate.metric)) {
      const GateTally& tally = total.gates[k++];
      // The allowed error includes the limit, so a `worst` of 1 is an error at the limit.
      const bool scaled = gate.metric == Metric::bound_ratio && gate.limit > 0;
      result.gates.push_back(gate_result(gate, scaled ? tally.worst * gate.limit : tally.worst));
      result.gates.back().out_of_bound = tally.out_of_bound;
      result.gates.back().holds = tally.out_of_bound == 0;
      continue;
    }
    const Achieved achieved = state_->achieved(gate, sum, result.policy);
    const bool of_all = !is_of_tokens(gate.metric) && gate.metric != Metric::identities;
    result.gates.push_back(gate_result(gate, of_all && total.nonfinite > 0 ? kInfinity : achieved.value));
    result.gates.back().out_of_bound = achieved.out_of_bound;
  }
  return result;
}

}  // namespace checkop
