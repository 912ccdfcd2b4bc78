// SPDX-License-Identifier: Apache-2.0
// The flags of every subcommand: first groups of flags that several share, then each subcommand's own.
#include "cli/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <system_error>

#include "base/error.hpp"
#include "case/sweep.hpp"

namespace checkop {
namespace {

/// Refuses negative numbers, and numbers above 2^64 - 1, which CLI11 would replace by 2^64 - 1. Text that is no number
/// passes; CLI11 refuses it when it converts.
CLI::Validator not_negative() {
  return {[](const std::string& text) -> std::string {
            if (text.starts_with("-")) return fmt::format("expected 0 or more, got {}", text);
            uint64_t value = 0;
            const bool is_too_large =
                std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range;
            return is_too_large ? fmt::format("expected at most {}, got {}", UINT64_MAX, text) : "";
          },
          "NONNEGATIVE"};
}

/// All input modes: "random, constant, ... or captured".
std::string list_of_input_modes() {
  std::string names;
  for (const InputMode mode : kInputModes) {
    const bool is_last = mode == kInputModes.back();
    names += fmt::format("{}{}", names.empty() ? "" : is_last ? " or " : ", ", to_string(mode));
  }
  return names;
}

// --- Groups of flags ---

std::string flag_of(std::string_view name) {
  std::string flag = fmt::format("--{}", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

void add_sizes(CLI::App& app, RunOptions& run) {
  std::set<std::string_view> known;
  for (const Operator* op : operators()) {
    for (const std::string_view dim : dims_of(*op)) known.insert(dim);
  }
  for (const std::string_view dim : known) {
    // --normalized-dim is RL-Kernel's name for the hidden size.
    const std::string flags = dim == "hidden" ? "--hidden,--normalized-dim" : flag_of(dim);
    app.add_option_function<std::string>(
           flags, [&run, dim](const std::string& sizes) { run.dims[std::string(dim)] = sizes; },
           dim == kWorldSize ? "number of ranks of tensor-parallel operators: 4, a list 1,2,4 or a range 1:8:x2"
                             : fmt::format("size of {}: 7, a list 1,7,64 or a range 1:4096:x2", dim))
        ->group("Sizes");
  }
  app.add_option("--shard-bounds", run.shard_bounds,
                 "tensor-parallel parts: where each rank's part begins and the last one ends, such as 0,3,7,12,16; "
                 "default: parts as equal as possible")
      ->delimiter(',')
      ->group("Sizes");
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
         "NAME=VALUES: size of any dimension, by its name")
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

/// A flag that takes names: a comma list. It may be repeated.
void add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names, const std::string& help) {
  app.add_option(flag, names, help)->delimiter(',')->capture_default_str();
}

void add_plugin_option(CLI::App& app, RunOptions& run) {
  app.add_option("--plugin", run.plugins, "shared library with additional candidates")->type_name("FILE.so");
}

void add_timeout_option(CLI::App& app, RunOptions& run) {
  app.add_option("--timeout-s", run.timeout_s, "time limit of a check, in seconds")->capture_default_str();
}

void add_filter_option(CLI::App& app, RunOptions& run) {
  app.add_option("--filter", run.filter, "select checks whose OP/PASS/CANDIDATE/CASE_NAME matches this glob")
      ->group("Checks");
}

/// What chooses candidates, and where they run.
void add_candidate_options(CLI::App& app, RunOptions& run) {
  app.option_defaults()->group("Candidates");
  add_names(app, "--candidate", run.candidates, "candidates by name, or all that run on the device");
  app.add_option("--device", run.device, "device to run on: auto, cpu, cuda or cuda:N")->capture_default_str();
  add_plugin_option(app, run);
  add_timeout_option(app, run);
  app.add_flag("--no-isolate", run.no_isolate,
               "run candidates in this process, for debugging; a crash then ends the run");
  app.option_defaults()->group("Options");
}

/// Candidates that are processes. Not for `bench`, which times plugins and peers.
void add_external_options(CLI::App& app, RunOptions& run) {
  app.add_option("--exec", run.external,
                 "command to run as a candidate: it gets cases as lines of JSON, and tensors in shared memory or files")
      ->type_name("COMMAND")
      ->group("Candidates");
  app.add_option("--exec-fd", run.external_descriptor,
                 "descriptor of a socket that this process inherited; the process at its other end is a candidate, and "
                 "is spoken to as with --exec")
      ->check(not_negative())
      ->type_name("N")
      ->group("Candidates");
  app.add_option("--py", run.python_modules,
                 "Python module, or MODULE:NAME, whose functions with @check_operator.candidate are a candidate")
      ->type_name("MODULE")
      ->group("Candidates");
  app.add_option("--torch-op", run.torch_operators,
                 "registered PyTorch operator as a candidate for --op: NAMESPACE::NAME, with its autograd")
      ->type_name("NAME")
      ->group("Candidates");
  app.add_option("--import", run.torch_imports, "Python module that registers the operator of --torch-op")
      ->type_name("MODULE")
      ->group("Candidates");
  add_names(app, "--exec-name", run.external_names,
            "names of the --exec candidates, in order, then of --py and --torch-op; default: exec, exec2, ...");
  app.get_option("--exec-name")->type_name("NAME")->group("Candidates");
}

/// What chooses cases.
void add_case_options(CLI::App& app, RunOptions& run) {
  app.option_defaults()->group("Checks");
  add_names(app, "--op", run.ops, "operators to check, or all");
  add_names(app, "--dtype", run.dtypes, "dtypes: fp32, bf16, fp16, fp64, or all (the first three)");
  add_names(app, "--pass", run.passes, "passes: forward, backward, or all");
  app.add_flag_callback(
      "--check-grad",
      [&run] {
        run.passes = {"forward", "backward"};
      },
      "check forward and backward");
  app.option_defaults()->group("Options");
  app.add_option("--preset", run.presets,
                 "models whose sizes to use, or all; sizes and attributes given by flags take precedence")
      ->delimiter(',')
      ->group("Sizes");
  add_sizes(app, run);
  add_attributes(app, run);
  add_names(app, "--with", run.with,
            "optional inputs: none, or names joined by +; each entry of a list makes cases of its own");
  app.get_option("--with")->group("Data");

  app.add_option("--input-mode", run.input_mode, "kind of input data: " + list_of_input_modes())
      ->capture_default_str()
      ->group("Data");
  app.add_option("--constant-value", run.constant_value, "value of the inputs with --input-mode constant")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--token-value", run.token_value, "token id with --input-mode constant")
      ->capture_default_str()
      ->group("Data");
  app.add_option(
         "--ignored-every", run.ignored_every,
         "for operators with ignore_index: ignore one run of rows in every N; 0 ignores none, and masks keep all; "
         "1 ignores all, and masks keep nothing; for packed sequences and routed tokens: the share that belongs to "
         "none")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--ignored-run", run.ignored_run, "number of rows in each ignored run, such as the length of a prompt")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--seed", run.seed, "seed of all inputs; with --suite or --cases it reseeds every case")
      ->check(not_negative())
      ->capture_default_str()
      ->group("Data");
  app.add_flag("--secret-seed", run.secret_seed,
               "draw --seed and --grad-seed, so that no candidate knows the data; the report names them")
      ->group("Data");
  app.add_option("--grad-mode", run.grad_mode, "kind of upstream gradients: random or ones")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--grad-seed", run.grad_seed,
                 "seed of the upstream gradients; with --suite or --cases it reseeds every case")
      ->check(not_negative())
      ->capture_default_str()
      ->group("Data");

  app.add_option("--cases", run.cases, "case files or folders to take cases from, in place of sizes")->group("Checks");
  app.add_option("--suite", run.suite,
                 fmt::format("suite of the case files to take cases from: {}", fmt::join(shipped_suites(), ", ")))
      ->group("Checks");
  app.add_option("--threads", run.threads, "threads that generate inputs and compute the gold; 0: one per core")
      ->capture_default_str();
}

void add_json_option(CLI::App& app, RunOptions& run, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         "--json",
         [&run](const std::vector<std::string>& file) {
           if (file.empty() || file.front().empty() || file.front() == "-") {
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

/// The forms that are made of a JSON report.
void add_form_options(CLI::App& app, ReportFiles& files) {
  for (const ReportForm& form : report_forms()) {
    app.add_option_function<std::string>(
           form.flag,
           [&files, &form](const std::string& file) {
             if (!file.empty()) files[form.flag] = file;
           },
           form.help)
        ->type_name("FILE")
        ->group("Reports");
  }
}

/// Where a run's report goes, and in which forms.
void add_output_options(CLI::App& app, RunOptions& run) {
  add_json_option(app, run, "write the report as JSON to FILE, or to stdout in place of the text");
  add_form_options(app, run.forms);
  app.add_option("--color", run.color, "colour the text: auto (on a terminal, unless NO_COLOR is set), always or never")
      ->capture_default_str()
      ->group("Reports");
  app.add_flag_callback(
         "--github", [&run] { run.github = true; },
         "write GitHub annotations, and the summary to GITHUB_STEP_SUMMARY; the default where GITHUB_ACTIONS is true")
      ->group("Reports");
  app.add_flag_callback(
         "--no-github", [&run] { run.github = false; }, "write neither, even where GITHUB_ACTIONS is true")
      ->group("Reports");
}

/// Tensors from files in place of generated inputs, of the gold, or of an operator.
void add_own_data_options(CLI::App& app, RunOptions& run) {
  app.add_option("--input", run.inputs, "use a captured tensor in place of the generated input NAME")
      ->type_name("NAME=FILE:TENSOR")
      ->group("Cases of files");
  app.add_option("--inputs", run.inputs_file,
                 "safetensors file with the inputs of one case, by name; --op may then name an operator of your own")
      ->type_name("FILE")
      ->group("Cases of files");
  app.add_option("--gold", run.gold_file,
                 "safetensors file with the gold of that case's outputs, by name; --dtype is the outputs' dtype where "
                 "the gold is in fp64")
      ->type_name("FILE")
      ->group("Cases of files");
}

/// How to judge outputs whose gold comes from a file.
void add_class_options(CLI::App& app, RunOptions& run) {
  app.add_option("--class", run.numerics,
                 "class of outputs whose gold comes from a file: pointwise, reduction, contraction, logprob, composite "
                 "or exact")
      ->type_name("CLASS")
      ->group("Judging");
  app.add_option("--terms", run.terms,
                 "with --class: number of terms of the longest sum behind an element, for bound_ratio")
      ->capture_default_str()
      ->group("Judging");
}

/// How much memory a check may use.
void add_memory_option(CLI::App& app, RunOptions& run) {
  app.add_option(
         "--memory-limit", run.memory_limit,
         "host memory that a check may use, such as 512M or 4G; larger checks are skipped; default: what is free")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("BYTES")
      ->group("Candidates");
}

/// Which of the chosen checks to run, or only to list.
void add_selection_options(CLI::App& app, RunOptions& run) {
  add_filter_option(app, run);
  app.add_flag("--list", run.list,
               "print the selected checks with the size of their tensors, and stop; --json writes them as JSON")
      ->group("Checks");
}

void add_arch_option(CLI::App& app, RunOptions& run) {
  app.add_option("--arch-key", run.arch_key,
                 "contract overlays to apply: auto (the device's), none, or a key such as sm90")
      ->capture_default_str()
      ->group("Judging");
}

void add_contract_option(CLI::App& app, RunOptions& run) {
  app.add_option("--contract", run.contract, "tolerance contract; default: the shipped contracts/default.json")
      ->group("Judging");
}

void add_contract_options(CLI::App& app, RunOptions& run) {
  add_arch_option(app, run);
  add_contract_option(app, run);
  app.add_option("--recipe", run.recipes,
                 "rounding points that candidates may have beside those that the contract grants, such as p_in_16_bit")
      ->delimiter(',')
      ->group("Judging");
}

void add_force_option(CLI::App& app, RunOptions& run) {
  app.add_flag("--force-arch-key", run.force_arch_key, "accept an --arch-key that is not the device's")
      ->group("Judging");
}

/// For subcommands whose default is every operator, pass and dtype: see take_all() in options.cpp.
void show_all_as_default(CLI::App& app) {
  for (const char* flag : {"--op", "--pass", "--dtype"}) app.get_option(flag)->default_str("all");
}

/// For subcommands whose default is the cases of a suite: see take_suite() in options.cpp.
void show_suite_as_default(CLI::App& app, const std::string& suite) {
  show_all_as_default(app);
  app.get_option("--suite")->default_str(suite);
}

/// For subcommands that use no device, and so have no architecture of their own.
void take_no_device_arch(CLI::App& app) {
  app.get_option("--arch-key")
      ->description("contract overlays to apply: none, or a key such as sm90")
      ->default_str("none");
}

}  // namespace

// --- Subcommands ---

void add_random_cases_option(CLI::App& app, RunOptions& run, const std::string& help) {
  app.add_option("--random-cases", run.random_cases, help)->type_name("N")->group("Sizes");
}

void add_run_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_external_options(app, run);
  add_case_options(app, run);
  add_selection_options(app, run);
  add_contract_options(app, run);
  add_force_option(app, run);
  add_names(app, "--check", run.checks,
            "what to check: accuracy, invariance, determinism, memory; default: all that the contract demands");
  app.get_option("--check")->group("Judging");
  app.add_option("--gold-rows", run.gold_rows,
                 "rows of each output to compare with the gold: all, or a number; default: as the contract says")
      ->type_name("all|N")
      ->group("Judging");
  add_memory_option(app, run);
  app.add_option("--max-skip", run.max_skip, "fail if more checks than this are skipped")
      ->check(not_negative())
      ->group("Judging");
  add_names(app, "--sanitize", run.sanitizers,
            "also run the checks under these tools of compute-sanitizer: memcheck, racecheck, initcheck, synccheck");
  app.get_option("--sanitize")->group("Judging");
  add_random_cases_option(app, run,
                          "check N random cases of each operator; sizes that are not given are drawn with --seed");
  app.add_option("--for", run.for_s,
                 "make random cases for this time: candidates share it, and none begins a check after its share; the "
                 "last check runs to its end, and each candidate makes at least one")
      ->type_name("SECONDS")
      ->group("Sizes");
  app.add_option("--shuffle", run.shuffle, "shuffle the order of candidates, and of the checks of each, by this seed")
      ->type_name("SEED")
      ->group("Checks");
  app.add_option("--shard-index", run.shard_index, "run only this run shard, counted from 0; see 'report merge'")
      ->type_name("I")
      ->group("Checks");
  app.add_option("--total-shards", run.total_shards, "number of run shards to divide the cases among")
      ->type_name("N")
      ->group("Checks");
  add_own_data_options(app, run);
  add_class_options(app, run);
  add_output_options(app, run);
  app.add_option("--save-tensors", run.save_folder, "save cases as safetensors files in this folder")
      ->type_name("DIR")
      ->group("Reports");
  app.add_option("--save", run.save_which, "which cases --save-tensors saves: incorrect or all")
      ->capture_default_str()
      ->group("Reports");
  app.add_option("--replay", run.replay, "judge the outputs of a saved case again; runs nothing")
      ->type_name("FILE")
      ->group("Reports");
}

void add_bench_options(CLI::App& app, RunOptions& run, BenchOptions& bench) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  add_selection_options(app, run);
  add_contract_options(app, run);
  add_force_option(app, run);
  add_names(app, "--timing", bench.timings,
            "how to time: burst (one launch, cache flushed), sustained (launches back to back)");
  app.get_option("--timing")->group("Timing");
  app.add_option("--repeats", bench.repeats, "number of burst timings of each candidate")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("--baseline", bench.baseline,
                 "candidate, or name of a peer, to compare the others with: its time is divided by theirs")
      ->group("Timing");
  app.add_option("--peer", bench.peers,
                 "command that times implementations of its own, such as a framework's, just before and just after the "
                 "candidates; may be given several times")
      ->type_name("COMMAND")
      ->allow_extra_args(false)
      ->group("Timing");
  add_random_cases_option(app, run,
                          "time N cases of each operator: sizes of a random model, some of them changed, and 1 to 8192 "
                          "rows; drawn with --seed");
  add_json_option(app, run, "write JSON lines, one for each record, to FILE, or to stdout in place of the text");
}

void add_mutate_options(CLI::App& app, RunOptions& run, MutateOptions& mutate) {
  add_case_options(app, run);
  show_suite_as_default(app, "mutation");
  add_contract_options(app, run);
  app.add_option("--seeds", mutate.seeds, "number of seeds to try every case with, beginning with its own")
      ->capture_default_str();
  app.add_option("--min-kill", mutate.min_kill,
                 "exit with 1 if the contract rejects a smaller share of the faults, 0 to 1")
      ->capture_default_str();
  add_json_option(app, run, "write the table as JSON to FILE, or to stdout in place of the text");
}

void add_recipe_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_external_options(app, run);
  add_case_options(app, run);
  show_suite_as_default(app, "smoke");
  add_filter_option(app, run);
  add_arch_option(app, run);
  add_contract_option(app, run);
  add_force_option(app, run);
  add_memory_option(app, run);
  add_json_option(app, run, "write the table as JSON to FILE, or to stdout in place of the text");
}

void add_certify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  add_filter_option(app, run);
  add_contract_options(app, run);
  add_memory_option(app, run);
  add_force_option(app, run);
  app.add_option("--out", certificate.out, "file to write the certificate to")->required()->type_name("FILE");
}

void add_verify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate) {
  app.add_option("file", certificate.files, "a certificate to verify on this machine, or two to compare")
      ->required()
      ->expected(1, 2)
      ->type_name("FILE [FILE]");
  app.add_option("--device", run.device,
                 "device to run on: auto, cpu, cuda or cuda:N; default: one of the certificate's kind");
  add_plugin_option(app, run);
  add_timeout_option(app, run);
  add_contract_options(app, run);
  add_force_option(app, run);
}

void add_compare_options(CLI::App& app, RunOptions& run, CompareOptions& compare) {
  app.add_option("got", compare.got, "safetensors file with the tensors to judge")->required()->type_name("A");
  app.add_option("gold", compare.gold, "safetensors file with their gold, under the same names")
      ->required()
      ->type_name("B");
  add_contract_options(app, run);
  take_no_device_arch(app);
  add_class_options(app, run);
  app.add_option("--pass", run.passes, "pass whose rules apply: forward or backward")
      ->expected(1)
      ->capture_default_str()
      ->group("Judging");
  app.add_option("--filter", run.filter, "judge only the tensors whose names match this glob")->group("Checks");
  add_output_options(app, run);
  app.add_option("--threads", run.threads, "threads that compare; 0: one per core")->capture_default_str();
}

void add_list_options(CLI::App& app, RunOptions& run) { add_plugin_option(app, run); }

void add_show_options(CLI::App& app, RunOptions& run, std::string& op) {
  app.add_option("op", op, "operator to show; with --json, none means all of them");
  add_plugin_option(app, run);
  add_json_option(app, run, "write the same as JSON to FILE, or to stdout in place of the text; without candidates");
}

void add_doctor_options(CLI::App& app, RunOptions& run) {
  add_plugin_option(app, run);
  add_json_option(app, run, "write the same as JSON to FILE, or to stdout in place of the text");
}

void add_report_options(CLI::App& app, ReportOptions& report) {
  app.add_option("file", report.file, "report that --json FILE wrote")->type_name("FILE");
  add_form_options(app, report.forms);
}

void add_report_diff_options(CLI::App& app, ReportOptions& report) {
  app.add_option("before", report.before, "earlier report")->required()->type_name("OLD");
  app.add_option("after", report.after, "later report")->required()->type_name("NEW");
  app.add_option("--factor", report.factor, "report headroom as lost if it shrank by more than this factor")
      ->capture_default_str();
  app.add_flag("--allow-gone", report.allow_gone, "accept that checks that passed before are missing now");
  app.add_option("--markdown", report.diff_markdown, "write the difference in Markdown")->type_name("FILE");
}

void add_report_merge_options(CLI::App& app, Options& options) {
  app.add_option("reports", options.report.shards, "reports of all shards of a run, in any order")
      ->required()
      ->type_name("FILE...");
  app.add_flag("--partial", options.report.partial,
               "accept missing and unfinished shards; the merged report is then incomplete");
  add_json_option(app, options.run,
                  "write the report of the whole run as JSON to FILE, or to stdout in place of the text");
  add_form_options(app, options.run.forms);
}

void add_init_options(CLI::App& app, InitOptions& init) {
  app.add_option("name", init.name, "name of the candidate")->required();
  app.add_option("folder", init.folder, "folder of the project: empty, or not there yet")->required()->type_name("DIR");
  auto* cpu = app.add_flag_callback(
      "--cpu", [&init] { init.device = "cpu"; }, "write a CPU kernel, in C++");
  app.add_flag_callback(
         "--cuda", [&init] { init.device = "cuda"; },
         "write a CUDA kernel; the default where this program was built with CUDA")
      ->excludes(cpu);
}

void add_explain_options(CLI::App& app, RunOptions& run) {
  add_case_options(app, run);
  app.add_option("--candidate", run.candidates, "candidate whose contract overlays apply")
      ->expected(1)
      ->type_name("NAME");
  add_contract_options(app, run);
  take_no_device_arch(app);
  add_json_option(app, run, "write the same as JSON to FILE, or to stdout in place of the text");
}

void add_lint_options(CLI::App& app, RunOptions& run, std::vector<std::string>& contracts) {
  app.add_option("file", contracts, "contracts to check")->required()->type_name("FILE...");
  add_case_options(app, run);
  show_suite_as_default(app, "mutation");
}

void add_diff_options(CLI::App& app, Options& options) {
  RunOptions& run = options.run;
  app.add_option("contracts", options.contracts, "the two contracts to compare")
      ->required()
      ->expected(2)
      ->type_name("A B");
  add_case_options(app, run);
  show_all_as_default(app);
  add_candidate_options(app, run);
  add_external_options(app, run);
  app.get_option("--candidate")
      ->description("run these candidates, or all, and show which verdicts change; default: run nothing")
      ->default_str("none");
  add_arch_option(app, run);
  app.get_option("--arch-key")
      ->description("contract overlays to apply: none, or a key such as sm90; default: every key that a contract names")
      ->default_str("");
  add_force_option(app, run);
  app.add_flag("--mutants", options.diff_mutants, "also try the faults and controls of mutate under both contracts");
}

void add_calibrate_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_external_options(app, run);
  add_case_options(app, run);
  add_filter_option(app, run);
  add_contract_options(app, run);
  add_force_option(app, run);
}

}  // namespace checkop
