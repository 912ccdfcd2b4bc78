// SPDX-License-Identifier: Apache-2.0
// The report for people: a line per case; for each failure a block with the command that repeats it; a summary.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "judge/model_bits.hpp"
#include "report/report.hpp"

namespace checkop {
namespace {

std::string tag(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "[       OK ]";
    case Verdict::fail:
      return "[  FAILED  ]";
    case Verdict::vacuous:
      return "[ VACUOUS  ]";
    case Verdict::error:
      return "[  ERROR   ]";
    case Verdict::timeout:
      return "[ TIMEOUT  ]";
    case Verdict::unsupported:
      return "[   UNSUP. ]";
    case Verdict::skipped:
      return "[  SKIPPED ]";
    case Verdict::xfail:
      return "[    XFAIL ]";
    case Verdict::xpass:
      return "[    XPASS ]";
  }
  return "[    ?     ]";
}

/// `text` in the colour of a verdict.
std::string painted(const std::string& text, Verdict verdict, bool color) {
  if (!color) return text;
  constexpr const char *kGreen = "32", *kRed = "31", *kYellow = "33";
  const bool good = verdict == Verdict::pass;
  const bool mild = verdict == Verdict::xfail || verdict == Verdict::skipped || verdict == Verdict::unsupported;
  return fmt::format("\x1b[{}m{}\x1b[0m", good ? kGreen : mild ? kYellow : kRed, text);
}

/// Whether some input of the case was generated from its seed.
bool has_generated_inputs(const CaseRecord& record) {
  const std::span<const TensorSpec> inputs = record.c.pass->inputs;
  return std::any_of(inputs.begin(), inputs.end(), [&](const TensorSpec& spec) {
    return is_present(record.c, spec) && !record.given_inputs.contains(std::string(spec.name));
  });
}

/// "logp/forward  native  bf16  batch=2 seq=16 vocab=257 seed=123 logits=captured.safetensors:lm_head.out"
std::string title(const CaseRecord& record) {
  const Case& c = record.c;
  std::string text = fmt::format("{}/{}  {}  {} ", c.op->name, c.pass->name, record.candidate, info(c.dtype).name);
  for (const std::string_view dim : dims_of(c)) text += fmt::format(" {}={}", dim, c.dims.find(dim)->second);
  if (!c.part_bounds.empty()) text += fmt::format(" shard_bounds={}", fmt::join(c.part_bounds, ","));
  for (const auto& [attr, value] : chosen_attrs(c)) text += fmt::format(" {}={}", attr, value);
  for (const std::string& optional : c.optionals) text += " +" + optional;
  if (c.input_mode != InputMode::random) text += fmt::format(" {}", to_string(c.input_mode));
  if (c.input_mode == InputMode::constant) text += fmt::format("={}", c.constant_value);
  if (ignored_every_counts(c)) text += fmt::format(" ignored_every={}", c.ignored_every);
  if (has_ignored_runs(c)) text += fmt::format(" ignored_run={}", c.ignored_run);
  if (has_generated_inputs(record)) text += fmt::format(" seed={}", c.seed);
  for (const auto& [name, from] : record.given_inputs) text += fmt::format(" {}={}", name, from);
  return record.gold_file.empty() ? text : text + " gold=" + record.gold_file;
}

/// "; gold of 256 of 4096 rows of dlogits, row_sum and finite on all": how much of the outputs the gold covers.
std::string coverage(const CaseRecord& record) {
  std::string text;
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    const Comparison& comparison = record.comparisons[i];
    if (comparison.rows.all || comparison.total_rows == 0) continue;
    std::vector<std::string> names;
    for (const IdentityResult& identity : comparison.identities) names.push_back(identity.identity);
    text +=
        fmt::format("; gold of {} of {} rows of {}{}{}", comparison.rows.chosen.size(), comparison.total_rows,
                    record.c.pass->outputs[i].tensor.name, names.empty() ? "" : ", on all: ", fmt::join(names, ", "));
  }
  return text;
}

/// "; bits_of_model of c: 0 of 4096 differ".
std::string of_model(const CaseRecord& record) {
  std::string text;
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    if (const auto& model = record.comparisons[i].model)
      text += fmt::format("; {} bits_of_model: {}", record.c.pass->outputs[i].tensor.name, describe(*model));
  }
  return text;
}

/// " (35x computed)" where storing the output uses up most of its bound.
std::string of_computation(const Comparison& comparison, double headroom) {
  constexpr double kMostIsStoring = 2;
  const double computed = comparison.computation_headroom();
  if (!comparison.quantiles || !(headroom < kMostIsStoring) || !(computed > headroom)) return "";
  return std::isinf(computed) ? " (rounding alone)" : fmt::format(" ({:.3g}x computed)", computed);
}

/// "  headroom logp 12x": the headroom of each output in its tightest gate.
std::string headroom(const CaseRecord& record) {
  std::string text;
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    if (!is_present(record.c, record.c.pass->outputs[i].tensor)) continue;
    double least = INFINITY;
    for (const GateResult& gate : record.comparisons[i].gates) least = std::min(least, gate.headroom);
    const bool empty = record.comparisons[i].expected == 0;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", record.c.pass->outputs[i].tensor.name,
                        empty               ? "empty"
                        : std::isinf(least) ? "exact"
                                            : fmt::format("{:.3g}x", least),
                        of_computation(record.comparisons[i], least));
  }
  return text.empty() ? "" : "  headroom " + text;
}

/// "bound_ratio 508, limit 1, headroom 0.00197x, passes at 508.1; 303870 out of bound"
std::string describe(const GateResult& gate) {
  std::string text = fmt::format("{} {:.4g}, limit {:.4g}, headroom {}, ", to_string(gate.metric), gate.achieved,
                                 gate.limit, std::isinf(gate.headroom) ? "inf" : fmt::format("{:.3g}x", gate.headroom));
  if (gate.metric == Metric::atol_rtol) {
    text = fmt::format("atol_rtol {:.4g} of atol {:g} + rtol {:g}*|gold|, headroom {:.3g}x, ", gate.achieved, gate.atol,
                       gate.rtol, gate.headroom);
  }
  if (std::isinf(gate.passing)) {
    text += "no limit passes";
  } else {
    text += fmt::format("passes at {:.4g}{}", gate.passing, gate.metric == Metric::atol_rtol ? " times both" : "");
  }
  return gate.out_of_bound > 0 ? text + fmt::format("; {} out of bound", gate.out_of_bound) : text;
}

/// "known[0] expects this until 2027-01-01: cuBLAS picks its kernel by the number of rows (#12; owner)"
std::string describe(const KnownFailure& known) {
  return fmt::format("{} expects a failure{}: {} ({}{})", known.path,
                     known.expires == "never" ? "" : " until " + known.expires, known.reason,
                     known.issue.empty() ? "" : known.issue + "; ", known.owner);
}

/// Prints every gate of every output.
void print_gates(std::FILE* out, const CaseRecord& record) {
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    const TensorSpec& spec = record.c.pass->outputs[i].tensor;
    if (!is_present(record.c, spec)) continue;
    for (const GateResult& gate : record.comparisons[i].gates) {
      const auto& model = record.comparisons[i].model;
      const bool of_model = gate.metric == Metric::bits_of_model && model;
      fmt::print(out, "             {}{}: {}\n", gate.holds ? "" : "NOT MET ", spec.name,
                 of_model ? "bits_of_model: " + describe(*model) : describe(gate));
      if (of_model && !model->orders.empty())
        fmt::print(out, "             {}, orders on {} of its rows: {}\n", spec.name, model->rows_tried,
                   describe_orders(*model));
    }
  }
}

/// Prints what was granted to the whole check: "judged with finite numbers in masked keys".
void print_left_out(std::FILE* out, const CaseRecord& record) {
  if (record.left_out == LeftOut::finite)
    fmt::print(out, "             judged with finite numbers in {}\n", record.c.op->left_out);
}

bool is_granted(const Comparison& comparison, std::string_view recipe) {
  return std::any_of(comparison.granted.begin(), comparison.granted.end(),
                     [&](const RecipeGrant& grant) { return grant.name == recipe; });
}

/// Prints the granted rounding points that outputs needed: "o judged under p_in_16_bit, granted by rules[2]"; and the
/// rounding points that the kernel declares but a failing output is not granted.
void print_recipes(std::FILE* out, const CaseRecord& record) {
  std::vector<std::string> refused;
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    const Comparison& comparison = record.comparisons[i];
    const TensorSpec& spec = record.c.pass->outputs[i].tensor;
    if (!comparison.recipes.empty()) {
      std::vector<std::string> paths;
      for (const RecipeGrant& grant : comparison.granted) {
        if (lists(comparison.recipes, grant.name) && !lists(paths, grant.path)) paths.push_back(grant.path);
      }
      fmt::print(out, "             {} judged under {}, granted by {}\n", spec.name,
                 fmt::join(comparison.recipes, " + "), fmt::join(paths, " and "));
    }
    if (comparison.expected == 0 || comparison.passed()) continue;
    for (const Recipe* recipe : recipes_of(*record.c.pass, spec, record.c.dtype)) {
      if (lists(record.declared_recipes, recipe->name) && !is_granted(comparison, recipe->name) &&
          !lists(refused, recipe->name))
        refused.emplace_back(recipe->name);
    }
  }
  if (!refused.empty())
    fmt::print(out, "             declares {}, which the contract's declared_recipes does not allow\n",
               fmt::join(refused, " + "));
}

/// Prints where ranks ran and for how long: "4 ranks on cpu AMD EPYC: 0.812, 0.637, 0.433, 0.596 ms".
void print_ranks(std::FILE* out, const CaseRecord& record) {
  const std::vector<RankRun>& ranks = record.run.ranks;
  if (ranks.empty()) return;
  const auto all_have = [&](auto member) {
    return std::all_of(ranks.begin(), ranks.end(), [&](const RankRun& r) { return r.*member == ranks[0].*member; });
  };
  const bool one_host = all_have(&RankRun::host);
  std::vector<std::string> parts;
  for (const RankRun& rank : ranks) parts.push_back(fmt::format("{:.3g}", rank.ms));
  if (one_host && all_have(&RankRun::device)) {
    fmt::print(out, "             {} ranks on {}: {} ms\n", ranks.size(), ranks[0].device, fmt::join(parts, ", "));
    return;
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    parts[r] = fmt::format("{} on {}{}: {} ms", r, ranks[r].device, one_host ? "" : " of " + ranks[r].host, parts[r]);
  fmt::print(out, "             rank {}\n", fmt::join(parts, "; rank "));
}

}  // namespace

void print_header(std::FILE* out, const Report& report, const DeviceInfo& device, size_t n_cases, size_t n_candidates) {
  fmt::print(out, "[==========] {} check{} of {} candidate{}{}; contract {} ({}); device {}{}{}\n", n_cases,
             n_cases == 1 ? "" : "s", n_candidates, n_candidates == 1 ? "" : "s",
             report.shard ? fmt::format(", {}", report.shard->name()) : "", report.contract_path, report.contract_hash,
             device.name, device.arch_key.empty() ? "" : fmt::format(" ({})", device.arch_key),
             device.transport.empty() ? "" : fmt::format("; tensors by {}", device.transport));
  for (const std::string& warning : report.warnings) fmt::print(out, "[ WARNING  ] {}\n", warning);
  for (const SanitizerRun& run : report.sanitizers) {
    fmt::print(out, "[ SANITIZE ] {}: {} check{} ran; {}\n", run.tool, run.checks, run.checks == 1 ? "" : "s",
               run.summary.empty() ? "no summary" : run.summary);
  }
}

void print_record(std::FILE* out, const CaseRecord& record, bool color) {
  const Verdict verdict = record.judgment.verdict;
  const bool pass = verdict == Verdict::pass;
  fmt::print(out, "{} {}{} ({:.0f} ms)\n", painted(tag(verdict), verdict, color), title(record),
             pass ? headroom(record) + coverage(record) + of_model(record) : "", record.times.total_ms);
  if (pass && !record.judgment.reason.empty()) fmt::print(out, "             {}\n", record.judgment.reason);
  if (!record.run.message.empty() && pass) fmt::print(out, "             {}\n", record.run.message);
  if (!pass) {
    const std::vector<std::string> causes = checkop::causes(record.c, record.comparisons);
    const bool first = is_of_numbers(record.judgment);
    for (const std::string& cause : causes)
      if (first) fmt::print(out, "             {}\n", cause);
    fmt::print(out, "             {}\n", record.judgment.reason);
    for (const std::string& cause : causes)
      if (!first) fmt::print(out, "             {}\n", cause);
    if (record.judgment.known) fmt::print(out, "             {}\n", describe(*record.judgment.known));
  }
  if (!record.run.unobserved.empty())
    fmt::print(out, "             memory of outputs is not observed: {}\n", record.run.unobserved);
  print_left_out(out, record);
  print_recipes(out, record);
  print_ranks(out, record);
  if (!pass) {
    print_gates(out, record);
    fmt::print(out, "             repeat: {}\n", record.repeat);
  }
  std::fflush(out);
}

namespace {

/// "layout 3 of 6, graph 2 of 2": contexts that proved nothing, since the candidate or the device declined them.
std::string unsupported_contexts(const Report& report) {
  std::vector<std::string> parts;
  for (const Axis axis : all_axes()) {
    int64_t all = 0, unsupported = 0;
    for (const CaseRecord& record : report.records) {
      for (const ContextRun& context : record.run.contexts) {
        if (context.axis != axis) continue;
        ++all;
        unsupported += context.supported ? 0 : 1;
      }
    }
    if (unsupported > 0) parts.push_back(fmt::format("{} {} of {}", to_string(axis), unsupported, all));
  }
  return fmt::to_string(fmt::join(parts, ", "));
}

}  // namespace

void print_summary(std::FILE* out, const Report& report, bool color) {
  fmt::print(out, "[==========] {}{} check{} ran ({:.0f} ms)\n", report.records.size(),
             report.complete ? "" : fmt::format(" of {}", report.planned), report.records.size() == 1 ? "" : "s",
             report.wall_ms);
  for (const Control& control : report.controls) {
    fmt::print(out,
               "[ CONTROL  ] the positive control, a product whose bits depend on the batch size, was {}caught on {}\n",
               control.caught ? "" : "NOT ", control.device);
  }
  if (const std::string contexts = unsupported_contexts(report); !contexts.empty())
    fmt::print(out, "[ CONTEXTS ] unsupported, so not compared: {}\n", contexts);
  const auto verdicts = verdicts_of(report);
  for (const Verdict verdict : all_verdicts()) {
    const auto count = std::count(verdicts.begin(), verdicts.end(), verdict);
    if (count == 0) continue;
    fmt::print(out, "{} {} {}\n", painted(verdict == Verdict::pass ? "[  PASSED  ]" : tag(verdict), verdict, color),
               count, to_string(verdict));
    if (verdict == Verdict::pass) continue;
    for (const CaseRecord& record : report.records) {
      if (record.judgment.verdict != verdict) continue;
      fmt::print(out, "{}   {}\n", painted(tag(verdict), verdict, color), title(record));
      if (record.judged_by_run) fmt::print(out, "             {}\n", record.judgment.reason);
    }
  }
  if (!report.stopped.empty()) fmt::print(out, "{} stopped the run before its end (exit code 4).\n", report.stopped);
  const auto skipped = std::count(verdicts.begin(), verdicts.end(), Verdict::skipped);
  if (report.max_skip && skipped > *report.max_skip) {
    fmt::print(out, "{} skipped, more than the {} that --max-skip allows.\n", skipped, *report.max_skip);
  }
  if (report.shard) {
    fmt::print(out, "This is {}, {} of {} checks; 'check_operator report merge' gives the verdict of the whole run.\n",
               report.shard->name(), report.planned, report.shard->checks);
  }
  const int code = exit_code_of(report);
  if (code == 3) {
    fmt::print(out, "{} (exit code 3).\n",
               verdicts.empty() ? "Nothing was checked, so nothing passed"
                                : "Some requested checks are unsupported, or all were skipped");
  }
  std::fflush(out);
}

}  // namespace checkop
