// SPDX-License-Identifier: Apache-2.0
// Calendar dates, for what a contract grants until a day. Only today() looks at a clock.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace checkop {

using Date = std::chrono::year_month_day;

/// After every date that can be written: whatever expires has expired.
constexpr Date kEndOfTime{std::chrono::year::max(), std::chrono::December, std::chrono::day{31}};

/// "2027-01-31"; nothing for any other form and for a day that the calendar lacks.
std::optional<Date> parse_date(std::string_view text);
std::string to_string(Date date);

/// Of the machine's clock, in UTC.
Date today();

}  // namespace checkop
