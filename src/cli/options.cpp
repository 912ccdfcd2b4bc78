// SPDX-License-Identifier: Apache-2.0
// The command line.
#include "cli/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <random>
#include <set>

#include "abi/check_operator.h"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/version.hpp"
#include "cli/completion.hpp"
#include "cli/flags.hpp"
#include "cli/python.hpp"
#include "run/bench.hpp"

namespace checkop {
namespace {

/// The default of some subcommands: every operator, pass and dtype.
void take_all(RunOptions& run) {
  if (!run.has("--op")) run.ops = {"all"};
  if (!run.has("--dtype")) run.dtypes = {"all"};
  if (!run.has("--pass") && !run.has("--check-grad")) run.passes = {"all"};
}

/// The default of subcommands with a suite of their own: every operator, pass and dtype in its cases.
void take_suite(RunOptions& run, const std::string& suite) {
  take_all(run);
  if (run.given_case_flags.empty() && !run.has("--cases") && !run.has("--suite")) run.suite = suite;
}

/// CLI11 takes "-1" for a flag: "--batch -1" becomes "--batch=-1", so that the value is judged as a value.
std::vector<std::string> join_negative_values(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool negative = argument.size() > 1 && argument[0] == '-' &&
                          (std::isdigit(static_cast<unsigned char>(argument[1])) != 0 || argument[1] == '.');
    if (negative && !arguments.empty() && arguments.back().starts_with("--") &&
        arguments.back().find('=') == std::string::npos) {
      arguments.back() += "=" + argument;
    } else {
      arguments.push_back(argument);
    }
  }
  return arguments;
}

/// Notes which flags were given, so that flags without effect can be refused.
void note_given(const CLI::App& app, RunOptions& run) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = "--" + option->get_single_name();
    run.given.insert(name);
    const std::string& group = option->get_group();
    // Seeds apply to cases of files, too.
    const bool is_seed = name == "--seed" || name == "--grad-seed" || name == "--secret-seed";
    if ((group == "Sizes" || group == "Attributes" || group == "Data") && !is_seed)
      run.given_case_flags.push_back(name);
  }
}

/// Draws the seeds of --secret-seed, which then count as given. They have 53 bits, so that readers of the JSON report
/// that keep numbers as doubles have them exactly.
void draw_seeds(RunOptions& run) {
  if (!run.secret_seed) return;
  for (const char* flag : {"--seed", "--grad-seed", "--inputs", "--replay"}) {
    if (run.has(flag)) throw InputError(flag, "cannot be combined with --secret-seed", "leave out one of them");
  }
  std::random_device random;  // the system's, as getrandom()
  constexpr int kBits = 53;
  const auto draw = [&] { return (uint64_t{random()} << 32 | random()) >> (64 - kBits); };
  const auto give = [&](const char* flag, uint64_t& seed) {
    seed = draw();
    run.given.insert(flag);
    for (std::vector<std::string>* flags : {&run.check_flags, &run.shard_flags})
      flags->push_back(fmt::format("{}={}", flag, seed));
  };
  give("--seed", run.seed);
  if (!run.random_cases) give("--grad-seed", run.grad_seed);
}

/// Refuses flags about own data that have no effect, and flags that make cases if --inputs gives the case.
void refuse_idle_flags_of_files(const RunOptions& run) {
  const auto refuse_without = [&](const std::string& flag, const std::string& other, const std::string& hint) {
    if (run.has(flag) && !run.has(other)) throw InputError(flag, "has no effect without " + other, hint);
  };
  refuse_without("--gold", "--inputs", "add --inputs FILE");
  refuse_without("--class", "--gold", "leave it out: the operator says what its outputs are");
  refuse_without("--terms", "--class", "leave it out: the operator says how long its sums are");
  if (!run.has("--inputs")) return;
  for (const char* flag :
       {"--cases", "--suite", "--preset", "--with", "--input-mode", "--constant-value", "--token-value",
        "--ignored-every", "--ignored-run", "--seed", "--grad-mode", "--grad-seed", "--input", "--random-cases"}) {
    if (run.has(flag)) throw InputError(flag, "has no effect on a case that --inputs gives", "leave it out");
  }
  if (!run.dims.empty())
    throw InputError("--" + run.dims.begin()->first, "has no effect on a case that --inputs gives", "leave it out");
  if (run.has("--gold") && run.has("--gold-rows"))
    throw InputError("--gold-rows", "has no effect on a gold that --gold gives", "leave it out");
  if (run.has("--gold") && run.has("--save-tensors"))
    throw InputError("--save-tensors",
                     "cannot be combined with --gold: it saves magnitudes too, which a gold file may lack",
                     "leave it out, or leave out --gold");
}

/// The given flags that say which checks to make and how, as arguments for another run of this program. Leaves out
/// `others`.
std::vector<std::string> flags_besides(const CLI::App& app, const std::set<std::string>& others) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = "--" + option->get_single_name();
    if (option->count() == 0 || others.contains(name) || option->get_group() == "Reports") continue;
    if (option->get_expected_max() == 0) {
      flags.push_back(name);
      continue;
    }
    for (const std::string& value : option->results()) flags.push_back(fmt::format("{}={}", name, value));
  }
  return flags;
}

/// Refuses flags that have no effect without another flag, or beside one.
void refuse_idle_flags(const RunOptions& run) {
  const auto refuse = [](const std::string& flag, const std::string& why, const std::string& hint) {
    throw InputError(flag, why, hint);
  };
  const bool files = run.has("--cases") || run.has("--suite");
  if (files && !run.given_case_flags.empty()) {
    refuse(run.given_case_flags.front(), "has no effect on cases that come from files",
           "leave it out, or leave out --cases and --suite");
  }
  if (run.for_s && !run.random_cases)
    refuse("--for", "has no effect without --random-cases", "add it, or leave the time out");
  if (run.for_s && run.total_shards)
    refuse("--for", "cannot be combined with --total-shards: all shards must select the same checks, whatever the time",
           "leave out one of them");
  if (run.for_s && run.has("--sanitize"))
    refuse("--for", "cannot be combined with --sanitize, which repeats a fixed list of checks",
           "leave out one of them");
  if (run.for_s && std::find(run.checks.begin(), run.checks.end(), "invariance") != run.checks.end())
    refuse("--for", "cannot be combined with --check invariance, which examines every case before the first check",
           "leave out one of them");
  for (const char* flag : {"--preset", "--shard-bounds", "--grad-seed"}) {
    const bool takes_presets = run.model_sizes && flag == std::string_view("--preset");
    if (run.random_cases && run.has(flag) && !takes_presets)
      refuse(flag, "has no effect beside --random-cases", "leave out one of them");
  }
  for (const char* flag : {"--constant-value", "--token-value"}) {
    if (run.has(flag) && run.input_mode != "constant") {
      refuse(flag, "has no effect without --input-mode constant", "add it, or leave the value out");
    }
  }
  std::set<std::string> files_written{run.json_file};
  for (const ReportForm& form : report_forms()) {
    const auto file = run.forms.find(form.flag);
    if (file != run.forms.end() && !files_written.insert(file->second).second)
      refuse(form.flag, fmt::format("another report goes to '{}' too", file->second), "give each a file of its own");
  }
  if (run.has("--exec-name") && !run.has("--exec") && !run.has("--exec-fd") && !run.has("--py") &&
      !run.has("--torch-op"))
    refuse("--exec-name", "has no effect alone", "add --exec COMMAND");
  if (run.has("--exec-fd") && run.has("--sanitize"))
    refuse("--exec-fd", "cannot be combined with --sanitize, which starts the candidate in a process of its own",
           "use --exec COMMAND");
  if (run.has("--save") && !run.has("--save-tensors"))
    refuse("--save", "has no effect alone", "add --save-tensors DIR");
  for (const auto& [flag, other] :
       {std::pair("--shard-index", "--total-shards"), {"--total-shards", "--shard-index"}}) {
    if (run.has(flag) && !run.has(other))
      refuse(flag, fmt::format("has no effect without {}", other), fmt::format("add {}", other));
  }
  if (run.no_isolate && run.has("--timeout-s"))
    refuse("--timeout-s", "has no effect with --no-isolate: this process cannot stop itself", "leave one of them out");
  if (!run.has("--replay")) return;
  std::set<std::string> useful{"--replay", "--contract",  "--arch-key", "--force-arch-key", "--json",
                               "--github", "--no-github", "--color",    "--threads"};
  for (const ReportForm& form : report_forms()) useful.insert(form.flag);
  for (const std::string& flag : run.given) {
    if (!useful.contains(flag)) refuse(flag, "has no effect with --replay, which runs nothing", "leave it out");
  }
}

void require_one_of(const std::string& flag, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    const std::string nearest = did_you_mean(value, known);
    throw InputError(flag, fmt::format("unknown value '{}'", value),
                     fmt::format("{}{}known: {}", nearest, nearest.empty() ? "" : " ", fmt::join(known, ", ")));
  }
}

/// The subcommand that was reached.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* reached = &app;
  while (!reached->get_subcommands().empty()) reached = reached->get_subcommands().front();
  return *reached;
}

/// "see 'check_operator bench --help'", for the given subcommand.
std::string see_help(const CLI::App& app) {
  std::string command = app.get_name();
  for (const CLI::App* reached = &app; !reached->get_subcommands().empty();) {
    reached = reached->get_subcommands().front();
    command += " " + reached->get_name();
  }
  return fmt::format("see '{} --help'", command);
}

/// The text of CLI11's error. For a missing argument it names the argument.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    for (const CLI::Option* option : innermost(app).get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      return option->get_positional() ? fmt::format("argument '{}' is missing", option->get_name(true))
                                      : fmt::format("{} is missing", option->get_name());
    }
  }
  constexpr std::string_view begin = "Could not convert: ";
  std::string what = error.what();
  const size_t equals = what.find(" = ");
  if (!what.starts_with(begin) || equals == std::string::npos) return what;
  return fmt::format("{}: '{}' is not a number that it takes", what.substr(begin.size(), equals - begin.size()),
                     what.substr(equals + 3));
}

/// Throws InputError for the first argument that is no known flag, subcommand or value.
[[noreturn]] void refuse_extra(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  const std::string extra = extras.empty() ? "" : extras.front(), name = extra.substr(0, extra.find('='));
  const CLI::App& reached = innermost(app);
  std::vector<std::string> known;
  const bool is_flag = name.starts_with("-");
  for (const CLI::Option* option : reached.get_options()) {
    for (const std::string& flag : option->get_lnames()) {
      if (is_flag) known.push_back("--" + flag);
    }
  }
  for (const CLI::App* command : reached.get_subcommands({})) {
    if (!is_flag) known.push_back(command->get_name());
  }
  const std::string nearest = did_you_mean(name, known);
  throw InputError("command line", fmt::format("unknown {} '{}'", is_flag ? "flag" : "argument", name),
                   nearest.empty() ? see_help(app) : nearest);
}

}  // namespace

const std::vector<std::string>& class_names() {
  static const std::vector<std::string> kNames{"pointwise", "reduction", "contraction",
                                               "logprob",   "composite", "exact"};
  return kNames;
}

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app{
      "check_operator tells whether a GPU operator can be trusted: it runs candidates on deterministic inputs, "
      "compares every\n"
      "element with an FP64 gold under a tolerance contract, and checks memory, determinism and batch invariance.\n"
      "Exit codes: 0 passed, 1 a check failed, 2 bad input, 3 nothing checked or unsupported, 4 a candidate crashed or "
      "hung, 5 a device, compute-sanitizer or disk space is missing.",
      "check_operator"};
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(0, 1);
  add_run_options(app, options.run);
  // Only subcommands that the command line may mean get their flags: CLI11 compares each new flag with all others.
  const std::set<std::string_view> words(argv + 1, argv + argc);
  const bool wants_all = words.contains("completion");
  const auto add = [&](CLI::App& parent, const char* name, const char* description, const auto& add_flags) {
    CLI::App* const command = parent.add_subcommand(name, description);
    if (wants_all || words.contains(name)) add_flags(*command);
    return command;
  };
  RunOptions& of_run = options.run;
  add(app, "run", "run checks (the default)", [&](CLI::App& to) { add_run_options(to, of_run); });
  const CLI::App* bench = add(app, "bench", "time candidates against each other and the device's copy bandwidth",
                              [&](CLI::App& to) { add_bench_options(to, of_run, options.bench); });
  const CLI::App* mutate =
      add(app, "mutate", "test a contract: it must accept right computations and reject planted faults; needs no GPU",
          [&](CLI::App& to) { add_mutate_options(to, of_run, options.mutate); });
  const CLI::App* recipe =
      add(app, "recipe", "find out where candidates round: the smallest set of recipes by which each output passes",
          [&](CLI::App& to) { add_recipe_options(to, of_run); });
  const CLI::App* init = add(app, "init", "write a plugin project for rms_norm that builds and passes",
                             [&](CLI::App& to) { add_init_options(to, options.init); });
  const CLI::App* doctor = add(app, "doctor", "show what this machine and this build have, and what is missing",
                               [&](CLI::App& to) { add_doctor_options(to, of_run); });
  const CLI::App* list = add(app, "list", "list operators, their passes and candidates, and presets",
                             [&](CLI::App& to) { add_list_options(to, of_run); });
  const CLI::App* show = add(app, "show", "show an operator: formula, tensors, attributes, candidates",
                             [&](CLI::App& to) { add_show_options(to, of_run, options.show_op); });
  CLI::App* contract = app.add_subcommand("contract", "explain, check, compare and calibrate contracts");
  contract->require_subcommand(1);
  const CLI::App* explain =
      add(*contract, "explain", "show every limit that applies to a case, and the rule it comes from",
          [&](CLI::App& to) { add_explain_options(to, of_run); });
  const CLI::App* lint =
      add(*contract, "lint", "find entries that have expired or have no effect; exits with 1 if there are any",
          [&](CLI::App& to) { add_lint_options(to, of_run, options.contracts); });
  const CLI::App* diff = add(*contract, "diff", "show how two contracts differ; exits with 1 if they do",
                             [&](CLI::App& to) { add_diff_options(to, options); });
  const CLI::App* calibrate =
      add(*contract, "calibrate", "measure how far candidates stay within the limits, and suggest limits",
          [&](CLI::App& to) { add_calibrate_options(to, of_run); });
  CLI::App* report = add(app, "report", "convert, compare and merge JSON reports",
                         [&](CLI::App& to) { add_report_options(to, options.report); });
  report->require_subcommand(0, 1);
  const CLI::App* report_diff =
      add(*report, "diff",
          "show what broke and which headroom was lost between two reports; exits with 1 if the later one is worse",
          [&](CLI::App& to) { add_report_diff_options(to, options.report); });
  const CLI::App* report_merge =
      add(*report, "merge", "merge the reports of all shards of a run; exits as the whole run would have",
          [&](CLI::App& to) { add_report_merge_options(to, options); });
  const CLI::App* certify =
      add(app, "certify", "certify that a candidate is deterministic and batch-invariant bit for bit",
          [&](CLI::App& to) { add_certify_options(to, of_run, options.certificate); });
  const CLI::App* verify = add(app, "verify", "verify a certificate on this machine, or compare two",
                               [&](CLI::App& to) { add_verify_options(to, of_run, options.certificate); });
  const CLI::App* compare = add(app, "compare", "judge the tensors of one file, with those of another as their gold",
                                [&](CLI::App& to) { add_compare_options(to, of_run, options.compare); });
  CLI::App* import_definition = app.add_subcommand(
      "import", "check solutions of a FlashInfer-Bench or SOL-ExecBench definition; see 'import --help'");
  import_definition->prefix_command();
  import_definition->set_help_flag();  // the program in Python explains itself
  std::string shell;
  CLI::App* completion =
      app.add_subcommand("completion", "print a script that completes check_operator's command line in a shell");
  completion->add_option("shell", shell, "shell: bash or zsh")->required();
  app.footer(
      "Examples:\n"
      "  check_operator --op logp --candidate native --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17\n"
      "  check_operator --op all --dtype fp32,bf16,fp16 --check-grad --json report.json\n"
      "  check_operator bench --op logp --candidate native,mine --plugin ./mine.so --device cpu --baseline native\n"
      "  check_operator init my_op my_op_project\n"
      "  check_operator mutate --op logp --contract mine.json\n"
      "  check_operator recipe --op attention --candidate mine --plugin ./mine.so\n"
      "  check_operator contract explain --op logp --dtype bf16 --arch-key sm90\n"
      "  check_operator compare mine.safetensors gold.safetensors --contract contracts/rl_kernel.json --class logprob\n"
      "  check_operator report diff main.json mine.json\n"
      "  check_operator --suite ci --shard-index 0 --total-shards 4 --json 0.json\n"
      "  check_operator report merge 0.json 1.json 2.json 3.json --json ci.json\n"
      "  check_operator --op rms_norm --check-grad --exec 'python3 mine.py' --candidate exec\n"
      "  check_operator --py my_kernels --dtype bf16\n"
      "  check_operator import rmsnorm.json --workload rmsnorm.jsonl --solution mine.json\n"
      "  check_operator certify --op det_gemm --candidate native --device cpu --out native.json\n"
      "  check_operator --op logp --candidate mine --plugin ./mine.so --device cuda --dtype bf16 --vocab 151936");

  std::vector<std::string> arguments = join_negative_values(argc, argv);
  std::vector<std::string> quoted{"check_operator"};
  for (int i = 1; i < argc; ++i) quoted.emplace_back(argv[i]);
  options.command_line = quote_command(quoted);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants its vector
  try {
    app.parse(arguments);
  } catch (const CLI::Success& e) {  // --help, --version
    // With --json, the versions that the Python package compares with its own.
    if (e.get_name() == "CallForVersion" && std::find(argv, argv + argc, std::string_view("--json")) != argv + argc) {
      fmt::print("{{\"version\": \"{}\", \"abi\": {}, \"protocols\": [1, 2]}}\n", kVersion, CHECKOP_ABI_VERSION);
    } else {
      app.exit(e);
    }
    return {};
  } catch (const CLI::ParseError& e) {
    if (!app.remaining(true).empty()) refuse_extra(app);
    throw InputError("command line", describe(e, app), see_help(app));
  }
  if (bench->parsed()) {
    options.command = Command::bench;
    options.run.model_sizes = true;
  }
  if (mutate->parsed()) options.command = Command::mutate;
  if (recipe->parsed()) options.command = Command::recipe;
  if (init->parsed()) options.command = Command::init;
  if (compare->parsed()) options.command = Command::compare;
  if (doctor->parsed()) options.command = Command::doctor;
  if (list->parsed()) options.command = Command::list;
  if (show->parsed()) options.command = Command::show;
  if (explain->parsed()) options.command = Command::explain;
  if (lint->parsed()) options.command = Command::lint;
  if (diff->parsed()) options.command = Command::diff;
  if (calibrate->parsed()) options.command = Command::calibrate;
  if (report->parsed()) options.command = Command::report;
  if (report_diff->parsed()) options.command = Command::report_diff;
  if (report_merge->parsed()) options.command = Command::report_merge;
  if (certify->parsed()) options.command = Command::certify;
  if (verify->parsed()) options.command = Command::verify;
  if (import_definition->parsed()) {
    options.command = Command::import_definition;
    options.import_arguments = import_definition->remaining();
  }
  if (completion->parsed()) {
    options.command = Command::completion;
    require_one_of("completion", shell, {"bash", "zsh"});
    options.completion = completion_script(app, shell);
  }
  note_given(innermost(app), options.run);
  options.run.check_flags = flags_besides(innermost(app), {"--sanitize", "--max-skip", "--secret-seed"});
  options.run.shard_flags =
      flags_besides(innermost(app), {"--shard-index", "--total-shards", "--threads", "--secret-seed"});
  draw_seeds(options.run);
  refuse_idle_flags(options.run);
  serve_python_candidates(options.run);
  if (!compare->parsed()) refuse_idle_flags_of_files(options.run);
  if (mutate->parsed() || lint->parsed()) take_suite(options.run, "mutation");
  if (recipe->parsed()) take_suite(options.run, "smoke");
  if (diff->parsed()) take_all(options.run);
  require_one_of("--color", options.run.color, {"auto", "always", "never"});
  if (compare->parsed() && options.run.numerics.empty())
    throw InputError("--class", "is needed to select the rules that judge the tensors",
                     "add --class reduction, or another");
  if (compare->parsed()) require_one_of("--pass", options.run.passes.front(), {"forward", "backward"});
  if (!options.run.numerics.empty()) require_one_of("--class", options.run.numerics, class_names());
  if (options.run.terms < 1)
    throw InputError("--terms", fmt::format("expected 1 or more, got {}", options.run.terms), "give a number of terms");
  require_one_of("--save", options.run.save_which, {"incorrect", "all"});
  for (const std::string& check : options.run.checks) {
    require_one_of("--check", check, {"accuracy", "invariance", "determinism", "memory"});
  }
  for (const std::string& tool : options.run.sanitizers) {
    require_one_of("--sanitize", tool, {"memcheck", "racecheck", "initcheck", "synccheck"});
  }
  if (const auto total = options.run.total_shards) {
    if (*total < 1)
      throw InputError("--total-shards", fmt::format("expected 1 or more, got {}", *total), "give a number of shards");
    if (const int64_t index = options.run.shard_index.value(); index < 0 || index >= *total)
      throw InputError("--shard-index", fmt::format("expected 0 to {}, got {}", *total - 1, index),
                       fmt::format("there are {} shards, counted from 0", *total));
  }
  if (const auto count = options.run.random_cases; count && *count < 1)
    throw InputError("--random-cases", fmt::format("expected 1 or more, got {}", *count), "give a number of cases");
  if (options.run.for_s.value_or(1) < 1)
    throw InputError("--for", fmt::format("expected 1 second or more, got {}", *options.run.for_s), "give a time");
  for (const std::string& timing : options.bench.timings) {
    require_one_of("--timing", timing, {"burst", "sustained"});
  }
  constexpr int64_t kMostRepeats = 10000;
  if (options.bench.repeats < kLeastRepeats || options.bench.repeats > kMostRepeats) {
    throw InputError("--repeats",
                     fmt::format("expected {} to {}, got {}", kLeastRepeats, kMostRepeats, options.bench.repeats),
                     "fewer could not tell a difference from noise");
  }
  constexpr int64_t kMostSeeds = 1000;
  if (options.mutate.seeds < 1 || options.mutate.seeds > kMostSeeds)
    throw InputError("--seeds", fmt::format("expected 1 to {}, got {}", kMostSeeds, options.mutate.seeds),
                     "give a number of seeds");
  if (!(options.mutate.min_kill >= 0 && options.mutate.min_kill <= 1))
    throw InputError("--min-kill", fmt::format("expected 0 to 1, got {}", options.mutate.min_kill),
                     "give a share of the faults");
  if (options.command == Command::show && options.show_op.empty() && !options.run.has("--json"))
    throw InputError("show", "no operator is named",
                     "name one, see 'check_operator list'; with --json, none means all");
  if (options.command == Command::report && options.report.file.empty())
    throw InputError("report", "no report is named",
                     "use 'check_operator report FILE', 'report diff OLD NEW' or 'report merge FILE...'");
  if (!(options.report.factor >= 1 && options.report.factor <= 1e6))
    throw InputError("--factor", fmt::format("expected 1 to 1e6, got {}", options.report.factor), "give a factor");
  constexpr int64_t kLongest = 30 * 24 * 3600;
  if (options.run.timeout_s < 1 || options.run.timeout_s > kLongest)
    throw InputError("--timeout-s", fmt::format("expected 1 to {} seconds, got {}", kLongest, options.run.timeout_s),
                     "give a number of seconds");
  return options;
}

}  // namespace checkop
