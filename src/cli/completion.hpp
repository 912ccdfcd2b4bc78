// SPDX-License-Identifier: Apache-2.0
// Shell completion.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace checkop {

/// For bash or zsh, of the program whose flags and subcommands `app` has.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace checkop
