// SPDX-License-Identifier: Apache-2.0
// check_operator run: cases x candidates -> runs -> comparisons -> verdicts -> report.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/interruption.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "case/rank_parts.hpp"
#include "cli/commands.hpp"
#include "cli/launcher.hpp"
#include "cli/run_outputs.hpp"
#include "device/buffers.hpp"
#include "judge/gold.hpp"
#include "report/report.hpp"
#include "session/check_order.hpp"
#include "session/control.hpp"
#include "session/sanitize.hpp"
#include "session/saved_case.hpp"
#include "session/selection.hpp"
#include "session/session.hpp"
#include "session/shared_time.hpp"
#include "tensor/digest.hpp"
#include "worker/mpi.hpp"
#include "worker/rank_job.hpp"
#include "worker/rank_server.hpp"

namespace checkop {
namespace {

/// Saves the case where --save-tensors asks for it.
void save(const RunOptions& options, const Attempt& attempt, unsigned threads) {
  const CaseRecord& record = attempt.record;
  if (options.save_folder.empty() || record.run.status != RunStatus::ok) return;
  if (options.save_which != "all" && record.judgment.verdict == Verdict::pass) return;
  save_case(options.save_folder, record.c, record.candidate, attempt.arch_key, attempt.inputs, attempt.outputs, threads,
            attempt.rows, record.declared_recipes, record.left_out);
}

/// The checks as the progress line names and weighs them.
std::vector<Progress::Step> steps_of(const std::vector<const Check*>& checks) {
  std::vector<Progress::Step> steps;
  for (const Check* check : checks) steps.push_back({check_name(*check), cost_of(*check)});
  return steps;
}

/// --list: as text, or with --json as JSON.
void list_checks(const RunOptions& options, const std::vector<const Check*>& checks) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check* check : checks) {
    const Case& c = check->c;
    if (!options.json_to_stdout)
      fmt::print("{}  {}\n", check_name(*check), format_bytes(static_cast<uint64_t>(tensor_bytes(c))));
    list.push_back({{"name", check_name(*check)},
                    {"op", c.op->name},
                    {"pass", c.pass->name},
                    {"candidate", check->candidate.name},
                    {"case_name", case_name(c)},
                    {"dtype", info(c.dtype).name},
                    {"dims", c.dims},
                    {"bytes", tensor_bytes(c)}});
  }
  const std::string text = list.dump(1) + "\n";
  if (options.json_to_stdout) fmt::print("{}", text);
  if (!options.json_file.empty()) write_file(options.json_file, text);
}

/// The other processes of the job, for rank 0.
struct OtherRanks {
  const RankJob& job;
  int32_t processes;
};

/// Throws InputError if a case has more ranks than there are processes.
void require_processes(const Selection& selection, const OtherRanks& others) {
  for (const Check& check : selection.checks) {
    if (world_size(check.c) <= others.processes) continue;
    throw InputError("ranks",
                     fmt::format("{} has {} ranks, and {} processes run it", case_name(check.c), world_size(check.c),
                                 others.processes),
                     "start as many processes, or give --world-size or --filter");
  }
}

/// A record, with a crash, of the check that was under way when the launcher ended the job.
Attempt cut_off(const Session& session, const Contract& contract, const Check& check, const DeviceInfo& device) {
  Attempt attempt;
  attempt.check = &check;
  CaseRecord& record = attempt.record;
  record.c = check.c;
  record.candidate = check.candidate.name;
  record.plugin_path = check.candidate.plugin_path;
  record.plugin_digest = check.candidate.plugin_digest;
  record.declared_recipes = check.candidate.recipes;
  record.device = device;
  record.run.status = RunStatus::crashed;
  record.run.message = fmt::format(
      "the launcher ended the job with {}: the process of a rank ended, or somebody stopped the run", interruption());
  session.judge_by(contract, attempt);
  return attempt;
}

/// `others`: nullptr for a single process.
int run_checks(const Options& options, const OtherRanks* others) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  std::optional<RankService> ranks;
  if (others != nullptr) ranks = RankService{others->job.channel(), others->processes};
  if (options.run.has("--seed") && !ranks) draw_poison(options.run.seed);  // before any worker's process
  Session session(options.run, select_checks(options.run), ranks);
  const Selection& selection = session.selection();
  const std::vector<const Check*> here = selection.checks_here();
  if (!selection.why_empty.empty()) fmt::print(stderr, "check_operator: {}\n", selection.why_empty);
  if (options.run.list) {
    list_checks(options.run, here);
    return selection.checks.empty() ? 3 : 0;
  }
  session.require_judgeable(contract);
  if (others != nullptr) require_processes(selection, *others);
  session.plan_for(contract);
  session.find_proofs();
  if (!options.run.save_folder.empty()) make_folder(options.run.save_folder);
  Report report = new_report(options, contract);
  for (const std::string& sentence : session.left_over()) warn(report, options, sentence);
  report.planned = std::ssize(here);
  if (options.run.total_shards) report.shard = shard_of(options.run, selection);
  report.max_skip = options.run.max_skip;
  RunOutputs outputs(options.run, report);
  std::optional<DeviceInfo> begun_on;
  const Check* under_way = nullptr;  // with ranks in other processes: it has begun and is not in the report
  const auto add_newest = [&] {
    try {
      outputs.add(report, report.records.back());
    } catch (const std::system_error&) {  // the launcher reads what is printed, and ended first
      if (others == nullptr || std::freopen("/dev/null", "w", stdout) == nullptr) throw;
    }
  };
  note_interruptions(/*all=*/others != nullptr);  // a launcher sends more than one
  try {
    for (const std::string& device : session.controlled_devices()) {
      report.controls.push_back(run_control(device, session.plan()));
    }
    const Sanitized sanitized(options.run, selection);
    report.sanitizers = sanitized.runs();
    std::optional<SharedTime> time;
    if (options.run.for_s) time.emplace(std::chrono::seconds(*options.run.for_s), here);
    session.run_all(
        [&](Attempt& attempt) {
          session.judge_by(contract, attempt);
          sanitized.enter(*attempt.check, attempt.record.judgment);
          save(options.run, attempt, session.threads());
          report.records.push_back(std::move(attempt.record));
          if (others != nullptr) under_way = nullptr;
          report.wall_ms = ms_since(start);
          add_newest();
          stop_if_interrupted();
        },
        [&](const DeviceInfo& device) {
          begun_on = device;
          outputs.begin(report, device, selection.candidate_count(), steps_of(here));
        },
        [&](const Check& check) {
          const bool begins = !time || time->allows(check);
          if (!begins) outputs.leave_out();
          if (begins && others != nullptr) under_way = &check;
          return begins;
        });
    if (time) report.planned = std::ssize(report.records);
  } catch (const Interrupted&) {
    report.stopped = interruption();
    const bool is_told = !report.records.empty() && !report.records.back().run.rank_gone.empty();
    if (under_way != nullptr && begun_on && !is_told) {
      report.records.push_back(cut_off(session, contract, *under_way, *begun_on).record);
      add_newest();
    }
  }
  return finish(report, outputs, start);
}

/// Digest -> path of the plugins that may have candidates for cases that ranks share.
std::map<std::string, std::string> plugins_of_ranks(const RunOptions& run) {
  std::vector<std::string> ops;
  for (const Operator* op : operators())
    if (!op->parallel_dim.empty()) ops.emplace_back(op->name);
  std::vector<std::string> paths = shipped_plugins(ops);
  paths.insert(paths.end(), run.plugins.begin(), run.plugins.end());
  std::map<std::string, std::string> plugins;
  for (const std::string& path : paths) plugins[file_digest(path)] = path;
  return plugins;
}

/// What this process tells the others of itself. `error`: why it could not read its plugins; "" if it could.
Introduction introduction_of(const Options& options, const std::map<std::string, std::string>& plugins,
                             std::string error) {
  Introduction own{fmt::to_string(kVersion), options.command_line, {}, host_name(), getpid(), std::move(error)};
  for (const auto& [digest, path] : plugins) own.plugins.push_back(digest);
  return own;
}

/// One of several processes: rank 0 runs the checks, the others serve it as ranks.
int run_rank(Options options, RankJob job, const Launcher& launcher) {
  std::map<std::string, std::string> plugins;
  std::string error;
  try {
    plugins = plugins_of_ranks(options.run);
  } catch (const InputError& e) {
    error = e.what();
  }
  const RankPlace place = job.introduce(introduction_of(options, plugins, std::move(error)));
  if (launcher.processes > 0 && launcher.processes != place.processes) {
    throw EnvironmentError(
        fmt::format("ranks: {} says that there are {} processes, and MPI connects {}; start them with the launcher of "
                    "the MPI that this program was built with, or srun --mpi=pmix",
                    launcher.variable, launcher.processes, place.processes));
  }
  try {
    require_same(place.members);
  } catch (const InputError&) {
    if (place.rank == 0) throw;
    return 2;  // rank 0 prints the difference
  }
  if (place.rank > 0) {
    const bool is_chosen = options.run.device.starts_with("cuda:");
    serve_rank(job.channel(), {place.rank, plugins, is_chosen ? options.run.device : "", place.local_rank});
    return 0;
  }
  const bool files = !options.run.cases.empty() || !options.run.suite.empty();
  const bool says_ranks = options.run.dims.contains(kWorldSize) || options.run.has("--shard-bounds");
  if (!files && !says_ranks) options.run.dims[std::string(kWorldSize)] = fmt::to_string(place.processes);
  if (options.run.device == "cuda") options.run.device = fmt::format("cuda:{}", place.local_rank);
  const OtherRanks others{job, place.processes};
  return run_checks(options, &others);
}

}  // namespace

int run_command(const Options& options) {
  const std::optional<Launcher> launcher = launcher_for_ranks(options.run, environment_variable, built_with_mpi());
  if (!launcher) return run_checks(options, nullptr);
  SplitJob split = split_job();
  if (split.child == 0) return run_rank(options, RankJob(std::move(split.channel)), *launcher);
  return relay(std::move(split.channel), split.child, rank_limit(options.run));
}

int replay_command(const Options& options) {
  const auto start = Clock::now();
  const Contract contract = load_contract(options.run);
  SavedCase saved = load_case(options.run.replay);
  const unsigned threads = thread_count(options.run);
  Report report = new_report(options, contract);
  // Judged by the overlays of the device that made the outputs, unless --arch-key says otherwise.
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
  record.declared_recipes = saved.declared_recipes;
  record.plugin_path = options.run.replay;
  record.plugin_digest = tensor_digest(saved.outputs, threads);
  record.repeat = fmt::format("check_operator --replay {} --contract {}", quote_command({options.run.replay}),
                              quote_command({contract.path()}));
  record.checks = {false, false, false};  // only numbers can be judged: nothing is run
  record.data_hash = tensor_digest(saved.inputs, threads);
  record.left_out = saved.left_out;
  record.run.status = RunStatus::ok;
  record.run.outputs.resize(saved.outputs.size());
  for (const OutputSpec& spec : saved.c.pass->outputs) record.demands.push_back(contract.demands_for(saved.c, spec));
  const Subject subject{arch_key, saved.candidate, saved.declared_recipes};
  record.comparisons = judge_outputs(saved.c, saved.inputs, saved.outputs, contract, subject, threads, saved.rows);
  record.judgment = judge(saved.c, record.run, record.comparisons, record.demands, record.checks, true,
                          contract.known_for(saved.c, subject));
  record.times.total_ms = ms_since(start);
  report.planned = 1;
  RunOutputs outputs(options.run, report);
  outputs.begin(report, record.device, 1, {});
  report.records.push_back(std::move(record));
  outputs.add(report, report.records.back());
  return finish(report, outputs, start);
}

}  // namespace checkop
