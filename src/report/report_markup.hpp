// SPDX-License-Identifier: Apache-2.0
// Helpers for Markdown and HTML.
#pragma once

#include <string>
#include <string_view>

namespace checkop {

/// `text` for a table cell, with everything escaped that Markdown or HTML would interpret.
std::string escape_markdown(std::string_view text);

/// "2.5x"; "exact" without errors.
std::string format_headroom(double headroom);

}  // namespace checkop
