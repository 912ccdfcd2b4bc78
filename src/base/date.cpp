// SPDX-License-Identifier: Apache-2.0
// Reads and writes dates of the form YYYY-MM-DD.
#include "base/date.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace checkop {

std::optional<Date> parse_date(std::string_view text) {
  const auto fits = [](char c, char form) { return form == '-' ? c == '-' : c >= '0' && c <= '9'; };
  constexpr std::string_view kForm = "dddd-dd-dd";
  if (!std::equal(text.begin(), text.end(), kForm.begin(), kForm.end(), fits)) return {};
  const auto number = [&](size_t from, size_t count) {
    int value = 0;
    for (const char c : text.substr(from, count)) value = 10 * value + (c - '0');
    return value;
  };
  const Date date{std::chrono::year(number(0, 4)), std::chrono::month(static_cast<unsigned>(number(5, 2))),
                  std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  return date.ok() ? std::optional(date) : std::nullopt;
}

std::string to_string(Date date) {
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

Date today() { return std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()); }

}  // namespace checkop
