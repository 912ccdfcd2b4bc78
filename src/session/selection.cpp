// SPDX-License-Identifier: Apache-2.0
// Turns options into the list of checks.
#include "session/selection.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "base/mix.hpp"
#include "base/paths.hpp"
#include "base/text.hpp"
#include "case/captured.hpp"
#include "case/planting.hpp"
#include "case/random_cases.hpp"
#include "case/sweep.hpp"
#include "contract/rule_table.hpp"
#include "session/check_order.hpp"
#include "session/own_data.hpp"

namespace checkop {
namespace {

struct DeviceChoice {
  bool cpu = false, cuda = false;  ///< kinds that candidates may run on
  int index = 0;
};

/// "auto", "cpu", "cuda", "cuda:N".
DeviceChoice parse_device(const std::string& name) {
  if (name == "auto") return {true, true, 0};
  if (name == "cpu") return {true, false, 0};
  if (name == "cuda") return {false, true, 0};
  int index = -1;
  if (name.starts_with("cuda:")) {
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (error == std::errc{} && end == name.data() + name.size() && index >= 0) return {false, true, index};
  }
  throw InputError("--device", fmt::format("unknown device '{}'", name), "use auto, cpu, cuda or cuda:N");
}

/// A requested GPU must be present before anything else is checked.
void require_devices(const CandidateChoice& options, const DeviceChoice& choice, int cuda_devices) {
  if (choice.cpu || cuda_devices > choice.index) return;
  if (!built_with_cuda()) {
    throw EnvironmentError(fmt::format(
        "--device {}: this program was built without CUDA; configure with 'cmake --preset cuda'", options.device));
  }
  // lint: allow message, it takes a build with CUDA
  throw EnvironmentError(fmt::format(
      "--device {}: {} CUDA device{} found; run on a machine with a GPU and its driver, or use --device cpu",
      options.device, cuda_devices, cuda_devices == 1 ? "" : "s"));
}

bool has_input(const Operator& op, Fill fill) {
  const auto inputs = op.passes.front().inputs;
  return std::any_of(inputs.begin(), inputs.end(), [&](const TensorSpec& spec) { return spec.fill == fill; });
}

std::vector<Case> cases_of_flags(const CaseChoice& options) {
  const auto ops = parse_operators("--op", options.ops);
  if (options.input_mode == "peaked" &&
      std::none_of(ops.begin(), ops.end(), [](const Operator* op) { return has_input(*op, Fill::ids); })) {
    throw InputError("--input-mode", "peaked is for operators with target ids, and no selected operator has any",
                     "use random");
  }
  if (options.input_mode == "extreme" &&
      std::none_of(ops.begin(), ops.end(), [](const Operator* op) { return takes_extremes(*op); })) {
    throw InputError(
        "--input-mode",
        "extreme is for operators with a softmax or products of codes, and no selected operator has either",
        "use random");
  }
  if (options.input_mode == "captured" &&
      std::none_of(ops.begin(), ops.end(), [](const Operator* op) { return is_captured(*op); })) {
    throw InputError("--input-mode", "captured: no tensors were captured of any selected operator", "use random");
  }
  for (const char* flag : {"--ignored-every", "--ignored-run"}) {
    if (!options.has(flag)) continue;
    const bool for_masks = std::string_view(flag) == "--ignored-every" && options.ignored_every <= 1;
    if (std::none_of(ops.begin(), ops.end(), [&](const Operator* op) {
          const bool draws = std::string_view(flag) == "--ignored-every" && draws_left_out(*op);
          return has_attr(*op, "ignore_index") || draws || (for_masks && has_input(*op, Fill::mask));
        }))
      throw InputError(flag, "no selected operator has an attribute ignore_index", "leave it out");
  }
  if (options.has("--shard-bounds") &&
      std::all_of(ops.begin(), ops.end(), [](const Operator* op) { return op->parallel_dim.empty(); })) {
    throw InputError("--shard-bounds", "no selected operator is tensor-parallel", "leave it out");
  }
  const std::vector<Preset> presets =
      options.presets.empty() ? std::vector<Preset>{} : parse_presets("--preset", options.presets);
  if (const int64_t count = options.random_cases.value_or(0); count > kMostRandomCases / std::ssize(ops)) {
    throw InputError("--random-cases",
                     fmt::format("{} cases of each of {} operators are more than the {} that a run may have", count,
                                 ops.size(), kMostRandomCases),
                     fmt::format("give up to {}, or fewer operators", kMostRandomCases / std::ssize(ops)));
  }
  std::set<std::string_view> used;
  std::vector<Case> cases;
  for (const Operator* op : ops) {
    Sweep sweep;
    sweep.op = op;
    if (!presets.empty()) {
      // With --op all, skips operators for which the preset has no sizes.
      sweep.presets = sizes_of("--preset", *op, presets, shipped_mappings(*op), !is_all(options.ops));
      if (sweep.presets.empty()) continue;
    }
    // With --op all, skips operators that lack the pass.
    if (is_all(options.ops) && lacks_pass(*op, options.passes)) continue;
    sweep.passes = parse_passes("--pass", *op, options.passes);
    sweep.dtypes = parse_dtypes("--dtype", options.dtypes);
    sweep.optionals = parse_optionals("--with", *op, ops, options.with);
    for (const std::string_view dim : dims_of(*op)) {
      const auto given = options.dims.find(dim);
      if (given == options.dims.end()) continue;
      std::string flag = fmt::format("--{}", dim);
      std::replace(flag.begin(), flag.end(), '_', '-');
      sweep.dims[std::string(dim)] = parse_sizes(flag, given->second, 0);
      used.insert(dim);
    }
    if (!options.shard_bounds.empty() && !op->parallel_dim.empty())
      set_bounds("--shard-bounds", options.shard_bounds, sweep);
    for (const AttrSpec& attr : op->attrs) {
      const auto given = options.attrs.find(attr.name);
      if (given == options.attrs.end()) continue;
      sweep.attrs[std::string(attr.name)] = given->second;
      used.insert(attr.name);
    }
    sweep.data.input_mode = parse_input_mode("--input-mode", options.input_mode);
    // If the mode needs something that the operator lacks (target ids, a softmax or codes, captured tensors), the data
    // are random.
    const bool no_ids = sweep.data.input_mode == InputMode::peaked && !has_input(*op, Fill::ids);
    const bool no_extremes = sweep.data.input_mode == InputMode::extreme && !takes_extremes(*op);
    const bool not_captured = sweep.data.input_mode == InputMode::captured && !is_captured(*op);
    if (no_ids || no_extremes || not_captured) sweep.data.input_mode = InputMode::random;
    sweep.data.constant_value = options.constant_value;
    sweep.data.token_value = options.token_value;
    sweep.data.ignored_every = options.ignored_every;
    sweep.data.ignored_run = options.ignored_run;
    sweep.data.seed = options.seed;
    sweep.data.grad_mode = parse_grad_mode("--grad-mode", options.grad_mode);
    sweep.data.grad_seed = options.grad_seed;
    if (options.random_cases && options.model_sizes) {
      if (presets.empty())
        sweep.presets = sizes_of("--random-cases", *op, shipped_models(), shipped_mappings(*op), true);
      draw_model_cases(sweep, *options.random_cases, options.seed, cases);
    } else if (options.random_cases) {
      draw_cases(sweep, *options.random_cases, options.seed, cases);
    } else {
      expand(sweep, cases);
    }
  }
  for (const auto& [name, value] : options.attrs) {
    if (!used.contains(name)) {
      throw InputError(fmt::format("attribute '{}'", name),
                       fmt::format("no selected operator has it (value {})", value), "see 'check_operator show OP'");
    }
  }
  for (const auto& [name, value] : options.dims) {
    if (used.contains(name)) continue;
    std::vector<std::string> known;
    for (const Operator* op : ops) {
      for (const std::string_view dim : dims_of(*op)) known.emplace_back(dim);
    }
    const std::string nearest = did_you_mean(name, known);
    throw InputError(fmt::format("size '{}'", name), fmt::format("no selected operator has it (value {})", value),
                     nearest.empty() ? "see 'check_operator show OP'" : nearest);
  }
  // A list may name the same thing twice.
  std::set<std::string> seen;
  std::erase_if(cases, [&](const Case& c) {
    return !seen.insert(fmt::format("{}/{}/{}", c.op->name, c.pass->name, case_name(c))).second;
  });
  return cases;
}

/// The seed for a case of a file when the command line gives `seed`: `seed` itself for the default seed of files; for
/// another seed a mix of both, so that cases with different data keep different data.
uint64_t reseeded(uint64_t seed, uint64_t of_file) {
  constexpr int kBits = 53;  // readers of JSON keep that many bits of a number
  if (of_file == Case().seed) return seed;
  return mix_bits(seed + mix_bits(of_file)) >> (64 - kBits);
}

/// Cases from files, filtered by --op, --dtype and --pass; --seed and --grad-seed give them other data.
std::vector<Case> cases_of_files(const CaseChoice& options) {
  std::vector<std::string> paths = options.cases;
  if (paths.empty()) paths.push_back(find_shipped("cases"));
  std::vector<Case> cases;
  for (const std::string& path : paths) {
    auto found = load_cases(path, options.suite);
    std::move(found.begin(), found.end(), std::back_inserter(cases));
  }
  if (cases.empty() && !options.suite.empty()) {
    const std::string nearest = did_you_mean(options.suite, shipped_suites());
    throw InputError("--suite", fmt::format("no case of {} is in suite '{}'", fmt::join(paths, ", "), options.suite),
                     fmt::format("{}{}name a suite that the case files list under \"suites\"", nearest,
                                 nearest.empty() ? "" : " or "));
  }
  const auto ops = parse_operators("--op", options.has("--op") ? options.ops : std::vector<std::string>{"all"});
  const auto dtypes = parse_dtypes("--dtype", options.dtypes);
  const bool any_pass = !options.has("--pass") && !options.has("--check-grad");
  std::erase_if(cases, [&](const Case& c) {
    if (std::find(ops.begin(), ops.end(), c.op) == ops.end()) return true;
    if (options.has("--dtype") && std::find(dtypes.begin(), dtypes.end(), c.dtype) == dtypes.end()) return true;
    if (any_pass) return false;
    if (lacks_pass(*c.op, options.passes)) return true;
    const auto passes = parse_passes("--pass", *c.op, options.passes);
    return std::find(passes.begin(), passes.end(), c.pass) == passes.end();
  });
  for (Case& c : cases) {
    if (options.has("--seed")) c.seed = reseeded(options.seed, c.seed);
    if (options.has("--grad-seed")) c.grad_seed = reseeded(options.grad_seed, c.grad_seed);
  }
  return cases;
}

bool takes_all(const CandidateChoice& options) { return is_all(options.candidates); }

/// Whether the user named operators: then one without a kernel must not be passed over in silence.
bool names_operators(const CaseChoice& options) {
  const bool files = !options.cases.empty() || !options.suite.empty();
  return (!files || options.has("--op")) && !is_all(options.ops);
}

/// Whether every candidate of --candidate has a kernel for some operator, selected or not.
bool all_have_some_operator(const CandidateChoice& options, const WorkerInfo& known) {
  const WorkerInfo shipped = probe_candidates({}, {});
  const auto has = [](const WorkerInfo& info, const std::string& name) {
    return std::any_of(info.candidates.begin(), info.candidates.end(),
                       [&](const Candidate& candidate) { return candidate.name == name; });
  };
  return std::all_of(options.candidates.begin(), options.candidates.end(),
                     [&](const std::string& name) { return has(known, name) || has(shipped, name); });
}

/// "logp, matmul", or the number of many operators.
std::string words_of(const std::set<std::string>& ops) {
  constexpr size_t kMostNamed = 8;
  if (ops.size() > kMostNamed) return fmt::format("any of {} operators", ops.size());
  return fmt::to_string(fmt::join(ops, ", "));
}

/// A plugin without a kernel for the selected operators would be passed over in silence. Where --candidate names its
/// candidates, they are unsupported.
void require_use_of_plugins(const CandidateChoice& options, const WorkerInfo& known, const std::set<std::string>& ops) {
  if (!takes_all(options) || ops.empty()) return;
  for (const std::string& path : options.plugins) {
    std::set<std::string> others;
    for (const Candidate& candidate : known.candidates)
      if (candidate.path == path) others.insert(candidate.op);
    if (others.empty() || std::any_of(others.begin(), others.end(), [&](const auto& op) { return ops.contains(op); }))
      continue;
    throw InputError("--plugin", fmt::format("'{}' has no kernel for {}", path, words_of(ops)),
                     fmt::format("leave it out, or choose what it has with --op: {}", fmt::join(others, ", ")));
  }
}

/// The device on which the processes of --exec should compute; "auto" leaves the choice to them.
std::string external_device(const DeviceChoice& choice) {
  if (!choice.cuda) return "cpu";
  return choice.cpu ? "auto" : fmt::format("cuda:{}", choice.index);
}

/// The candidates of --exec and --exec-fd, with their names.
std::vector<ExternalCommand> external_commands(const CandidateChoice& options) {
  std::vector<ExternalCommand> commands;
  const std::string device = external_device(parse_device(options.device));
  for (size_t i = 0; i < options.external.size(); ++i) {
    commands.push_back({"", options.external[i], device});
    if (i < options.external_flags.size()) commands.back().given = options.external_flags[i];
  }
  if (options.external_descriptor) commands.push_back({"", "", device, "", *options.external_descriptor});
  for (size_t i = 0; i < commands.size(); ++i) {
    commands[i].name = i < options.external_names.size() ? options.external_names[i]
                       : i == 0                          ? "exec"
                                                         : fmt::format("exec{}", i + 1);
  }
  return commands;
}

/// The candidates' names in the order given. "all" stands for every candidate that runs on the chosen kinds of device.
/// Throws InputError for a candidate that no selected operator has, unless the user named operators and all candidates
/// have kernels for others.
std::vector<std::string> candidate_names(const RunOptions& options, const WorkerInfo& known, const DeviceChoice& choice,
                                         const std::set<std::string>& ops, const Selection& selection) {
  std::vector<std::string> available, usable;
  for (size_t i = 0; i < known.candidates.size(); ++i) {
    const Candidate& candidate = known.candidates[i];
    if (!ops.contains(candidate.op)) continue;
    if (std::find(available.begin(), available.end(), candidate.name) == available.end())
      available.push_back(candidate.name);
    const bool runs =
        selection.external.contains(candidate.name) ||
        (known.candidate_device[i] == CHECKOP_CPU ? choice.cpu : choice.cuda && known.cuda_devices > choice.index);
    if (runs && std::find(usable.begin(), usable.end(), candidate.name) == usable.end())
      usable.push_back(candidate.name);
  }
  if (ops.empty()) return options.candidates;  // there is no case
  const std::string of_ops = words_of(ops);
  if (available.empty())
    throw InputError("--candidate", fmt::format("there is none for {}", of_ops),
                     "add --plugin FILE or --exec COMMAND with one");
  if (takes_all(options)) return usable;
  const auto is_available = [&](const std::string& name) {
    return std::find(available.begin(), available.end(), name) != available.end();
  };
  const bool none_has_a_kernel = names_operators(options) &&
                                 std::none_of(options.candidates.begin(), options.candidates.end(), is_available) &&
                                 all_have_some_operator(options, known);
  std::vector<std::string> named;
  for (const std::string& name : options.candidates) {
    if (none_has_a_kernel || is_available(name)) {
      if (std::find(named.begin(), named.end(), name) == named.end()) named.push_back(name);
      continue;
    }
    for (const ExternalCommand& command : external_commands(options)) available.push_back(command.name);
    const std::string nearest = did_you_mean(name, available);
    const bool lacks_cuda = !built_with_cuda() && (name.starts_with("cuda") || name.starts_with("cublas"));
    throw InputError(
        "--candidate", fmt::format("no candidate '{}' for {}", name, of_ops),
        lacks_cuda ? "this program was built without CUDA; configure with 'cmake --preset cuda'"
                   : fmt::format("{}{}known: {}", nearest, nearest.empty() ? "" : " ", fmt::join(available, ", ")));
  }
  return named;
}

/// Throws InputError unless every command has a unique name that no candidate of `known` has.
void check_external_names(const CandidateChoice& options, const WorkerInfo& known) {
  const std::vector<ExternalCommand> commands = external_commands(options);
  if (options.external_names.size() > commands.size()) {
    throw InputError("--exec-name",
                     fmt::format("{} names for {} commands", options.external_names.size(), commands.size()),
                     "give one name for each --exec, in their order");
  }
  std::set<std::string> taken;
  for (const Candidate& candidate : known.candidates) taken.insert(candidate.name);
  for (const ExternalCommand& command : commands) {
    const std::string& name = command.name;
    if (!is_candidate_name(name))
      throw InputError("--exec-name", fmt::format("'{}' is no candidate name", name), kCandidateNameHint);
    if (!taken.insert(name).second)
      throw InputError("--exec-name", fmt::format("there is a candidate '{}' already", name), "choose another");
  }
}

/// Starts the requested commands of --exec, which can't read the files `hidden`, and asks the socket of --exec-fd; adds
/// their candidates to `known`.
void start_external(const CandidateChoice& options, const std::vector<std::string>& hidden, WorkerInfo& known,
                    Selection& selection) {
  for (ExternalCommand& command : external_commands(options)) {
    command.hidden = hidden;
    const std::string& name = command.name;
    const auto& wanted = options.candidates;
    if (!takes_all(options) && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    auto worker = std::make_shared<Worker>(WorkerConfig{{}, "cpu", false, command});
    const WorkerInfo& info = worker->info();
    known.candidates.insert(known.candidates.end(), info.candidates.begin(), info.candidates.end());
    known.candidate_device.insert(known.candidate_device.end(), info.candidate_device.begin(),
                                  info.candidate_device.end());
    selection.external[name] = std::move(worker);
  }
}

/// Whether the machine's devices matter. Commands of --exec find their own.
bool needs_devices(const RunOptions& options) {
  std::set<std::string> external;
  for (const ExternalCommand& command : external_commands(options)) external.insert(command.name);
  return takes_all(options) || !std::all_of(options.candidates.begin(), options.candidates.end(),
                                            [&](const std::string& name) { return external.contains(name); });
}

bool knows_operator(const WorkerInfo& known, const std::string& name, const Operator& op) {
  return std::any_of(known.candidates.begin(), known.candidates.end(),
                     [&](const Candidate& each) { return each.name == name && each.op == op.name; });
}

/// The kernel of candidate `name` for the case's operator and pass, and the device that it will run on.
ChosenCandidate choose(const CandidateChoice& options, const WorkerInfo& known, const DeviceChoice& choice,
                       const std::string& name, const Case& c) {
  ChosenCandidate chosen;
  chosen.name = name;
  chosen.device = choice.cpu ? "cpu" : fmt::format("cuda:{}", choice.index);
  for (size_t i = 0; i < known.candidates.size(); ++i) {
    const Candidate& candidate = known.candidates[i];
    if (candidate.name != name || candidate.op != c.op->name || candidate.pass != c.pass->name) continue;
    chosen.plugin_path = candidate.path;
    chosen.plugin_digest = candidate.digest;
    chosen.recipes = candidate.recipes;
    chosen.has_kernel = true;
    if (options.device == "auto" && known.candidate_device[i] == CHECKOP_CUDA) chosen.device = "cuda:0";
  }
  return chosen;
}

/// Removes checks whose candidate has no kernel for them. If no candidate has a kernel for a pass of an operator that
/// the user named, one check of the pass stays, to say so in the report.
void keep_what_has_a_kernel(const RunOptions& options, std::vector<Check>& checks) {
  using Asked = std::pair<const Operator*, const Pass*>;
  const bool named = names_operators(options);
  std::set<Asked> answered;
  std::map<Asked, std::vector<std::string>> lacking;  // candidates
  for (const Check& check : checks) {
    const Asked asked{check.c.op, check.c.pass};
    if (check.candidate.has_kernel) answered.insert(asked);
    const std::string name = fmt::format("'{}'", check.candidate.name);
    std::vector<std::string>& names = lacking[asked];
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  std::erase_if(checks, [&](Check& check) {
    if (check.candidate.has_kernel) return false;
    const Asked asked{check.c.op, check.c.pass};
    if (!named || !answered.insert(asked).second) return true;
    const std::vector<std::string>& names = lacking[asked];
    check.candidate.no_kernel =
        fmt::format("{}{} has {} kernel for {}/{}", names.size() > 1 ? "none of " : "", fmt::join(names, ", "),
                    names.size() > 1 ? "a" : "no", check.c.op->name, check.c.pass->name);
    return false;
  });
}

}  // namespace

std::vector<std::string> Selection::plugins_of(const ChosenCandidate& candidate) const {
  std::vector<std::string> paths;
  for (const Check& check : checks) {
    const ChosenCandidate& other = check.candidate;
    if (other.name != candidate.name || other.device != candidate.device || other.plugin_path.empty()) continue;
    if (std::find(paths.begin(), paths.end(), other.plugin_path) == paths.end()) paths.push_back(other.plugin_path);
  }
  return paths;
}

std::string Selection::device_of(const Check& check) const {
  return external.contains(check.candidate.name) ? "cpu" : check.candidate.device;
}

std::vector<const Check*> Selection::checks_here() const {
  std::vector<const Check*> found;
  for (const Check& check : checks) {
    if (check.here) found.push_back(&check);
  }
  return found;
}

size_t Selection::candidate_count() const {
  std::set<std::string> names;
  for (const Check* check : checks_here()) names.insert(check->candidate.name);
  return names.size();
}

Contract load_contract(const RunOptions& options, const std::string& path) {
  if (options.arch_key != "auto" && options.arch_key != "none" && !is_known_arch(options.arch_key)) {
    const std::string nearest = did_you_mean(options.arch_key, all_archs());
    throw InputError(
        "--arch-key", fmt::format("unknown architecture '{}'", options.arch_key),
        fmt::format("{}{}use auto, none or one of {}", nearest, nearest.empty() ? "" : " or ", known_archs()));
  }
  Contract contract = Contract::load(path, today());
  contract.grant(options.recipes);
  return contract;
}

Contract load_contract(const RunOptions& options) {
  return load_contract(options, options.contract.empty() ? find_shipped("contracts/default.json") : options.contract);
}

std::string chosen_arch(const CandidateChoice& options) {
  return options.arch_key == "auto" || options.arch_key == "none" ? "" : options.arch_key;
}

std::string resolve_arch_key(const CandidateChoice& options, const DeviceInfo& device) {
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

std::chrono::milliseconds rank_limit(const RunOptions& options) {
  constexpr int kShare = 4;
  return std::chrono::milliseconds(std::chrono::seconds(options.timeout_s)) / kShare;
}

unsigned thread_count(const RunOptions& options) {
  constexpr unsigned kMost = 64;  // OpenBLAS supports at most this many callers at a time
  return std::min(kMost, options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency()));
}

std::string check_name(const Check& check) {
  return fmt::format("{}/{}/{}/{}", check.c.op->name, check.c.pass->name, check.candidate.name, case_name(check.c));
}

WorkerInfo probe_candidates(const std::vector<std::string>& ops, const std::vector<std::string>& plugins,
                            bool count_cuda_devices) {
  std::vector<std::string> paths = shipped_plugins(ops);
  paths.insert(paths.end(), plugins.begin(), plugins.end());
  return Worker({paths, "cpu", count_cuda_devices}).info();
}

std::vector<Case> select_cases(const RunOptions& options) {
  if (!options.inputs_file.empty()) return {case_of_own_data(options)};
  return options.cases.empty() && options.suite.empty() ? cases_of_flags(options) : cases_of_files(options);
}

Selection select_checks(const RunOptions& options) {
  const DeviceChoice choice = parse_device(options.device);
  const std::vector<Case> cases = select_cases(options);
  std::set<std::string> ops;
  for (const Case& c : cases) ops.emplace(c.op->name);
  WorkerInfo known = probe_candidates({ops.begin(), ops.end()}, options.plugins, choice.cuda);
  require_use_of_plugins(options, known, ops);
  check_external_names(options, known);
  if (needs_devices(options)) require_devices(options, choice, known.cuda_devices);
  Selection selection;
  const std::vector<std::string> expected =
      options.gold_file.empty() ? std::vector<std::string>() : std::vector<std::string>{options.gold_file};
  start_external(options, expected, known, selection);
  std::vector<std::string> left_out;  // names of checks that --filter does not match
  for (const std::string& name : candidate_names(options, known, choice, ops, selection)) {
    for (size_t number = 0; number < cases.size(); ++number) {
      const Case& c = cases[number];
      Check check{c, choose(options, known, choice, name, c), number};
      // `all` skips candidates that don't know the operator.
      if (takes_all(options) && !knows_operator(known, name, *c.op)) continue;
      const bool no_gpu =
          check.candidate.device != "cpu" && known.cuda_devices == 0 && !selection.external.contains(name);
      if (takes_all(options) && no_gpu) continue;
      if (options.filter.empty() || fnmatch(options.filter.c_str(), check_name(check).c_str(), 0) == 0) {
        if (no_gpu) {
          throw EnvironmentError(fmt::format(
              "--candidate {}: needs a CUDA device and none was found; run on a machine with a GPU and its driver",
              name));
        }
        selection.checks.push_back(std::move(check));
      } else {
        left_out.push_back(check_name(check));
      }
    }
  }
  if (cases.empty()) {
    selection.why_empty = "no case of the files fits --suite, --op, --pass and --dtype";
  } else if (selection.checks.empty() && !left_out.empty()) {
    selection.why_empty = fmt::format("--filter: '{}' matches none of {} checks, such as {}; '*' stands for any text",
                                      options.filter, left_out.size(), left_out.front());
  }
  keep_what_has_a_kernel(options, selection.checks);
  if (options.total_shards) deal_cases(selection.checks, *options.shard_index, *options.total_shards);
  // If time ends the run early, shuffling gives every operator its share.
  if (options.shuffle || options.for_s) shuffle_checks(selection.checks, options.shuffle.value_or(options.seed));
  return selection;
}

}  // namespace checkop
