// SPDX-License-Identifier: Apache-2.0
// check_operator bench: times the candidates of each case in turns, judges what the timed launches gave, and prints
// records.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "cli/commands.hpp"
#include "report/bench_record.hpp"
#include "report/report.hpp"
#include "run/bench.hpp"
#include "run/bench_peer.hpp"
#include "session/bench_judge.hpp"
#include "session/selection.hpp"

namespace checkop {
namespace {

/// One case and the candidates that take turns on it.
struct Group {
  Case c;
  std::vector<ChosenCandidate> candidates;
};

std::string key_of(const Case& c) { return fmt::format("{}/{}", c.pass->name, case_name(c)); }

bool has_constant_inputs(const Case& c) {
  const auto is_upstream = [](const TensorSpec& spec) { return spec.fill == Fill::upstream; };
  const bool upstream = std::any_of(c.pass->inputs.begin(), c.pass->inputs.end(), is_upstream);
  return c.input_mode == InputMode::constant || (upstream && c.grad_mode == GradMode::ones);
}

/// The selected checks by case. Throws InputError if flags request constant inputs; skips cases from files that have
/// them, and counts these in `left_out`.
std::vector<Group> group_by_case(const Selection& selection, const Options& options, size_t& left_out) {
  const bool files = options.run.has("--cases") || options.run.has("--suite");
  std::vector<Group> groups;
  std::set<std::string> constant;
  for (const Check& check : selection.checks) {
    if (has_constant_inputs(check.c)) {
      if (!files) {
        throw InputError(check.c.input_mode == InputMode::constant ? "--input-mode" : "--grad-mode",
                         "constant inputs run up to 13 % too fast", "use random");
      }
      constant.insert(key_of(check.c));
      continue;
    }
    const std::string key = key_of(check.c);
    const auto same = [&](const Group& group) { return key_of(group.c) == key; };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) found = groups.insert(groups.end(), {check.c, {}});
    if (!found->candidates.empty() && found->candidates.front().device != check.candidate.device) {
      // lint: allow message, it takes a GPU
      throw InputError("--device",
                       fmt::format("'{}' runs on {} and '{}' on {}", found->candidates.front().name,
                                   found->candidates.front().device, check.candidate.name, check.candidate.device),
                       "time candidates of one device: add --device cpu or --device cuda");
    }
    found->candidates.push_back(check.candidate);
  }
  left_out = constant.size();
  return groups;
}

/// `what` of the candidates on this device that have a kernel, without duplicates.
std::vector<std::string> all_on(const std::string& device, const std::vector<Group>& groups,
                                std::string ChosenCandidate::*what) {
  std::set<std::string> all;
  for (const Group& group : groups) {
    for (const ChosenCandidate& candidate : group.candidates) {
      if (candidate.device == device && candidate.has_kernel) all.insert(candidate.*what);
    }
  }
  return {all.begin(), all.end()};
}

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// matmul at a size where cuBLAS is fastest.
Case ceiling_case() {
  constexpr int64_t kSide = 8192;
  Case c;
  c.op = find_operator("matmul");
  c.pass = find_pass(*c.op, "forward");
  c.dtype = DType::bf16;
  c.dims = {{"batch", 1}, {"seq", kSide}, {"k_dim", kSide}, {"n_dim", kSide}};
  return c;
}

/// Times groups on one device, and measures peak rates in the same process.
class Bench {
 public:
  Bench(const Options& options, const Contract& contract, const std::string& device, const std::vector<Group>& groups)
      : options_(options),
        contract_(contract),
        device_(device),
        plugins_(all_on(device, groups, &ChosenCandidate::plugin_path)),
        names_(all_on(device, groups, &ChosenCandidate::name)),
        peers_(options.bench.peers, device_, std::chrono::seconds(options.run.timeout_s)) {
    plan_.repeats = static_cast<int>(options.bench.repeats);
    plan_.burst = options.bench.wants("burst");
    plan_.sustained = options.bench.wants("sustained");
    start(plugins_);
    arch_key_ = resolve_arch_key(options.run, worker_->info().device.value());
  }

  const std::string& device() const { return device_; }
  const std::vector<std::string>& peers() const { return peers_.names(); }

  std::vector<BenchRecord> run(const Group& group);

 private:
  void start(const std::vector<std::string>& plugins) {
    WorkerConfig config{plugins, device_};
    config.timed = names_;
    config.in_worker = shares_ranks_;
    worker_.emplace(std::move(config));
  }
  BenchResult time(const std::vector<std::string>& names, const Case& c, BenchData& data) {
    const std::chrono::seconds limit(options_.run.timeout_s);
    BenchResult result = worker_->bench(names, c, data, plan_, limit);
    // The next case runs in a new process, for which cuBLAS was not timed yet.
    if (result.status == RunStatus::crashed || result.status == RunStatus::timeout) cublas_.reset();
    return result;
  }
  const BenchRun& cublas_ceiling();

  const Options& options_;
  const Contract& contract_;
  std::string device_, arch_key_;
  std::vector<std::string> plugins_, names_;  ///< of all candidates: one worker times those of a case in turns
  BenchPeers peers_;
  BenchPlan plan_;
  bool shares_ranks_ = false;  ///< of a GPU: their communicators are in the worker's process, and so are all plugins
  std::optional<Worker> worker_;
  std::optional<BenchRun> cublas_;  ///< of ceiling_case(); not ok if cuBLAS is unavailable
};

/// cuBLAS at ceiling_case(), timed once per process.
const BenchRun& Bench::cublas_ceiling() {
  if (cublas_) return *cublas_;
  cublas_.emplace();
  if (device_ == "cpu") return *cublas_;
  const auto shipped = shipped_plugins({"matmul"});
  const auto is_cublas = [](const std::string& path) { return path.ends_with("/cublas.so"); };
  const auto plugin = std::find_if(shipped.begin(), shipped.end(), is_cublas);
  if (plugin == shipped.end()) return *cublas_;
  if (std::find(plugins_.begin(), plugins_.end(), *plugin) == plugins_.end()) {
    std::vector<std::string> more = plugins_;
    more.push_back(*plugin);
    names_.push_back("cublas");
    try {
      start(more);
      plugins_ = more;
    } catch (const InputError&) {  // the cuBLAS library is not on this machine
      start(plugins_);
      return *cublas_;
    }
  }
  const Case c = ceiling_case();
  BenchData data;  // not judged: it only says what the device can do
  data.inputs.push_back(make_inputs(c, thread_count(options_.run)));
  data.outputs.resize(1);
  data.outputs.front().push_back(make_outputs(c));
  const BenchResult result = time({"cublas"}, c, data);
  cublas_.emplace();
  if (result.status == RunStatus::ok) cublas_ = result.runs.front();
  return *cublas_;
}

std::vector<BenchRecord> Bench::run(const Group& group) {
  const Case& c = group.c;
  if (const bool shares_ranks = device_ != "cpu" && is_tensor_parallel(c); shares_ranks != shares_ranks_) {
    shares_ranks_ = shares_ranks;
    start(plugins_);
  }
  BenchRecord common;
  common.c = c;
  common.run = new_run_id();
  common.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  common.device = worker_->info().device->name;

  std::vector<BenchRecord> records;
  std::vector<const ChosenCandidate*> runnable;
  std::vector<std::string> names;
  for (const ChosenCandidate& candidate : group.candidates) {
    if (candidate.has_kernel) {
      runnable.push_back(&candidate);
      names.push_back(candidate.name);
      continue;
    }
    BenchRecord& record = records.emplace_back(common);
    record.candidate = candidate.name;
    record.status = RunStatus::unsupported;
    record.message = candidate.no_kernel;
  }
  if (runnable.empty()) return records;

  const unsigned threads = thread_count(options_.run);
  BenchData data = make_bench_data(c, runnable, worker_->info().device.value(), contract_, arch_key_, threads);
  const std::vector<Tensor>& inputs = data.inputs.front();
  common.cost = cost_of(c, inputs);
  for (const Tensor& tensor : inputs) common.peak_bytes += static_cast<double>(tensor.bytes.size());
  for (const OutputSpec& spec : c.pass->outputs) {
    if (!is_present(c, spec.tensor)) continue;
    common.peak_bytes += static_cast<double>(element_count(shape_of(c, spec.tensor))) *
                         static_cast<double>(info(dtype_of(c, spec.tensor)).bytes);
  }
  const BenchRun* ceiling = common.cost.flops > 0 ? &cublas_ceiling() : nullptr;
  std::optional<BenchRun> cublas;
  if (ceiling != nullptr && ceiling->status == RunStatus::ok) cublas = *ceiling;
  // Around the candidates, so that a clock that drifts favours neither.
  std::vector<BenchRun> peer_runs(peers_.names().size());
  peers_.take(c, plan_, BenchPeers::Half::first, peer_runs);
  BenchResult result = time(names, c, data);
  peers_.take(c, plan_, BenchPeers::Half::second, peer_runs);
  for (size_t i = 0; i < result.runs.size(); ++i)
    judge_bench(c, *runnable[i], data, i, contract_, arch_key_, threads, result.runs[i]);
  if (result.status != RunStatus::ok) {
    BenchRecord& record = records.emplace_back(common);
    record.candidate = fmt::format("{}", fmt::join(names, ","));
    record.status = result.status;
    record.message = result.message;
    return records;
  }
  common.copy_gbps = result.copy_gbps;

  struct Timed {
    std::string name, digest;
    const BenchRun* run;
    bool is_peer;
  };
  std::vector<Timed> all;
  for (size_t i = 0; i < names.size(); ++i)
    all.push_back({names[i], runnable[i]->plugin_digest, &result.runs[i], /*is_peer=*/false});
  for (size_t i = 0; i < peer_runs.size(); ++i) all.push_back({peers_.names()[i], "", &peer_runs[i], /*is_peer=*/true});
  const auto is_baseline = [&](const Timed& one) { return one.name == options_.bench.baseline; };
  const auto found = std::find_if(all.begin(), all.end(), is_baseline);
  const Timed* baseline = found == all.end() || found->run->status != RunStatus::ok ? nullptr : &*found;
  const double ceiling_flops = 2.0 * 8192.0 * 8192.0 * 8192.0;
  const auto add = [&](const Timed& one, const std::string& timing, std::vector<double> BenchRun::*samples,
                       std::vector<double> BenchRank::*of_rank) {
    const BenchRun& run = *one.run;
    BenchRecord& record = records.emplace_back(common);
    record.candidate = one.name;
    record.is_peer = one.is_peer;
    record.kernels_digest = one.digest;
    record.status = run.status;
    record.message = run.message;
    if (run.status != RunStatus::ok) return;
    record.timing = timing;
    record.ms = summarize(run.*samples);
    record.repeats = (run.*samples).size();
    record.peak_bytes = run.workspace_bytes + (one.is_peer ? 0 : common.peak_bytes);
    if (timing == "burst") record.overruled = run.overruled;
    for (const BenchRank& rank : run.ranks)
      record.ranks.push_back({rank.device, summarize(rank.*of_rank).median, rank.workspace_bytes});
    if (cublas) record.cublas_tflops = ceiling_flops / summarize(*cublas.*samples).median / 1e9;
    if (baseline == nullptr || baseline == &one) return;
    const std::vector<double>& theirs = baseline->run->*samples;
    record.baseline = baseline->name;
    record.ratio = one.is_peer || baseline->is_peer ? summarize(theirs).median / record.ms.median
                                                    : paired_ratio(run.*samples, theirs);
    record.distinct = is_distinct(record.ms, summarize(theirs));
  };
  for (const Timed& one : all) {
    if (plan_.burst || one.run->status != RunStatus::ok) add(one, "burst", &BenchRun::burst_ms, &BenchRank::burst_ms);
    if (plan_.sustained && one.run->status == RunStatus::ok)
      add(one, "sustained", &BenchRun::sustained_ms, &BenchRank::sustained_ms);
  }
  return records;
}

Verdict verdict_of(RunStatus status) {
  switch (status) {
    case RunStatus::ok:
      return Verdict::pass;
    case RunStatus::unsupported:
      return Verdict::unsupported;
    case RunStatus::failed:
      return Verdict::fail;
    case RunStatus::timeout:
      return Verdict::timeout;
    default:
      return Verdict::error;
  }
}

}  // namespace

int bench_command(const Options& options) {
  const Contract contract = load_contract(options.run);
  const Selection selection = select_checks(options.run);
  size_t left_out = 0;
  const std::vector<Group> groups = group_by_case(selection, options, left_out);
  const auto require_baseline = [&](const std::vector<std::string>& peers) {
    const std::string& baseline = options.bench.baseline;
    const auto is_baseline = [&](const Check& check) { return check.candidate.name == baseline; };
    if (baseline.empty() || std::find(peers.begin(), peers.end(), baseline) != peers.end()) return;
    if (std::any_of(selection.checks.begin(), selection.checks.end(), is_baseline)) return;
    throw InputError("--baseline", fmt::format("'{}' is not among the candidates that are timed", baseline),
                     "name it in --candidate too");
  };
  if (options.bench.peers.empty()) require_baseline({});
  if (options.run.list) {
    for (const Group& group : groups) {
      for (const ChosenCandidate& candidate : group.candidates) fmt::print("{}\n", check_name({group.c, candidate}));
    }
    return groups.empty() ? 3 : 0;
  }
  const bool text = !options.run.json_to_stdout;
  if (left_out > 0) {
    fmt::print(stderr, "{} case{} with constant inputs left out: they run up to 13 % too fast\n", left_out,
               left_out == 1 ? "" : "s");
  }
  std::string lines;
  const auto flush = [&] {
    if (!options.run.json_file.empty()) write_file(options.run.json_file, lines);
  };
  flush();  // finds an unwritable path before the work
  const auto write = [&](const std::vector<BenchRecord>& records) {
    for (const BenchRecord& record : records) {
      const std::string line = to_json_line(record) + "\n";
      lines += line;
      if (!text) fmt::print("{}", line);
    }
    if (text) print_bench(stdout, records);
    std::fflush(stdout);
    flush();
  };
  std::vector<Verdict> verdicts;
  std::vector<BenchRecord> all;
  std::optional<Bench> bench;
  for (const Group& group : groups) {
    const std::string& device = group.candidates.front().device;
    if (!bench || bench->device() != device) {
      bench.emplace(options, contract, device, groups);
      require_baseline(bench->peers());
    }
    const std::vector<BenchRecord> records = bench->run(group);
    for (const BenchRecord& record : records) {
      // What a peer lacks is no gap of the candidates.
      if (!record.is_peer || record.status != RunStatus::unsupported) verdicts.push_back(verdict_of(record.status));
    }
    write(records);
    all.insert(all.end(), records.begin(), records.end());
  }
  std::vector<BenchRecord> of_case;
  for (const BenchRecord& step : training_steps(all)) {
    if (!of_case.empty() && of_case.front().run != step.run) write(std::exchange(of_case, {}));
    of_case.push_back(step);
  }
  if (!of_case.empty()) write(of_case);
  if (text && options.run.random_cases) print_distribution(stdout, all);
  return exit_code(verdicts);
}

}  // namespace checkop
