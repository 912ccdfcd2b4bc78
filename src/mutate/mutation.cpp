// SPDX-License-Identifier: Apache-2.0
// Runs the controls and faults of one case and judges each like a candidate.
#include "mutate/mutation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "base/parallel.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "judge/gold_faults.hpp"
#include "judge/stored_gold.hpp"
#include "mutate/behaviour_faults.hpp"
#include "mutate/result_faults.hpp"
#include "run/runner.hpp"

namespace checkop {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// The order of addition in which faults are emulated. Its error is far below every limit.
constexpr Plan kUsual{Plan::Order::blocked, 512};

/// Whether data of this mode serve only the faults that name it.
bool is_special(InputMode mode) { return mode == InputMode::extreme || mode == InputMode::captured; }

constexpr FaultSpec kUpstreamInFp16{"upstream_in_fp16",
                                    "upstream gradients are converted to fp16, whose smallest number is 6e-8",
                                    "accuracy",
                                    "bf16",
                                    "",
                                    "",
                                    "captured"};

bool shows_in(const FaultSpec& fault, const Case& c, DType dtype) {
  if (fault.input_mode != (is_special(c.input_mode) ? to_string(c.input_mode) : "")) return false;
  if (!fault.dtypes.empty() && !lists(fault.dtypes, info(dtype).name)) return false;
  return fault.applies_with(c.optionals);
}

double ratio_of(const GateResult& gate) {
  if (gate.metric == Metric::bits || gate.limit == 0) return gate.holds && gate.achieved == 0 ? 0 : kInfinity;
  return std::isnan(gate.achieved) ? kInfinity : gate.achieved / gate.limit;
}

WorstGate worst_gate_of(const Case& c, const std::vector<Comparison>& comparisons) {
  WorstGate worst;
  const auto take = [&](size_t output, std::string_view gate, double ratio) {
    if (ratio > worst.ratio) worst = {std::string(c.pass->outputs[output].tensor.name), std::string(gate), ratio};
  };
  for (size_t i = 0; i < comparisons.size(); ++i) {
    if (comparisons[i].nonfinite > 0) take(i, "nonfinite", kInfinity);
    for (const GateResult& gate : comparisons[i].gates) take(i, to_string(gate.metric), ratio_of(gate));
    for (const IdentityResult& identity : comparisons[i].identities) take(i, identity.identity, identity.achieved);
  }
  return worst;
}

std::vector<Tensor> stored(const Case& c, const Values& values) {
  std::vector<Tensor> outputs = make_outputs(c);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].name.empty())
      info(outputs[i].dtype).encode(values[i].data(), outputs[i].bytes.data(), values[i].size());
  }
  return outputs;
}

/// Whether the elements are equal as numbers, so that -0 equals 0. NaN equals NaN.
bool same_values(const Tensor& a, const Tensor& b) {
  if (a.name.empty()) return b.name.empty();
  std::vector<double> in_a(static_cast<size_t>(a.count())), in_b(in_a.size());
  decode_row(a, 0, in_a);
  decode_row(b, 0, in_b);
  return std::equal(in_a.begin(), in_a.end(), in_b.begin(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes.size() == b.bytes.size() &&
         (a.bytes.size() == 0 || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
}

class Trials {
 public:
  Trials(const Case& c, const Contract& contract, std::string_view arch_key, unsigned threads, bool diagnoses,
         WantsFault wants)
      : c_(c),
        contract_(contract),
        arch_key_(arch_key),
        threads_(threads),
        inputs_(make_inputs(c, threads)),
        gold_(c, inputs_, threads),
        wants_(std::move(wants)) {
    if (diagnoses) emulated_.emplace(c, inputs_, threads);
    for (const OutputSpec& spec : c.pass->outputs) {
      demands_.push_back(contract.demands_for(c, spec));
      if (!is_present(c, spec.tensor)) continue;
      for (const RecipeGrant& grant : contract.gates_for(c, spec, {arch_key_, {}}).recipes) {
        if (std::find(granted_.begin(), granted_.end(), grant.name) == granted_.end()) granted_.push_back(grant.name);
      }
    }
  }

  void controls() {
    if (c_.pass->emulation == nullptr) return;
    for (const Plan& plan : all_plans()) add_control(plan, {});
    // A kernel may have some of the granted recipes, or all.
    for (const std::string& recipe : granted_) add_control(kUsual, {recipe});
    if (granted_.size() < 2) return;
    for (const auto& family : families()) add_control(kUsual, family);
  }

  void emulated_faults() {
    if (c_.pass->emulation == nullptr) return;
    add_emulated_faults({});
    if (granted_.empty()) return;
    for (const auto& family : families()) add_emulated_faults(family);
  }

  /// A kernel that converts what it reads to another type.
  void converted_inputs() {
    if (c_.pass->emulation == nullptr || !is_to_try(kUpstreamInFp16, "", c_.dtype)) return;
    std::vector<Tensor> read = make_inputs(c_, threads_);
    bool has_upstream = false;
    for (size_t i = 0; i < read.size(); ++i) {
      if (c_.pass->inputs[i].fill != Fill::upstream || read[i].name.empty() || read[i].dtype != DType::bf16) continue;
      has_upstream = true;
      Tensor half({}, DType::f16, {1});
      for (int64_t e = 0; e < read[i].count(); ++e) {
        half.set(0, read[i].at(e));
        read[i].set(e, half.at(0));
      }
    }
    if (!has_upstream) return;
    const std::vector<Tensor> right = stored(c_, emulated(kUsual, "", {}));
    const std::vector<Tensor> wrong = stored(c_, emulated(kUsual, "", {}, read));
    add(kUpstreamInFp16, "", tried(right, wrong));
  }

  /// A rounding that the contract does not grant is a fault.
  void recipes_without_grant() {
    if (c_.pass->emulation == nullptr) return;
    const std::vector<Tensor> right = stored(c_, emulated(kUsual, "", {}));
    for (const Recipe& recipe : c_.pass->recipes) {
      const std::string name(recipe.name);
      if (!lists(recipe.dtypes, info(c_.dtype).name) || is_granted(name) || !wants(name, "")) continue;
      const std::vector<Tensor> rounded = stored(c_, emulated(kUsual, "", {name}));
      add({recipe.name, recipe.formula}, "", tried(right, rounded));
    }
  }

  void spoiled_results() {
    std::vector<Tensor> outputs = stored(c_, gold_.values());
    const std::vector<Tensor> all_right = stored(c_, gold_.values());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const OutputSpec& spec = c_.pass->outputs[i];
      if (outputs[i].name.empty()) continue;
      const Tensor& right = all_right[i];
      const MatrixView view = judged_view(*c_.op, spec.tensor, right.shape);
      for (const ResultFault& fault : result_faults()) {
        if (!is_to_try(fault.spec, spec.tensor.name, right.dtype) ||
            (fault.spec.kind == "nonfinite" && !info(right.dtype).is_float))
          continue;
        std::vector<double> values = gold_.values()[i];
        Result result{spec, view, values, outputs[i]};
        if (fault.spoil != nullptr) fault.spoil(result);
        info(right.dtype).encode(values.data(), outputs[i].bytes.data(), values.size());
        if (fault.spoil_stored != nullptr) fault.spoil_stored(result);
        add(fault.spec, std::string(spec.tensor.name), tried(all_right, outputs));
      }
      std::copy_n(right.bytes.data(), right.bytes.size(), outputs[i].bytes.data());
    }
  }

  void misbehaviour() {
    if (gold_.values()[0].empty()) return;
    for (const BehaviourFault& fault : behaviour_faults()) {
      if (fault.of_rows && !is_per_row(*c_.op, c_.pass->outputs[0].tensor)) continue;
      if (!wants(fault.spec.name, "")) continue;
      std::vector<Tensor> outputs = make_outputs(c_);
      const RunChecks checks;
      const RunResult run = run_with_fault(fault, c_, inputs_, outputs, checks);
      std::vector<Comparison> comparisons;
      if (run.status == RunStatus::ok) comparisons = compared(outputs);
      Trial trial;
      trial.judgment = judge(c_, run, comparisons, demands_, checks, /*accuracy=*/true);
      trial.worst_gate = {std::string(c_.pass->outputs[0].tensor.name), trial.judgment.kind,
                          trial.rejected() ? kInfinity : 0};
      if (!shows(fault, trial)) trial.kind = Trial::Kind::unchanged;
      add(fault.spec, "", std::move(trial));
    }
  }

  std::vector<Trial> take() { return std::move(trials_); }

 private:
  /// The granted recipes that one kernel may have.
  std::vector<std::vector<std::string>> families() const {
    std::vector<std::vector<std::string>> all;
    for (const auto& family : families_of(*c_.pass, {granted_.begin(), granted_.end()}))
      all.emplace_back(family.begin(), family.end());
    return all;
  }

  bool wants(std::string_view fault, std::string_view output) const { return !wants_ || wants_(fault, output); }

  bool is_to_try(const FaultSpec& fault, std::string_view output, DType dtype) const {
    return wants(fault.name, output) && shows_in(fault, c_, dtype);
  }

  bool is_granted(const std::string& recipe) const {
    return std::find(granted_.begin(), granted_.end(), recipe) != granted_.end();
  }

  /// Whether the fault is the rounding of a granted recipe.
  bool is_granted_rounding(const FaultSpec& fault) const {
    return c_.dtype != DType::f16 && std::any_of(granted_.begin(), granted_.end(), [&](const std::string& recipe) {
             return lists(fault.recipes, recipe);
           });
  }

  void add_control(const Plan& plan, const std::vector<std::string>& recipes) {
    Trial trial = judged(stored(c_, emulated(plan, "", recipes)));
    if (trial.rejected() && !fits(plan)) trial.kind = Trial::Kind::excluded;
    trial.name = recipes.empty() ? to_string(plan) : fmt::format("{}", fmt::join(recipes, " + "));
    trials_.push_back(std::move(trial));
  }

  /// Faults of kernels with these recipes.
  void add_emulated_faults(const std::vector<std::string>& recipes) {
    const std::string suffix = recipes.empty() ? "" : fmt::format(", {}", fmt::join(recipes, " + "));
    std::vector<Tensor> right;  // made when it is needed
    for (const FaultSpec& fault : c_.pass->emulation->faults) {
      const std::string name = std::string(fault.name) + suffix;
      if (!wants(name, "") || !shows_in(fault, c_, c_.dtype) || is_granted_rounding(fault)) continue;
      if (right.empty()) right = stored(c_, emulated(kUsual, "", recipes));
      const std::vector<Tensor> wrong = stored(c_, emulated(kUsual, fault.name, recipes));
      add(fault, "", tried(right, wrong, [&] { return judged_of_data(wrong, fault, recipes); }));
      trials_.back().name = name;
    }
  }

  /// Judges as Session does: if the contract accepts that, by the outputs with finite numbers in the left-out elements.
  /// A fault may change nothing in these outputs.
  Trial judged_of_data(const std::vector<Tensor>& wrong, const FaultSpec& fault,
                       const std::vector<std::string>& recipes) {
    Trial trial = judged(wrong);
    const bool leaks =
        std::any_of(wrong.begin(), wrong.end(), [&](const Tensor& tensor) { return has_nonfinite(tensor, threads_); });
    if (!leaks || !accepts_finite(c_, compared(wrong), contract_, {arch_key_, {}})) return trial;
    if (finite_inputs_.empty()) finite_inputs_ = make_inputs(c_, threads_, LeftOut::finite);
    std::swap(inputs_, finite_inputs_);
    swapped_ = true;
    const std::vector<Tensor> right_then = stored(c_, emulated(kUsual, "", recipes)),
                              wrong_then = stored(c_, emulated(kUsual, fault.name, recipes));
    trial = tried(right_then, wrong_then);
    std::swap(inputs_, finite_inputs_);
    swapped_ = false;
    return trial;
  }

  Values emulated(const Plan& plan, std::string_view fault, const std::vector<std::string>& recipes) const {
    return emulated(plan, fault, recipes, inputs_);
  }

  Values emulated(const Plan& plan, std::string_view fault, const std::vector<std::string>& recipes,
                  const std::vector<Tensor>& inputs) const {
    std::vector<const Tensor*> present;
    for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
    Values values;
    for (const auto& gold : gold_.values()) values.emplace_back(gold.size());
    const std::vector<std::string_view> names(recipes.begin(), recipes.end());
    const Arithmetic arithmetic(plan, fault, ActiveRecipes(names, c_.dtype, 1, {}));
    const std::vector<int64_t> bounds = part_bounds(c_);
    c_.pass->emulation->run({present, c_.attrs, arithmetic, values, threads_, bounds});
    return values;
  }

  std::vector<Comparison> compared(const std::vector<Tensor>& outputs) const {
    return judge_outputs(c_, inputs_, outputs, contract_, {arch_key_, {}}, threads_, {}, nullptr, gold_.replay(),
                         RecipeSearch::granted, emulated_ && !swapped_ ? &*emulated_ : nullptr);
  }

  Trial judged(const std::vector<Tensor>& outputs) const {
    RunResult run;
    run.status = RunStatus::ok;
    run.outputs.resize(outputs.size());
    const std::vector<Comparison> comparisons = compared(outputs);
    Trial trial;
    trial.judgment = judge(c_, run, comparisons, demands_, {false, false, false}, /*accuracy=*/true);
    trial.worst_gate = worst_gate_of(c_, comparisons);
    if (const auto all = causes(c_, comparisons); !all.empty()) trial.cause = all.front();
    return trial;
  }

  /// Calls `judge` if `wrong` has other bits than `right`. If only the signs of zeros differ, the fault counts only for
  /// a contract that rejects them.
  Trial tried(const std::vector<Tensor>& right, const std::vector<Tensor>& wrong,
              const std::function<Trial()>& judge) const {
    if (std::equal(right.begin(), right.end(), wrong.begin(), same_bits)) return unchanged();
    Trial trial = judge();
    const bool has_other_values = !std::equal(right.begin(), right.end(), wrong.begin(), same_values);
    return has_other_values || trial.rejected() ? trial : unchanged();
  }
  Trial tried(const std::vector<Tensor>& right, const std::vector<Tensor>& wrong) const {
    return tried(right, wrong, [&] { return judged(wrong); });
  }

  static Trial unchanged() {
    Trial trial;
    trial.kind = Trial::Kind::unchanged;
    return trial;
  }

  void add(const FaultSpec& fault, std::string output, Trial trial) {
    if (trial.kind != Trial::Kind::unchanged) trial.kind = Trial::Kind::fault;
    trial.name = fault.name, trial.meaning = fault.meaning, trial.expected = fault.kind;
    trial.output = std::move(output);
    trials_.push_back(std::move(trial));
  }

  /// Whether the plan's chains of additions are within the contract's max_chain, for every output.
  bool fits(const Plan& plan) const {
    for (const OutputSpec& spec : c_.pass->outputs) {
      if (!is_present(c_, spec.tensor)) continue;
      for (const Gate& gate : contract_.gates_for(c_, spec, {arch_key_, {}}).all) {
        if (gate.metric == Metric::bound_ratio && gate.max_chain > 0 &&
            plan.chain(sum_terms(c_, spec)) > gate.max_chain)
          return false;
      }
    }
    return true;
  }

  /// Whether the case has what the fault needs. A row that is alone in every launch is changed in all of them: only its
  /// accuracy may show that.
  bool shows(const BehaviourFault& fault, const Trial& trial) const {
    const TensorSpec& first = c_.pass->outputs[0].tensor;
    const MatrixView view = matrix_view(*c_.op, first, shape_of(c_, first));
    if (fault.spec.name == "unwritten_zeros") return has_row_of_zeros(view.columns);
    return fault.spec.name != "batch_dependent" || view.rows > 1 || trial.rejected();
  }

  bool has_row_of_zeros(int64_t columns) const {
    const std::vector<double>& values = gold_.values()[0];
    const auto n = static_cast<int64_t>(values.size());
    for (int64_t at = 0; at < n; at += columns) {
      if (std::all_of(&values[static_cast<size_t>(at)], values.data() + at + columns, [](double x) { return x == 0; }))
        return true;
    }
    return false;
  }

  const Case& c_;
  const Contract& contract_;
  std::string_view arch_key_;
  unsigned threads_;
  std::vector<Tensor> inputs_, finite_inputs_;  ///< the second ones with LeftOut::finite, made when they are needed
  mutable StoredGolds gold_;                    ///< computes golds under recipes when asked
  std::vector<Demands> demands_;
  std::vector<std::string> granted_;  ///< recipes that the contract grants to any output
  std::vector<Trial> trials_;
  mutable std::optional<EmulatedFaults> emulated_;  ///< of inputs_ as they were at first; only to diagnose
  bool swapped_ = false;                            ///< whether inputs_ are the finite ones
  WantsFault wants_;
};

}  // namespace

std::vector<Trial> try_contract(const Case& c, const Contract& contract, std::string_view arch_key, unsigned threads,
                                bool diagnoses, WantsFault wants) {
  if (row_count(c) == 0) return {};  // no elements, so nothing can be wrong
  Trials trials(c, contract, arch_key, threads, diagnoses, std::move(wants));
  trials.controls();
  trials.emulated_faults();
  trials.converted_inputs();
  if (is_special(c.input_mode)) return trials.take();  // data for a few faults, which hide others
  trials.recipes_without_grant();
  trials.spoiled_results();
  trials.misbehaviour();
  return trials.take();
}

std::vector<Vacuity> vacuities(const Case& c, const Contract& contract, const Subject& subject, unsigned threads) {
  if (row_count(c) == 0) return {};
  const std::vector<Tensor> inputs = make_inputs(c, threads);
  StoredGolds gold(c, inputs, threads);
  const std::vector<Comparison> comparisons =
      judge_outputs(c, inputs, stored(c, gold.values()), contract, subject, threads, {}, nullptr, gold.replay());
  std::vector<Vacuity> all;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    const OutputSpec& spec = c.pass->outputs[i];
    for (const Trivial answer : comparisons[i].would_pass)
      all.push_back({contract.gates_for(c, spec, subject).source, std::string(spec.tensor.name), answer});
  }
  return all;
}

void for_each_case(const std::vector<Case>& cases, unsigned threads,
                   const std::function<void(size_t, unsigned)>& body) {
  constexpr int64_t kSmall = int64_t{1} << 24;
  const auto small = [&](size_t i) { return tensor_bytes(cases[i]) < kSmall; };
  parallel_for(threads, std::ssize(cases), [&](int64_t i) {
    if (small(static_cast<size_t>(i))) body(static_cast<size_t>(i), 1);
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!small(i)) body(i, threads);
  }
}

}  // namespace checkop
