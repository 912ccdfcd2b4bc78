// SPDX-License-Identifier: Apache-2.0
// Errors in contracts of our own format, word for word.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/contract_helper.hpp"

namespace checkop::contract_reader_test {
namespace {

using namespace contract_test;

TEST(Contract, AnEmptyContractIsAnError) {
  EXPECT_TRUE(parse_error("{}").starts_with("c.json: the contract is empty; write \"format\"")) << parse_error("{}");
  EXPECT_TRUE(parse_error(R"({"rules": []})").starts_with("c.json: not a contract: no key 'format'"));
  EXPECT_EQ(parse_error("[]"), "c.json: expected an object, got an empty array");
  EXPECT_TRUE(parse_error("").starts_with("c.json: line 1, column 1: not valid JSON"));
}

TEST(Contract, AnUnknownFormatIsAnError) {
  EXPECT_EQ(
      parse_error(R"({"format": "check_operator/contract-3"})"),
      "c.json: format: 'check_operator/contract-3' where 'check_operator/contract-2' is needed; give a file of that "
      "format");
}

TEST(Contract, RulesAreRequiredAndNotEmpty) {
  EXPECT_EQ(rules_error({}), "c.json: rules: expected at least one rule, got an empty array");
  EXPECT_EQ(parse_error(R"({"format": "check_operator/contract-2", "name": "n"})"),
            "c.json: key 'rules' is missing; add it");
}

TEST(Contract, ARuleWithoutGatesIsAnError) {
  EXPECT_EQ(rules_error({rule_with_gates("[]")}),
            "c.json: rules[0].gates: expected at least one gate, got an empty array; a rule without gates would pass "
            "everything");
}

TEST(Contract, ARuleWithoutAReasonIsAnError) {
  const auto with_why = [](std::string_view why) {
    return rules_error({fmt::format(R"({{"match": {{}}, "gates": [{}]{}}})", kGate, why)});
  };
  EXPECT_EQ(with_why(""), "c.json: rules[0]: key 'why' is missing; add it");
  EXPECT_EQ(with_why(R"(, "why": " ")"), "c.json: rules[0].why: expected a sentence, got \" \"");
}

TEST(Contract, AnUnknownKeyIsAnErrorAtEveryLevel) {
  EXPECT_NE(
      rules_error({rule("{}")}, R"(, "demand": {})").find("c.json: unknown key 'demand'; did you mean 'demands'?"),
      std::string::npos);
  EXPECT_NE(rules_error({rule("{}")}, R"(, "demands": {"reproducible": true})").find("c.json: demands: unknown key"),
            std::string::npos);
  EXPECT_NE(rules_error({rule(R"({"operator": "logp"})")}).find("c.json: rules[0].match: unknown key 'operator'"),
            std::string::npos);
  EXPECT_NE(gate_error(R"({"metric": "bits", "atol": 1})").find("c.json: rules[0].gates[0]: unknown key 'atol'"),
            std::string::npos);
  EXPECT_NE(rules_error({fmt::format(R"({{"match": {{}}, "gates": [{}], "why": "w", "limits": 1}})", kGate)})
                .find("c.json: rules[0]: unknown key 'limits'"),
            std::string::npos);
}

TEST(Contract, DemandsOfAnOperatorAreCheckedLikeTheRest) {
  const auto with = [](std::string_view operators) {
    return rules_error({rule("{}")}, fmt::format(R"(, "demands": {{"operators": {}}})", operators));
  };
  EXPECT_EQ(with(R"({"matmull": {"determinism": true}})"),
            "c.json: demands.operators: unknown operator 'matmull'; did you mean 'matmul'?");
  EXPECT_TRUE(with(R"({"convolution": {"determinism": true}})")
                  .starts_with("c.json: demands.operators: unknown operator 'convolution'; known: logp, "));
  EXPECT_TRUE(
      with(R"({"matmul": {"invariant": true}})")
          .starts_with("c.json: demands.operators.matmul: unknown key 'invariant'; did you mean 'invariance'?"));
  EXPECT_TRUE(with(R"({"matmul": {"operators": {}}})")
                  .starts_with("c.json: demands.operators.matmul: unknown key 'operators'"));
  EXPECT_EQ(with(R"({"matmul": {}})"),
            "c.json: demands.operators.matmul: expected a demand, got an empty object; remove the operator or say what "
            "is demanded of it");
  EXPECT_EQ(with(R"({"matmul": {"batch_invariance": 0}})"),
            "c.json: demands.operators.matmul.batch_invariance: expected true or false, got 0");
  EXPECT_EQ(with("[]"), "c.json: demands.operators: expected an object, got an empty array");
}

TEST(Contract, DemandedAxesAreCheckedByNameAndKind) {
  const auto with = [](std::string_view demands) {
    return rules_error({rule("{}")}, fmt::format(R"(, "demands": {})", demands));
  };
  EXPECT_TRUE(with(R"({"invariance": {"axes": ["positon"]}})")
                  .starts_with("c.json: demands.invariance.axes[0]: unknown axis 'positon'; did you mean 'position'?"));
  EXPECT_TRUE(with(R"({"invariance": {"axes": ["alignment"]}})").starts_with("c.json: demands.invariance.axes[0]: "));
  EXPECT_TRUE(with(R"({"determinism": {"axes": ["batch"]}})").starts_with("c.json: demands.determinism.axes[0]: "));
  EXPECT_TRUE(with(R"({"invariance": {"axes": []}})")
                  .starts_with("c.json: demands.invariance.axes: expected at least one axis"));
  EXPECT_TRUE(with(R"({"determinism": {"runs": 1}})").starts_with("c.json: demands.determinism.runs: "));
  EXPECT_TRUE(with(R"({"determinism": {}})").starts_with("c.json: demands.determinism: expected runs or axes"));
  EXPECT_TRUE(with(R"({"batch_invariance": false, "invariance": {"axes": ["batch"]}})")
                  .starts_with("c.json: demands.invariance: expected no axes beside"));
}

TEST(Contract, AKeyThatAppearsTwiceIsAnError) {
  EXPECT_EQ(gate_error(R"({"metric": "atol_rtol", "atol": 1, "atol": 2, "rtol": 0})"),
            "c.json: rules[0].gates[0]: key 'atol' appears twice; keep one of the two");
}

TEST(Contract, NumbersMustBeFiniteAndNotNegative) {
  const auto gate = [](std::string_view numbers) { return fmt::format(R"({{"metric": "bound_ratio", {}}})", numbers); };
  EXPECT_EQ(gate_error(gate(R"("limit": 1, "lambda": -1, "max_chain": 0)")),
            "c.json: rules[0].gates[0].lambda: expected a finite number >= 0, got -1");
  EXPECT_EQ(
      gate_error(gate(R"("limit": "NaN", "lambda": 6, "max_chain": 0)")),
      "c.json: rules[0].gates[0].limit: expected a finite number >= 0, got \"NaN\"; write a number without quotes");
  EXPECT_EQ(gate_error(gate(R"("limit": 1, "lambda": 6, "max_chain": -1)")),
            "c.json: rules[0].gates[0].max_chain: expected an integer >= 0, got -1");
  EXPECT_EQ(gate_error(gate(R"("limit": 1, "lambda": 6, "max_chain": 0, "step": 0)")),
            "c.json: rules[0].gates[0].step: expected an integer >= 1, got 0");
  EXPECT_EQ(gate_error(gate(R"("limit": 1, "lambda": 6, "max_chain": 0, "bias_ulps": -0.5)")),
            "c.json: rules[0].gates[0].bias_ulps: expected a finite number >= 0, got -0.5");
  EXPECT_EQ(gate_error(R"({"metric": "atol_rtol", "atol": -1e-5, "rtol": 0})"),
            "c.json: rules[0].gates[0].atol: expected a finite number >= 0, got -1e-05");
  EXPECT_EQ(gate_error(R"({"metric": "atol_rtol", "atol": 0, "rtol": null})"),
            "c.json: rules[0].gates[0].rtol: expected a finite number >= 0, got null");
  EXPECT_NE(gate_error(R"({"metric": "atol_rtol", "atol": 1e999, "rtol": 0})").find("rules[0].gates[0].atol: "),
            std::string::npos);
}

TEST(Contract, NumbersThatArePolicyMustBeStated) {
  EXPECT_EQ(gate_error(R"({"metric": "bound_ratio", "limit": 1, "lambda": 6})"),
            "c.json: rules[0].gates[0]: key 'max_chain' is missing; add it");
  EXPECT_EQ(gate_error(R"({"metric": "atol_rtol", "atol": 1})"),
            "c.json: rules[0].gates[0]: key 'rtol' is missing; add it");
}

TEST(Contract, AMetricAppearsOnceInARule) {
  EXPECT_EQ(gate_error(fmt::format("{0}, {0}", kGate)),
            "c.json: rules[0].gates[1]: a second gate of metric 'bound_ratio'; keep one");
}

TEST(Contract, UnknownNamesAreErrorsWithASuggestion) {
  const auto match_error = [](std::string_view match) { return rules_error({rule(match)}); };
  EXPECT_EQ(match_error(R"({"op": "lgop"})"),
            "c.json: rules[0].match.op: unknown operator 'lgop'; did you mean 'logp'?");
  EXPECT_EQ(match_error(R"({"pass": "backwards"})"),
            "c.json: rules[0].match.pass: unknown pass 'backwards'; did you mean 'backward'?");
  EXPECT_EQ(match_error(R"({"output": "dlogit"})"),
            "c.json: rules[0].match.output: unknown output 'dlogit'; did you mean 'dlogits'?");
  EXPECT_EQ(match_error(R"({"numerics": "logprobs"})"),
            "c.json: rules[0].match.numerics: unknown numeric class 'logprobs'; did you mean 'logprob'?");
  EXPECT_EQ(match_error(R"({"dtype": "bf17"})"),
            "c.json: rules[0].match.dtype: unknown dtype 'bf17'; did you mean 'bf16'?");
  EXPECT_EQ(match_error(R"({"dtype": ["fp32", "fp31"]})"),
            "c.json: rules[0].match.dtype[1]: unknown dtype 'fp31'; did you mean 'fp32'?");
  EXPECT_EQ(gate_error(R"({"metric": "bound_ration", "limit": 1})"),
            "c.json: rules[0].gates[0].metric: unknown metric 'bound_ration'; did you mean 'bound_ratio'?");
}

// No operator stores log-probabilities in 16 bits, but tensors in files may.
TEST(Contract, ARuleMayBeOfFilesAlone) {
  EXPECT_EQ(rules_error({rule("{}"), rule(R"({"numerics": "logprob", "pass": "forward", "dtype": "bf16"})")}),
            "no error");
}

TEST(Contract, ARuleThatMatchesNothingIsAnError) {
  for (const char* match : {R"({"op": "logp", "output": "db"})", R"({"op": "logp", "numerics": "contraction"})",
                            R"({"output": "logp", "pass": "backward"})", R"({"output": "logp", "dtype": "bf16"})",
                            R"({"dtype": "uint8"})", R"({"numerics": "logprob", "dtype": "uint8"})"})
    EXPECT_NE(rules_error({rule("{}"), rule(match)}).find("c.json: rules[1].match: matches no output of any operator"),
              std::string::npos)
        << match;
}

TEST(Contract, AnEmptyDtypeListIsAnError) {
  EXPECT_NE(rules_error({rule(R"({"dtype": []})")}).find("rules[0].match.dtype: expected a dtype or a list of dtypes"),
            std::string::npos);
}

TEST(Contract, AMissingFileIsNamed) {
  EXPECT_EQ(error_of([] { Contract::load("/no/such/missing.json"); }),
            "/no/such/missing.json: cannot be opened: No such file or directory; give the path of a contract");
}

TEST(Contract, EveryMetricNamesTheKeysThatItLacks) {
  for (const Metric metric : all_metrics()) {
    for (const GateKey& key : keys_of(metric)) {
      std::string text = fmt::format(R"({{"metric": "{}")", to_string(metric));
      for (const GateKey& other : keys_of(metric))
        if (other.name != key.name)
          text += fmt::format(R"(, "{}": {})", other.name,
                              other.words.empty() ? "1" : fmt::format("\"{}\"", other.words.front()));
      const std::string missing = fmt::format("c.json: rules[0].gates[0]: key '{}' is missing; add it", key.name);
      EXPECT_EQ(gate_error(text + "}") == missing, key.required) << text;
      EXPECT_NE(gate_error(text + fmt::format(R"(, "{}": -1}})", key.name)).find(fmt::format("{}: expected", key.name)),
                std::string::npos);
    }
  }
}

TEST(Contract, GatesOfTheWholeOutputDoNotReplaceThoseOfElements) {
  EXPECT_EQ(
      gate_error(R"({"metric": "rel_l2", "limit": 1})"),
      "c.json: rules[0].gates: expected at least one gate of single elements, got an array of 1; add bound_ratio, "
      "atol_rtol, ulp or bits: what holds of an output as a whole hides elements; to have it so all the same, write "
      R"("elements": "unjudged")");
}

TEST(Contract, ARuleSaysSoWhereElementsAreNotJudged) {
  const auto with = [](const std::string& gate) {
    return parse_error(R"({"format": "check_operator/contract-2", "name": "n", "rules": [{"match": {}, "gates": [)" +
                       gate + R"(], "elements": "unjudged", "why": "w"}]})");
  };
  EXPECT_EQ(with(R"({"metric": "rel_l2", "limit": 1})"), "no error");
  EXPECT_EQ(
      with(R"({"metric": "atol_rtol", "atol": 1, "rtol": 1})"),
      "c.json: rules[0].elements: expected no gate of single elements, got \"unjudged\"; remove the key, or the gate "
      "that judges them");
}

TEST(Contract, GatesThatNeedBoundsSayso) {
  for (const char* gate :
       {R"({"metric": "bias_t", "limit": 7, "one_sided": 0})", R"({"metric": "identities", "limit": 1})"})
    EXPECT_NE(rules_error({rule_with_gates(fmt::format(R"([{{"metric": "bits"}}, {}])", gate))})
                  .find("needs a bound_ratio gate in the same rule; its numbers say what the computation may err by"),
              std::string::npos);
}

TEST(Contract, IdentitiesThatNoOperatorHasAreAnError) {
  const auto with = [](std::string_view op) {
    return rules_error({fmt::format(
        R"({{"match": {{"op": "{}"}}, "gates": [{}, {{"metric": "identities", "limit": 1}}], "why": "w"}})", op,
        kGate)});
  };
  EXPECT_EQ(with("silu"),
            "c.json: rules[0].gates[1]: no operator that rules[0] matches has identities; remove the gate");
  EXPECT_EQ(with("matmul"), "no error");
}

TEST(Contract, GatesOfTokensAreForOutputsOfTokens) {
  const auto with = [](std::string_view match) {
    return rules_error({fmt::format(
        R"({{"match": {}, "gates": [{}, {{"metric": "k3_mean", "limit": 1}}], "why": "w"}})", match, kGate)});
  };
  EXPECT_EQ(with(R"({"output": "logp"})"), "no error");
  EXPECT_EQ(with(R"({"output": "ratio"})"), "no error");
  EXPECT_EQ(with(R"({"op": "logp"})"),
            "c.json: rules[0].gates[1]: 'k3_mean' is for outputs 'logp' and 'ratio', and rules[0] matches "
            "logp/backward dlogits fp64 (case fp64); name the output: \"match\": {\"output\": \"logp\"}");
}

}  // namespace
}  // namespace checkop::contract_reader_test
