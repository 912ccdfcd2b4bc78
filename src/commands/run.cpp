// SPDX-License-Identifier: Apache-2.0
// check_operator run: cases x candidates -> runs -> comparisons -> verdicts -> report.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "commands/commands.hpp"
#include "commands/selection.hpp"
#include "digest.hpp"
#include "error.hpp"
#include "gold.hpp"
#include "inputs.hpp"
#include "isolate.hpp"
#include "report.hpp"
#include "sampling.hpp"
#include "saved_case.hpp"
#include "sweep.hpp"
#include "text.hpp"

namespace checkop {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The command that repeats one check alone, from the same folder.
std::string repeat_line(const RunOptions& options, const Check& check, const std::string& contract) {
  std::string line = fmt::format("check_operator {} --candidate {} --device {} --contract {}", case_flags(check.c),
                                 check.candidate.name, check.candidate.device, quote_command({contract}));
  for (const std::string& plugin : options.plugins) line += " --plugin " + quote_command({plugin});
  if (options.arch_key != "auto") line += " --arch-key " + options.arch_key;
  if (options.force_arch_key) line += " --force-arch-key";
  if (!options.checks.empty()) line += fmt::format(" --check {}", fmt::join(options.checks, ","));
  if (!options.gold_rows.empty()) line += " --gold-rows " + options.gold_rows;
  if (options.has("--timeout-s")) line += fmt::format(" --timeout-s {}", options.timeout_s);
  return line;
}

/// The key whose overlays apply. Throws InputError when the user's key is not the device's.
std::string resolve_arch_key(const RunOptions& options, const DeviceInfo& device) {
  // A device newer than this program has no overlays, and is judged all the same.
  if (options.arch_key == "auto") return is_known_arch(device.arch_key) ? device.arch_key : "";
  if (options.arch_key == "none") return "";
  if (options.arch_key != device.arch_key && !options.force_arch_key) {
    throw InputError("--arch-key",
                     fmt::format("'{}' is not the architecture of {} ({})", options.arch_key, device.name,
                                 device.arch_key.empty() ? "none" : device.arch_key),
                     "leave it out, or add --force-arch-key");
  }
  return options.arch_key;
}

/// Rows of each output that the gold computes; 0: all.
int64_t gold_rows(const RunOptions& options, const Contract& contract, const Case& c) {
  if (options.gold_rows.empty()) return contract.sampling().rows_for(gold_work(c));
  return options.gold_rows == "all" ? 0 : parse_sizes("--gold-rows", options.gold_rows).front();
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

  /// What the contract demands, and what was asked for by name on top of it.
  std::vector<Demands> demands_for(const Case& c) const {
    std::vector<Demands> all;
    for (const OutputSpec& spec : c.pass->outputs) {
      Demands demands = contract.demands_for(c, spec);
      if (options.run.has("--check")) {
        demands.determinism |= wants("determinism");
        demands.batch_invariance |= wants("invariance");
      }
      all.push_back(demands);
    }
    return all;
  }
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
  record.demands = demands_for(check.c);
  record.device = worker.info().device.value();
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
  const std::vector<RowSet> rows = sample_rows(check.c, inputs, gold_rows(options.run, contract, check.c));
  std::vector<Tensor> outputs = make_outputs(check.c);
  record.run = worker.run(check.candidate.name, check.c, inputs, outputs, record.checks,
                          std::chrono::seconds(options.run.timeout_s));
  // The gold is about to be computed from these: a candidate that reached the host's copy must not choose them.
  if (tensor_digest(inputs, threads) != record.data_hash) {
    record.run.modified_inputs.insert(record.run.modified_inputs.begin(), "the host's own copy of the inputs");
  }
  record.times.run_ms = record.run.run_ms;
  record.times.transfer_ms = record.run.transfer_ms;
  const bool accuracy = wants("accuracy") && record.run.status == RunStatus::ok;
  if (accuracy) {
    GoldTimes times;
    record.comparisons =
        judge_outputs(check.c, inputs, outputs, contract, {arch_key, check.candidate.name}, threads, rows, &times);
    record.times.compare_ms = times.compare_ms;
    record.times.gold_ms = times.wall_ms - times.compare_ms;
  }
  record.judgment = judge(check.c, record.run, record.comparisons, record.demands, record.checks, accuracy,
                          contract.known_for(check.c, {arch_key, check.candidate.name}));
  const bool save = !options.run.save_folder.empty() && record.run.status == RunStatus::ok &&
                    (options.run.save_which == "all" || record.judgment.verdict != Verdict::pass);
  if (save) save_case(options.run.save_folder, check.c, check.candidate.name, arch_key, inputs, outputs, threads, rows);
  record.times.total_ms = ms_since(start);
  return record;
}

Report new_report(const Options& options, const Contract& contract) {
  Report report;
  report.suite_name = options.run.suite.empty() ? "check_operator" : options.run.suite;
  report.command = options.command_line;
  report.contract_path = contract.path();
  report.contract_hash = contract.hash();
  report.warnings = contract.warnings();
  if (options.run.json_to_stdout)
    for (const std::string& warning : report.warnings) fmt::print(stderr, "check_operator: {}\n", warning);
  report.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  report.host = host;
  return report;
}

/// Finds what is wrong with the question before any answer is worked on.
void check_questions(const Session& session, const RunOptions& options) {
  if (!options.gold_rows.empty() && options.gold_rows != "all" &&
      parse_sizes("--gold-rows", options.gold_rows).size() != 1) {
    throw InputError("--gold-rows", fmt::format("expected one number, got '{}'", options.gold_rows),
                     "give all, or one number");
  }
  for (const Check& check : session.selection.checks) {
    for (const OutputSpec& spec : check.c.pass->outputs) {
      if (is_present(check.c, spec.tensor)) session.contract.gates_for(check.c, spec, {});
    }
  }
  if (!options.save_folder.empty()) make_folder(options.save_folder);
}

/// Writes the report in the forms that were asked for and gives the exit code.
int finish(Report& report, const RunOptions& options, Clock::time_point start) {
  refuse_zero_gold(report);
  report.complete = true;
  report.wall_ms = ms_since(start);
  if (options.json_to_stdout) {
    fmt::print("{}", to_json(report));
  } else {
    print_summary(stdout, report);
  }
  if (!options.json_file.empty()) write_file(options.json_file, to_json(report));
  return exit_code(verdicts_of(report));
}

}  // namespace

int run_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  const Session session{options, contract, select_checks(options.run), thread_count(options.run)};
  if (options.run.list) {
    for (const Check& check : session.selection.checks) {
      fmt::print("{}  {}\n", check_name(check), format_bytes(static_cast<uint64_t>(tensor_bytes(check.c))));
    }
    return session.selection.checks.empty() ? 3 : 0;
  }
  check_questions(session, options.run);
  Report report = new_report(options, contract);
  // After every check while that costs little. The report grows: written each time, a long run would do nothing else.
  constexpr double kShareOfFlushes = 0.1;
  double flush_ms = 0, flushed_at = 0;
  const auto flush = [&] {
    report.wall_ms = ms_since(start);
    if (options.run.json_file.empty() || report.wall_ms - flushed_at < flush_ms / kShareOfFlushes) return;
    write_file(options.run.json_file, to_json(report));
    flushed_at = ms_since(start);
    flush_ms = flushed_at - report.wall_ms;
  };
  flush();  // a path that can't be written is found before the work
  std::FILE* text = options.run.json_to_stdout ? nullptr : stdout;
  std::optional<Worker> worker;
  std::string running, arch_key;
  for (const Check& check : session.selection.checks) {
    const std::string wanted = check.candidate.name + "@" + check.candidate.device;
    if (!worker || running != wanted) {
      worker.reset();
      worker.emplace(WorkerConfig{session.selection.plugins_of(check.candidate), check.candidate.device});
      running = wanted;
      arch_key = resolve_arch_key(options.run, worker->info().device.value());
      if (text != nullptr && report.records.empty()) {
        print_header(text, report, *worker->info().device, session.selection.checks.size(),
                     session.selection.candidate_count());
      }
    }
    report.records.push_back(session.run(*worker, check, arch_key));
    if (text != nullptr) print_record(text, report.records.back());
    flush();
  }
  return finish(report, options.run, start);
}

int replay_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  SavedCase saved = load_case(options.run.replay);
  const unsigned threads = thread_count(options.run);
  Report report = new_report(options, contract);
  // Judged as on the device that made the outputs, unless told otherwise.
  std::string arch_key = options.run.arch_key == "auto" ? saved.arch_key : options.run.arch_key;
  if (arch_key == "none") arch_key.clear();
  if (arch_key != saved.arch_key && options.run.arch_key != "none" && !options.run.force_arch_key) {
    throw InputError("--arch-key",
                     fmt::format("'{}' is not the architecture that made the outputs ({})", arch_key,
                                 saved.arch_key.empty() ? "none" : saved.arch_key),
                     "leave it out, or add --force-arch-key");
  }
  CaseRecord record;
  record.c = saved.c;
  record.candidate = saved.candidate;
  record.device.kind = "none";
  record.device.name = "none: saved outputs";
  record.device.arch_key = arch_key;
  record.plugin_path = options.run.replay;
  record.plugin_digest = tensor_digest(saved.outputs, threads);
  record.repeat = fmt::format("check_operator --replay {} --contract {}", quote_command({options.run.replay}),
                              quote_command({contract.path()}));
  record.checks = {false, false, false};  // only numbers can be judged: nothing is run
  record.data_hash = tensor_digest(saved.inputs, threads);
  record.run.status = RunStatus::ok;
  record.run.outputs.resize(saved.outputs.size());
  for (const OutputSpec& spec : saved.c.pass->outputs) record.demands.push_back(contract.demands_for(saved.c, spec));
  record.comparisons =
      judge_outputs(saved.c, saved.inputs, saved.outputs, contract, {arch_key, saved.candidate}, threads, saved.rows);
  record.judgment = judge(saved.c, record.run, record.comparisons, record.demands, record.checks, true,
                          contract.known_for(saved.c, {arch_key, saved.candidate}));
  record.times.total_ms = ms_since(start);
  report.records.push_back(std::move(record));
  if (!options.run.json_to_stdout) {
    print_header(stdout, report, report.records.front().device, 1, 1);
    print_record(stdout, report.records.front());
  }
  return finish(report, options.run, start);
}

}  // namespace checkop
