// SPDX-License-Identifier: Apache-2.0
// Emulates the known faults and keeps those that give the candidate's outputs, element by element.
#include "judge/gold_faults.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "case/rank_parts.hpp"
#include "judge/gold.hpp"

namespace checkop {
namespace {

using Part = EmulatedFaults::Part;

constexpr double kLeastWork = 2e7;        // that any check may cost once more, in multiply-adds: some ten ms
constexpr double kExplained = 4e-4;       // share of the squared errors that may remain: 2 % in norm
constexpr double kMostlyExplained = 0.1;  // the same for a guess
constexpr double kFarthest = 1e6;         // an error that counts, in bounds: one element must not speak for all
constexpr Plan kUsual{Plan::Order::blocked, 512};

/// How well a fault explains one output.
struct Fit {
  bool gives_all = true;         ///< each element, as well as the bounds allow
  double before = 0, after = 0;  ///< squared errors of the failing elements from the gold, and from the fault's result

  bool explains(double share) const { return gives_all && before > 0 && after <= share * before; }
};

bool alike(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

/// The `count` elements of a part.
std::vector<double> decoded(const Tensor& tensor, const Part& part, size_t count) {
  std::vector<double> values(count);
  const size_t first = part.whole ? 0 : static_cast<size_t>(part.first) * count / static_cast<size_t>(part.n);
  const DTypeInfo& type = info(tensor.dtype);
  type.decode(tensor.bytes.data() + first * type.bytes, values.data(), count);
  return values;
}

/// Whether only the size of the fault's errors can be compared, since their values depend on the order of addition.
bool is_of_order(const FaultSpec& fault) { return fault.name == faults::kBf16Accumulator.name; }

/// Compares the outputs of a check with emulations of faults on one part of it.
class Suspects {
 public:
  Suspects(const JudgedOutputs& judged, EmulatedFaults& emulated) : judged_(judged), emulated_(emulated) {}

  /// By output; outputs that the part does not hold agree with everything.
  std::vector<Fit> fits(const Part& part, const FaultSpec& fault, const Plan& plan) {
    const EmulatedFaults::Gold& gold = emulated_.gold(part);
    const Values& wrong = emulated_.values(part, fault.name, plan);
    const bool to_the_end = is_of_order(fault);
    Values& got = got_[part];
    if (got.empty()) {
      for (size_t i = 0; i < gold.value.size(); ++i)
        got.push_back(decoded(judged_.outputs[i], part, gold.value[i].size()));
    }
    std::vector<Fit> all(got.size());
    for (size_t i = 0; i < all.size(); ++i) {
      if (!gold.value[i].empty()) all[i] = fit_of(i, gold, got[i], wrong[i], to_the_end);
    }
    return all;
  }

 private:
  Fit fit_of(size_t index, const EmulatedFaults::Gold& gold, const std::vector<double>& got,
             const std::vector<double>& wrong, bool to_the_end) const {
    const DType dtype = judged_.outputs[index].dtype;
    const OutputComparison& comparison = *judged_.compared[index];
    const std::vector<double>& value = gold.value[index];
    const double growth = std::max(1.0, norm(wrong) / norm(value));
    Fit fit;
    for (size_t i = 0; i < value.size(); ++i) {
      const double allowed =
          std::max(0.0, comparison.allowed(value[i], gold.magnitude[index][i], gold.rounding[index][i]));
      const bool fails = !alike(got[i], value[i]) && !(std::abs(got[i] - value[i]) <= allowed);
      if (!std::isfinite(wrong[i]) || !std::isfinite(got[i])) {
        fit.gives_all &= alike(got[i], wrong[i]);
        if (fails) fit.before += kFarthest, fit.after += alike(got[i], wrong[i]) ? 0 : kFarthest;
        continue;
      }
      const double stored = half_ulp(dtype, wrong[i]), off = std::abs(got[i] - wrong[i]);
      fit.gives_all &= off <= 2 * (growth * allowed + stored);
      if (!fit.gives_all && !to_the_end) return fit;
      if (!fails) continue;
      const double unit = allowed + half_ulp(dtype, value[i]);
      const double before = std::min(std::abs(got[i] - value[i]) / unit, kFarthest), after = off / unit;
      fit.before += std::isfinite(value[i]) ? before * before : kFarthest;
      fit.after += after * after;
    }
    return fit;
  }

  static double norm(const std::vector<double>& x) {
    double squares = 0;
    for (const double each : x) squares += std::isfinite(each) ? each * each : 0;
    return squares > 0 ? std::sqrt(squares) : 1;
  }

  const JudgedOutputs& judged_;
  EmulatedFaults& emulated_;
  std::map<Part, Values> got_;
};

struct Candidate {
  FaultSpec fault;
  std::vector<Fit> fits;

  bool gives_every_output() const {
    return std::all_of(fits.begin(), fits.end(), [](const Fit& fit) { return fit.gives_all; });
  }
};

/// Multiply-adds of the pass, and some for each element that is read, written or compared.
double work_of(const JudgedOutputs& judged) {
  constexpr double kPerElement = 4;
  double elements = 0;
  for (const auto* tensors : {&judged.inputs, &judged.outputs}) {
    for (const Tensor& tensor : *tensors) elements += tensor.name.empty() ? 0 : static_cast<double>(tensor.count());
  }
  return cost_of(judged.c, judged.inputs).flops / 2 + kPerElement * elements;
}

/// The share of the gold that was computed, from 0 to 1.
double share_of_gold(const JudgedOutputs& judged) {
  double share = 0;
  bool sampled = false;
  for (size_t i = 0; i < judged.outputs.size(); ++i) {
    const TensorSpec& spec = judged.c.pass->outputs[i].tensor;
    if (!is_present(judged.c, spec) || judged.outputs[i].count() == 0) continue;
    const int64_t rows = judged_view(*judged.c.op, spec, judged.outputs[i].shape).rows;
    const int64_t compared = judged.rows[i].count(rows);
    sampled |= compared < rows;
    if (compared < rows) share = std::max(share, static_cast<double>(compared) / static_cast<double>(rows));
  }
  return sampled ? share : 1;
}

/// The search for known faults within a number of operations.
class Search {
 public:
  Search(const JudgedOutputs& judged, EmulatedFaults& emulated) : judged_(judged), suspects_(judged, emulated) {
    for (const FaultSpec& fault : judged.c.pass->emulation->faults) {
      if (fault.applies_with(judged.c.optionals)) faults_.push_back(fault);
    }
    for (const Recipe& recipe : judged.c.pass->recipes) {
      if (lists(recipe.dtypes, info(judged.c.dtype).name)) faults_.push_back({recipe.name, recipe.formula});
    }
    const double share = share_of_gold(judged);
    sampled_ = share < 1;
    work_ = work_of(judged);
    left_ = std::max(kLeastWork, share * work_);
  }

  /// First a few rows of the batch, which rule out most faults, and then the whole case.
  std::vector<KnownFaults> run() {
    const auto n = static_cast<double>(faults_.size());
    const Part part = some_rows(0.75 * left_ / (n + 1));
    std::vector<Candidate> in_part;
    std::vector<FaultSpec> possible, others;
    if (part.n > 0) in_part = examined(part, faults_);
    for (const Candidate& each : in_part) (each.gives_every_output() ? possible : others).push_back(each.fault);
    if (in_part.empty()) possible = faults_;
    if (sampled_ || !is_affordable(possible)) return explained(in_part, /*everywhere=*/false);
    std::vector<Candidate> all = examined({}, possible);
    std::vector<KnownFaults> found = explained(all, /*everywhere=*/true);
    const bool explains =
        std::any_of(found.begin(), found.end(), [](const auto& each) { return !each.faults.empty(); });
    // The fault may mix rows, so that it looks different in a part.
    if (explains || others.empty() || !is_affordable(others)) return found;
    for (Candidate& each : examined({}, others)) all.push_back(std::move(each));
    return explained(all, /*everywhere=*/true);
  }

 private:
  std::vector<KnownFaults> none() const { return std::vector<KnownFaults>(judged_.outputs.size()); }

  bool is_affordable(const std::vector<FaultSpec>& faults) const {
    return static_cast<double>(faults.size() + 1) * work_ <= left_;
  }

  /// An eighth of the rows of the batch, around a failing one, or as many as `work` allows; maybe none. None if no
  /// output is per row: the inputs can't be cut then, as where sequences are packed.
  Part some_rows(double work) const {
    const Case& c = judged_.c;
    const int64_t rows = row_count(c);
    Part part{0, 0, false};
    const auto is_by_rows = [&](const OutputSpec& output) {
      return is_present(c, output.tensor) && is_per_row(*c.op, output.tensor);
    };
    if (rows < 2 || std::none_of(c.pass->outputs.begin(), c.pass->outputs.end(), is_by_rows)) return part;
    part.n = std::min((rows + 7) / 8, static_cast<int64_t>(work * static_cast<double>(rows) / work_));
    for (size_t i = 0; i < judged_.outputs.size(); ++i) {
      const TensorSpec& spec = c.pass->outputs[i].tensor;
      if (!is_present(c, spec) || !is_per_row(*c.op, spec)) continue;
      const FailureSummary failures = judged_.compared[i]->failures();
      if (failures.sample.empty()) continue;
      const int64_t columns = judged_view(*c.op, spec, judged_.outputs[i].shape).columns;
      const FailingElement& one = failures.sample[failures.sample.size() / 2];
      const int64_t row = (one.row * columns + one.column) / (judged_.outputs[i].count() / rows);
      part.first = part.n > 0 ? std::min(row / part.n * part.n, rows - part.n) : 0;
      break;
    }
    return part;
  }

  std::vector<Candidate> examined(const Part& part, const std::vector<FaultSpec>& faults) {
    const double cost =
        part.whole ? work_ : work_ * static_cast<double>(part.n) / static_cast<double>(row_count(judged_.c));
    left_ -= cost;  // of the gold
    std::vector<Candidate> all;
    for (const FaultSpec& fault : faults) {
      all.push_back({fault, suspects_.fits(part, fault, kUsual)});
      left_ -= cost;
    }
    for (Candidate& each : all) {
      if (is_of_order(each.fault) && is_near(each)) try_orders(part, cost, each);
    }
    return all;
  }

  /// Whether the errors are as large as the candidate's. Those of sums in bf16 differ with the order of addition, but
  /// not in size.
  static bool is_near(const Candidate& candidate) {
    return !candidate.gives_every_output() &&
           std::any_of(candidate.fits.begin(), candidate.fits.end(), [](const Fit& fit) {
             return fit.before > 0 && fit.after <= 100 * fit.before && fit.before <= 100 * fit.after;
           });
  }
  void try_orders(const Part& part, double cost, Candidate& candidate) {
    for (const Plan& plan : all_plans()) {
      if (left_ < cost) return;
      if (plan.fma) continue;  // none fuses sums in bf16
      left_ -= cost;
      Candidate other{candidate.fault, suspects_.fits(part, candidate.fault, plan)};
      if (!other.gives_every_output()) continue;
      candidate = std::move(other);
      return;
    }
  }

  std::vector<KnownFaults> explained(const std::vector<Candidate>& candidates, bool everywhere) const {
    std::vector<KnownFaults> all = none();
    for (size_t i = 0; i < all.size(); ++i) {
      for (const bool every_output : {true, false}) {
        for (const double share : {kExplained, kMostlyExplained}) {
          if (!all[i].faults.empty()) continue;
          for (const Candidate& each : candidates) {
            if (each.fits[i].explains(share) && (!every_output || each.gives_every_output()))
              all[i].faults.push_back(each.fault);
          }
          all[i].certain = everywhere && every_output && share == kExplained && all[i].faults.size() == 1;
        }
      }
    }
    return all;
  }

  const JudgedOutputs& judged_;
  Suspects suspects_;
  std::vector<FaultSpec> faults_;
  bool sampled_ = false;
  double work_ = 0, left_ = 0;  ///< of the whole case; that may still be done
};

}  // namespace

EmulatedFaults::Sliced& EmulatedFaults::slice(const Part& part) {
  const auto found = slices_.find(part);
  if (found != slices_.end()) return found->second;
  Sliced& to = slices_.emplace(part, Sliced{part.whole ? c_ : slice_rows(c_, part.first, part.first + part.n), {}, {}})
                   .first->second;
  to.tensors.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const TensorSpec& spec = c_.pass->inputs[i];
    const Tensor& all = inputs_[i];
    if (all.name.empty() || part.whole || !is_per_row(*c_.op, spec)) {
      to.inputs.push_back(all.name.empty() ? nullptr : &all);
      continue;
    }
    Tensor rows(all.name, all.dtype, shape_of(to.c, spec));
    const auto row_bytes = all.bytes.size() / static_cast<size_t>(row_count(c_));
    std::copy_n(all.bytes.data() + static_cast<size_t>(part.first) * row_bytes, rows.bytes.size(), rows.bytes.data());
    to.tensors[i] = std::move(rows);
    to.inputs.push_back(&to.tensors[i]);
  }
  return to;
}

const EmulatedFaults::Gold& EmulatedFaults::gold(const Part& part) {
  const auto found = golds_.find(part);
  if (found != golds_.end()) return found->second;
  const Sliced& sliced = slice(part);
  const auto& outputs = c_.pass->outputs;
  Gold& gold = golds_[part];
  std::vector<Shape> shapes;
  for (Values* each : {&gold.value, &gold.magnitude, &gold.rounding}) each->resize(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool present = is_present(c_, outputs[i].tensor);
    shapes.push_back(present ? shape_of(sliced.c, outputs[i].tensor) : Shape());
    if (!present || (!part.whole && !is_per_row(*c_.op, outputs[i].tensor))) continue;
    for (Values* each : {&gold.value, &gold.magnitude, &gold.rounding})
      (*each)[i].resize(static_cast<size_t>(element_count(shapes[i])));
  }
  const auto keep = [&](const GoldRows& rows) {
    const auto i = static_cast<size_t>(rows.output);
    if (gold.value[i].empty()) return;
    const int64_t at = rows.first_row * rows.columns, n = rows.n_rows * rows.columns;
    std::copy_n(rows.value, n, gold.value[i].begin() + at);
    std::copy_n(rows.magnitude, n, gold.magnitude[i].begin() + at);
    std::copy_n(rows.rounding, n, gold.rounding[i].begin() + at);
  };
  c_.pass->gold({sliced.inputs, sliced.c.attrs, threads_, keep, shapes});
  return gold;
}

const Values& EmulatedFaults::values(const Part& part, std::string_view fault, const Plan& plan) {
  const std::tuple key{part, std::string(fault), to_string(plan)};
  const auto found = values_.find(key);
  if (found != values_.end()) return found->second;
  Sliced& sliced = slice(part);
  Values& values = values_[key];
  const auto is_held = [&](const TensorSpec& spec) { return part.whole || is_per_row(*c_.op, spec); };
  for (const OutputSpec& output : c_.pass->outputs) {
    const TensorSpec& spec = output.tensor;
    const bool wants = is_present(c_, spec) && (is_held(spec) || !c_.pass->emulation->skips_empty);
    values.emplace_back(wants ? element_count(shape_of(sliced.c, spec)) : 0);
  }
  const bool is_recipe = std::any_of(c_.pass->recipes.begin(), c_.pass->recipes.end(),
                                     [&](const Recipe& recipe) { return recipe.name == fault; });
  const std::vector<std::string_view> recipes(is_recipe ? 1 : 0, fault);
  const Arithmetic arithmetic(plan, is_recipe ? "" : fault, ActiveRecipes(recipes, c_.dtype, 1, {}));
  const std::vector<int64_t> bounds = part_bounds(sliced.c);
  c_.pass->emulation->run({sliced.inputs, sliced.c.attrs, arithmetic, values, threads_, bounds, &sliced.kept});
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorSpec& spec = c_.pass->outputs[i].tensor;
    if (!is_held(spec)) values[i] = std::vector<double>();  // the part has no gold of it
    if (values[i].empty()) continue;
    const DTypeInfo& type = info(dtype_of(c_, spec));
    std::vector<std::byte> stored(values[i].size() * type.bytes);
    type.encode(values[i].data(), stored.data(), values[i].size());
    type.decode(stored.data(), values[i].data(), values[i].size());
  }
  return values;
}

bool has_cheap_gold(const JudgedOutputs& judged) { return share_of_gold(judged) == 1 && work_of(judged) <= kLeastWork; }

std::vector<KnownFaults> known_faults(const JudgedOutputs& judged, EmulatedFaults& emulated) {
  if (judged.c.pass->emulation == nullptr || row_count(judged.c) == 0)
    return std::vector<KnownFaults>(judged.outputs.size());
  return Search(judged, emulated).run();
}

std::string describe(const KnownFaults& found) {
  if (found.faults.empty()) return "";
  std::vector<std::string> each;
  for (const FaultSpec& fault : found.faults) each.push_back(fmt::format("where {} ({})", fault.meaning, fault.name));
  return fmt::format("{} {}", found.certain ? "is as" : "looks like that of a kernel", fmt::join(each, ", or "));
}

}  // namespace checkop
