// SPDX-License-Identifier: Apache-2.0
// Contracts of our own format: choice of the rule, growth, and the shipped files.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.hpp"
#include "base/text.hpp"
#include "contract/contract.hpp"
#include "support/contract_helper.hpp"

namespace checkop::contract_test {
namespace {

using namespace contract_test;

const std::string kContracts = CHECKOP_SOURCE_DIR "/contracts/";

// --- choice of the rule ----------------------------------------------------------------------------------------------

TEST(Contract, ARuleGivesItsGates) {
  const std::string gate = R"([{"metric": "bound_ratio", "limit": 2, "lambda": 5, "step": 4, "max_chain": 64,
                                "bias_ulps": 0.5}, {"metric": "atol_rtol", "atol": 1e-3, "rtol": 1e-2},
                               {"metric": "bits"}])";
  const Gates got = gates(parse({rule_with_gates(gate)}), judged("logp", "forward", "logp"));
  ASSERT_EQ(got.all.size(), 3u);
  EXPECT_EQ(got.all[0].metric, Metric::bound_ratio);
  EXPECT_EQ(got.all[0].limit, 2.0);
  EXPECT_EQ(got.all[0].lambda, 5.0);
  EXPECT_EQ(got.all[0].step, 4);
  EXPECT_EQ(got.all[0].max_chain, 64);
  EXPECT_EQ(got.all[0].bias_ulps, 0.5);
  EXPECT_EQ(got.all[1].metric, Metric::atol_rtol);
  EXPECT_EQ(got.all[1].atol, 1e-3);
  EXPECT_EQ(got.all[1].rtol, 1e-2);
  EXPECT_EQ(got.all[2].metric, Metric::bits);
  EXPECT_FALSE(got.nonfinite_may_match);
}

TEST(Contract, EveryNumberOfEveryMetricIsReadAndCanBeOverlaid) {
  for (const Metric metric : all_metrics()) {
    std::string numbers;
    double value = 2;
    for (const GateKey& key : keys_of(metric))
      numbers += fmt::format(R"({}"{}": {})", numbers.empty() ? "" : ", ", key.name, value++);
    const std::string bound =
        fmt::format("{}{}", metric == Metric::bound_ratio ? "" : kGate, metric == Metric::bound_ratio ? "" : ", ");
    const std::string text =
        fmt::format(R"({{"match": {{"output": "logp"}}, "why": "w", "gates": [{}{{"metric": "{}"{}{}}}]}})", bound,
                    to_string(metric), numbers.empty() ? "" : ", ", numbers);
    const Judged logp = judged("logp", "forward", "logp");
    // logp's forward pass has no identities and no model; model_bits_test.cpp reads the messages of bits_of_model.
    if (metric == Metric::identities || metric == Metric::bits_of_model) continue;
    const Gate got = gates(parse({text}), logp).all.back();
    EXPECT_EQ(got.metric, metric);
    value = 2;
    for (const GateKey& key : keys_of(metric)) {
      EXPECT_EQ(key.real != nullptr ? got.*key.real : static_cast<double>(got.*key.integer), value++) << key.name;
      const bool looser = key.looser != Looser::smaller;
      const std::string set =
          overlay(R"({"arch": "sm90"})", fmt::format(R"("{}": {{"{}": 77}})", to_string(metric), key.name),
                  fmt::format(R"("expires": "never", "loosen": {})", looser));
      const Gate other = gates(parse({text}, overlays({set})), logp, "sm90").all.back();
      EXPECT_EQ(key.real != nullptr ? other.*key.real : static_cast<double>(other.*key.integer), 77) << key.name;
    }
  }
}

TEST(Contract, StepAndBiasDefaultToOneRoundingPerTermToNearest) {
  const Gate gate = gates(parse({rule("{}")}), judged("logp", "forward", "logp")).all[0];
  EXPECT_EQ(gate.step, 1);
  EXPECT_EQ(gate.bias_ulps, 0.0);
}

TEST(Contract, NonfiniteMatchIsRead) {
  const std::string text = fmt::format(R"({{"match": {{}}, "gates": [{}], "nonfinite": "match", "why": "w"}})", kGate);
  EXPECT_TRUE(gates(parse({text}), judged("logp", "forward", "logp")).nonfinite_may_match);
}

TEST(Contract, SourcesNameFileRuleAndGate) {
  const Gates got = gates(parse({rule(R"({"pass": "backward"})"), rule(R"({"pass": "forward"})")}),
                          judged("logp", "forward", "logp"));
  EXPECT_EQ(got.source, "c.json: rules[1]");
  EXPECT_EQ(got.all[0].source, "c.json: rules[1].gates[0]");
}

TEST(Contract, EachKeyOutweighsAllKeysBelowIt) {
  // Keys from the lightest to the heaviest; a rule with key i alone beats the rule with all keys before it.
  const std::vector<std::string> keys{R"("numerics": "logprob")", R"("pass": "backward")", R"("dtype": "bf16")",
                                      R"("op": "logp")", R"("output": "dlogits")"};
  for (size_t i = 1; i < keys.size(); ++i) {
    const std::vector<std::string> below(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string all_below = rule(fmt::format("{{{}}}", fmt::join(below, ", ")), 1);
    const std::string alone = rule(fmt::format("{{{}}}", keys[i]), 2);
    const Judged target = judged("logp", "backward", "dlogits", DType::bf16);
    EXPECT_EQ(gates(parse({all_below, alone}), target).all[0].lambda, 2.0) << keys[i];
    EXPECT_EQ(gates(parse({alone, all_below}), target).all[0].lambda, 2.0) << keys[i];
  }
}

TEST(Contract, ARuleThatNamesMoreWins) {
  const Contract contract =
      parse({rule("{}", 1), rule(R"({"op": "matmul", "pass": "backward"})", 3), rule(R"({"op": "matmul"})", 2)});
  EXPECT_EQ(gates(contract, judged("logp", "forward", "logp")).all[0].lambda, 1.0);
  EXPECT_EQ(gates(contract, judged("matmul", "forward", "c")).all[0].lambda, 2.0);
  EXPECT_EQ(gates(contract, judged("matmul", "backward", "db")).all[0].lambda, 3.0);
}

TEST(Contract, DtypeIsThatOfTheOutputNotOfTheCase) {
  const Contract contract = parse({rule(R"({"dtype": "fp32"})", 1), rule(R"({"dtype": ["bf16", "fp16"]})", 2)});
  EXPECT_EQ(gates(contract, judged("logp", "forward", "logp", DType::bf16)).all[0].lambda, 1.0);
  EXPECT_EQ(gates(contract, judged("logp", "backward", "dlogits", DType::bf16)).all[0].lambda, 2.0);
  EXPECT_EQ(gates(contract, judged("logp", "backward", "dlogits", DType::f16)).all[0].lambda, 2.0);
}

TEST(Contract, TieBetweenRulesIsAnError) {
  EXPECT_EQ(rules_error({rule("{}"), rule(R"({"pass": "forward"})"), rule(R"({"pass": "forward"})")}),
            "c.json: rules[1] and rules[2] both match logp/forward logp fp32 (case fp64) and are equally specific; "
            "remove one or let one name more keys");
}

TEST(Contract, ATieBelowTheWinningRuleIsNoError) {
  const std::string match = R"({"op": "logp", "pass": "forward"})";
  EXPECT_EQ(gates(parse({rule(match, 1), rule(R"({"op": "logp", "pass": "forward", "dtype": "fp32"})", 2)}),
                  judged("logp", "forward", "logp"))
                .all[0]
                .lambda,
            2.0);
  EXPECT_EQ(rules_error({rule(match), rule(match), rule(R"({"output": "logp"})")}), "no error");
}

TEST(Contract, OverlappingDtypeListsTie) {
  EXPECT_NE(
      rules_error({rule(R"({"dtype": ["fp32", "bf16"]})"), rule(R"({"dtype": "bf16"})")}).find("equally specific"),
      std::string::npos);
}

TEST(Contract, AnOutputWithoutARuleIsAnErrorOnceItIsAsked) {
  const Contract contract = parse({rule(R"({"op": "logp"})")});
  EXPECT_EQ(error_of([&] { gates(contract, judged("matmul", "forward", "c", DType::bf16)); }),
            "c.json: no rule matches matmul/forward c bf16 (case bf16); add one, or choose another dtype than bf16 or "
            "another contract");
}

// --- demands ---------------------------------------------------------------------------------------------------------

TEST(Contract, DemandsAreOnUnlessTurnedOff) {
  const Judged j = judged("logp", "forward", "logp");
  EXPECT_TRUE(parse({rule("{}")}).demands_for(j.c, *j.output).determinism);
  EXPECT_TRUE(parse({rule("{}")}).demands_for(j.c, *j.output).batch_invariance);
  const Contract off = parse({rule("{}")}, R"(, "demands": {"determinism": false, "batch_invariance": false})");
  EXPECT_FALSE(off.demands_for(j.c, *j.output).determinism);
  EXPECT_FALSE(off.demands_for(j.c, *j.output).batch_invariance);
}

TEST(Contract, DemandsNameAxesAndRuns) {
  const Judged j = judged("logp", "forward", "logp");
  EXPECT_EQ(parse({rule("{}")}).demands_for(j.c, *j.output).axes, AxisSet::all());
  EXPECT_EQ(parse({rule("{}")}).demands_for(j.c, *j.output).runs, 20);
  const Contract some = parse({rule("{}")}, R"(, "demands": {"invariance": {"axes": ["batch", "chunks"]},
                              "determinism": {"runs": 5}, "operators": {"logp": {"determinism": {"axes": ["graph"]}}}})");
  const Demands own = some.demands_for(j.c, *j.output);
  EXPECT_TRUE(own.determinism);
  EXPECT_EQ(own.runs, 5);
  EXPECT_EQ(own.axes, (AxisSet{Axis::batch, Axis::chunks, Axis::graph}));
  const Judged other = judged("matmul", "forward", "c");
  EXPECT_EQ(of_launches(some.demands_for(other.c, *other.output).axes), of_launches(AxisSet::all()));
}

TEST(Contract, AnOperatorsOwnDemandsReplaceThoseForAll) {
  const Contract contract = parse({rule("{}")}, R"(, "demands": {"operators": {"matmul": {"batch_invariance": false},
                                                    "logp": {"determinism": true}}, "determinism": false})");
  const auto demands = [&](std::string_view op, std::string_view output) {
    const Judged j = judged(op, "forward", output);
    return contract.demands_for(j.c, *j.output);
  };
  EXPECT_FALSE(demands("matmul", "c").batch_invariance);
  EXPECT_FALSE(demands("matmul", "c").determinism);  // inherited from the demands for all operators
  EXPECT_TRUE(demands("det_gemm", "c").batch_invariance);
  EXPECT_FALSE(demands("det_gemm", "c").determinism);
  EXPECT_TRUE(demands("logp", "logp").determinism);
  EXPECT_TRUE(demands("logp", "logp").batch_invariance);
}

// cuBLAS does not guarantee batch invariance; a contract that exempts matmul must be chosen, the default does not
// exempt it.
TEST(Contract, TheDefaultDemandsBatchInvarianceOfMatmulAndDetGemm) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  for (const std::string_view op : {"matmul", "det_gemm"}) {
    const Judged j = judged(op, "forward", "c");
    EXPECT_TRUE(contract.demands_for(j.c, *j.output).batch_invariance) << op;
    EXPECT_TRUE(contract.demands_for(j.c, *j.output).determinism) << op;
  }
}

TEST(Contract, BatchInvarianceIsDemandedOfPerRowOutputsOnly) {
  const Contract contract = parse({rule("{}")});
  const Judged da = judged("matmul", "backward", "da"), db = judged("matmul", "backward", "db");
  EXPECT_TRUE(contract.demands_for(da.c, *da.output).batch_invariance);
  EXPECT_FALSE(contract.demands_for(db.c, *db.output).batch_invariance);
  EXPECT_TRUE(contract.demands_for(db.c, *db.output).determinism);
}

// --- architectures ---------------------------------------------------------------------------------------------------

TEST(Contract, AnUnknownArchitectureAskedForIsAnError) {
  const Contract contract = parse({rule("{}")});
  EXPECT_EQ(error_of([&] { gates(contract, judged("logp", "forward", "logp"), "sm91"); }),
            "unknown architecture 'sm91'; did you mean 'sm90'?");
  EXPECT_NE(error_of([&] { gates(contract, judged("logp", "forward", "logp"), "hopper"); }).find(known_archs()),
            std::string::npos);
}

TEST(Contract, KnownArchitectures) {
  EXPECT_EQ(known_archs(), "sm70, sm75, sm80, sm86, sm87, sm89, sm90, sm100, sm103, sm110, sm120, sm121");
  EXPECT_TRUE(is_known_arch("sm90"));
  EXPECT_FALSE(is_known_arch("SM90"));
  EXPECT_FALSE(is_known_arch(""));
}

TEST(Contract, HashIsThatOfTheText) {
  const std::string text = document({rule("{}")});
  EXPECT_EQ(Contract::parse(text, "c.json").hash(), fnv1a_hex(text));
  EXPECT_EQ(Contract::parse(text, "c.json").path(), "c.json");
}

// --- growth ----------------------------------------------------------------------------------------------------------

TEST(Contract, SumGrowthByHand) {
  const double u = 0x1p-24;
  Gate gate;  // lambda 6, step 1, no cap
  EXPECT_EQ(sum_growth(gate, 1, u), 6 * u);
  EXPECT_EQ(sum_growth(gate, 4096, u), 384 * u);  // 6 * 64
  EXPECT_EQ(sum_growth(gate, 0, u), 0.0);
  gate.max_chain = 1024;
  EXPECT_EQ(sum_growth(gate, 151936, u), 192 * u);  // 6 * sqrt(1024)
  EXPECT_EQ(sum_growth(gate, 100, u), 60 * u);      // shorter than the cap
  gate.step = 4;
  EXPECT_EQ(sum_growth(gate, 64, u), 24 * u);  // 16 steps
  EXPECT_EQ(sum_growth(gate, 33, u), 18 * u);  // ceil(33 / 4) = 9 steps
  EXPECT_EQ(sum_growth(gate, 4096, u), 192 * u);
  EXPECT_EQ(sum_growth(gate, 4100, u), 192 * u);  // 1025 steps, capped
  gate.lambda = 2.5;
  EXPECT_EQ(sum_growth(gate, 16, 0x1p-53), 5 * 0x1p-53);
}

// --- sampling --------------------------------------------------------------------------------------------------------

TEST(Contract, SamplingIsAskedForByWork) {
  const Contract contract = parse({rule("{}")}, R"(, "gold": {"sample_above": 1e6, "rows": 7, "why": "w"})");
  EXPECT_EQ(contract.sampling().rows_for(1e6), 0);
  EXPECT_EQ(contract.sampling().rows_for(1e6 + 1), 7);
  EXPECT_EQ(parse({rule("{}")}).sampling().rows_for(1e300), 0);
}

TEST(Contract, SamplingOfNoRowsIsAnError) {
  EXPECT_EQ(rules_error({rule("{}")}, R"(, "gold": {"sample_above": 1e6, "rows": 0, "why": "w"})"),
            "c.json: gold.rows: expected an integer >= 1, got 0");
  EXPECT_EQ(rules_error({rule("{}")}, R"(, "gold": {"sample_above": 1e6, "rows": 4})"),
            "c.json: gold: key 'why' is missing; add it");
}

// --- the shipped files -----------------------------------------------------------------------------------------------

TEST(Contract, ShippedContractsJudgeEveryOutputInEveryDtype) {
  for (const char* name : {"default.json", "rl_kernel.json"}) {
    const Contract contract = Contract::load(kContracts + name);
    for (const Operator* op : operators())
      for (const Pass& pass : op->passes)
        for (const OutputSpec& output : pass.outputs)
          for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
            for (const char* arch : {"", "sm90"}) {
              const Judged j = judged(op->name, pass.name, output.tensor.name, dtype);
              EXPECT_FALSE(gates(contract, j, arch).all.empty())
                  << name << " " << op->name << " " << output.tensor.name;
            }
  }
}

TEST(Contract, DefaultJudgesDoublesToo) {
  const Contract contract = Contract::load(kContracts + "default.json");
  EXPECT_FALSE(gates(contract, judged("matmul", "forward", "c", DType::f64)).all.empty());
  EXPECT_FALSE(gates(contract, judged("logp", "backward", "dlogits", DType::f64)).all.empty());
}

TEST(Contract, DefaultHasRulesOfItsOwnForGradients) {
  const Contract contract = Contract::load(kContracts + "default.json");
  for (const Operator* op : operators()) {
    const Gates forward =
        gates(contract, judged(op->name, "forward", find_pass(*op, "forward")->outputs[0].tensor.name));
    if (find_pass(*op, "backward") == nullptr) continue;
    for (const OutputSpec& output : find_pass(*op, "backward")->outputs) {
      const Gates backward = gates(contract, judged(op->name, "backward", output.tensor.name));
      if (output.numerics == Numerics::exact) {  // bits have no tolerance that a gradient could inherit
        EXPECT_EQ(backward.all.at(0).metric, Metric::bits) << op->name;
      } else {
        EXPECT_NE(backward.source, forward.source) << op->name;
      }
    }
  }
}

TEST(Contract, DefaultRejectsASerialSumOverAVocabulary) {
  const Contract contract = Contract::load(kContracts + "default.json");
  const Gate gate = gates(contract, judged("logp", "forward", "logp", DType::bf16)).all[0];
  EXPECT_EQ(gate.metric, Metric::bound_ratio);
  EXPECT_LT(sum_growth(gate, 151936, 0x1p-24), 6e-5);  // the measured error of a serial fp32 sum of exponentials
}

// schema.contract validates this file against the schema, so a metric missing in the schema is found.
TEST(Contract, TheTestContractSetsEveryNumberOfEveryMetric) {
  const std::string path = CHECKOP_SOURCE_DIR "/tests/data/contracts/everything.json";
  EXPECT_EQ(error_of([&] { Contract::load(path); }), "no error");
  const JsonValue root = JsonValue::load(path, "a contract");
  for (const Metric metric : all_metrics()) {
    const auto has_all = [&](const JsonValue& json) {
      return std::all_of(keys_of(metric).begin(), keys_of(metric).end(),
                         [&](const GateKey& key) { return json.has(key.name); });
    };
    bool in_gate = false, in_overlay = is_of_bits(metric);
    for (const JsonValue& rule : root.at("rules").items())
      for (const JsonValue& gate : rule.at("gates").items())
        in_gate |= gate.at("metric").string() == to_string(metric) && has_all(gate);
    for (const JsonValue& overlay : root.at("overlays").items())
      if (const auto set = overlay.find("set"); set && set->has(to_string(metric)))
        in_overlay |= has_all(set->at(to_string(metric)));
    EXPECT_TRUE(in_gate && in_overlay) << to_string(metric);
  }
}

TEST(Contract, EveryShippedContractLoads) {
  int loaded = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kContracts)) {
    if (!entry.is_regular_file() || entry.path().string().find("schema") != std::string::npos) continue;
    EXPECT_EQ(error_of([&] { Contract::load(entry.path().string()); }), "no error") << entry.path();
    ++loaded;
  }
  EXPECT_GE(loaded, 8);
}

}  // namespace
}  // namespace checkop::contract_test
