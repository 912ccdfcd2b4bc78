// SPDX-License-Identifier: Apache-2.0
// A comparison from its gates to its result, independent of the order of rows and threads.
#include "judge/compare.hpp"

#include "judge/compare_state.hpp"

namespace checkop {
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
    if (gate.metric == Metric::vs_baseline || gate.metric == Metric::max_vs_baseline || gate.metric == Metric::cosine)
      baseline = &gate;
    if (gate.metric == Metric::bias_t) bias = &gate;
    if (gate.metric == Metric::clip_flips) clip = &gate;
    if (gate.metric == Metric::block_rel_l2)
      blocks = std::make_unique<BlockSums>(gate.rows, gate.columns, view, wanted);
  }
  rows.resize(static_cast<size_t>(view.rows));
  constexpr int64_t kManyRows = 4096;
  constexpr size_t kStripes = 64;
  while (stripes.size() < (view.rows < kManyRows ? 1 : kStripes)) stripes.emplace_back(view, prepared.size());
  if (quantity != TokenQuantity::none) this->tokens.resize(static_cast<size_t>(view.rows * view.columns));
}

OutputComparison::OutputComparison(DType dtype, const std::byte* got, MatrixView view, Gates gates, int64_t terms,
                                   RowSet rows, TokenQuantity tokens)
    : state_(std::make_unique<State>(dtype, got, view, std::move(gates), terms, std::move(rows), tokens)) {}
OutputComparison::~OutputComparison() = default;
OutputComparison::OutputComparison(OutputComparison&&) noexcept = default;

FailureSummary OutputComparison::failures() const { return state_->failures.summary(); }

double OutputComparison::allowed(double value, double magnitude, double rounding) const {
  return state_->allowed(value, magnitude, rounding);
}

void OutputComparison::add(const GoldRows& block) {
  const int64_t columns = state_->view.columns, cut = columns > 0 ? block.columns / columns : 1;
  for (int64_t r = 0; r < block.n_rows * cut; ++r) {
    const int64_t at = r * columns;
    state_->compare_row(block.first_row * cut + r, block.value + at, block.magnitude + at, block.rounding + at);
  }
}

double OutputComparison::State::allowed(double value, double magnitude, double rounding) const {
  double least = kInfinity;
  for (const PreparedGate& gate : prepared) least = std::min(least, gate.allowed(value, magnitude, rounding));
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
    case Metric::bound_rms:
      return checkop::bound_rms(sum);
    case Metric::bias_t:
      return bias_statistic(rows);
    case Metric::max_abs_dlogp:
    case Metric::k3_mean:
    case Metric::k3_max:
    case Metric::ratio_deviation:
    case Metric::clip_flips:
      return {policy ? policy->of(gate.metric) : kInfinity};
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
  Stripe all(state_->view, state_->prepared.size());
  for (const Stripe& stripe : state_->stripes) all.merge(stripe);
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
