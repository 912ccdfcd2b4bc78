// SPDX-License-Identifier: Apache-2.0
// The command line: valid options, and the errors for invalid ones.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/options.hpp"
#include "support/contract_helper.hpp"

namespace checkop::options_test {
namespace {

using contract_test::error_of;
using Names = std::vector<std::string>;

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "check_operator");
  return parse_options(static_cast<int>(arguments.size()), arguments.data()).value();
}

TEST(Options, SeedsFlagsWorkWithoutASubcommand) {
  const RunOptions run =
      parse({"--op", "logp", "--candidate", "cuda", "--device", "cuda", "--dtype", "bf16", "--arch-key", "sm90",
             "--batch", "1", "--seq", "1", "--vocab", "4096", "--check-grad", "--json"})
          .run;
  EXPECT_EQ(run.ops, Names{"logp"});
  EXPECT_EQ(run.candidates, Names{"cuda"});
  EXPECT_EQ(run.passes, (Names{"forward", "backward"}));
  EXPECT_EQ(run.dims.at("vocab"), "4096");
  EXPECT_EQ(run.arch_key, "sm90");
  EXPECT_TRUE(run.json_to_stdout);
}

TEST(Options, RunIsTheDefaultSubcommand) {
  EXPECT_EQ(parse({"run", "--op", "matmul"}).run.ops, Names{"matmul"});
  EXPECT_EQ(parse({}).command, Command::run);
  EXPECT_EQ(parse({"list"}).command, Command::list);
  EXPECT_EQ(parse({"show", "logp"}).show_op, "logp");
  EXPECT_EQ(parse({"bench", "--op", "matmul"}).command, Command::bench);
}

TEST(Options, ListsAndOtherSpellingsOfSizes) {
  const RunOptions run = parse({"--dtype", "fp32,bf16", "--normalized-dim", "64", "--k-dim", "1:8:x2", "--dim",
                                "n_dim=5", "--with", "none,bias"})
                             .run;
  EXPECT_EQ(run.dtypes, (Names{"fp32", "bf16"}));
  EXPECT_EQ(run.dims.at("hidden"), "64");
  EXPECT_EQ(run.dims.at("k_dim"), "1:8:x2");
  EXPECT_EQ(run.dims.at("n_dim"), "5");
  EXPECT_EQ(run.with, (Names{"none", "bias"}));
}

TEST(Options, JsonTakesAFileOrNothing) {
  EXPECT_EQ(parse({"--json", "r.json", "--op", "logp"}).run.json_file, "r.json");
  const RunOptions run = parse({"--json", "--op", "logp"}).run;
  EXPECT_TRUE(run.json_to_stdout);
  EXPECT_EQ(run.ops, Names{"logp"});
}

TEST(Options, NegativeNumbersAreValues) { EXPECT_EQ(parse({"--batch", "-1"}).run.dims.at("batch"), "-1"); }

TEST(Options, MistakesAreInputErrors) {
  for (const Names& words :
       {Names{"--opp", "logp"}, Names{"--seed", "x"}, Names{"--save", "some"}, Names{"--check", "speed"}, Names{"show"},
        Names{"--dim", "vocab"}, Names{"--timeout-s", "0"}, Names{"stray"}, Names{"--batch"}}) {
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    EXPECT_NE(error_of([&] { parse(arguments); }), "no error") << words.front();
  }
}

TEST(Options, CommandIsQuotedForAShell) {
  EXPECT_EQ(quote_command({"a", "b c", "it's", "--x=1", ""}), "a 'b c' 'it'\\''s' --x=1 ''");
  EXPECT_EQ(parse({"--filter", "logp/*"}).command_line, "check_operator --filter 'logp/*'");
}

}  // namespace
}  // namespace checkop::options_test
