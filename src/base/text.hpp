// SPDX-License-Identifier: Apache-2.0
// String helpers: nearest known name, globs, human-readable byte sizes, shell quoting, FNV-1a digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace checkop {

/// "did you mean 'x'?" for the nearest of `known`; "" when none is near enough to be a typing error.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// Globs: '*' matches any characters, '?' matches one, everything else matches itself.
bool is_glob(std::string_view pattern);  ///< contains a '*' or a '?'
bool glob_matches(std::string_view pattern, std::string_view name);
/// Whether some name matches both.
bool globs_overlap(std::string_view a, std::string_view b);
/// Whether `a` matches every name that `b` matches. Wrongly false for a few pairs, such as "a*" and "a?*".
bool glob_covers(std::string_view a, std::string_view b);

/// Escapes text for an XML or HTML attribute or element; characters that XML 1.0 forbids become "?".
std::string escape_xml(std::string_view text);

/// "512 B", "16.0 MiB".
std::string format_bytes(uint64_t bytes);

/// Joins arguments and quotes them for a shell.
std::string quote_command(const std::vector<std::string>& arguments);

/// FNV-1a, 64 bits. To hash more bytes, pass the result as `state`.
uint64_t fnv1a(std::string_view bytes, uint64_t state = 14695981039346656037ull);

/// The same as 16 hex digits.
std::string fnv1a_hex(std::string_view bytes);

/// The first word of `line` that consists of at least two numbers joined by dots, "580.95.05"; "" without one.
std::string version_in(std::string_view line);

/// `text` of a candidate with blanks in place of control characters, so that it can't begin a line of its own.
std::string in_one_line(std::string_view text);

}  // namespace checkop
