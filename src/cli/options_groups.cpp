// SPDX-License-Identifier: Apache-2.0
// Groups of flags that several subcommands share.
#include "cli/options_groups.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "case/sweep.hpp"

namespace checkop {
namespace {

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

}  // namespace

CLI::Validator not_negative() {
  return {[](const std::string& text) {
            return text.starts_with("-") ? fmt::format("expected 0 or more, got {}", text) : std::string();
          },
          "NONNEGATIVE"};
}

void add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names, const std::string& help) {
  app.add_option(flag, names, help)->delimiter(',')->capture_default_str();
}

void add_candidate_options(CLI::App& app, RunOptions& run) {
  app.option_defaults()->group("Candidates");
  add_names(app, "--candidate", run.candidates, "candidates by name, or all that run on the device");
  app.add_option("--device", run.device, "device to run on: auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--plugin", run.plugins, "shared library with additional candidates")->type_name("FILE.so");
  app.add_option("--timeout-s", run.timeout_s, "time limit of a check, in seconds")->capture_default_str();
  app.add_flag("--no-isolate", run.no_isolate,
               "run candidates in this process, for debugging; a crash then ends the run");
  app.option_defaults()->group("Options");
}

void add_external_options(CLI::App& app, RunOptions& run) {
  app.add_option("--exec", run.external,
                 "command to run as a candidate: it gets cases as lines of JSON and tensors as files")
      ->type_name("COMMAND")
      ->group("Candidates");
  add_names(app, "--exec-name", run.external_names,
            "names of the --exec candidates, in order; default: exec, exec2, ...");
  app.get_option("--exec-name")->type_name("NAME")->group("Candidates");
}

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

  app.add_option("--input-mode", run.input_mode,
                 "kind of input data: random, constant, integer, peaked, extreme or wide")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--constant-value", run.constant_value, "value of the inputs with --input-mode constant")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--token-value", run.token_value, "token id with --input-mode constant")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--ignored-every", run.ignored_every,
                 "for operators with ignore_index: ignore one run of rows in every N; 0 ignores none, 1 all")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--ignored-run", run.ignored_run, "number of rows in each ignored run, such as the length of a prompt")
      ->capture_default_str()
      ->group("Data");
  app.add_option("--seed", run.seed, "seed of all inputs; with --suite or --cases it reseeds every case")
      ->check(not_negative())
      ->capture_default_str()
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

void add_form_options(CLI::App& app, ReportForms& forms) {
  app.add_option("--junit", forms.junit, "write JUnit XML, for CI servers")->type_name("FILE")->group("Reports");
  app.add_option("--markdown", forms.markdown, "write a summary in Markdown")->type_name("FILE")->group("Reports");
  app.add_option("--html", forms.html, "write a page for people, with maps of the errors")
      ->type_name("FILE")
      ->group("Reports");
}

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

void add_given_options(CLI::App& app, RunOptions& run) {
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

void add_memory_option(CLI::App& app, RunOptions& run) {
  app.add_option(
         "--memory-limit", run.memory_limit,
         "host memory that a check may use, such as 512M or 4G; larger checks are skipped; default: what is free")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("BYTES")
      ->group("Candidates");
}

void add_selection_options(CLI::App& app, RunOptions& run) {
  app.add_option("--filter", run.filter, "select checks whose OP/PASS/CANDIDATE/CASE_NAME matches this glob")
      ->group("Checks");
  app.add_flag("--list", run.list, "print the selected checks with the size of their tensors, and stop")
      ->group("Checks");
}

void add_arch_option(CLI::App& app, RunOptions& run) {
  app.add_option("--arch-key", run.arch_key,
                 "contract overlays to apply: auto (the device's), none, or a key such as sm90")
      ->capture_default_str()
      ->group("Judging");
}

void add_contract_options(CLI::App& app, RunOptions& run) {
  add_arch_option(app, run);
  app.add_option("--contract", run.contract, "tolerance contract; default: the shipped contracts/default.json")
      ->group("Judging");
}

void add_force_option(CLI::App& app, RunOptions& run) {
  app.add_flag("--force-arch-key", run.force_arch_key, "accept an --arch-key that is not the device's")
      ->group("Judging");
}

void show_all_as_default(CLI::App& app) {
  for (const char* flag : {"--op", "--pass", "--dtype"}) app.get_option(flag)->default_str("all");
}

}  // namespace checkop
