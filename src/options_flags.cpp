// SPDX-License-Identifier: Apache-2.0
// The flags of every subcommand, in groups that they share.
#include "options_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "case.hpp"
#include "error.hpp"

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
  app.option_defaults()->group("Candidates");
  add_names(app, "--candidate", run.candidates, "candidates, or all that run on the device");
  app.add_option("--device", run.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--plugin", run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  app.add_option("--timeout-s", run.timeout_s, "per case, in seconds")->capture_default_str();
  app.add_flag("--no-isolate", run.no_isolate, "run candidates in this process, for debuggers; a crash ends the run");
  app.option_defaults()->group("Options");
}

/// Candidates that are processes; not for timing, since their tensors travel through files.
void add_external_options(CLI::App& app, RunOptions& run) {
  app.add_option("--exec", run.external, "a command that is a candidate: it is sent cases as lines, tensors as files")
      ->type_name("COMMAND")
      ->group("Candidates");
  add_names(app, "--exec-name", run.external_names, "what the commands of --exec are called; exec otherwise");
  app.get_option("--exec-name")->type_name("NAME")->group("Candidates");
}

/// What chooses cases.
void add_case_options(CLI::App& app, RunOptions& run) {
  app.option_defaults()->group("Checks");
  add_names(app, "--op", run.ops, "operators, or all");
  add_names(app, "--dtype", run.dtypes, "fp32, bf16, fp16, fp64, or all (the first three)");
  add_names(app, "--pass", run.passes, "forward, backward, or all");
  app.add_flag_callback(
      "--check-grad",
      [&run] {
        run.passes = {"forward", "backward"};
      },
      "forward and backward");
  app.option_defaults()->group("Options");
  app.add_option("--preset", run.presets, "sizes of models, or all; sizes and attributes that are given win")
      ->delimiter(',')
      ->group("Sizes");
  add_sizes(app, run);
  add_attributes(app, run);
  add_names(app, "--with", run.with, "optional inputs: none, or names joined by +; a list sweeps them");
  app.get_option("--with")->group("Data");

  app.add_option("--input-mode", run.input_mode, "random, constant, integer, peaked, extreme or wide")
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

  app.add_option("--cases", run.cases, "case files or folders in place of --op and sizes")->group("Checks");
  app.add_option("--suite", run.suite, "a suite of the case files: smoke, ci, nightly, large, invariance")
      ->group("Checks");
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

/// The forms that are made of a JSON report.
void add_form_options(CLI::App& app, ReportForms& forms) {
  app.add_option("--junit", forms.junit, "JUnit XML, for CI servers")->type_name("FILE")->group("Reports");
  app.add_option("--markdown", forms.markdown, "a summary in Markdown")->type_name("FILE")->group("Reports");
  app.add_option("--html", forms.html, "one page for people, with maps of the errors")
      ->type_name("FILE")
      ->group("Reports");
}

/// What a run says, and how.
void add_output_options(CLI::App& app, RunOptions& run) {
  add_json_option(app, run, "the report as JSON to FILE, or in place of the text");
  app.add_option("--jsonl", run.jsonl_file, "one JSON object a line, each as soon as it is known")
      ->type_name("FILE")
      ->group("Reports");
  add_form_options(app, run.forms);
  app.add_option("--color", run.color, "of the text: auto (on a terminal, unless NO_COLOR is set), always or never")
      ->capture_default_str()
      ->group("Reports");
  app.add_flag_callback(
         "--github", [&run] { run.github = true; },
         "annotations, and the summary in GITHUB_STEP_SUMMARY; on by itself where GITHUB_ACTIONS is true")
      ->group("Reports");
  app.add_flag_callback(
         "--no-github", [&run] { run.github = false; }, "neither, wherever it runs")
      ->group("Reports");
}

/// Tensors out of files in place of what the program makes.
void add_given_options(CLI::App& app, RunOptions& run) {
  app.add_option("--input", run.inputs, "a captured tensor in place of the generated input NAME")
      ->type_name("NAME=FILE:TENSOR")
      ->group("Cases of files");
  app.add_option("--inputs", run.inputs_file, "a case of files: inputs by name, as safetensors; --op may be any name")
      ->type_name("FILE")
      ->group("Cases of files");
  app.add_option("--gold", run.gold_file,
                 "the gold of its outputs, by name; of an own operator in fp64: for outputs of --dtype")
      ->type_name("FILE")
      ->group("Cases of files");
}

/// How outputs are judged whose gold a file gives.
void add_class_options(CLI::App& app, RunOptions& run) {
  app.add_option("--class", run.numerics,
                 "of outputs whose gold a file gives: pointwise, reduction, contraction, logprob, composite or exact")
      ->type_name("CLASS")
      ->group("Judging");
  app.add_option("--terms", run.terms, "longest sum behind an element of such an output, for bound_ratio")
      ->capture_default_str()
      ->group("Judging");
}

/// What runs may take of the machine.
void add_memory_option(CLI::App& app, RunOptions& run) {
  app.add_option("--memory-limit", run.memory_limit,
                 "of the host's memory for a check: 512M, 4G; what is free otherwise. More is skipped")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("BYTES")
      ->group("Candidates");
}

/// Which of the chosen checks.
void add_selection_options(CLI::App& app, RunOptions& run) {
  app.add_option("--filter", run.filter, "a glob on OP/PASS/CANDIDATE/CASE_NAME")->group("Checks");
  app.add_flag("--list", run.list, "print the selected checks with the size of their tensors, and stop")
      ->group("Checks");
}

void add_arch_option(CLI::App& app, RunOptions& run) {
  app.add_option("--arch-key", run.arch_key, "contract overlays: auto (the device's), none, or a key such as sm90")
      ->capture_default_str()
      ->group("Judging");
}

void add_contract_options(CLI::App& app, RunOptions& run) {
  add_arch_option(app, run);
  app.add_option("--contract", run.contract, "tolerances; the shipped contracts/default.json otherwise")
      ->group("Judging");
}

void add_force_option(CLI::App& app, RunOptions& run) {
  app.add_flag("--force-arch-key", run.force_arch_key, "take --arch-key although the device is another")
      ->group("Judging");
}

/// Of subcommands that take every operator, pass and dtype where nothing is said: see take_all() in options.cpp.
void show_all_as_default(CLI::App& app) {
  for (const char* flag : {"--op", "--pass", "--dtype"}) app.get_option(flag)->default_str("all");
}

}  // namespace

void add_run_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_external_options(app, run);
  add_case_options(app, run);
  add_selection_options(app, run);
  add_contract_options(app, run);
  add_force_option(app, run);
  add_names(app, "--check", run.checks, "accuracy, invariance, determinism, memory; all otherwise");
  app.get_option("--check")->group("Judging");
  app.add_option("--gold-rows", run.gold_rows,
                 "rows of each output that the gold computes: all, or a number; as the "
                 "contract says otherwise")
      ->type_name("all|N")
      ->group("Judging");
  add_memory_option(app, run);
  app.add_option("--max-skip", run.max_skip, "fail when more checks than this are skipped")
      ->check(CLI::NonNegativeNumber)
      ->group("Judging");
  add_names(app, "--sanitize", run.sanitizers,
            "the checks under compute-sanitizer too: memcheck, racecheck, initcheck, synccheck");
  app.get_option("--sanitize")->group("Judging");
  app.add_option("--shuffle", run.shuffle, "run candidates, and the checks of each, in the order of this seed")
      ->type_name("SEED")
      ->group("Checks");
  add_given_options(app, run);
  add_class_options(app, run);
  add_output_options(app, run);
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
  show_all_as_default(app);
  app.get_option("--suite")->default_str("mutation");
  add_contract_options(app, run);
  app.add_option("--seeds", mutate.seeds, "every case is tried with so many seeds, from its own on")
      ->capture_default_str();
  app.add_option("--min-kill", mutate.min_kill, "share of the faults that the contract must reject, 0 to 1")
      ->capture_default_str();
  add_json_option(app, run, "the table as JSON to FILE, or in place of the text");
}

void add_certify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  app.add_option("--filter", run.filter, "a glob on OP/PASS/CANDIDATE/CASE_NAME")->group("Checks");
  add_contract_options(app, run);
  add_memory_option(app, run);
  add_force_option(app, run);
  app.add_option("--out", certificate.out, "where the certificate goes")->required()->type_name("FILE");
}

void add_verify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate) {
  app.add_option("file", certificate.files, "a certificate, to be seen again here; or two, to be compared")
      ->required()
      ->expected(1, 2)
      ->type_name("FILE [FILE]");
  app.add_option("--device", run.device, "auto, cpu, cuda or cuda:N; otherwise of the certificate's kind");
  app.add_option("--plugin", run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  app.add_option("--timeout-s", run.timeout_s, "per case, in seconds")->capture_default_str();
  add_contract_options(app, run);
  add_force_option(app, run);
}

void add_compare_options(CLI::App& app, RunOptions& run, CompareOptions& compare) {
  app.add_option("got", compare.got, "the tensors to judge, as safetensors")->required()->type_name("A");
  app.add_option("gold", compare.gold, "their gold, tensor by tensor of the same name")->required()->type_name("B");
  add_contract_options(app, run);
  app.get_option("--arch-key")->description("whose overlays apply: none, or a key such as sm90")->default_str("none");
  add_class_options(app, run);
  app.add_option("--pass", run.passes, "forward or backward, as the contract's rules name it")
      ->expected(1)
      ->capture_default_str()
      ->group("Judging");
  app.add_option("--filter", run.filter, "a glob on the names of tensors")->group("Checks");
  add_output_options(app, run);
  app.add_option("--threads", run.threads, "of the comparison; 0: one per core")->capture_default_str();
}

void add_doctor_options(CLI::App& app, RunOptions& run) {
  app.add_option("--plugin", run.plugins, "a shared library with more candidates")->type_name("FILE.so");
  add_json_option(app, run, "the same as JSON to FILE, or in place of the text");
}

void add_report_options(CLI::App& app, ReportOptions& report) {
  app.add_option("file", report.file, "a report that --json FILE wrote")->type_name("FILE");
  add_form_options(app, report.forms);
}

void add_report_diff_options(CLI::App& app, ReportOptions& report) {
  app.add_option("before", report.before, "the earlier report")->required()->type_name("OLD");
  app.add_option("after", report.after, "the later report")->required()->type_name("NEW");
  app.add_option("--factor", report.factor, "a headroom that shrank by more than this is lost")->capture_default_str();
  app.add_flag("--allow-gone", report.allow_gone, "checks that passed before may be missing now");
  app.add_option("--markdown", report.diff_markdown, "the difference in Markdown")->type_name("FILE");
}

void add_init_options(CLI::App& app, InitOptions& init) {
  app.add_option("name", init.name, "of the candidate")->required();
  app.add_option("folder", init.folder, "of the project: empty, or not there yet")->required()->type_name("DIR");
  app.add_option("--op", init.op, "the operator")->capture_default_str();
  auto* cpu = app.add_flag_callback(
      "--cpu", [&init] { init.device = "cpu"; }, "a kernel for the CPU, in C++");
  app.add_flag_callback(
         "--cuda", [&init] { init.device = "cuda"; }, "a CUDA kernel: the default where this program knows CUDA")
      ->excludes(cpu);
}

void add_explain_options(CLI::App& app, RunOptions& run) {
  add_case_options(app, run);
  app.add_option("--candidate", run.candidates, "by name: whose overlays apply")->expected(1)->type_name("NAME");
  add_contract_options(app, run);
  app.get_option("--arch-key")->description("whose overlays apply: none, or a key such as sm90")->default_str("none");
  add_json_option(app, run, "the same as JSON to FILE, or in place of the text");
}

void add_lint_options(CLI::App& app, RunOptions& run, std::vector<std::string>& contracts) {
  app.add_option("file", contracts, "contracts")->required()->type_name("FILE...");
  add_case_options(app, run);
  show_all_as_default(app);
  app.get_option("--suite")->default_str("mutation");
}

void add_diff_options(CLI::App& app, Options& options) {
  RunOptions& run = options.run;
  app.add_option("contracts", options.contracts, "the two contracts")->required()->expected(2)->type_name("A B");
  add_case_options(app, run);
  show_all_as_default(app);
  add_candidate_options(app, run);
  add_external_options(app, run);
  app.get_option("--candidate")
      ->description("runs these, or all, and shows which verdicts change; nothing is run otherwise")
      ->default_str("none");
  add_arch_option(app, run);
  app.get_option("--arch-key")
      ->description("whose overlays apply: none, or a key such as sm90; otherwise all that either contract names")
      ->default_str("");
  add_force_option(app, run);
  app.add_flag("--mutants", options.diff_mutants,
               "try the faults and controls of the cases under both, as mutate does");
}

void add_calibrate_options(CLI::App& app, RunOptions& run) {
  add_candidate_options(app, run);
  add_external_options(app, run);
  add_case_options(app, run);
  app.add_option("--filter", run.filter, "a glob on OP/PASS/CANDIDATE/CASE_NAME")->group("Checks");
  add_contract_options(app, run);
  add_force_option(app, run);
}

}  // namespace checkop
