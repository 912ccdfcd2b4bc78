// SPDX-License-Identifier: Apache-2.0
// The command line.
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "bench.hpp"
#include "case.hpp"
#include "error.hpp"
#include "version.hpp"

namespace checkop {
namespace {

std::string flag_of(std::string_view name) {
  std::string flag = fmt::format("--{}", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// A flag that takes names: a comma list, may be repeated.
void add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names, const std::string& help) {
  app.add_option(flag, names, help)->delimiter(',')->capture_default_str();
}

void add_sizes(CLI::App& app, RunOptions& run) {
  std::set<std::string_view> known;
  for (const Operator* op : operators()) {
    for (const std::string_view dim : dims_of(*op)) known.insert(dim);
  }
  for (const std::string_view dim : known) {
    // --normalized-dim is the seed's name for the hidden size.
    const std::string flags = dim == "hidden" ? "--hidden,--normalized-dim" : flag_of(dim);
    app.add_option_function<std::string>(
           flags, [&run, dim](const std::string& sizes) { run.dims[std::string(dim)] = sizes; },
           fmt::format("size of {}: 7, a list 1,7,64 or a range 1:4096:x2", dim))
        ->group("Sizes");
  }
  app.add_option_function<std::vector<std::string>>(
         "--dim",
         [&run](const std::vector<std::string>& settings) {
           for (const std::string& setting : settings) {
             const size_t equals = setting.find('=');
             if (equals == std::string::npos) {
               throw InputError("--dim", fmt::format("expected NAME=VALUES, got '{}'", setting),
                                "write --dim vocab=257");
             }
             run.dims[setting.substr(0, equals)] = setting.substr(equals + 1);
           }
         },
         "NAME=VALUES: any dimension by its name")
      ->group("Sizes");
}

void add_attributes(CLI::App& app, RunOptions& run) {
  std::set<std::string_view> seen;
  for (const Operator* op : operators()) {
    for (const AttrSpec& attr : op->attrs) {
      if (!seen.insert(attr.name).second) continue;
      app.add_option_function<double>(
             flag_of(attr.name), [&run, &attr](double value) { run.attrs[std::string(attr.name)] = value; },
             std::string(attr.meaning))
          ->group("Attributes");
    }
  }
}

/// What chooses candidates, and where they run.
void add_candidate_options(CLI::App& app, RunOptions& run) {
  add_names(app, "--candidate", run.candidates, "candidates, or all that run on the device");
  app.add_option("--device", run.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--plugin", run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  app.add_option("--timeout-s", run.timeout_s, "per case, in seconds")->capture_default_str();
}

/// What chooses cases.
void add_case_options(CLI::App& app, RunOptions& run) {
  add_names(app, "--op", run.ops, "operators, or all");
  add_names(app, "--dtype", run.dtypes, "fp32, bf16, fp16, fp64, or all (the first three)");
  add_names(app, "--pass", run.passes, "forward, backward, or all");
  app.add_flag_callback(
      "--check-grad",
      [&run] {
        run.passes = {"forward", "backward"};
      },
      "forward and backward");
  app.add_option("--preset", run.presets, "sizes of models, or all; sizes and attributes that are given win")
      ->delimiter(',')
      ->group("Sizes");
  add_sizes(app, run);
  add_attributes(app, run);
  add_names(app, "--with", run.with, "optional inputs: none, or names joined by +; a list sweeps them");
  app.get_option("--with")->group("Data");

  app.add_option("--input-mode", run.input_mode, "random, constant, integer, peaked or extreme")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--constant-value", run.constant_value, "of --input-mode constant")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--token-value", run.token_value, "id of --input-mode constant")->capture_default_str()->group("Data");
  app.add_option("--ignored-every", run.ignored_every,
                 "operators with ignore_index: one row in so many has it as its id; 0: none, 1: all")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--seed", run.seed, "of all inputs")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Data");
  app.add_option("--grad-mode", run.grad_mode, "upstream gradients: random or ones")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--grad-seed", run.grad_seed, "of the upstream gradients")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Data");

  app.add_option("--cases", run.cases, "case files or folders in place of --op and sizes")->group("Selection");
  app.add_option("--suite", run.suite, "a suite of the case files: smoke, ci, nightly, large")->group("Selection");
  app.add_option("--threads", run.threads, "of the gold and the generator; 0: one per core")->capture_default_str();
}

void add_json_option(CLI::App& app, RunOptions& run, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         "--json",
         [&run](const std::vector<std::string>& file) {
           if (file.empty() || file.front().empty()) {
             run.json_to_stdout = true;
           } else {
             run.json_file = file.front();
           }
         },
         help)
      ->expected(0, 1)
      ->type_name("[FILE]")
      ->group("Reports");
}

/// Which of the chosen checks.
void add_selection_options(CLI::App& app, RunOptions& run) {
  app.add_option("--filter", run.filter, "a glob on OP/PASS/CANDIDATE/CASE_NAME")->group("Selection");
  app.add_flag("--list", run.list, "print the selected checks with the size of their tensors, and stop")
      ->group("Selection");
}

void add_contract_options(CLI::App& app, RunOptions& run) {
  app.add_option("--arch-key", run.arch_key, "contract overlays: auto (the device's), none, or a key such as sm90")
      ->capture_default_str()
      ->group("Judging");
  app.add_option("--contract", run.contract, "tolerances; the shipped contracts/default.json otherwise")
      ->group("Judging");
}

void add_run_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  add_selection_options(app, run);
  add_contract_options(app, run);
  app.add_flag("--force-arch-key", run.force_arch_key, "take --arch-key although the device is another")
      ->group("Judging");
  add_names(app, "--check", run.checks, "accuracy, invariance, determinism, memory; all otherwise");
  app.get_option("--check")->group("Judging");
  app.add_option("--gold-rows", run.gold_rows,
                 "rows of each output that the gold computes: all, or a number; as the "
                 "contract says otherwise")
      ->type_name("all|N")
      ->group("Judging");
  add_json_option(app, run, "the report as JSON to FILE, or in place of the text");
  app.add_option("--save-tensors", run.save_folder, "write cases as safetensors files")
      ->type_name("DIR")
      ->group("Reports");
  app.add_option("--save", run.save_which, "which cases: incorrect or all")->capture_default_str()->group("Reports");
  app.add_option("--replay", run.replay, "judge the outputs of a saved case again")
      ->type_name("FILE")
      ->group("Reports");
}

void add_bench_options(CLI::App& app, RunOptions& run, BenchOptions& bench) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  add_selection_options(app, run);
  add_names(app, "--timing", bench.timings, "burst (one launch, cache flushed), sustained (launches back to back)");
  app.get_option("--timing")->group("Timing");
  app.add_option("--repeats", bench.repeats, "of burst, for each candidate")->capture_default_str()->group("Timing");
  app.add_option("--baseline", bench.baseline, "the candidate whose time is divided by the others'")->group("Timing");
  add_json_option(app, run, "records, one JSON object a line, to FILE, or in place of the text");
}

void add_mutate_options(CLI::App& app, RunOptions& run, MutateOptions& mutate) {
  add_case_options(app, run);
  for (const char* flag : {"--op", "--pass", "--dtype"}) app.get_option(flag)->default_str("all");
  app.get_option("--suite")->default_str("mutation");
  add_contract_options(app, run);
  app.add_option("--seeds", mutate.seeds, "every case is tried with so many seeds, from its own on")
      ->capture_default_str();
  app.add_option("--min-kill", mutate.min_kill, "share of the faults that the contract must reject, 0 to 1")
      ->capture_default_str();
  add_json_option(app, run, "the table as JSON to FILE, or in place of the text");
}

/// What mutate takes where nothing is said: everything, in the cases made for it.
void set_mutate_defaults(RunOptions& run) {
  if (!run.has("--op")) run.ops = {"all"};
  if (!run.has("--dtype")) run.dtypes = {"all"};
  if (!run.has("--pass") && !run.has("--check-grad")) run.passes = {"all"};
  if (run.given_case_flags.empty() && !run.has("--cases") && !run.has("--suite")) run.suite = "mutation";
}

/// The gates of cases, without a device.
void add_explain_options(CLI::App& app, RunOptions& run) {
  add_case_options(app, run);
  app.add_option("--candidate", run.candidates, "by name: whose overlays apply")->expected(1)->type_name("NAME");
  add_contract_options(app, run);
  app.get_option("--arch-key")->description("whose overlays apply: none, or a key such as sm90")->default_str("none");
  add_json_option(app, run, "the same as JSON to FILE, or in place of the text");
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

/// Notes which flags were given, for a flag that has no effect must not be passed over in silence.
void note_given(const CLI::App& app, RunOptions& run) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = "--" + option->get_single_name();
    run.given.insert(name);
    const std::string& group = option->get_group();
    if (group == "Sizes" || group == "Attributes" || group == "Data") run.given_case_flags.push_back(name);
  }
}

/// Flags that say nothing without another one, or that another one makes void.
void refuse_idle_flags(const RunOptions& run) {
  const auto refuse = [](const std::string& flag, const std::string& why, const std::string& hint) {
    throw InputError(flag, why, hint);
  };
  const bool files = run.has("--cases") || run.has("--suite");
  if (files && !run.given_case_flags.empty()) {
    refuse(run.given_case_flags.front(), "has no effect on cases that come from files",
           "leave it out, or leave out --cases and --suite");
  }
  for (const char* flag : {"--constant-value", "--token-value"}) {
    if (run.has(flag) && run.input_mode != "constant") {
      refuse(flag, "has no effect without --input-mode constant", "add it, or leave the value out");
    }
  }
  if (run.has("--save") && !run.has("--save-tensors"))
    refuse("--save", "has no effect alone", "add --save-tensors DIR");
  if (!run.has("--replay")) return;
  const std::set<std::string> useful{"--replay", "--contract", "--arch-key", "--force-arch-key", "--json", "--threads"};
  for (const std::string& flag : run.given) {
    if (!useful.contains(flag)) refuse(flag, "has no effect with --replay, which runs nothing", "leave it out");
  }
}

void require_one_of(const std::string& flag, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    throw InputError(flag, fmt::format("unknown value '{}'", value), fmt::format("known: {}", fmt::join(known, ", ")));
  }
}

}  // namespace

std::string quote_command(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  std::string line;
  for (const std::string& argument : arguments) {
    if (!line.empty()) line += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app{
      "check_operator tells whether a GPU operator can be trusted: it runs candidates on deterministic inputs, judges "
      "every\n"
      "element against an FP64 gold under a tolerance contract, and checks memory, determinism and batch invariance.\n"
      "Exit codes: 0 pass, 1 a check failed, 2 bad input, 3 nothing checked, 4 a candidate crashed or hung, 5 no such "
      "device.",
      "check_operator"};
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(0, 1);
  add_run_options(app, options.run);
  CLI::App* run = app.add_subcommand("run", "run checks (the default)");
  add_run_options(*run, options.run);
  CLI::App* bench = app.add_subcommand("bench", "time candidates against each other and the device's copy bandwidth");
  add_bench_options(*bench, options.run, options.bench);
  CLI::App* mutate =
      app.add_subcommand("mutate", "try a contract: right computations and wrong ones, without a device");
  add_mutate_options(*mutate, options.run, options.mutate);
  CLI::App* list = app.add_subcommand("list", "operators, their passes and candidates");
  list->add_option("--plugin", options.run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  CLI::App* show = app.add_subcommand("show", "an operator: formula, tensors, attributes, candidates");
  show->add_option("op", options.show_op, "operator")->required();
  show->add_option("--plugin", options.run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  CLI::App* contract = app.add_subcommand("contract", "what a contract asks, and of what use it is");
  contract->require_subcommand(1);
  CLI::App* explain = contract->add_subcommand("explain", "every number that judges a case, and where it came from");
  add_explain_options(*explain, options.run);
  CLI::App* lint = contract->add_subcommand("lint", "what has expired or does nothing; exit 1 when there is some");
  lint->add_option("file", options.contracts, "contracts")->required()->type_name("FILE...");
  app.footer(
      "Examples:\n"
      "  check_operator --op logp --candidate native --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17\n"
      "  check_operator --op all --dtype fp32,bf16,fp16 --check-grad --json report.json\n"
      "  check_operator bench --op logp --candidate native,mine --plugin ./mine.so --device cpu --baseline native\n"
      "  check_operator mutate --op logp --contract mine.json\n"
      "  check_operator --op logp --candidate mine --plugin ./mine.so --device cuda --dtype bf16 --vocab 151936");

  std::vector<std::string> arguments = join_negative_values(argc, argv);
  std::vector<std::string> quoted{"check_operator"};
  for (int i = 1; i < argc; ++i) quoted.emplace_back(argv[i]);
  options.command_line = quote_command(quoted);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants its vector
  try {
    app.parse(arguments);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
    return {};
  } catch (const CLI::ParseError& e) {
    throw InputError("command line", e.what(), "see 'check_operator --help'");
  }
  if (bench->parsed()) options.command = Command::bench;
  if (mutate->parsed()) options.command = Command::mutate;
  if (list->parsed()) options.command = Command::list;
  if (show->parsed()) options.command = Command::show;
  if (explain->parsed()) options.command = Command::explain;
  if (lint->parsed()) options.command = Command::lint;
  const CLI::App* innermost = &app;
  while (!innermost->get_subcommands().empty()) innermost = innermost->get_subcommands().front();
  note_given(*innermost, options.run);
  refuse_idle_flags(options.run);
  if (mutate->parsed()) set_mutate_defaults(options.run);
  require_one_of("--save", options.run.save_which, {"incorrect", "all"});
  for (const std::string& check : options.run.checks) {
    require_one_of("--check", check, {"accuracy", "invariance", "determinism", "memory"});
  }
  for (const std::string& timing : options.bench.timings) {
    require_one_of("--timing", timing, {"burst", "sustained"});
  }
  constexpr int64_t kMostRepeats = 10000;
  if (options.bench.repeats < kLeastRepeats || options.bench.repeats > kMostRepeats) {
    throw InputError("--repeats",
                     fmt::format("expected {} to {}, got {}", kLeastRepeats, kMostRepeats, options.bench.repeats),
                     "fewer would not tell a difference from noise");
  }
  constexpr int64_t kMostSeeds = 1000;
  if (options.mutate.seeds < 1 || options.mutate.seeds > kMostSeeds)
    throw InputError("--seeds", fmt::format("expected 1 to {}, got {}", kMostSeeds, options.mutate.seeds),
                     "give a number of seeds");
  if (!(options.mutate.min_kill >= 0 && options.mutate.min_kill <= 1))
    throw InputError("--min-kill", fmt::format("expected 0 to 1, got {}", options.mutate.min_kill), "give a share");
  constexpr int64_t kLongest = 30 * 24 * 3600;
  if (options.run.timeout_s < 1 || options.run.timeout_s > kLongest)
    throw InputError("--timeout-s", fmt::format("expected 1 to {} seconds, got {}", kLongest, options.run.timeout_s),
                     "give a number of seconds");
  return options;
}

}  // namespace checkop
