// SPDX-License-Identifier: Apache-2.0
// Sums up a run and its comparisons in one word and one sentence.
#include "judge/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "judge/model_bits.hpp"
#include "run/invariance/contexts.hpp"

namespace checkop {
namespace {

const OutputSpec& spec_of(const Case& c, size_t output) { return c.pass->outputs[output]; }

/// What is wrong, the most important first.
using Findings = std::vector<Judgment>;

Judgment fail(std::string kind, std::string reason) { return {Verdict::fail, std::move(kind), std::move(reason)}; }

/// Memory errors: writes outside of outputs, changed inputs, unwritten elements.
void judge_memory(const Case& c, const RunResult& run, Findings& found) {
  if (!run.guard_violations.empty()) {
    found.push_back(fail("guard", fmt::format("wrote outside its buffers: {}", run.guard_violations.front())));
  }
  if (!run.modified_inputs.empty()) {
    found.push_back(fail("input", fmt::format("changed an input: {}", run.modified_inputs.front())));
  }
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    const OutputRun& output = run.outputs[i];
    if (output.unwritten == 0) continue;
    const TensorSpec& spec = spec_of(c, i).tensor;
    found.push_back(fail("unwritten", fmt::format("{}{}: {} element{} never written, this one first", spec.name,
                                                  coordinates(shape_of(c, spec), output.first_unwritten),
                                                  output.unwritten, output.unwritten == 1 ? " was" : "s were")));
  }
}

/// Whether the output is empty by design, for a lack of rows or an empty dimension. Such a case tests the launch, the
/// memory, and outputs that are sums over rows.
bool is_declared_empty(const Case& c, size_t output) {
  const TensorSpec& spec = spec_of(c, output).tensor;
  if (row_count(c) == 0 && element_count(shape_of(c, spec)) == 0) return true;
  const std::vector<std::string_view> dims = names_in(spec.dims);
  return has_empty_dim(c) && std::find(dims.begin(), dims.end(), c.op->may_be_empty) != dims.end();
}

/// What a missed gate means, where its name does not say it.
std::string meaning_of(const GateResult& gate) {
  switch (gate.metric) {
    case Metric::bound_rms:
      return ": each error is within its bound, but too many are near it";
    case Metric::bias_t:
      return ": errors are biased to one side, as with truncation";
    case Metric::block_rel_l2:
      return fmt::format(": missed by {} blocks", gate.out_of_bound);
    case Metric::vs_reference:
      return ": so many times the error of the reference";
    case Metric::vs_baseline:
      return ": so many times the rms error of storing the gold";
    case Metric::bound_ratio:
    case Metric::atol_rtol:
    case Metric::bits:
    case Metric::ulp:
    case Metric::rel_l2:
    case Metric::cosine:
    case Metric::max_vs_baseline:
    case Metric::noise_rms:
    case Metric::identities:
    case Metric::bits_of_model:
    case Metric::max_abs_dlogp:
    case Metric::k3_mean:
    case Metric::k3_max:
    case Metric::ratio_deviation:
    case Metric::clip_flips:
      break;
  }
  return "";
}

/// "bias_t is 12.3, limit 7: errors are biased to one side, as with truncation".
std::string describe_miss(const GateResult& gate) {
  return fmt::format("{} is {:.4g}, limit {:.4g}{}", to_string(gate.metric), gate.achieved, gate.limit,
                     meaning_of(gate));
}

/// "c: bits_of_model: 31 of 4096 differ; nearest order: split_k 2 (99.8 % equal); first c[0,3] = 1.5 (0x3fc0), the
/// model of sm90 has 1.5078125 (0x3fc1)".
std::string describe_miss(const Case& c, size_t index, const ModelComparison& model) {
  const TensorSpec& spec = spec_of(c, index).tensor;
  std::string text = fmt::format("{}: bits_of_model: {}", spec.name, describe(model));
  if (model.different > 0) {
    text += fmt::format("; first {}{} = {:.9g} ({:#x}), the model of {} has {:.9g} ({:#x})", spec.name,
                        coordinates(shape_of(c, spec), model.first_index), model.got, model.got_bits, model.arch,
                        model.model, model.model_bits);
  }
  return text;
}

/// Elements out of bound. These include all non-finite elements, since NaN meets no bound; they are named first.
void judge_elements(const Case& c, size_t index, const Comparison& comparison, Findings& found) {
  const TensorSpec& spec = spec_of(c, index).tensor;
  const auto where = [&](const ElementReport& e) {
    return fmt::format("{}{} = {:.9g}, gold {:.9g}", spec.name, coordinates(shape_of(c, spec), e.index), e.got, e.gold);
  };
  // No element is out of bound if no gate judges single elements.
  const std::string share = comparison.out_of_bound == 0
                                ? ""
                                : fmt::format("; {} of {} out of bound", comparison.out_of_bound, comparison.count);
  if (comparison.leaks_left_out) {
    const ElementReport& e = comparison.first_nonfinite ? *comparison.first_nonfinite : *comparison.worst;
    found.push_back(fail("nonfinite", fmt::format("{} are multiplied by 0: NaN there reaches {}; {}{}", c.op->left_out,
                                                  spec.name, where(e), share)));
    return;
  }
  if (comparison.nonfinite > 0) {
    const ElementReport& e = *comparison.first_nonfinite;
    const char* what = std::isfinite(e.gold)  ? "not finite where the gold is"
                       : std::isfinite(e.got) ? "finite where the gold is not"
                       : std::isnan(e.got) != std::isnan(e.gold) || (e.got > 0) != (e.gold > 0)
                           ? "not finite, and not as the gold is"
                           : "not finite, like the gold, but the contract forbids non-finite results";
    found.push_back(fail("nonfinite", fmt::format("{}: {}; {} such element{}{}", where(e), what, comparison.nonfinite,
                                                  comparison.nonfinite == 1 ? "" : "s", share)));
    if (const int64_t finite = comparison.out_of_bound - comparison.nonfinite; finite > 0)
      found.push_back(fail("accuracy", fmt::format("{}: {} finite {} out of bound, too", spec.name, finite,
                                                   finite == 1 ? "element is" : "elements are")));
    return;
  }
  const ElementReport& e = *comparison.worst;
  const std::string_view dtype = info(dtype_of(c, spec)).name;
  if (e.gate == "ulp") {
    found.push_back(
        fail("accuracy", fmt::format("{}: further from the gold rounded once than the contract's number of ulp of {}{}",
                                     where(e), dtype, share)));
  } else if (e.gate == "bits") {
    found.push_back(fail("accuracy", fmt::format("{}: the bits must be equal{}", where(e), share)));
  } else {
    found.push_back(fail("accuracy", fmt::format("{}: error {:.2e} is {:.3g}x the bound {:.2e} ({}/{}){}", where(e),
                                                 e.error, e.bound > 0 ? e.error / e.bound : INFINITY, e.bound,
                                                 to_string(spec_of(c, index).numerics), dtype, share)));
  }
}

/// "; passes under p_in_16_bit + ds_in_16_bit (contracts/framework.json grants both)", "; passes under no recipe",
/// "; passes with finite numbers there (contracts/framework.json grants it)"; "" if nothing was tried.
std::string describe_remedy(const Comparison& comparison) {
  if (!comparison.tried_recipes && !comparison.leaks_left_out) return "";
  const std::vector<std::string>& names = comparison.passes_under;
  if (names.empty() && !comparison.leaks_left_out) return "; passes under no recipe";
  std::string text = "; passes";
  if (comparison.leaks_left_out) text += " with finite numbers there";
  if (comparison.leaks_left_out && !names.empty()) text += " and";
  if (!names.empty()) text += fmt::format(" under {}", fmt::join(names, " + "));
  const size_t grants = names.size() + (comparison.leaks_left_out ? 1 : 0);
  const char* them = grants == 1 ? "it" : grants == 2 ? "both" : "all";
  return comparison.granted_by.empty() ? text : text + fmt::format(" ({} grants {})", comparison.granted_by, them);
}

/// What is wrong with the numbers of one output.
void judge_numbers_alone(const Case& c, size_t index, const Comparison& comparison, Findings& found) {
  const TensorSpec& spec = spec_of(c, index).tensor;
  if (comparison.count != comparison.expected) {
    found.push_back(
        {Verdict::error, "gold",
         fmt::format("{}: the gold gave {} of {} elements", spec.name, comparison.count, comparison.expected)});
    return;
  }
  if (comparison.count == 0) {
    found.push_back({Verdict::vacuous, "empty", fmt::format("{} has no elements: nothing was compared", spec.name)});
    return;
  }
  if (comparison.out_of_bound > 0 || comparison.nonfinite > 0) judge_elements(c, index, comparison, found);
  for (const IdentityResult& identity : comparison.identities) {
    if (identity.out_of_bound == 0) continue;
    found.push_back(
        fail("identity", fmt::format("{} row {}: {} is {:.9g}, {:.3g}x the bound {:.2e}; {} of {} rows out of bound",
                                     spec.name, identity.worst_row, identity.identity, identity.value,
                                     identity.achieved, identity.bound, identity.out_of_bound, identity.rows)));
  }
  for (const GateResult& gate : comparison.gates) {
    const bool told_above = is_elementwise(gate.metric)
                                ? comparison.out_of_bound > 0
                                : gate.metric == Metric::identities && !comparison.identities_hold();
    if (gate.holds || told_above) continue;
    const bool of_model = gate.metric == Metric::bits_of_model && comparison.model;
    found.push_back(fail("accuracy", of_model ? describe_miss(c, index, *comparison.model)
                                              : fmt::format("{}: {}", spec.name, describe_miss(gate))));
  }
}

void judge_numbers(const Case& c, size_t index, const Comparison& comparison, Findings& found) {
  const size_t before = found.size();
  judge_numbers_alone(c, index, comparison, found);
  if (found.size() > before) found[before].reason += describe_remedy(comparison);
}

/// "3 of 64 elements differ, first y[2,5]: bits 0x3f80 and 0x3f81 (1 ulp)"
std::string describe_difference(const Case& c, const TensorSpec& spec, const BitDifference& bits) {
  const auto ulps = ulp_distance(dtype_of(c, spec), bits.a_bits, bits.b_bits);
  return fmt::format("{} of {} elements differ, first {}{}: bits {:#x} and {:#x}{}", bits.different, bits.compared,
                     spec.name, coordinates(shape_of(c, spec), bits.first_index), bits.a_bits, bits.b_bits,
                     ulps ? fmt::format(" ({} ulp)", *ulps) : "");
}

/// Reports the first context, in the order of axes, that changed the output's bits. `invariance` selects invariance
/// axes, otherwise launch axes. Only axes that are demanded and apply to the output count. Returns whether there is
/// one.
bool judge_contexts(const Case& c, size_t index, const RunResult& run, const Demands& demands, bool invariance,
                    Findings& found) {
  const OutputRun& output = run.outputs[index];
  std::optional<size_t> first;
  for (size_t k = 0; k < output.contexts.size(); ++k) {
    const Axis axis = run.contexts[k].axis;
    if (is_of_invariance(axis) != invariance || !demands.axes.has(axis) || output.contexts[k].bits.different == 0)
      continue;
    if (!is_asked_of(c, spec_of(c, index).tensor, axis)) continue;
    if (!first || axis < run.contexts[*first].axis) first = k;
  }
  if (!first) return false;
  const ContextRun& context = run.contexts[*first];
  std::string where;
  if (is_of_rows(context.axis) && output.smallest_rows > 0)
    where = fmt::format("; differs from the single-row result for batches of {} or more", output.smallest_rows);
  found.push_back(fail(invariance ? "invariance" : "determinism",
                       fmt::format("{} ({}: {}): {}{}", describe(context.axis), to_string(context.axis), context.what,
                                   describe_difference(invariance ? run.rows_case.value_or(c) : c,
                                                       spec_of(c, index).tensor, output.contexts[*first].bits),
                                   where)));
  return true;
}

void judge_bits(const Case& c, size_t index, const RunResult& run, const Demands& demands, const RunChecks& checks,
                Findings& found) {
  const OutputRun& output = run.outputs[index];
  const TensorSpec& spec = spec_of(c, index).tensor;
  if (checks.determinism && demands.determinism &&
      !judge_contexts(c, index, run, demands, /*invariance=*/false, found) && output.repeat.different > 0) {
    found.push_back(fail("determinism", fmt::format("two runs on the same data{} disagree: {}",
                                                    run.repeat_elsewhere ? ", the second in another process," : "",
                                                    describe_difference(c, spec, output.repeat))));
  }
  if (!checks.invariance || !demands.batch_invariance) return;
  bool any = false, compared = false;
  for (size_t k = 0; k < output.contexts.size() && is_present(c, spec); ++k) {
    any |= is_of_rows(run.contexts[k].axis);
    compared |= is_of_rows(run.contexts[k].axis) && output.contexts[k].bits.compared > 0;
  }
  if (any && !compared && row_count(c) > 1 && is_per_row(*c.op, spec)) {
    found.push_back(
        {Verdict::vacuous, "invariance",
         fmt::format("{}: the candidate supports no smaller batch, so batch invariance was not tested", spec.name)});
  }
  judge_contexts(c, index, run, demands, /*invariance=*/true, found);
}

/// What a run compared at all.
struct Compared {
  bool any = false;
  bool invariance = false;  ///< bits of launches with other rows, or rearranged
};

/// Everything wrong with the candidate's run. Sets in `compared` which comparisons were made.
Findings findings(const Case& c, const RunResult& run, const std::vector<Comparison>& comparisons,
                  const std::vector<Demands>& demands, const RunChecks& checks, bool accuracy, Compared& compared) {
  Findings found;
  switch (run.status) {
    case RunStatus::ok:
      break;
    case RunStatus::unsupported:
      return {{Verdict::unsupported, "unsupported", run.message}};
    case RunStatus::timeout:
      return {{Verdict::timeout, "timeout", run.message}};
    case RunStatus::crashed:
      return {{Verdict::error, "crash", run.message}};
    case RunStatus::no_device:
      return {{Verdict::error, "device", run.message}};
    case RunStatus::no_memory:
      return {{Verdict::error, "memory", run.message}};
    case RunStatus::skipped:
      return {{Verdict::skipped, "memory", run.message}};
    case RunStatus::failed:
      if (run.device_lost) return {{Verdict::error, "device", run.message}};
      // Inputs and the memory around them can't be written to, so the attempt ended the candidate.
      judge_memory(c, run, found);
      if (!found.empty()) return found;
      return {fail("candidate", fmt::format("the candidate failed: {}", run.message))};
  }
  if (checks.memory) judge_memory(c, run, found);
  if (!run.rank_differences.empty()) found.push_back(fail("ranks", run.rank_differences.front()));
  for (size_t i = 0; accuracy && i < comparisons.size(); ++i) {
    if (!is_present(c, spec_of(c, i).tensor) || is_declared_empty(c, i)) continue;
    judge_numbers(c, i, comparisons[i], found);
    compared.any = true;
  }
  for (size_t i = 0; i < run.outputs.size(); ++i) {
    const OutputRun& output = run.outputs[i];
    judge_bits(c, i, run, demands[i], checks, found);
    compared.any |= checks.determinism && output.repeat.compared > 0;
    for (size_t k = 0; k < output.contexts.size(); ++k) {
      if (output.contexts[k].bits.compared == 0) continue;
      compared.any = true;
      compared.invariance |= is_of_invariance(run.contexts[k].axis);
    }
  }
  return found;
}

/// Whether any pass has an output with one row per row of the batch. Rows of packed sequences do not count: the number
/// of their elements differs.
bool has_row_outputs(const Operator& op) {
  return std::any_of(op.passes.begin(), op.passes.end(), [&](const Pass& pass) {
    return std::any_of(pass.outputs.begin(), pass.outputs.end(),
                       [&](const OutputSpec& output) { return is_per_row(op, output.tensor); });
  });
}

/// The judgment of a check without findings.
Judgment judge_clean(const Case& c, const std::vector<Comparison>& comparisons, const RunChecks& checks, bool accuracy,
                     const Compared& compared) {
  const bool is_empty = row_count(c) == 0 || has_empty_dim(c);
  if (!compared.any && !checks.memory) {
    if (is_empty)
      return {
          Verdict::skipped, "empty",
          has_empty_dim(c) ? "an empty message: there is nothing to compare" : "no rows: there is nothing to compare"};
    return {Verdict::vacuous, "empty", "nothing was compared"};
  }
  for (size_t i = 0; accuracy && i < comparisons.size(); ++i) {
    if (comparisons[i].would_pass.empty()) continue;
    std::vector<std::string_view> answers;
    for (const Trivial answer : comparisons[i].would_pass) answers.push_back(describe(answer));
    return {Verdict::vacuous, std::string(to_string(comparisons[i].would_pass.front())),
            fmt::format("{}: {} would pass too: this contract can't tell right from wrong on this data",
                        spec_of(c, i).tensor.name, fmt::join(answers, ", or "))};
  }
  if (checks.invariance && !compared.invariance && !has_empty_dim(c) &&
      (c.op->row_dims.empty() || (row_count(c) > 0 && !has_row_outputs(*c.op))))
    return {Verdict::pass, "", "the operator has no independent rows: batch invariance was not tested"};
  if (!is_empty) return {Verdict::pass, "", ""};
  if (has_empty_dim(c)) return {Verdict::pass, "", "an empty message: launch and memory only"};
  return {Verdict::pass, "",
          compared.any ? "no rows: the launch, the memory and what sums over rows" : "no rows: launch and memory only"};
}

/// The first entry that expects a failure of this kind; nullptr for none.
const KnownFailure* expected_by(const std::vector<KnownFailure>& known, const Judgment& finding) {
  if (finding.verdict != Verdict::fail) return nullptr;
  for (const KnownFailure& entry : known)
    if (std::find(entry.kinds.begin(), entry.kinds.end(), finding.kind) != entry.kinds.end()) return &entry;
  return nullptr;
}

/// Whether the run checked for failures of this kind.
bool looked_for(std::string_view kind, const RunChecks& checks, bool accuracy) {
  if (kind == "accuracy" || kind == "nonfinite" || kind == "identity") return accuracy;
  if (kind == "unwritten") return checks.memory;
  if (kind == "determinism") return checks.determinism;
  if (kind == "invariance") return checks.invariance;
  return true;  // reported by the candidate itself
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "pass";
    case Verdict::fail:
      return "fail";
    case Verdict::vacuous:
      return "vacuous";
    case Verdict::error:
      return "error";
    case Verdict::timeout:
      return "timeout";
    case Verdict::unsupported:
      return "unsupported";
    case Verdict::skipped:
      return "skipped";
    case Verdict::xfail:
      return "xfail";
    case Verdict::xpass:
      return "xpass";
  }
  return "?";
}

std::span<const Verdict> all_verdicts() {
  static constexpr Verdict kAll[] = {Verdict::pass,    Verdict::fail,    Verdict::vacuous,
                                     Verdict::error,   Verdict::timeout, Verdict::unsupported,
                                     Verdict::skipped, Verdict::xfail,   Verdict::xpass};
  return kAll;
}

Shape unravel(const Shape& shape, int64_t index) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0; index /= shape[d]) at[d] = index % shape[d];
  return at;
}

std::string coordinates(const Shape& shape, int64_t index) {
  return fmt::format("[{}]", fmt::join(unravel(shape, index), ","));
}

Judgment judge(const Case& c, const RunResult& run, const std::vector<Comparison>& comparisons,
               const std::vector<Demands>& demands, const RunChecks& checks, bool accuracy,
               const std::vector<KnownFailure>& known) {
  Compared compared;
  const Findings found = findings(c, run, comparisons, demands, checks, accuracy, compared);
  for (const Judgment& finding : found)
    if (expected_by(known, finding) == nullptr) return finding;
  if (!found.empty()) {
    Judgment judgment = found.front();
    judgment.verdict = Verdict::xfail;
    judgment.known = *expected_by(known, found.front());
    return judgment;
  }
  Judgment judgment = judge_clean(c, comparisons, checks, accuracy, compared);
  if (judgment.verdict != Verdict::pass) return judgment;
  for (const KnownFailure& entry : known) {
    if (std::all_of(entry.kinds.begin(), entry.kinds.end(),
                    [&](const std::string& kind) { return looked_for(kind, checks, accuracy); }))
      return {Verdict::xpass, "known", fmt::format("passes, although {} expects a failure; remove it", entry.path),
              entry};
    judgment.reason += fmt::format("{}{} expects a failure of a kind that this run did not check",
                                   judgment.reason.empty() ? "" : "; ", entry.path);
  }
  return judgment;
}

bool is_of_numbers(const Judgment& judgment) {
  return judgment.kind == "accuracy" || judgment.kind == "nonfinite" || judgment.kind == "identity";
}

std::vector<std::string> causes(const Case& c, const std::vector<Comparison>& comparisons) {
  std::vector<std::string> all;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    const std::string& text = comparisons[i].diagnosis;
    if (text.empty()) continue;
    const bool is_sentence = text.starts_with("is ") || text.starts_with("looks ");
    all.push_back(fmt::format("{}{} {}", spec_of(c, i).tensor.name, is_sentence ? "" : ":", text));
  }
  return all;
}

int exit_code(const std::vector<Verdict>& verdicts, const std::optional<int64_t>& max_skip) {
  const auto any = [&](std::initializer_list<Verdict> wanted) {
    return std::any_of(verdicts.begin(), verdicts.end(),
                       [&](Verdict v) { return std::find(wanted.begin(), wanted.end(), v) != wanted.end(); });
  };
  if (any({Verdict::error, Verdict::timeout})) return 4;
  if (any({Verdict::fail, Verdict::vacuous, Verdict::xpass})) return 1;
  if (max_skip && std::count(verdicts.begin(), verdicts.end(), Verdict::skipped) > *max_skip) return 1;
  // An unsupported check is not a pass: a gate on gradients must not turn green without a backward pass.
  if (any({Verdict::unsupported})) return 3;
  if (any({Verdict::pass, Verdict::xfail})) return 0;
  return 3;
}

}  // namespace checkop
