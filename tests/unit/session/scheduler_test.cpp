// SPDX-License-Identifier: Apache-2.0
// The order of work of a run: what is asked and judged, what runs at once, and what an error leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "session/session.hpp"
#include "support/run_helper.hpp"

namespace checkop::scheduler_test {
namespace {

using Names = std::vector<std::string>;

/// Small products on the CPU.
RunOptions products(const std::string& sizes) {
  RunOptions options;
  options.ops = {"matmul"};
  options.candidates = {"honest"};
  options.device = "cpu";
  options.dims = {{"batch", "1"}, {"seq", sizes}, {"k_dim", "2"}, {"n_dim", "4"}};
  options.plugins = {test_plugin("honest")};
  return options;
}

/// Sizes of the product.
std::string name_of(const Check& check) { return "seq=" + std::to_string(check.c.dims.at("seq")); }

Names names(int first, int last) {
  Names all;
  for (int seq = first; seq <= last; ++seq) all.push_back("seq=" + std::to_string(seq));
  return all;
}

/// Child processes of this one.
size_t children() {
  size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (std::string id; list >> id;) ++count;
  }
  return count;
}

TEST(Scheduler, AsksForEachCheckOnceAndJudgesInOrder) {
  const RunOptions options = products("1:20");
  const Session session(options, select_checks(options));
  Names asked, judged;
  session.run_all([&](Attempt& attempt) { judged.push_back(name_of(*attempt.check)); }, {},
                  [&](const Check& check) {
                    asked.push_back(name_of(check));
                    return check.c.dims.at("seq") % 8 == 0;
                  });
  EXPECT_EQ(asked, names(1, 20));
  EXPECT_EQ(judged, (Names{"seq=8", "seq=16"}));
}

TEST(Scheduler, TwoOfManyChecksOfACandidateRunAtOnceOnTheCpu) {
  for (const auto& [checks, processes] : std::vector<std::pair<std::string, size_t>>{{"1:16", 2}, {"1:17", 4}}) {
    const RunOptions options = products(checks);
    const Session session(options, select_checks(options));
    const size_t before = children();
    size_t most = 0;
    session.run_all([&](Attempt& attempt) {
      EXPECT_EQ(to_string(attempt.record.run.status), "ok") << attempt.record.run.message;
      most = std::max(most, children() - before);
    });
    EXPECT_EQ(most, processes) << checks;
  }
}

TEST(Scheduler, ACandidateThatIsFarFromItsTimeLimitAloneHasTwoLanes) {
  RunOptions options = products("1:17");
  options.timeout_s = 1;
  options.plugins = {test_plugin("crashes")};
  options.candidates = {"takes_a_while"};
  const Session session(options, select_checks(options));
  const size_t before = children();
  size_t most = 0;
  int judged = 0;
  EXPECT_THROW(session.run_all([&](Attempt&) {
    most = std::max(most, children() - before);
    if (++judged == 3) throw std::runtime_error("enough");
  }),
               std::runtime_error);
  EXPECT_EQ(most, 2);
}

TEST(Scheduler, ACandidateThatLoadsNoMoreIsAnErrorOfItsOwnChecks) {
  RunOptions options = products("1:3");
  options.plugins.push_back(test_plugin("loads_no_more"));
  options.candidates = {"loads_no_more", "honest"};
  const Session session(options, select_checks(options));
  setenv("CHECKOP_LOADS_NO_MORE", "1", 1);
  Names outcomes;
  session.run_all([&](Attempt& attempt) {
    const CaseRecord& record = attempt.record;
    outcomes.push_back(record.candidate + " " + std::string(to_string(record.run.status)));
    const bool is_broken = record.candidate == "loads_no_more";
    EXPECT_EQ(record.run.message.find("exited with code 3 before it answered") != std::string::npos, is_broken)
        << record.run.message;
  });
  unsetenv("CHECKOP_LOADS_NO_MORE");
  Names expected(3, "loads_no_more crashed");
  expected.insert(expected.end(), 3, "honest ok");
  EXPECT_EQ(outcomes, expected);
}

TEST(Scheduler, WhatRanBeforeAnErrorIsJudged) {
  const RunOptions options = products("1:20");
  const Session session(options, select_checks(options));
  Names judged;
  const auto run = [&] {
    session.run_all([&](Attempt& attempt) { judged.push_back(name_of(*attempt.check)); }, {},
                    [](const Check& check) {
                      if (check.c.dims.at("seq") == 3) throw std::runtime_error("its turn");
                      return true;
                    });
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_EQ(judged, names(1, 2));
}

TEST(Scheduler, AnErrorOfTheJudgeEndsTheRun) {
  const RunOptions options = products("1:20");
  const Session session(options, select_checks(options));
  Names judged;
  const auto run = [&] {
    session.run_all([&](Attempt& attempt) {
      judged.push_back(name_of(*attempt.check));
      if (judged.size() == 2) throw std::runtime_error("no room for the report");
    });
  };
  EXPECT_THROW(run(), std::runtime_error);
  EXPECT_EQ(judged, names(1, 2));
}

}  // namespace
}  // namespace checkop::scheduler_test
