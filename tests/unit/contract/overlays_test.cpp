// SPDX-License-Identifier: Apache-2.0
// Overlays of contracts: which one sets a number, what they may loosen, and what happens after they expire.
#include <gtest/gtest.h>

#include "support/contract_helper.hpp"

namespace checkop::contract_overlays_test {
namespace {

using namespace contract_test;

const std::string kSm90 = R"({"arch": "sm90"})";

std::string lambda(double value) { return fmt::format(R"("bound_ratio": {{"lambda": {}}})", value); }

/// An overlay with an expiry date that may not loosen.
std::string strict(std::string_view match, std::string_view set, std::string_view expires = "never") {
  return overlay(match, set, fmt::format(R"("expires": "{}")", expires));
}

std::string loose_until(std::string_view match, std::string_view set, std::string_view expires) {
  return overlay(match, set, fmt::format(R"("expires": "{}", "loosen": true)", expires));
}

std::string error(const std::vector<std::string>& list, const std::vector<std::string>& rules = {rule("{}")}) {
  return rules_error(rules, overlays(list));
}

Judged logp() { return judged("logp", "forward", "logp"); }

// --- which overlay sets a number -------------------------------------------------------------------------------------

TEST(Overlay, InheritsWhatItDoesNotSet) {
  const Contract contract = parse({rule("{}")}, overlays({overlay(R"({"arch": "sm90", "op": "logp"})", lambda(7))}));
  const Gate plain = gates(contract, logp()).all[0], changed = gates(contract, logp(), "sm90").all[0];
  EXPECT_EQ(plain.lambda, 6.0);
  EXPECT_EQ(changed.lambda, 7.0);
  EXPECT_EQ(changed.limit, 1.0);
  EXPECT_EQ(changed.max_chain, 1024);
  EXPECT_EQ(plain.source, "c.json: rules[0].gates[0]");
  EXPECT_EQ(changed.source, "c.json: rules[0].gates[0] + overlays[0]");
  EXPECT_EQ(gates(contract, logp(), "sm80").all[0].lambda, 6.0);
  EXPECT_EQ(gates(contract, judged("matmul", "forward", "c"), "sm90").all[0].lambda, 6.0);
}

TEST(Overlay, TouchesOnlyTheMetricsItNames) {
  const Contract contract =
      parse({rule_with_gates(fmt::format(R"([{}, {{"metric": "atol_rtol", "atol": 1, "rtol": 2}}])", kGate))},
            overlays({overlay(kSm90, R"("atol_rtol": {"atol": 3})")}));
  const Gates got = gates(contract, logp(), "sm90");
  EXPECT_EQ(got.all[0].source, "c.json: rules[0].gates[0]");
  EXPECT_EQ(got.all[1].source, "c.json: rules[0].gates[1] + overlays[0]");
  EXPECT_EQ(got.all[1].atol, 3.0);
  EXPECT_EQ(got.all[1].rtol, 2.0);
}

TEST(Overlay, EachKeyOutweighsAllKeysBelowIt) {
  // Keys from the lightest to the heaviest. An overlay with a wide glob or the architecture and one further key beats
  // an overlay with all lighter keys in place of that one.
  const std::vector<std::string> keys{R"("numerics": "logprob")", R"("pass": "backward")",  R"("dtype": "bf16")",
                                      R"("op": "logp")",          R"("output": "dlogits")", R"("arch": "sm90")"};
  const Judged target = judged("logp", "backward", "dlogits", DType::bf16);
  const auto lambda_of = [&](const std::string& heavy, const std::string& light) {
    const Contract contract = parse({rule("{}")}, overlays({overlay(heavy, lambda(7)), overlay(light, lambda(8))}));
    return gates(contract, target, "sm90", "cuda").all[0].lambda;
  };
  const std::string glob = R"({"candidate": "c*")";
  for (size_t i = 1; i < keys.size(); ++i) {
    const std::vector<std::string> lighter(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(lambda_of(glob + ", " + keys[i] + "}", fmt::format("{}, {}}}", glob, fmt::join(lighter, ", "))), 7.0)
        << keys[i];
  }
  const std::string all_keys = fmt::format("{}", fmt::join(keys, ", "));
  EXPECT_EQ(lambda_of(glob + "}", "{" + all_keys + "}"), 7.0);
  EXPECT_EQ(lambda_of(R"({"candidate": "cuda"})", glob + ", " + all_keys + "}"), 7.0);
}

TEST(Overlay, ANumberIsThatOfTheMostSpecificOverlayThatSetsIt) {
  const Contract contract =
      parse({rule("{}")}, overlays({strict(R"({"arch": "sm90", "op": "logp"})", lambda(4)),
                                    strict(kSm90, R"("bound_ratio": {"lambda": 5, "limit": 0.5})")}));
  const Gate gate = gates(contract, logp(), "sm90").all[0];
  EXPECT_EQ(gate.lambda, 4.0);
  EXPECT_EQ(gate.limit, 0.5);  // the other overlay's tighter limit stays
  EXPECT_EQ(gate.source, "c.json: rules[0].gates[0] + overlays[1] + overlays[0]");
  EXPECT_EQ(gates(contract, judged("matmul", "forward", "c"), "sm90").all[0].lambda, 5.0);
}

TEST(Overlay, MatchesCandidatesByNameAndGlob) {
  const Contract contract = parse({rule("{}")}, overlays({strict(R"({"candidate": "cuda*"})", lambda(5)),
                                                          strict(R"({"candidate": "cuda-sm90"})", lambda(4))}));
  EXPECT_EQ(gates(contract, logp(), "", "cuda").all[0].lambda, 5.0);
  EXPECT_EQ(gates(contract, logp(), "", "cuda-sm90").all[0].lambda, 4.0);
  EXPECT_EQ(gates(contract, logp(), "", "cublas").all[0].lambda, 6.0);
  EXPECT_EQ(gates(contract, logp(), "sm90").all[0].lambda, 6.0);  // no candidate is given
}

TEST(Overlay, SourcesOfNumbersAreKept) {
  const Contract contract = parse({rule("{}")}, overlays({strict(kSm90, lambda(5))}));
  const Gates got = gates(contract, logp(), "sm90");
  ASSERT_EQ(got.numbers.size(), keys_of(Metric::bound_ratio).size());
  for (const NumberSource& number : got.numbers) {
    const std::string_view key = number.key->name;
    const bool by_default = key == "step" || key == "bias_ulps";
    EXPECT_EQ(number.path, key == "lambda" ? "overlays[0]" : by_default ? "" : "rules[0].gates[0]") << key;
    EXPECT_EQ(number.reason, key == "lambda" ? "r" : "") << key;
  }
}

// --- ties ------------------------------------------------------------------------------------------------------------

TEST(Overlay, TieIsAnErrorOfTheFile) {
  EXPECT_EQ(error({overlay(kSm90, lambda(8)), overlay(kSm90, lambda(8))}),
            "c.json: overlays[0] and overlays[1] both set bound_ratio lambda of logp/forward logp fp32 (case fp64) and "
            "are equally specific; remove one or let one name more keys");
}

TEST(Overlay, GlobsThatANameMatchesTie) {
  const auto both = [](std::string_view a, std::string_view b) {
    return error({overlay(fmt::format(R"({{"candidate": "{}"}})", a), lambda(8)),
                  overlay(fmt::format(R"({{"candidate": "{}"}})", b), lambda(9))});
  };
  EXPECT_NE(both("cuda*", "*sm90").find("equally specific"), std::string::npos);
  EXPECT_EQ(both("cuda*", "cublas*"), "no error");
  EXPECT_EQ(both("cuda*", "cuda"), "no error");
}

TEST(Overlay, EquallySpecificOnesDoNotTieWhereTheyDoNotMeet) {
  EXPECT_EQ(error({overlay(kSm90, lambda(8)), overlay(R"({"arch": "sm80"})", lambda(8))}), "no error");
  EXPECT_EQ(error({overlay(kSm90, lambda(8)), overlay(kSm90, R"("bound_ratio": {"limit": 2})")}), "no error");
  EXPECT_EQ(error({overlay(R"({"arch": "sm90", "op": "logp"})", lambda(8)),
                   overlay(R"({"arch": "sm90", "op": "matmul"})", lambda(8))}),
            "no error");
}

// --- loosening -------------------------------------------------------------------------------------------------------

TEST(Overlay, LooseningMustBeSaid) {
  EXPECT_EQ(error({strict(R"({"arch": "sm90", "op": "logp"})", lambda(7))}),
            "c.json: overlays[0].set.bound_ratio.lambda: loosens rules[0] from 6 to 7 for logp/forward logp fp32 (case "
            "fp64); tighten it, or say \"loosen\": true");
  EXPECT_EQ(error({strict(kSm90, lambda(6))}), "no error");
  EXPECT_EQ(error({strict(kSm90, lambda(5))}), "no error");
}

TEST(Overlay, LooseningAnotherOverlayMustBeSaidToo) {
  const std::string tight = strict(kSm90, lambda(3));
  EXPECT_NE(
      error({tight, strict(R"({"arch": "sm90", "op": "logp"})", lambda(5))}).find("loosens overlays[0] from 3 to 5"),
      std::string::npos);
  EXPECT_EQ(error({tight, overlay(R"({"arch": "sm90", "op": "logp"})", lambda(5))}), "no error");
  EXPECT_EQ(error({tight, strict(R"({"arch": "sm80", "op": "logp"})", lambda(5))}), "no error");
}

TEST(Overlay, LeaveToLoosenThatIsNotNeededIsAnError) {
  EXPECT_EQ(error({overlay(kSm90, lambda(5))}),
            "c.json: overlays[0]: \"loosen\" is true and no number becomes looser; leave it out");
}

TEST(Overlay, EveryNumberHasADirection) {
  struct Row {
    Metric metric;
    std::string_view key;
    double from, to;
    bool looser;
  };
  const Row rows[] = {
      {Metric::bound_ratio, "limit", 1, 2, true},       {Metric::bound_ratio, "limit", 2, 1, false},
      {Metric::bound_ratio, "lambda", 1, 2, true},      {Metric::bound_ratio, "lambda", 2, 1, false},
      {Metric::bound_ratio, "max_chain", 8, 9, true},   {Metric::bound_ratio, "max_chain", 9, 8, false},
      {Metric::bound_ratio, "max_chain", 8, 0, true},   {Metric::bound_ratio, "max_chain", 0, 8, false},
      {Metric::bound_ratio, "max_chain", 0, 0, false},  {Metric::bound_ratio, "step", 8, 4, true},
      {Metric::bound_ratio, "step", 4, 8, false},       {Metric::bound_ratio, "bias_ulps", 0, 1, true},
      {Metric::bound_ratio, "bias_ulps", 1, 0, false},  {Metric::atol_rtol, "atol", 1, 2, true},
      {Metric::atol_rtol, "atol", 2, 1, false},         {Metric::atol_rtol, "rtol", 1, 2, true},
      {Metric::atol_rtol, "rtol", 2, 1, false},         {Metric::bias_t, "one_sided", 0, 1, true},
      {Metric::bias_t, "one_sided", 1, 0, false},       {Metric::bias_t, "limit", 1, 2, true},
      {Metric::block_rel_l2, "rows", 1, 2, true},       {Metric::block_rel_l2, "rows", 2, 1, true},
      {Metric::block_rel_l2, "columns", 2, 1, true},    {Metric::block_rel_l2, "columns", 2, 2, false},
      {Metric::clip_flips, "clip_eps", 0.2, 0.1, true}, {Metric::clip_flips, "clip_eps", 0.1, 0.2, true},
  };
  for (const Row& row : rows) {
    const auto keys = keys_of(row.metric);
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const GateKey& k) { return k.name == row.key; });
    ASSERT_NE(key, keys.end()) << row.key;
    EXPECT_EQ(loosens(*key, row.from, row.to), row.looser) << row.key << " " << row.from << " to " << row.to;
  }
  for (const Metric metric : all_metrics())
    for (const GateKey& key : keys_of(metric)) EXPECT_FALSE(loosens(key, 3, 3)) << to_string(metric) << " " << key.name;
}

// --- dates -----------------------------------------------------------------------------------------------------------

TEST(Overlay, LoosensUntilTheEndOfItsLastDay) {
  const auto lambda_on = [](std::string_view date) {
    const Contract contract =
        parse({rule("{}")}, overlays({loose_until(kSm90, lambda(7), "2027-01-31")}), *parse_date(date));
    return gates(contract, logp(), "sm90").all[0].lambda;
  };
  EXPECT_EQ(lambda_on("2027-01-31"), 7.0);
  EXPECT_EQ(lambda_on("2027-02-01"), 6.0);
}

TEST(Overlay, WithoutADateEverythingThatCanHasExpired) {
  const Contract contract = parse(
      {rule("{}")}, overlays({loose_until(kSm90, lambda(7), "9999-12-31"), overlay(R"({"arch": "sm80"})", lambda(7))}));
  EXPECT_EQ(gates(contract, logp(), "sm90").all[0].lambda, 6.0);
  EXPECT_EQ(gates(contract, logp(), "sm80").all[0].lambda, 7.0);  // "never"
}

TEST(Overlay, PastItsDateItStillTightens) {
  const Contract contract =
      parse({rule("{}")}, overlays({loose_until(kSm90, R"("bound_ratio": {"lambda": 7, "limit": 0.5})", "2026-01-01")}),
            *parse_date("2026-06-01"));
  const Gates got = gates(contract, logp(), "sm90");
  EXPECT_EQ(got.all[0].lambda, 6.0);
  EXPECT_EQ(got.all[0].limit, 0.5);
  EXPECT_EQ(got.all[0].source, "c.json: rules[0].gates[0] + overlays[0]");
  EXPECT_EQ(got.withheld,
            std::vector<std::string>{"overlays[0] expired on 2026-01-01: bound_ratio lambda stays 6, not 7"});
}

TEST(Overlay, ExpiryIsSaid) {
  const std::string list =
      overlays({loose_until(kSm90, lambda(7), "2026-01-01"), strict(R"({"arch": "sm80"})", lambda(5))});
  EXPECT_EQ(parse({rule("{}")}, list, *parse_date("2026-01-01")).warnings(), std::vector<std::string>{});
  EXPECT_EQ(
      parse({rule("{}")}, list, *parse_date("2026-01-02")).warnings(),
      std::vector<std::string>{"c.json: overlays[0] of o expired on 2026-01-01: what it loosens no longer holds (r)"});
}

// --- refused overlays ------------------------------------------------------------------------------------------------

TEST(Overlay, ErrorsNameFileAndPath) {
  EXPECT_EQ(error({overlay(R"({"arch": "sm91"})", lambda(7))}),
            "c.json: overlays[0].match.arch: unknown architecture 'sm91'; did you mean 'sm90'?");
  EXPECT_EQ(error({overlay(R"({"op": "logp"})", lambda(7))}),
            "c.json: overlays[0].match: expected an architecture or a candidate, got an object; add \"arch\" or "
            "\"candidate\"; what holds everywhere belongs in a rule");
  EXPECT_EQ(error({overlay(R"({"arch": "sm90", "op": "logp", "output": "db"})", lambda(7))}),
            "c.json: overlays[0].match: matches no output of any operator; 'check_operator list' shows the operators; "
            "their specs stand in reference/");
  EXPECT_EQ(
      error({overlay(kSm90, R"("atol_rtol": {"atol": 7})")}),
      "c.json: overlays[0].set.atol_rtol: no rule that judges these outputs has such a gate; name a metric that a "
      "matching rule has");
  EXPECT_NE(error({overlay(R"({"arch": "sm90", "op": "matmul"})", lambda(7))}, {rule(R"({"op": "logp"})")})
                .find("no rule that judges these outputs"),
            std::string::npos);
  EXPECT_EQ(error({overlay(kSm90, R"("bound_ratio": {"lamda": 7})")}),
            "c.json: overlays[0].set.bound_ratio: unknown key 'lamda'; did you mean 'lambda'?");
  EXPECT_EQ(error({overlay(kSm90, R"("bound_ratio": {"lambda": -7})")}),
            "c.json: overlays[0].set.bound_ratio.lambda: expected a finite number >= 0, got -7");
  EXPECT_NE(error({overlay(kSm90, "")}).find("at least one metric"), std::string::npos);
  EXPECT_NE(error({overlay(kSm90, R"("bound_ratio": {})")}).find("a number to set"), std::string::npos);
  EXPECT_EQ(error({overlay(R"({"arch": "sm90", "cpu": true})", lambda(7))})
                .find("c.json: overlays[0].match: unknown key 'cpu'; "),
            0u);
  EXPECT_EQ(rules_error({rule(R"({"arch": "sm90"})")}).find("c.json: rules[0].match: unknown key 'arch';"), 0u);
}

TEST(Overlay, ReasonOwnerAndExpiryAreRequired) {
  const std::vector<std::string> all{R"("reason": "r")", R"("owner": "o")", R"("expires": "never")"};
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> others = all;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string text =
        fmt::format(R"({{"match": {}, "set": {{{}}}, {}}})", kSm90, lambda(5), fmt::join(others, ", "));
    const std::string key = all[i].substr(1, all[i].find(':') - 2);
    EXPECT_EQ(error({text}), fmt::format("c.json: overlays[0]: key '{}' is missing; add it", key));
  }
  EXPECT_EQ(
      error({strict(kSm90, lambda(5), "2027-02-30")}),
      "c.json: overlays[0].expires: expected a date such as 2027-01-31, or never, got \"2027-02-30\"; the last day "
      "on which it holds");
}

TEST(Overlay, OfTheDefaultContractHalveTheStepOfTheFirstTensorCores) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  for (const auto& [pass, output] : {std::pair("forward", "c"), std::pair("backward", "db")}) {
    const Judged j = judged("matmul", pass, output, DType::bf16);
    for (const char* arch : {"sm70", "sm75"}) EXPECT_EQ(gates(contract, j, arch).all[0].step, 4) << arch;
    for (const char* arch : {"", "sm80", "sm90"}) EXPECT_EQ(gates(contract, j, arch).all[0].step, 8) << arch;
    EXPECT_EQ(gates(contract, judged("matmul", pass, output), "sm70").all[0].step, 1);
  }
}

}  // namespace
}  // namespace checkop::contract_overlays_test
