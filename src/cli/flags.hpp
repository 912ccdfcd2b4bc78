// SPDX-License-Identifier: Apache-2.0
// The flags of every subcommand; options.cpp puts them together.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/options.hpp"

namespace checkop {

void add_run_options(CLI::App& app, RunOptions& run);
void add_bench_options(CLI::App& app, RunOptions& run, BenchOptions& bench);
void add_certify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate);
void add_verify_options(CLI::App& app, RunOptions& run, CertificateOptions& certificate);
void add_mutate_options(CLI::App& app, RunOptions& run, MutateOptions& mutate);
void add_recipe_options(CLI::App& app, RunOptions& run);

void add_compare_options(CLI::App& app, RunOptions& run, CompareOptions& compare);
void add_list_options(CLI::App& app, RunOptions& run);
void add_show_options(CLI::App& app, RunOptions& run, std::string& op);
void add_doctor_options(CLI::App& app, RunOptions& run);

void add_report_options(CLI::App& app, ReportOptions& report);
void add_report_diff_options(CLI::App& app, ReportOptions& report);
void add_report_merge_options(CLI::App& app, Options& options);

void add_init_options(CLI::App& app, InitOptions& init);

// Of `contract`.
void add_explain_options(CLI::App& app, RunOptions& run);
void add_lint_options(CLI::App& app, RunOptions& run, std::vector<std::string>& contracts);
void add_diff_options(CLI::App& app, Options& options);
void add_calibrate_options(CLI::App& app, RunOptions& run);

}  // namespace checkop
