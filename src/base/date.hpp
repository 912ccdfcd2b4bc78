// SPDX-License-Identifier: Apache-2.0
// Calendar dates, for contract entries that expire. Only today() reads a clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace checkop {

using Date = std::chrono::year_month_day;

/// Later than every date that can be written: as of this day, every expiry date has passed.
constexpr Date kEndOfTime{std::chrono::year::max(), std::chrono::December, std::chrono::day{31}};

/// Parses "2027-01-31". Returns nullopt for any other form and for days that the calendar lacks.
std::optional<Date> parse_date(std::string_view text);
std::string to_string(Date date);

/// The date of the machine's clock, in UTC.
Date today();

}  // namespace checkop
