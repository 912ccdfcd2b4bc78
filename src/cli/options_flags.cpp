// SPDX-License-Identifier: Apache-2.0
// The flags of every subcommand.
#include "cli/options_flags.hpp"

#include <CLI/CLI.hpp>

#include "cli/options_groups.hpp"

namespace checkop {

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
  app.add_option(
         "--random-cases", run.random_cases,
         "of each operator so many cases, with random values of all sizes that are not given; --seed draws them")
      ->type_name("N")
      ->group("Sizes");
  app.add_option("--for", run.for_s, "of --random-cases as many as begin within that time, shuffled")
      ->type_name("SECONDS")
      ->group("Sizes");
  app.add_option("--shuffle", run.shuffle, "run candidates, and the checks of each, in the order of this seed")
      ->type_name("SEED")
      ->group("Checks");
  app.add_option("--shard-index", run.shard_index,
                 "of the shards of the run, counted from 0: this one; see report merge")
      ->type_name("I")
      ->group("Checks");
  app.add_option("--total-shards", run.total_shards, "into so many parts the run is divided, by cases")
      ->type_name("N")
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

void add_report_merge_options(CLI::App& app, Options& options) {
  app.add_option("reports", options.report.shards, "of all shards of a run, in any order")
      ->required()
      ->type_name("FILE...");
  app.add_flag("--partial", options.report.partial,
               "shards may be missing, or not have come to their end: the merged report is then not complete");
  add_json_option(app, options.run, "the report of the whole run to FILE, or in place of the text");
  add_form_options(app, options.run.forms);
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
