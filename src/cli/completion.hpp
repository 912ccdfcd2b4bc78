// SPDX-License-Identifier: Apache-2.0
// Shell completion.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace checkop {

/// The script that completes commands in bash or zsh, made of the flags and subcommands of `app`.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace checkop
