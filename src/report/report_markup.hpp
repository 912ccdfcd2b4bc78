// SPDX-License-Identifier: Apache-2.0
// What the forms for people share.
#pragma once

#include <string>
#include <string_view>

namespace checkop {

/// `text` for a table's cell, with nothing in it that Markdown or HTML would act on.
std::string escape_markdown(std::string_view text);

/// "2.5x"; "exact" where nothing was off.
std::string format_headroom(double headroom);

}  // namespace checkop
