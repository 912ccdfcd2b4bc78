// SPDX-License-Identifier: Apache-2.0
// The JSON report: the field names of RL-Kernel's report at every level, plus what makes a verdict repeatable.
#include "report/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/version.hpp"
#include "case/rank_parts.hpp"
#include "report/bit_checks.hpp"
#include "report/run_shard.hpp"

namespace checkop {
namespace {

using Json = nlohmann::json;  // an ordered map: keys come out sorted

Json element(const std::optional<ElementReport>& e, const Shape& shape) {
  if (!e) return nullptr;
  return {{"index", e->index},
          {"coordinates", unravel(shape, e->index)},
          {"got", json_number(e->got)},
          {"gold", json_number(e->gold)},
          {"error", json_number(e->error)},
          {"bound", json_number(e->bound)},
          {"ratio", json_number(e->ratio)},
          {"gate", e->gate}};
}

Json policy(const std::optional<PolicyMetrics>& m) {
  if (!m) return nullptr;
  return {{"tokens", m->tokens},
          {"max_abs_dlogp", json_number(m->max_abs_dlogp)},
          {"k3_mean", json_number(m->k3_mean)},
          {"k3_max", json_number(m->k3_max)},
          {"ratio_deviation", json_number(m->ratio_deviation)},
          {"clip_flips", json_number(m->clip_flips)},
          {"clip_eps", json_number(m->clip_eps)}};
}

Json model(const std::optional<ModelComparison>& m, const Shape& shape) {
  if (!m) return nullptr;
  Json orders = Json::array(), first = nullptr;
  for (const OrderLikeness& likeness : m->orders)
    orders.push_back({{"order", likeness.order}, {"equal", json_number(likeness.equal)}});
  if (m->different > 0) {
    first = {{"index", m->first_index},
             {"coordinates", unravel(shape, m->first_index)},
             {"got", json_number(m->got)},
             {"model", json_number(m->model)},
             {"bits", {fmt::format("{:#x}", m->got_bits), fmt::format("{:#x}", m->model_bits)}}};
  }
  return {{"arch", m->arch},           {"order", m->order},           {"compared", m->compared},
          {"different", m->different}, {"rows_tried", m->rows_tried}, {"first", first},
          {"orders", orders}};
}

/// The quantiles of errors over their bounds.
Json quantiles(const std::optional<ErrorQuantiles>& errors) {
  if (!errors) return nullptr;
  return {{"p50", json_number(errors->median)},
          {"p99", json_number(errors->p99)},
          {"p99.9", json_number(errors->p999)},
          {"max", json_number(errors->largest)}};
}

/// The error that the computation must have made, over its own bound.
Json computation(const Comparison& comparison) {
  if (!comparison.quantiles) return nullptr;
  return {{"achieved", json_number(comparison.computed)}, {"headroom", json_number(comparison.computation_headroom())}};
}

/// The histogram without leading and trailing empty bins.
Json error_map(const ErrorMap& map) {
  if (map.empty()) return nullptr;
  const auto& bins = map.histogram;
  const auto filled = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(bins.begin() + 1, bins.end(), filled);
  const auto end = std::find_if(bins.rbegin(), bins.rend(), filled).base();
  Json histogram = {{"below", bins[0]}, {"from_log2", nullptr}, {"counts", Json::array()}};
  if (first < end) {
    histogram["from_log2"] = ErrorMap::kLowest + (first - bins.begin()) - 1;
    histogram["counts"] = std::vector<int64_t>(first, end);
  }
  return {{"histogram", histogram}, {"cell", {map.rows_per_cell, map.columns_per_cell}}, {"cells", map.cells}};
}

/// Whether the output is named dNAME after an input of the operator.
bool is_gradient(const Case& c, const TensorSpec& output) {
  if (c.pass->name != "backward" || !output.name.starts_with('d')) return false;
  const auto is_it = [&](const TensorSpec& input) { return input.name == output.name.substr(1); };
  return std::any_of(c.op->passes.begin(), c.op->passes.end(),
                     [&](const Pass& pass) { return std::any_of(pass.inputs.begin(), pass.inputs.end(), is_it); });
}

Json output(const CaseRecord& record, size_t index) {
  const TensorSpec& spec = record.c.pass->outputs[index].tensor;
  const Comparison& comparison = record.comparisons[index];
  const Shape shape = shape_of(record.c, spec);
  Json gates = Json::array();
  for (const GateResult& gate : comparison.gates) {
    gates.push_back({{"metric", to_string(gate.metric)},
                     {"limit", json_number(gate.limit)},
                     {"achieved", json_number(gate.achieved)},
                     {"headroom", json_number(gate.headroom)},
                     {"passing_limit", json_number(gate.passing)},
                     {"holds", gate.holds},
                     {"out_of_bound", gate.out_of_bound},
                     {"source", gate.source}});
  }
  Json identities = Json::array();
  for (const IdentityResult& identity : comparison.identities) {
    identities.push_back({{"identity", identity.identity},
                          {"rows", identity.rows},
                          {"out_of_bound", identity.out_of_bound},
                          {"achieved", json_number(identity.achieved)},
                          {"worst_row", identity.worst_row},
                          {"value", json_number(identity.value)},
                          {"bound", json_number(identity.bound)}});
  }
  const auto classic = std::find_if(comparison.gates.begin(), comparison.gates.end(),
                                    [](const GateResult& g) { return g.metric == Metric::atol_rtol; });
  const bool has_tolerance = classic != comparison.gates.end();
  Json would_pass = Json::array();
  for (const Trivial answer : comparison.would_pass) would_pass.push_back(to_string(answer));
  Json granted = Json::array();
  for (const RecipeGrant& grant : comparison.granted) granted.push_back({{"name", grant.name}, {"by", grant.path}});
  // RL-Kernel labels gradients "gradient:<input>".
  const bool gradient = is_gradient(record.c, spec), empty = comparison.expected == 0;
  return {{"output_index", index},
          {"name", spec.name},
          {"shape", shape},
          {"candidate_dtype", info(dtype_of(record.c, spec)).name},
          {"gold_dtype", info(record.gold_file.empty() ? DType::f64 : record.gold_dtypes[index]).name},
          {"atol", has_tolerance ? json_number(classic->atol) : Json(nullptr)},
          {"rtol", has_tolerance ? json_number(classic->rtol) : Json(nullptr)},
          {"max_abs_error", json_number(comparison.max_abs)},
          {"mean_abs_error", json_number(comparison.mean_abs)},
          {"mean_error", json_number(comparison.mean_error)},
          {"error_quantiles", quantiles(comparison.quantiles)},
          {"computation", computation(comparison)},
          {"max_rel_error", json_number(comparison.max_rel)},
          {"rel_floor", json_number(comparison.rel_floor)},
          {"rel_l2", json_number(comparison.rel_l2)},
          {"max_ulp", comparison.max_ulp},
          {"count", comparison.count},
          {"out_of_bound", comparison.out_of_bound},
          {"nonfinite", comparison.nonfinite},
          {"gold_is_zero", comparison.gold_is_zero},
          {"rows_are_equal", comparison.rows_are_equal},
          {"would_pass", would_pass},
          {"passed", comparison.passed()},
          {"message", empty      ? "empty: nothing to compare"
                      : gradient ? fmt::format("gradient:{}", spec.name.substr(1))
                                 : ""},
          {"gates", gates},
          {"diagnosis", comparison.diagnosis},
          {"granted_recipes", granted},
          {"recipes", comparison.recipes},
          {"passes_under", comparison.tried_recipes ? Json(comparison.passes_under) : Json(nullptr)},
          {"leaks_left_out", comparison.leaks_left_out},
          {"error_map", error_map(comparison.map)},
          {"policy", policy(comparison.policy)},
          {"model", model(comparison.model, shape)},
          {"gold_rows", comparison.rows.all ? Json("all") : Json(comparison.rows.chosen)},
          {"total_rows", comparison.total_rows},
          {"identities", identities},
          {"first", element(comparison.first, shape)},
          {"first_nonfinite", element(comparison.first_nonfinite, shape)},
          {"worst", element(comparison.worst, shape)}};
}

std::string check_word(const CaseRecord& record, bool asked, bool ran, bool broken) {
  if (!asked || !ran || record.run.status != RunStatus::ok) return "not run";
  return broken ? "fail" : "pass";
}

Json known_json(const std::optional<KnownFailure>& known) {
  if (!known) return nullptr;
  return {{"path", known->path},   {"kinds", known->kinds}, {"reason", known->reason},
          {"owner", known->owner}, {"issue", known->issue}, {"expires", known->expires}};
}

Json checks(const CaseRecord& record) {
  bool repeat_ran = false, repeat_broken = false, rows_ran = false, rows_broken = false, unwritten = false;
  for (const OutputRun& output : record.run.outputs) {
    repeat_ran |= output.repeat.compared > 0;
    repeat_broken |= output.repeat.different > 0;
    unwritten |= output.unwritten > 0;
    for (size_t k = 0; k < output.contexts.size(); ++k) {
      const BitDifference& found = output.contexts[k].bits;
      const bool rows = is_of_invariance(record.run.contexts[k].axis);
      (rows ? rows_ran : repeat_ran) |= found.compared > 0;
      (rows ? rows_broken : repeat_broken) |= found.different > 0;
    }
  }
  const bool memory_broken = unwritten || !record.run.guard_violations.empty() || !record.run.modified_inputs.empty();
  return {{"determinism", check_word(record, record.checks.determinism, repeat_ran, repeat_broken)},
          {"invariance", check_word(record, record.checks.invariance, rows_ran, rows_broken)},
          {"memory", check_word(record, record.checks.memory, true, memory_broken)}};
}

Json attributes(const Case& c) {
  Json map = Json::object();
  for (size_t i = 0; i < c.attrs.size(); ++i) map[std::string(c.op->attrs[i].name)] = json_number(c.attrs[i]);
  return map;
}

}  // namespace

Json case_json(const CaseRecord& record) {
  Json outputs = Json::array();
  for (size_t i = 0; i < record.comparisons.size(); ++i) {
    if (is_present(record.c, record.c.pass->outputs[i].tensor)) outputs.push_back(output(record, i));
  }
  Json memory = Json::array();
  for (const std::string& line : record.run.guard_violations) memory.push_back(line);
  for (const std::string& line : record.run.modified_inputs) memory.push_back(line);
  const std::vector<int64_t> bounds = is_tensor_parallel(record.c) ? part_bounds(record.c) : std::vector<int64_t>();
  Json json = {{"case_name", case_name(record.c)},
               {"op", record.c.op->name},
               {"pass", record.c.pass->name},
               {"dtype", info(record.c.dtype).name},
               {"op_class", record.c.op->op_class},
               {"dims", record.c.dims},
               {"shard_bounds", bounds},
               {"attrs", attributes(record.c)},
               {"seed", record.c.seed},
               {"input_mode", to_string(record.c.input_mode)},
               {"data_hash", record.data_hash},
               {"declared_recipes", record.declared_recipes},
               {"left_out", to_string(record.left_out)},
               {"given_inputs", record.given_inputs},
               {"gold_file", record.gold_file},
               {"verdict", to_string(record.judgment.verdict)},
               {"kind", record.judgment.kind},
               {"reason", record.judgment.reason},
               {"known", known_json(record.judgment.known)},
               {"repeat", record.repeat},
               {"passed", record.judgment.verdict == Verdict::pass},
               {"message", record.run.message},
               {"checks", checks(record)},
               {"bit_checks", bit_checks(record)},
               {"variants", variants(record)},
               {"rows_case", case_name(record.run.rows_case.value_or(record.c))},
               {"memory_findings", memory},
               {"rank_differences", record.run.rank_differences},
               {"outputs", outputs}};
  if (!record.run.unobserved.empty()) json["memory_unobserved"] = record.run.unobserved;
  if (record.whole_index >= 0) json["whole"] = whole_json(record);
  for (const RankRun& rank : record.run.ranks)
    json["ranks"].push_back({{"rank", rank.rank}, {"device", rank.device}, {"message", rank.message}});
  return json;
}

namespace {

double rate(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

Json device_json(const DeviceInfo& device) {
  Json json = {{"kind", device.kind},
               {"name", device.name},
               {"arch_key", device.arch_key},
               {"arch", device.arch},
               {"multiprocessors", device.multiprocessors},
               {"memory_bytes", device.memory_bytes},
               {"driver", device.driver},
               {"runtime", device.runtime}};
  if (!device.transport.empty()) json["transport"] = device.transport;
  return json;
}

Json candidate_json(const CaseRecord& record) {
  return {{"candidate_name", fmt::format("{}-{}", record.candidate, record.c.op->name)},
          {"backend", record.candidate},
          {"op", record.c.op->name},
          {"device", device_json(record.device)},
          {"plugin", {{"path", record.plugin_path}, {"digest", record.plugin_digest}}}};
}

void CandidateTotals::add(const Json& c) {
  const bool pass = c["verdict"] == to_string(Verdict::pass);
  passed &= pass || c["verdict"] == to_string(Verdict::xfail);
  for (const Json& entry : c["outputs"]) {
    if (pass && entry["count"] == 0) continue;  // empty by design
    ++outputs;
    passed_outputs += entry["passed"].get<bool>() ? 1 : 0;
  }
}

Json CandidateTotals::json() const {
  return {{"total_outputs", outputs},
          {"passed_outputs", passed_outputs},
          {"pass_rate", rate(passed_outputs, outputs)},
          {"passed", passed}};
}

Json totals_json(int64_t candidates, int64_t passed) {
  return {{"total_candidates", candidates}, {"passed_candidates", passed}, {"pass_rate", rate(passed, candidates)}};
}

Json timing_json(const CaseRecord& record) {
  Json json = {{"case_name", case_name(record.c)}, {"pass", record.c.pass->name},
               {"candidate", record.candidate},    {"generate_ms", record.times.generate_ms},
               {"gold_ms", record.times.gold_ms},  {"compare_ms", record.times.compare_ms},
               {"run_ms", record.times.run_ms},    {"transfer_ms", record.times.transfer_ms},
               {"total_ms", record.times.total_ms}};
  for (const RankRun& rank : record.run.ranks)
    json["ranks"].push_back({{"rank", rank.rank}, {"host", rank.host}, {"process", rank.process}, {"ms", rank.ms}});
  return json;
}

Json run_json(const Report& report) {
  Json sanitizers = Json::array();
  for (const SanitizerRun& run : report.sanitizers) {
    sanitizers.push_back(
        {{"tool", run.tool}, {"summary", run.summary}, {"errors", run.errors}, {"checks", run.checks}});
  }
  Json json = {
      {"format", "check_operator/report-1"},
      {"suite_name", report.suite_name},
      {"planned", report.planned},
      {"max_skip", report.max_skip ? Json(*report.max_skip) : Json(nullptr)},
      {"contract", {{"path", report.contract_path}, {"hash", report.contract_hash}}},
      {"environment",
       {{"version", kVersion}, {"compiler", kCompiler}, {"build_type", kBuildType}, {"cuda", built_with_cuda()}}},
      {"command", report.command},
      {"sanitizers", sanitizers},
      {"warnings", report.warnings}};
  if (report.shard) json["shard"] = shard_json(*report.shard);
  return json;
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

namespace {

/// The device to show first: the GPU, if one was used.
DeviceInfo main_device(const Report& report) {
  DeviceInfo none;
  none.kind = none.name = "none";
  if (report.records.empty()) return none;
  const auto gpu = std::find_if(report.records.begin(), report.records.end(),
                                [](const CaseRecord& record) { return record.device.kind == "cuda"; });
  return (gpu == report.records.end() ? report.records.front() : *gpu).device;
}

Json controls_json(const Report& report) {
  Json list = Json::array();
  for (const Control& control : report.controls) {
    list.push_back({{"device", control.device}, {"caught", control.caught}, {"reason", control.reason}});
  }
  return list;
}

/// The cases of one candidate on one operator.
Json candidate_with_cases(const std::vector<const CaseRecord*>& records) {
  Json cases = Json::array();
  CandidateTotals totals;
  for (const CaseRecord* record : records) {
    cases.push_back(case_json(*record));
    totals.add(cases.back());
  }
  Json candidate = candidate_json(*records.front());
  candidate.update(totals.json());
  candidate["cases"] = std::move(cases);
  return candidate;
}

}  // namespace

std::string to_json(const Report& report) {
  std::vector<std::vector<const CaseRecord*>> groups;
  for (const CaseRecord& record : report.records) {
    const auto same = [&](const auto& group) {
      return group.front()->candidate == record.candidate && group.front()->c.op == record.c.op;
    };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) {
      groups.push_back({&record});
    } else {
      found->push_back(&record);
    }
  }
  Json candidates = Json::array(), timings = Json::array();
  int64_t passed = 0;
  for (const auto& group : groups) {
    candidates.push_back(candidate_with_cases(group));
    passed += candidates.back()["passed"].get<bool>() ? 1 : 0;
  }
  for (const CaseRecord& record : report.records) timings.push_back(timing_json(record));
  const int code = exit_code_of(report);
  Json root = run_json(report);
  root.update(totals_json(std::ssize(groups), passed));
  root.update(Json{{"complete", report.complete},
                   {"passed", code == 0},
                   {"exit_code", code},
                   {"device", device_json(main_device(report))},
                   {"controls", controls_json(report)},
                   {"volatile", {{"started", report.started}, {"host", report.host}, {"wall_ms", report.wall_ms}}}});
  root["candidates"] = std::move(candidates);  // update() would copy them
  root["volatile"]["timings"] = std::move(timings);
  return dump_json(root, 1) + "\n";
}

}  // namespace checkop
