// SPDX-License-Identifier: Apache-2.0
// Small things about strings: the nearest known name, globs, sizes in bytes for people, shell quoting, and the FNV-1a
// digest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace checkop {

/// "did you mean 'x'?" for the nearest of `known`; "" when none is near enough to be a slip of the hand.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

/// Globs of '*', any characters, and '?', one; everything else stands for itself.
bool is_glob(std::string_view pattern);  ///< has a '*' or a '?'
bool glob_matches(std::string_view pattern, std::string_view name);
/// Whether there is a name that both match.
bool globs_overlap(std::string_view a, std::string_view b);
/// Whether `a` matches whatever `b` matches; false also for a few pairs where it does, such as "a*" and "a?*".
bool glob_covers(std::string_view a, std::string_view b);

/// For an attribute or an element of XML or HTML; characters that XML 1.0 has no place for become "?".
std::string escape_xml(std::string_view text);

/// "512 B", "16.0 MiB".
std::string format_bytes(uint64_t bytes);

/// Joins arguments so that a shell reads them back as they are.
std::string quote_command(const std::vector<std::string>& arguments);

/// FNV-1a, 64 bits. Pass the result as `state` to go on with more bytes.
uint64_t fnv1a(std::string_view bytes, uint64_t state = 14695981039346656037ull);

/// The same as 16 hex digits.
std::string fnv1a_hex(std::string_view bytes);

/// The first word of `line` that is numbers joined by dots, two at least: "580.95.05"; "" without one.
std::string version_in(std::string_view line);

}  // namespace checkop
