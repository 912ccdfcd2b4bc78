// SPDX-License-Identifier: Apache-2.0
// What the Markdown forms share.
#pragma once

#include <string>
#include <string_view>

namespace checkop {

/// `text` for a table's cell, with nothing in it that Markdown or HTML would act on.
std::string escape_markdown(std::string_view text);

}  // namespace checkop
