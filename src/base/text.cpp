// SPDX-License-Identifier: Apache-2.0
// Nearest name (Damerau-Levenshtein distance, ignoring case), globs, byte sizes, FNV-1a and version numbers.
#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace checkop {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// Whether patterns `a` and `b` align: a '*' of `a` matches any part of `b`, and if `both`, a '*' of `b` any part of
/// `a`. All other pairs of characters must satisfy `together`.
template <class Together>
bool align(std::string_view a, std::string_view b, const Together& together, bool both) {
  // fits[j]: the part of `a` read so far aligns with the first j characters of `b`.
  std::vector<char> fits(b.size() + 1), next(b.size() + 1);
  const auto star = [&](size_t j) { return both && b[j] == '*'; };
  fits[0] = 1;
  for (size_t j = 0; j < b.size(); ++j) fits[j + 1] = fits[j] && star(j);
  for (const char c : a) {
    next[0] = c == '*' && fits[0];
    for (size_t j = 0; j < b.size(); ++j) {
      next[j + 1] = (c == '*' && (fits[j + 1] || next[j])) || (star(j) && (next[j] || fits[j + 1])) ||
                    (c != '*' && !star(j) && fits[j] && together(c, b[j]));
    }
    std::swap(fits, next);
  }
  return fits[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 100;  // a longer name is near no known name, and comparing takes time
  if (name.size() > kLongestName) return "";
  // Up to a third of the letters may differ; beyond that a guess misleads more often than it helps.
  size_t best = std::max<size_t>(1, name.size() / 3) + 1;
  const std::string* nearest = nullptr;
  for (const std::string& candidate : known) {
    const size_t distance = edit_distance(name, candidate);
    if (distance >= best || distance >= candidate.size()) continue;
    best = distance;
    nearest = &candidate;
  }
  return nearest ? "did you mean '" + *nearest + "'?" : "";
}

bool is_glob(std::string_view pattern) { return pattern.find_first_of("*?") != std::string_view::npos; }

bool glob_matches(std::string_view pattern, std::string_view name) {
  return align(
      pattern, name, [](char p, char n) { return p == '?' || p == n; }, false);
}

bool globs_overlap(std::string_view a, std::string_view b) {
  return align(
      a, b, [](char x, char y) { return x == '?' || y == '?' || x == y; }, true);
}

bool glob_covers(std::string_view a, std::string_view b) {
  // Treat a '*' of `b` as a character that only a '*' of `a` matches.
  return align(
      a, b, [](char x, char y) { return (x == '?' && y != '*') || x == y; }, false);
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\n':
      case '\t':
      case '\r':
        out += fmt::format("&#{};", static_cast<int>(code));
        break;
      default:
        out += code < 0x20 ? '?' : c;
    }
  }
  return out;
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string quote_command(const std::vector<std::string>& arguments) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  std::string line;
  for (const std::string& argument : arguments) {
    if (!line.empty()) line += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

uint64_t fnv1a(std::string_view bytes, uint64_t state) {
  for (const char c : bytes) {
    state ^= static_cast<unsigned char>(c);
    state *= 1099511628211ull;
  }
  return state;
}

std::string fnv1a_hex(std::string_view bytes) {
  std::string hex(16, '0');
  uint64_t digest = fnv1a(bytes);
  for (auto digit = hex.rbegin(); digit != hex.rend(); ++digit, digest >>= 4) *digit = "0123456789abcdef"[digest & 15];
  return hex;
}

std::string version_in(std::string_view line) {
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find_first_of(" \t", at), line.size());
    const std::string_view word = line.substr(at, end - at);
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (word.find_first_not_of("0123456789.") == word.npos && word.find('.') != word.npos &&
        word.find("..") == word.npos && is_digit(word.front()) && is_digit(word.back()))
      return std::string(word);
    at = end + 1;
  }
  return "";
}

std::string in_one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return line;
}

}  // namespace checkop
