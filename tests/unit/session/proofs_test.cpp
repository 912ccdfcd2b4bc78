// SPDX-License-Identifier: Apache-2.0
// Proofs from a separate process, from this one, and when the separate process does not finish.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "session/proofs.hpp"
#include "support/gold_helper.hpp"
#include "worker/worker.hpp"

namespace checkop::proofs_test {
namespace {

Check check_of(Case c, bool here = true) {
  Check check{std::move(c), {"native", "", "", "cpu", true}};
  check.here = here;
  return check;
}

/// Two operators, one of them with two cases of a group; a case of another shard; one that cannot run.
std::vector<Check> some_checks() {
  const auto product = [](int64_t seq) {
    return gold_case("matmul", "forward", DType::f32, {{"batch", 1}, {"seq", seq}, {"k_dim", 64}, {"n_dim", 8}});
  };
  const auto logp = [](int64_t vocab) {
    return gold_case("logp", "forward", DType::bf16, {{"batch", 1}, {"seq", 40}, {"vocab", vocab}});
  };
  std::vector<Check> checks{check_of(product(20)), check_of(product(300)), check_of(logp(33)),
                            check_of(logp(1000), /*here=*/false), check_of(logp(77))};
  checks.back().candidate.has_kernel = false;
  return checks;
}

void expect_same(const std::vector<Check>& checks, const Proofs& a, const Proofs& b) {
  for (const Check& check : checks) {
    const Proofs::Entry *of_a = a.find(check.c), *of_b = b.find(check.c);
    const bool asked = check.here && check.candidate.has_kernel;
    ASSERT_EQ(of_a != nullptr, asked) << case_name(check.c);
    ASSERT_EQ(of_b != nullptr, asked) << case_name(check.c);
    if (!asked) continue;
    EXPECT_EQ(case_name(of_a->c), case_name(of_b->c));
    ASSERT_EQ(of_a->sensitivity.size(), of_b->sensitivity.size());
    ASSERT_FALSE(of_a->sensitivity.empty());
    for (size_t i = 0; i < of_a->sensitivity.size(); ++i) {
      EXPECT_EQ(of_a->sensitivity[i].state, Sensitivity::State::measured);
      EXPECT_EQ(of_a->sensitivity[i].state, of_b->sensitivity[i].state);
      EXPECT_EQ(of_a->sensitivity[i].elements, of_b->sensitivity[i].elements);
      EXPECT_EQ(of_a->sensitivity[i].changed, of_b->sensitivity[i].changed);
      EXPECT_GT(of_a->sensitivity[i].changed, 0);
    }
  }
}

Proofs proofs_here(const std::vector<Check>& checks) {
  const Isolation off(false);
  return Proofs(checks, {}, 2);
}

/// The child processes of this thread.
std::vector<pid_t> children() {
  std::ifstream file("/proc/self/task/" + std::to_string(gettid()) + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

TEST(Proofs, AreTheSameFromAnotherProcess) {
  const std::vector<Check> checks = some_checks();
  const Proofs apart(checks, {}, 2);
  EXPECT_EQ(children().size(), 1u);
  const Proofs here = proofs_here(checks);
  EXPECT_EQ(children().size(), 1u);
  expect_same(checks, apart, here);
}

TEST(Proofs, AreWorkedOutHereWhenThatProcessIsKilled) {
  const std::vector<Check> checks = some_checks();
  const Proofs apart(checks, {}, 2);
  const std::vector<pid_t> started = children();
  ASSERT_EQ(started.size(), 1u);
  kill(started.front(), SIGKILL);
  expect_same(checks, apart, proofs_here(checks));
}

TEST(Proofs, LeaveNoProcessBehind) {
  const std::vector<Check> checks = some_checks();
  { const Proofs apart(checks, {}, 2); }
  EXPECT_TRUE(children().empty());
}

TEST(Proofs, NothingToProveStartsNothing) {
  const Proofs none(std::vector<Check>{}, {}, 2);
  EXPECT_TRUE(children().empty());
  EXPECT_EQ(none.find(some_checks().front().c), nullptr);
}

}  // namespace
}  // namespace checkop::proofs_test
