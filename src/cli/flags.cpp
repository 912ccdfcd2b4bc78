// SPDX-License-Identifier: Apache-2.0
// The flags of every subcommand.
#include "cli/flags.hpp"

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
  app.add_option("--random-cases", run.random_cases,
                 "check N random cases of each operator; sizes that are not given are drawn with --seed")
      ->type_name("N")
      ->group("Sizes");
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
  add_given_options(app, run);
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
  add_names(app, "--timing", bench.timings,
            "how to time: burst (one launch, cache flushed), sustained (launches back to back)");
  app.get_option("--timing")->group("Timing");
  app.add_option("--repeats", bench.repeats, "number of burst timings of each candidate")
      ->capture_default_str()
      ->group("Timing");
  app.add_option("--baseline", bench.baseline, "candidate to compare the others with: its time is divided by theirs")
      ->group("Timing");
  add_json_option(app, run, "write JSON lines, one for each record, to FILE, or to stdout in place of the text");
}

void add_mutate_options(CLI::App& app, RunOptions& run, MutateOptions& mutate) {
  add_case_options(app, run);
  show_all_as_default(app);
  app.get_option("--suite")->default_str("mutation");
  add_contract_options(app, run);
  app.add_option("--seeds", mutate.seeds, "number of seeds to try every case with, beginning with its own")
      ->capture_default_str();
  app.add_option("--min-kill", mutate.min_kill,
                 "exit with 1 if the contract rejects a smaller share of the faults, 0 to 1")
      ->capture_default_str();
  add_json_option(app, run, "write the table as JSON to FILE, or to stdout in place of the text");
}

void add_certify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate) {
  add_candidate_options(app, run);
  add_case_options(app, run);
  app.add_option("--filter", run.filter, "select checks whose OP/PASS/CANDIDATE/CASE_NAME matches this glob")
      ->group("Checks");
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
  app.add_option("--plugin", run.plugins, "shared library with additional candidates")->type_name("FILE.so");
  app.add_option("--timeout-s", run.timeout_s, "time limit of a check, in seconds")->capture_default_str();
  add_contract_options(app, run);
  add_force_option(app, run);
}

void add_compare_options(CLI::App& app, RunOptions& run, CompareOptions& compare) {
  app.add_option("got", compare.got, "safetensors file with the tensors to judge")->required()->type_name("A");
  app.add_option("gold", compare.gold, "safetensors file with their gold, under the same names")
      ->required()
      ->type_name("B");
  add_contract_options(app, run);
  app.get_option("--arch-key")
      ->description("contract overlays to apply: none, or a key such as sm90")
      ->default_str("none");
  add_class_options(app, run);
  app.add_option("--pass", run.passes, "pass whose rules apply: forward or backward")
      ->expected(1)
      ->capture_default_str()
      ->group("Judging");
  app.add_option("--filter", run.filter, "judge only the tensors whose names match this glob")->group("Checks");
  add_output_options(app, run);
  app.add_option("--threads", run.threads, "threads that compare; 0: one per core")->capture_default_str();
}

void add_doctor_options(CLI::App& app, RunOptions& run) {
  app.add_option("--plugin", run.plugins, "shared library with additional candidates")->type_name("FILE.so");
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
  app.get_option("--arch-key")
      ->description("contract overlays to apply: none, or a key such as sm90")
      ->default_str("none");
  add_json_option(app, run, "write the same as JSON to FILE, or to stdout in place of the text");
}

void add_lint_options(CLI::App& app, RunOptions& run, std::vector<std::string>& contracts) {
  app.add_option("file", contracts, "contracts to check")->required()->type_name("FILE...");
  add_case_options(app, run);
  show_all_as_default(app);
  app.get_option("--suite")->default_str("mutation");
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
  app.add_option("--filter", run.filter, "select checks whose OP/PASS/CANDIDATE/CASE_NAME matches this glob")
      ->group("Checks");
  add_contract_options(app, run);
  add_force_option(app, run);
}

}  // namespace checkop
