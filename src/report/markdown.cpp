// SPDX-License-Identifier: Apache-2.0
// The report for GitHub: a summary in Markdown, and annotations.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/forms.hpp"

namespace checkop {

std::string format_headroom(double headroom) {
  return std::isinf(headroom) ? "exact" : fmt::format("{:.3g}x", headroom);
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '\n':
      case '\r':
        out += ' ';
        break;
      case '|':
      case '`':
      case '*':
      case '_':
      case '[':
      case ']':
      case '\\':
      case '@':  // would mention a person
      case '#':  // would link to an issue
        out += fmt::format("&#{};", static_cast<int>(c));
        break;
      default:
        out += c;
    }
  }
  return out;
}

namespace {

/// A code block, with a fence longer than any in `text`.
std::string code_block(const std::string& text) {
  size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fmt::format("{}\n{}\n{}\n", fence, text, fence);
}

/// One row of the table of candidates.
struct Row {
  std::map<Verdict, int64_t> counts;
  int64_t checks = 0;
  double headroom = HUGE_VAL;
  std::string tightest;

  void add(const ReadCase& c) {
    ++checks;
    ++counts[c.verdict];
    if (c.headroom() < headroom) headroom = c.headroom(), tightest = c.name;
  }
  std::string verdicts() const {
    std::vector<std::string> words;
    for (const auto& [verdict, count] : counts) {
      const char* mark = is_good(verdict) ? "" : "**";
      words.push_back(fmt::format("{0}{1} {2}{0}", mark, count, to_string(verdict)));
    }
    return fmt::format("{}", fmt::join(words, ", "));
  }
};

std::string table_of_candidates(const ReadReport& report) {
  std::map<std::pair<std::string, std::string>, Row> rows;
  for (const ReadCase& c : report.cases) rows[{c.op + " " + c.pass, c.candidate}].add(c);
  std::string text =
      "| operator, pass | candidate | checks | verdicts | least headroom | in |\n|---|---|---|---|---|---|\n";
  for (const auto& [key, row] : rows) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", escape_markdown(key.first), escape_markdown(key.second),
                        row.checks, row.verdicts(), format_headroom(row.headroom), escape_markdown(row.tightest));
  }
  return text;
}

/// Escapes the data of a workflow command; with `property`, of a property, which needs ":" and "," escaped too.
std::string escape_data(const std::string& text, bool property) {
  std::string out;
  for (const char c : text) {
    const bool special = c == '%' || c == '\r' || c == '\n' || (property && (c == ':' || c == ','));
    out += special ? fmt::format("%{:02X}", static_cast<int>(c)) : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string to_markdown(const ReadReport& report, size_t most_bytes) {
  const bool passed = report.complete && report.exit_code == 0;
  std::string text =
      fmt::format("## {}: {}\n\n{}, on {}, contract {} (`{}`).\n\n{}\n", report.program(),
                  passed ? "passed" : fmt::format("not passed, exit code {}", report.exit_code),
                  escape_markdown(report.verdict_line()), escape_markdown(report.device),
                  escape_markdown(report.contract_path), report.contract_hash, code_block(report.command));
  // The table covers everything, so the list of failures gets only the room that the table leaves.
  const std::string table = report.cases.empty() ? "" : "### Candidates\n\n" + table_of_candidates(report);
  constexpr size_t kForMore = 200;
  const size_t room = most_bytes - std::min(most_bytes, table.size() + kForMore);
  std::string failures;
  int64_t left_out = 0;
  for (const ReadCase& c : report.cases) {
    if (is_good(c.verdict)) continue;
    const std::string entry =
        fmt::format("<details><summary><b>{}</b> {}: {}</summary>\n\n{}\n</details>\n", to_string(c.verdict),
                    escape_markdown(c.title()), escape_markdown(c.reason), code_block(c.repeat));
    if (left_out > 0 || text.size() + failures.size() + entry.size() > room) {
      ++left_out;
    } else {
      failures += entry;
    }
  }
  if (!failures.empty()) text += "### What did not pass\n\n" + failures + "\n";
  if (left_out > 0) text += fmt::format("{} more did not pass; the whole list is in the report.\n\n", left_out);
  return text + table;
}

std::vector<std::string> github_annotations(const ReadReport& report) {
  constexpr size_t kMost = 10;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& title, const std::string& message) {
    lines.push_back(fmt::format("::error title={}::{}", escape_data(title, true), escape_data(message, false)));
  };
  if (!report.complete || report.checked_nothing() || report.too_many_skipped())
    add(report.program(), report.verdict_line());
  const auto bad = std::count_if(report.cases.begin(), report.cases.end(), [](const ReadCase& c) {
    return !is_good(c.verdict) && c.verdict != Verdict::skipped;
  });
  size_t left = static_cast<size_t>(bad);
  for (const ReadCase& c : report.cases) {
    if (is_good(c.verdict) || c.verdict == Verdict::skipped) continue;
    if (lines.size() + 1 == kMost && left > 1) {
      add(report.program(), fmt::format("{} more checks did not pass", left));
      break;
    }
    const std::string of_shard = report.shard ? fmt::format(" ({})", report.shard->name()) : "";
    add(fmt::format("{}: {}{}", to_string(c.verdict), c.title(), of_shard),
        fmt::format("{}\nrepeat: {}", c.reason, c.repeat));
    --left;
  }
  return lines;
}

}  // namespace checkop
