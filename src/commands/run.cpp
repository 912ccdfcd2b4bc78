// SPDX-License-Identifier: Apache-2.0
// check_operator run: cases x candidates -> runs -> comparisons -> verdicts -> report.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "commands/commands.hpp"
#include "commands/selection.hpp"
#include "digest.hpp"
#include "error.hpp"
#include "gold.hpp"
#include "inputs.hpp"
#include "isolate.hpp"
#include "report.hpp"
#include "saved_case.hpp"

namespace checkop {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The command that repeats one check alone.
std::string repeat_line(const RunOptions& options, const Check& check, const std::string& contract) {
  std::string line = fmt::format("check_operator {} --candidate {} --device {} --contract {}", case_flags(check.c),
                                 check.candidate.name, check.candidate.device, quote_command({contract}));
  for (const std::string& plugin : options.plugins) line += " --plugin " + quote_command({plugin});
  if (options.arch_key != "auto") line += " --arch-key " + options.arch_key;
  if (options.force_arch_key) line += " --force-arch-key";
  if (!options.checks.empty()) line += fmt::format(" --check {}", fmt::join(options.checks, ","));
  return line;
}

/// The key whose overrides apply. Throws InputError when the user's key is not the device's.
std::string resolve_arch_key(const RunOptions& options, const DeviceInfo& device) {
  if (options.arch_key == "auto") return device.arch_key;
  if (options.arch_key == "none") return "";
  if (options.arch_key != device.arch_key && !options.force_arch_key) {
    throw InputError("--arch-key",
                     fmt::format("'{}' is not the architecture of {} ({})", options.arch_key, device.name,
                                 device.arch_key.empty() ? "none" : device.arch_key),
                     "leave it out, or add --force-arch-key");
  }
  return options.arch_key;
}

/// Everything that one run of the program shares between its checks.
struct Session {
  const Options& options;
  const Contract& contract;
  Selection selection;
  unsigned threads;

  bool wants(std::string_view check) const {
    const auto& checks = options.run.checks;
    return checks.empty() || std::find(checks.begin(), checks.end(), check) != checks.end();
  }
  CaseRecord run(Worker& worker, const Check& check, const std::string& arch_key) const;
};

CaseRecord Session::run(Worker& worker, const Check& check, const std::string& arch_key) const {
  const auto start = Clock::now();
  CaseRecord record;
  record.c = check.c;
  record.candidate = check.candidate.name;
  record.plugin_path = check.candidate.plugin_path;
  record.plugin_digest = check.candidate.plugin_digest;
  record.repeat = repeat_line(options.run, check, contract.path());
  record.checks = {wants("determinism"), wants("invariance"), wants("memory")};
  for (const OutputSpec& spec : check.c.pass->outputs) record.demands.push_back(contract.demands_for(check.c, spec));
  if (!check.candidate.has_kernel) {
    record.run.status = RunStatus::unsupported;
    record.run.message =
        fmt::format("there is no {} '{}' of {}", check.c.pass->name, check.candidate.name, check.c.op->name);
    record.judgment = judge(check.c, record.run, {}, record.demands, record.checks, false);
    return record;
  }
  const std::vector<Tensor> inputs = make_inputs(check.c, threads);
  record.times.generate_ms = ms_since(start);
  record.data_hash = tensor_digest(inputs, threads);
  std::vector<Tensor> outputs = make_outputs(check.c);
  record.run = worker.run(check.candidate.name, check.c, inputs, outputs, record.checks,
                          std::chrono::seconds(options.run.timeout_s));
  record.times.run_ms = record.run.run_ms;
  record.times.transfer_ms = record.run.transfer_ms;
  const bool accuracy = wants("accuracy") && record.run.status == RunStatus::ok;
  if (accuracy) {
    GoldTimes times;
    record.comparisons = judge_outputs(check.c, inputs, outputs, contract, arch_key, threads, &times);
    record.times.compare_ms = times.compare_ms;
    record.times.gold_ms = times.wall_ms - times.compare_ms;
  }
  record.judgment = judge(check.c, record.run, record.comparisons, record.demands, record.checks, accuracy);
  const bool save = !options.run.save_folder.empty() && record.run.status == RunStatus::ok &&
                    (options.run.save_which == "all" || record.judgment.verdict != Verdict::pass);
  if (save) save_case(options.run.save_folder, check.c, check.candidate.name, inputs, outputs, threads);
  record.times.total_ms = ms_since(start);
  return record;
}

Report new_report(const Options& options, const Contract& contract) {
  Report report;
  report.suite_name = options.run.suite.empty() ? "check_operator" : options.run.suite;
  report.command = options.command_line;
  report.contract_path = contract.path();
  report.contract_hash = contract.hash();
  report.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  report.host = host;
  return report;
}

}  // namespace

int run_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  Session session{options, contract, select_checks(options.run), options.run.threads};
  if (session.threads == 0) session.threads = std::max(1u, std::thread::hardware_concurrency());
  if (options.run.list) {
    for (const Check& check : session.selection.checks) fmt::print("{}\n", check_name(check));
    return session.selection.checks.empty() ? 3 : 0;
  }
  Report report = new_report(options, contract);
  std::FILE* text = options.run.json_to_stdout ? nullptr : stdout;
  std::optional<Worker> worker;
  std::string running, arch_key;
  for (const Check& check : session.selection.checks) {
    const std::string wanted = check.candidate.name + "@" + check.candidate.device;
    if (!worker || running != wanted) {
      worker.reset();
      worker.emplace(WorkerConfig{session.selection.plugins_of(check.candidate), check.candidate.device});
      running = wanted;
      report.device = worker->info().device.value();
      arch_key = resolve_arch_key(options.run, report.device);
      if (text != nullptr && report.records.empty()) {
        print_header(text, report, session.selection.checks.size(), session.selection.candidate_count());
      }
    }
    report.records.push_back(session.run(*worker, check, arch_key));
    report.wall_ms = ms_since(start);
    if (text != nullptr) print_record(text, report.records.back());
    if (!options.run.json_file.empty()) write_file(options.run.json_file, to_json(report));
  }
  report.wall_ms = ms_since(start);
  if (text != nullptr) print_summary(text, report);
  if (!options.run.json_file.empty()) write_file(options.run.json_file, to_json(report));
  if (options.run.json_to_stdout) fmt::print("{}", to_json(report));
  return exit_code(verdicts_of(report));
}

int replay_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  SavedCase saved = load_case(options.run.replay);
  const unsigned threads =
      options.run.threads > 0 ? options.run.threads : std::max(1u, std::thread::hardware_concurrency());
  Report report = new_report(options, contract);
  report.device.kind = "none";
  report.device.name = "none: saved outputs";
  const std::string arch_key =
      options.run.arch_key == "auto" || options.run.arch_key == "none" ? "" : options.run.arch_key;
  CaseRecord record;
  record.c = saved.c;
  record.candidate = saved.candidate;
  record.plugin_path = options.run.replay;
  record.plugin_digest = tensor_digest(saved.outputs, threads);
  record.repeat =
      fmt::format("check_operator --replay {} --contract {}", quote_command({options.run.replay}), contract.path());
  record.checks = {false, false, false};  // only numbers can be judged: nothing is run
  record.data_hash = tensor_digest(saved.inputs, threads);
  record.run.status = RunStatus::ok;
  record.run.outputs.resize(saved.outputs.size());
  for (const OutputSpec& spec : saved.c.pass->outputs) record.demands.push_back(contract.demands_for(saved.c, spec));
  record.comparisons = judge_outputs(saved.c, saved.inputs, saved.outputs, contract, arch_key, threads);
  record.judgment = judge(saved.c, record.run, record.comparisons, record.demands, record.checks, true);
  record.times.total_ms = report.wall_ms = ms_since(start);
  report.records.push_back(std::move(record));
  if (options.run.json_to_stdout) {
    fmt::print("{}", to_json(report));
  } else {
    print_header(stdout, report, 1, 1);
    print_record(stdout, report.records.front());
    print_summary(stdout, report);
  }
  if (!options.run.json_file.empty()) write_file(options.run.json_file, to_json(report));
  return exit_code(verdicts_of(report));
}

}  // namespace checkop
