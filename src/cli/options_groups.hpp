// SPDX-License-Identifier: Apache-2.0
// Groups of flags that several subcommands share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options.hpp"

namespace checkop {

/// Refuses what begins with a minus sign; whether the rest is a number is seen when it is converted.
CLI::Validator not_negative();
/// A flag that takes names: a comma list, may be repeated.
void add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& names, const std::string& help);
/// What chooses candidates, and where they run.
void add_candidate_options(CLI::App& app, RunOptions& run);
/// Candidates that are processes; not for timing, since their tensors travel through files.
void add_external_options(CLI::App& app, RunOptions& run);
/// What chooses cases.
void add_case_options(CLI::App& app, RunOptions& run);
void add_json_option(CLI::App& app, RunOptions& run, const std::string& help);
/// The forms that are made of a JSON report.
void add_form_options(CLI::App& app, ReportForms& forms);
/// What a run says, and how.
void add_output_options(CLI::App& app, RunOptions& run);
/// Tensors out of files in place of what the program makes.
void add_given_options(CLI::App& app, RunOptions& run);
/// How outputs are judged whose gold a file gives.
void add_class_options(CLI::App& app, RunOptions& run);
/// What runs may take of the machine.
void add_memory_option(CLI::App& app, RunOptions& run);
/// Which of the chosen checks.
void add_selection_options(CLI::App& app, RunOptions& run);
void add_arch_option(CLI::App& app, RunOptions& run);
void add_contract_options(CLI::App& app, RunOptions& run);
void add_force_option(CLI::App& app, RunOptions& run);
/// Of subcommands that take every operator, pass and dtype where nothing is said: see take_all() in options.cpp.
void show_all_as_default(CLI::App& app);

}  // namespace checkop
