// SPDX-License-Identifier: Apache-2.0
// check_operator contract explain: the gates of every output of the chosen cases, and the source of each number.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "case/sampling.hpp"
#include "cli/commands.hpp"
#include "judge/bound.hpp"
#include "judge/gold.hpp"
#include "report/report.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The architecture and candidate to explain; no device is opened.
struct Asked {
  std::string arch_key, candidate;
  std::vector<std::string> recipes = all_recipes();  ///< as of a kernel that declares all, to show which count then
  Subject subject() const { return {arch_key, candidate, recipes}; }
};

Asked asked_for(const RunOptions& options) {
  if (options.has("--arch-key") && options.arch_key == "auto") {
    throw InputError("--arch-key", "'auto' is the architecture of a device, and this command uses none",
                     fmt::format("use none or one of {}", known_archs()));
  }
  const bool plain = options.arch_key == "auto" || options.arch_key == "none";
  return {plain ? "" : options.arch_key, options.has("--candidate") ? options.candidates.front() : ""};
}

struct ExplainedOutput {
  const OutputSpec* spec;
  DType dtype;
  int64_t terms;
  Gates gates;
  Demands demands;
};

std::vector<ExplainedOutput> explain(const Contract& contract, const Case& c, const Subject& subject) {
  std::vector<ExplainedOutput> all;
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    all.push_back({&spec, dtype_of(c, spec.tensor), sum_terms(c, spec), contract.gates_for(c, spec, subject),
                   contract.demands_for(c, spec)});
  }
  return all;
}

std::string source_of(const Gates& gates, Metric metric, const GateKey& key) {
  for (const NumberSource& number : gates.numbers)
    if (number.metric == metric && number.key == &key) return number.path.empty() ? "default" : number.path;
  return "default";
}

// --- text ------------------------------------------------------------------------------------------------------------

std::string demands_text(const Demands& demands) {
  if (demands.determinism && demands.batch_invariance) return "determinism, batch invariance";
  return demands.determinism ? "determinism" : demands.batch_invariance ? "batch invariance" : "nothing about its bits";
}

/// The bound computed from the gate's numbers for this output; "" if the gate's numbers already say it.
std::string worked_example(const Gate& gate, const ExplainedOutput& output) {
  const PreparedGate prepared(gate, output.dtype, output.terms);
  const std::string_view arithmetic = info(output.dtype == DType::f64 ? DType::f64 : DType::f32).name;
  switch (gate.metric) {
    case Metric::bound_ratio:
      return fmt::format(
          "chain {}, unit roundoff {:.4g} ({} arithmetic): growth {:.4g}, bias {:.4g}\n"
          "      of value 1, magnitude 1, rounding 0: computed {:.4g}, stored {:.4g}, so up to {:.4g}",
          chain_length(gate, output.terms), prepared.unit, arithmetic, prepared.growth, prepared.bias,
          prepared.computed(1, 0), prepared.bound(1, 1, 0) - prepared.computed(1, 0), prepared.allowed(1, 1, 0));
    case Metric::atol_rtol:
      return fmt::format("of value 1: up to {:.4g}", prepared.allowed(1, 1, 0));
    case Metric::bits:
      return "the bits of the gold, rounded once";
    case Metric::bits_of_model:
      return fmt::format(
          "the bits of {}'s tensor cores: {}{}, one rounding", modelled_arch(gate).key, to_string(model_order(gate)),
          gate.block == modelled_arch(gate).code_block ? " in every 128 codes, times their scales added to one fp32 sum"
                                                       : ", one accumulator, then a bias if there is one");
    case Metric::ulp:
    case Metric::rel_l2:
    case Metric::cosine:
    case Metric::block_rel_l2:
    case Metric::max_vs_baseline:
    case Metric::vs_baseline:
    case Metric::vs_reference:
    case Metric::bound_rms:
    case Metric::noise_rms:
    case Metric::bias_t:
    case Metric::identities:
    case Metric::max_abs_dlogp:
    case Metric::k3_mean:
    case Metric::k3_max:
    case Metric::ratio_deviation:
    case Metric::clip_flips:
      break;
  }
  return "";
}

/// "finite numbers in masked keys  by overlays[0]"
std::string left_out_text(const Case& c, const LeftOutDemand& demand) {
  return fmt::format("{} in {}  {}", demand.content == LeftOut::finite ? "finite numbers" : "NaN and infinities",
                     c.op->left_out, demand.path.empty() ? "default" : "by " + demand.path);
}

void print_output(const Contract& contract, const Case& c, const ExplainedOutput& output) {
  const Gates& gates = output.gates;
  fmt::print("  {}  {}, {}, sums of {} term{}; {}\n", output.spec->tensor.name, info(output.dtype).name,
             to_string(output.spec->numerics), output.terms, output.terms == 1 ? "" : "s", gates.source);
  for (const Gate& gate : gates.all) {
    fmt::print("    {}\n", to_string(gate.metric));
    for (const GateKey& key : keys_of(gate.metric))
      fmt::print("      {:<14} {:<10} {}\n", key.name, key.text_in(gate), source_of(gates, gate.metric, key));
    if (const std::string example = worked_example(gate, output); !example.empty()) fmt::print("      {}\n", example);
  }
  for (const RecipeGrant& grant : gates.recipes) fmt::print("    recipe      {}  by {}\n", grant.name, grant.path);
  if (!c.op->left_out.empty()) fmt::print("    left out    {}\n", left_out_text(c, gates.left_out));
  fmt::print("    not finite  {}\n", gates.nonfinite_may_match ? "as the gold is" : "fails");
  fmt::print("    demanded    {}\n", demands_text(output.demands));
  for (const std::string& line : gates.withheld) fmt::print("    withheld    {}: {}\n", contract.path(), line);
}

/// Prints the reasons for the printed numbers, each once.
void print_reasons(const std::map<std::string, std::string>& reasons) {
  for (const auto& [path, reason] : reasons) fmt::print("{}: {}\n", path, reason);
}

std::string gold_text(const Contract& contract, const Case& c) {
  const double work = gold_work(c);
  const int64_t rows = contract.sampling().rows_for(work);
  const double above = contract.sampling().above;
  return fmt::format("{}, of {:.3g} multiply-adds; {}",
                     rows == 0 ? "all rows" : fmt::format("{} rows of each output", rows), work,
                     std::isinf(above) ? "never sampled" : fmt::format("sampled above {:.3g}", above));
}

void print_case(const Contract& contract, const Case& c, const Asked& asked,
                std::map<std::string, std::string>& reasons) {
  fmt::print("{}/{}  {}  architecture {}  candidate {}\n", c.op->name, c.pass->name, case_name(c),
             asked.arch_key.empty() ? "none" : asked.arch_key, asked.candidate.empty() ? "not named" : asked.candidate);
  for (const ExplainedOutput& output : explain(contract, c, asked.subject())) {
    print_output(contract, c, output);
    if (!output.gates.why.empty()) reasons[output.gates.source] = output.gates.why;
    for (const RecipeGrant& grant : output.gates.recipes)
      if (!grant.reason.empty()) reasons[contract.path() + ": " + grant.path] = grant.reason;
    const LeftOutDemand& left_out = output.gates.left_out;
    if (!left_out.reason.empty()) reasons[contract.path() + ": " + left_out.path] = left_out.reason;
    for (const NumberSource& number : output.gates.numbers)
      if (!number.reason.empty()) reasons[contract.path() + ": " + number.path] = number.reason;
  }
  for (const KnownFailure& known : contract.known_for(c, asked.subject()))
    fmt::print("  expected to fail by {} ({}) until {}: {}\n", known.path, fmt::join(known.kinds, ", "), known.expires,
               known.reason);
  fmt::print("  gold  {}\n\n", gold_text(contract, c));
}

// --- JSON ------------------------------------------------------------------------------------------------------------

OrderedJson gate_json(const Gate& gate, const ExplainedOutput& output) {
  OrderedJson numbers = OrderedJson::array();
  for (const GateKey& key : keys_of(gate.metric)) {
    const auto source =
        std::find_if(output.gates.numbers.begin(), output.gates.numbers.end(),
                     [&](const NumberSource& number) { return number.metric == gate.metric && number.key == &key; });
    const OrderedJson value = key.words.empty() ? OrderedJson(key.value_in(gate)) : OrderedJson(key.text_in(gate));
    OrderedJson number{{"key", key.name}, {"value", value}, {"from", source_of(output.gates, gate.metric, key)}};
    if (source != output.gates.numbers.end() && !source->reason.empty()) number["reason"] = source->reason;
    numbers.push_back(number);
  }
  OrderedJson json{{"metric", to_string(gate.metric)}, {"source", gate.source}, {"numbers", numbers}};
  const PreparedGate prepared(gate, output.dtype, output.terms);
  if (gate.metric == Metric::bound_ratio) {
    json["chain"] = chain_length(gate, output.terms);
    json["unit_roundoff"] = prepared.unit;
    json["growth"] = prepared.growth;
    json["bias"] = prepared.bias;
  }
  if (gate.metric == Metric::bound_ratio || gate.metric == Metric::atol_rtol)
    json["allowed_of_one"] = prepared.allowed(1, 1, 0);
  return json;
}

OrderedJson case_json(const Contract& contract, const Case& c, const Asked& asked) {
  OrderedJson outputs = OrderedJson::array();
  for (const ExplainedOutput& output : explain(contract, c, asked.subject())) {
    OrderedJson gates = OrderedJson::array(), recipes = OrderedJson::array();
    for (const Gate& gate : output.gates.all) gates.push_back(gate_json(gate, output));
    for (const RecipeGrant& grant : output.gates.recipes)
      recipes.push_back({{"name", grant.name}, {"from", grant.path}, {"reason", grant.reason}});
    outputs.push_back(
        {{"name", output.spec->tensor.name},
         {"dtype", info(output.dtype).name},
         {"numerics", to_string(output.spec->numerics)},
         {"terms", output.terms},
         {"rule", output.gates.source},
         {"why", output.gates.why},
         {"nonfinite", output.gates.nonfinite_may_match ? "match" : "fail"},
         {"demands",
          {{"determinism", output.demands.determinism}, {"batch_invariance", output.demands.batch_invariance}}},
         {"gates", gates},
         {"recipes", recipes},
         {"left_out",
          {{"of", c.op->left_out},
           {"content", to_string(output.gates.left_out.content)},
           {"from", output.gates.left_out.path.empty() ? "default" : output.gates.left_out.path},
           {"reason", output.gates.left_out.reason}}},
         {"withheld", output.gates.withheld}});
  }
  OrderedJson known = OrderedJson::array();
  for (const KnownFailure& entry : contract.known_for(c, asked.subject()))
    known.push_back({{"path", entry.path},
                     {"kinds", entry.kinds},
                     {"reason", entry.reason},
                     {"owner", entry.owner},
                     {"issue", entry.issue},
                     {"expires", entry.expires}});
  const double work = gold_work(c);
  const int64_t rows = contract.sampling().rows_for(work);
  return {{"case_name", case_name(c)},
          {"op", c.op->name},
          {"pass", c.pass->name},
          {"dtype", info(c.dtype).name},
          {"gold", {{"work", work}, {"rows", rows == 0 ? OrderedJson("all") : OrderedJson(rows)}}},
          {"known", known},
          {"outputs", outputs}};
}

}  // namespace

int explain_command(const Options& options) {
  const Asked asked = asked_for(options.run);
  const Contract contract = load_contract(options.run);
  const std::vector<Case> cases = select_cases(options.run);
  if (options.run.json_to_stdout || !options.run.json_file.empty()) {
    OrderedJson all = OrderedJson::array();
    for (const Case& c : cases) all.push_back(case_json(contract, c, asked));
    const OrderedJson root{
        {"format", "check_operator/explain-1"}, {"contract", {{"path", contract.path()}, {"hash", contract.hash()}}},
        {"arch_key", asked.arch_key},           {"candidate", asked.candidate},
        {"warnings", contract.warnings()},      {"cases", all}};
    const std::string text = root.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    if (!options.run.json_file.empty()) write_file(options.run.json_file, text);
    if (options.run.json_to_stdout) fmt::print("{}", text);
  }
  if (!options.run.json_to_stdout) {
    std::map<std::string, std::string> reasons;
    for (const Case& c : cases) print_case(contract, c, asked, reasons);
    print_reasons(reasons);
    for (const std::string& warning : contract.warnings()) fmt::print("warning: {}\n", warning);
  }
  return cases.empty() ? 3 : 0;
}

}  // namespace checkop
