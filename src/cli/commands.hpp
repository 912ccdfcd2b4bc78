// SPDX-License-Identifier: Apache-2.0
// The subcommands; each returns the process's exit code.
#pragma once

#include "cli/options.hpp"

namespace checkop {

int run_command(const Options& options);
int replay_command(const Options& options);
int compare_command(const Options& options);
int bench_command(const Options& options);
int mutate_command(const Options& options);
int recipe_command(const Options& options);
int certify_command(const Options& options);
int verify_command(const Options& options);
int init_command(const Options& options);
int doctor_command(const Options& options);
int list_command(const Options& options);
int show_command(const Options& options);
int explain_command(const Options& options);
int lint_command(const Options& options);
int diff_command(const Options& options);
int calibrate_command(const Options& options);
int report_command(const Options& options);
int report_diff_command(const Options& options);
int report_merge_command(const Options& options);

}  // namespace checkop
