// SPDX-License-Identifier: Apache-2.0
// Checks finiteness and identities over all rows of an output.
#include "judge/residuals.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/parallel.hpp"
#include "base/random.hpp"

namespace checkop {
namespace {

/// Results by identity; add() is thread-safe.
class Tallies {
 public:
  /// `limit` applies to |value| / bound.
  void add(std::string_view identity, int64_t row, double value, double bound, double limit = 1) {
    double ratio = std::abs(value) / bound;
    if (!(ratio >= 0)) ratio = value == 0 ? 0 : std::numeric_limits<double>::infinity();  // 0/0, or NaN
    const std::lock_guard lock(mutex_);
    auto found =
        std::find_if(all_.begin(), all_.end(), [&](const IdentityResult& r) { return r.identity == identity; });
    if (found == all_.end()) found = all_.insert(all_.end(), {std::string(identity), 0, 0, -1, row, value, bound});
    ++found->rows;
    if (!(std::abs(value) <= limit * bound)) ++found->out_of_bound;
    if (ratio > found->achieved || (ratio == found->achieved && row < found->worst_row)) {
      found->achieved = ratio, found->worst_row = row, found->value = value, found->bound = bound;
    }
  }

  std::vector<IdentityResult> take() {
    std::sort(all_.begin(), all_.end(), [](const auto& a, const auto& b) { return a.identity < b.identity; });
    return std::move(all_);
  }

 private:
  std::mutex mutex_;
  std::vector<IdentityResult> all_;
};

/// "finite": counts the non-finite elements of each row; the count must be 0. Where the gold may be infinite,
/// "not_nan": an infinity may be right in a row that the gold left out, NaN is not, unless identities look for it.
void check_finite(const Tensor& output, const MatrixView& view, bool may_be_infinite, unsigned threads,
                  Tallies& tallies) {
  parallel_for(threads, view.rows, [&](int64_t r) {
    static thread_local std::vector<double> row;
    row.resize(static_cast<size_t>(view.columns));
    const DTypeInfo& type = info(output.dtype);
    type.decode(output.bytes.data() + static_cast<size_t>(r * view.columns) * type.bytes, row.data(), row.size());
    const auto bad = std::count_if(row.begin(), row.end(),
                                   [&](double x) { return may_be_infinite ? std::isnan(x) : !std::isfinite(x); });
    tallies.add(may_be_infinite ? "not_nan" : "finite", r, static_cast<double>(bad), 0);
  });
}

const Gate* find_gate(const Gates& gates, Metric metric) {
  const auto found =
      std::find_if(gates.all.begin(), gates.all.end(), [metric](const Gate& g) { return g.metric == metric; });
  return found == gates.all.end() ? nullptr : &*found;
}

/// Stores the results of the identities in the identities gate, if the contract has one.
void conclude(const Gates& gates, Comparison& comparison) {
  const Gate* gate = find_gate(gates, Metric::identities);
  if (gate == nullptr) return;
  double achieved = 0;
  int64_t out_of_bound = 0;
  for (const IdentityResult& identity : comparison.identities) {
    achieved = std::max(achieved, identity.achieved);
    out_of_bound += identity.out_of_bound;
  }
  for (GateResult& result : comparison.gates) {
    if (result.metric != Metric::identities) continue;
    result = gate_result(*gate, achieved);
    result.out_of_bound = out_of_bound;
    result.holds = out_of_bound == 0;
  }
}

}  // namespace

void check_identities(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                      const std::vector<Gates>& gates, const std::vector<int64_t>& terms,
                      const std::vector<RowSet>& rows, unsigned threads, const ActiveRecipes& recipes,
                      std::vector<Comparison>& comparisons) {
  std::vector<Tallies> tallies(outputs.size());
  std::vector<const Tensor*> in, out;
  for (const Tensor& tensor : inputs) in.push_back(tensor.name.empty() ? nullptr : &tensor);
  for (const Tensor& tensor : outputs) out.push_back(tensor.name.empty() ? nullptr : &tensor);
  const auto sampled = [&](size_t i) { return out[i] != nullptr && !rows[i].all; };
  const auto wanted = [&](size_t i) {
    return sampled(i) || (out[i] != nullptr && find_gate(gates[i], Metric::identities) != nullptr);
  };
  bool any = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    any |= wanted(i);
    if (!sampled(i)) continue;
    const OutputSpec& spec = c.pass->outputs[i];
    if (spec.locates_nan && gates[i].nonfinite_may_match) continue;
    const MatrixView view = judged_view(*c.op, spec.tensor, outputs[i].shape);
    check_finite(outputs[i], view, gates[i].nonfinite_may_match, threads, tallies[i]);
  }
  if (!any) return;
  if (c.pass->identities != nullptr) {
    IdentityArgs args{in, out, c.attrs, threads, {}, {}, recipes};
    args.sign = [&](std::string_view stream, uint64_t index) {
      return Stream::derive(c.seed, c.op->name, stream).below(index, 2) == 0 ? -1.0 : 1.0;
    };
    args.sink = [&](const Residual& r) {
      const auto output = static_cast<size_t>(r.output);
      if (!wanted(output)) return;
      const bool exact = r.magnitude == 0 && r.rounding == 0 && r.stored == 0;
      const Gate* gate = find_gate(gates[output], Metric::bound_ratio);
      if (!exact && gate == nullptr) return;  // atol and rtol say nothing about sums
      const double bound = exact ? 0 : residual_bound(*gate, outputs[output].dtype, terms[output], r);
      const Gate* asked = find_gate(gates[output], Metric::identities);
      tallies[output].add(r.identity, r.row, r.value, bound, asked == nullptr ? 1 : asked->limit);
    };
    c.pass->identities(args);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    comparisons[i].identities = tallies[i].take();
    conclude(gates[i], comparisons[i]);
  }
}

}  // namespace checkop
