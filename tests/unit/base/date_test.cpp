// SPDX-License-Identifier: Apache-2.0
// Dates in contracts.
#include <gtest/gtest.h>

#include "base/date.hpp"

namespace checkop::date_test {
namespace {

using std::chrono::day, std::chrono::month, std::chrono::year;

TEST(Date, IsReadAsYearMonthDay) {
  EXPECT_EQ(parse_date("2027-01-31"), (Date{year(2027), month(1), day(31)}));
  EXPECT_EQ(parse_date("2028-02-29"), (Date{year(2028), month(2), day(29)}));
}

TEST(Date, OtherFormsAndDaysThatAreNotThereAreNone) {
  for (const char* text : {"", "2027-1-31", "2027-01-31 ", "27-01-31", "2027/01/31", "2027-01-0x", "31-01-2027",
                           "2027-02-29", "2027-13-01", "2027-00-10", "2027-01-00", "-027-01-31"})
    EXPECT_FALSE(parse_date(text)) << text;
}

TEST(Date, IsWrittenAsItIsRead) { EXPECT_EQ(to_string(*parse_date("0987-06-05")), "0987-06-05"); }

TEST(Date, DatesAreOrderedAndTheEndOfTimeComesLast) {
  EXPECT_LT(*parse_date("2026-12-31"), *parse_date("2027-01-01"));
  EXPECT_LT(*parse_date("9999-12-31"), kEndOfTime);
  EXPECT_LT(*parse_date("2026-01-01"), today());
}

}  // namespace
}  // namespace checkop::date_test
