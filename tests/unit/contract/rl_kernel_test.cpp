// SPDX-License-Identifier: Apache-2.0
// Contracts in the RL-Kernel format: their numbers, their meaning, and errors that used to go unnoticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/contract_helper.hpp"

namespace checkop::contract_rl_kernel_test {
namespace {

using contract_test::error_of;
using contract_test::gates;
using contract_test::Judged;

/// The first output of a pass, in a case of `dtype`.
Judged judged(std::string_view op, std::string_view pass, DType dtype) {
  return contract_test::judged(op, pass, find_pass(*find_operator(op), pass)->outputs[0].tensor.name, dtype);
}

const std::string kInvariance = R"({"atol": 0, "rtol": 0})";
const std::string kDefault = R"({"logprob": {"fp32": {"atol": 1e-5, "rtol": 0.25}}})";

std::string document(const std::string& cells, const std::string& overrides = "{}",
                     const std::string& invariance = kInvariance) {
  return fmt::format(R"({{"batch_invariance": {}, "accuracy": {{"default": {}, "arch_overrides": {}}}}})", invariance,
                     cells, overrides);
}

Contract parse(const std::string& cells, const std::string& overrides = "{}",
               const std::string& invariance = kInvariance) {
  return Contract::parse(document(cells, overrides, invariance), "c.json");
}

std::string parse_error(const std::string& cells, const std::string& overrides = "{}",
                        const std::string& invariance = kInvariance) {
  return error_of([&] { parse(cells, overrides, invariance); });
}

/// Gates of an operator that only has a class.
Gates gates_of_class(const Contract& contract, std::string_view op_class, DType dtype) {
  Judged j = judged("matmul", "forward", dtype);
  Operator op = *j.c.op;
  op.op_class = op_class;
  j.c.op = &op;
  return gates(contract, j);
}

TEST(RlKernelContract, EveryNumberIsThePublishedOne) {
  struct Row {
    std::string_view op_class;
    DType dtype;
    double atol, rtol;
  };
  const Row rows[] = {
      {"elementwise", DType::f32, 1e-5, 1e-5}, {"elementwise", DType::bf16, 2e-2, 1.6e-2},
      {"elementwise", DType::f16, 1e-3, 1e-3}, {"reduction", DType::f32, 1e-4, 1e-4},
      {"reduction", DType::bf16, 5e-2, 2e-2},  {"reduction", DType::f16, 1e-3, 1e-3},
      {"logprob", DType::f32, 1e-5, 0},        {"logprob", DType::bf16, 5e-2, 0},
      {"logprob", DType::f16, 5e-3, 0},
  };
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json");
  for (const Row& row : rows) {
    const Gates got = gates_of_class(contract, row.op_class, row.dtype);
    ASSERT_EQ(got.all.size(), 1u);
    EXPECT_EQ(got.all[0].metric, Metric::atol_rtol);
    EXPECT_EQ(got.all[0].atol, row.atol) << row.op_class << " " << info(row.dtype).name;
    EXPECT_EQ(got.all[0].rtol, row.rtol) << row.op_class << " " << info(row.dtype).name;
    EXPECT_FALSE(got.nonfinite_may_match);
  }
}

TEST(RlKernelContract, TheCellIsChosenByTheDtypeOfTheCase) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json");
  const Judged j = judged("logp", "forward", DType::bf16);
  ASSERT_EQ(dtype_of(j.c, j.output->tensor), DType::f32);
  EXPECT_EQ(gates(contract, j).all[0].atol, 5e-2);
}

// With bf16's tolerance an offset of 1000 could be off by 16.
TEST(RlKernelContract, IntegersAreJudgedByTheirBits) {
  const Contract contract = Contract::parse(document(R"({"logprob": {"bf16": {"atol": 5e-2, "rtol": 1.6e-2}}})",
                                                     R"({"sm90": {"logprob": {"bf16": {"atol": 1}}}})"),
                                            "c.json");
  Judged j = judged("logp", "forward", DType::bf16);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    OutputSpec integers = *j.output;
    integers.tensor.dtype = dtype;
    j.output = &integers;
    for (const std::string_view arch : {"", "sm90"}) {
      const Gates got = gates(contract, j, arch);
      ASSERT_EQ(got.all.size(), 1u);
      EXPECT_EQ(got.all[0].metric, Metric::bits);
      EXPECT_EQ(got.all[0].source, "c.json: integers");
    }
  }
}

TEST(RlKernelContract, GradientsHaveTheRowOfTheForwardPass) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json");
  EXPECT_EQ(gates(contract, judged("matmul", "backward", DType::bf16)).source,
            gates(contract, judged("matmul", "forward", DType::bf16)).source);
}

TEST(RlKernelContract, SourcesNameTheCell) {
  const Gates got = gates(parse(kDefault), judged("logp", "forward", DType::f32));
  EXPECT_EQ(got.all[0].source, "c.json: accuracy.default.logprob.fp32");
  EXPECT_EQ(got.source, "c.json: accuracy.default.logprob.fp32");
}

TEST(RlKernelContract, BothSpellingsOfADtypeAreRead) {
  for (const char* name : {"fp32", "float32"})
    EXPECT_EQ(gates(parse(fmt::format(R"({{"logprob": {{"{}": {{"atol": 0.5}}}}}})", name)),
                    judged("logp", "forward", DType::f32))
                  .all[0]
                  .atol,
              0.5);
  EXPECT_NE(parse_error(R"({"logprob": {"fp32": {"atol": 1}, "float32": {"atol": 2}}})").find("two spellings"),
            std::string::npos);
}

TEST(RlKernelContract, ADtypeWithoutACellIsAnErrorOnceItIsAsked) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/rl_kernel.json");
  const std::string error = error_of([&] { gates(contract, judged("logp", "forward", DType::f64)); });
  EXPECT_NE(error.find("no rule matches logp/forward logp fp32 (case fp64)"), std::string::npos) << error;
}

TEST(RlKernelContract, ZeroToleranceDemandsBatchInvariance) {
  const Judged j = judged("logp", "forward", DType::f32);
  for (const char* form : {R"({"atol": 0, "rtol": 0.0})", R"({"default": {"fp32": {"atol": 0, "rtol": 0}}})",
                           R"({"all": {"float32": {"atol": 0, "rtol": 0}}})"})
    EXPECT_TRUE(parse(kDefault, "{}", form).demands_for(j.c, *j.output).batch_invariance) << form;
}

TEST(RlKernelContract, AToleranceForBatchInvarianceIsAnError) {
  EXPECT_EQ(parse_error(kDefault, "{}", R"({"atol": 1e-6, "rtol": 0})"),
            "c.json: batch_invariance.atol: expected 0, got 1e-06; batch invariance is judged bit by bit, there is no "
            "tolerance");
  EXPECT_NE(parse_error(kDefault, "{}", R"({"default": {"fp32": {"atol": 0, "rtol": 1}}})")
                .find("batch_invariance.default.fp32.rtol: expected 0, got 1"),
            std::string::npos);
}

TEST(RlKernelContract, BatchInvarianceMustCoverEveryDtype) {
  EXPECT_EQ(parse_error(kDefault, "{}", R"({"default": {"bf16": {"atol": 0, "rtol": 0}}})"),
            R"(c.json: batch_invariance: no cell for fp32, which 'accuracy' has; add {"atol": 0, "rtol": 0})");
  EXPECT_EQ(parse_error(kDefault, "{}", "{}"),
            R"(c.json: batch_invariance: no cell for fp32, which 'accuracy' has; add {"atol": 0, "rtol": 0})");
}

TEST(RlKernelContract, AnOverrideInheritsTheNumberItLacks) {
  const Contract contract = parse(kDefault, R"({"sm90": {"logprob": {"fp32": {"atol": 2e-5}}}, "sm80": {}})");
  const Judged j = judged("logp", "forward", DType::f32);
  const Gate changed = gates(contract, j, "sm90").all[0];
  EXPECT_EQ(changed.atol, 2e-5);
  EXPECT_EQ(changed.rtol, 0.25);
  EXPECT_EQ(changed.source, "c.json: accuracy.default.logprob.fp32 + accuracy.arch_overrides.sm90.logprob.fp32");
  EXPECT_EQ(gates(contract, j, "sm80").all[0].atol, 1e-5);
  EXPECT_EQ(gates(contract, j).all[0].source, "c.json: accuracy.default.logprob.fp32");
}

TEST(RlKernelContract, AMissingRtolIsZeroAndAMissingAtolAnError) {
  EXPECT_EQ(gates(parse(R"({"logprob": {"fp32": {"atol": 1}}})"), judged("logp", "forward", DType::f32)).all[0].rtol,
            0.0);
  EXPECT_EQ(parse_error(R"({"logprob": {"fp32": {"rtol": 1}}})"),
            "c.json: accuracy.default.logprob.fp32: key 'atol' is missing; add it");
}

TEST(RlKernelContract, BadNumbersAreErrors) {
  EXPECT_EQ(parse_error(R"({"logprob": {"fp32": {"atol": "NaN", "rtol": 0}}})"),
            "c.json: accuracy.default.logprob.fp32.atol: expected a finite number >= 0, got \"NaN\"; write a number "
            "without quotes");
  EXPECT_NE(
      parse_error(R"({"logprob": {"fp32": {"atol": -1}}})").find("logprob.fp32.atol: expected a finite number >= 0"),
      std::string::npos);
  EXPECT_NE(parse_error(R"({"logprob": {"fp32": {"atol": Infinity}}})").find("not valid JSON"), std::string::npos);
  EXPECT_NE(
      parse_error(kDefault, R"({"sm90": {"logprob": {"fp32": {"atol": -1}}}})").find("expected a finite number >= 0"),
      std::string::npos);
}

TEST(RlKernelContract, UnknownNamesAreErrors) {
  EXPECT_EQ(parse_error(R"({"logprobs": {"fp32": {"atol": 1}}})"),
            "c.json: accuracy.default: unknown key 'logprobs'; did you mean 'logprob'?");
  EXPECT_EQ(parse_error(R"({"logprob": {"fp23": {"atol": 1}}})"),
            "c.json: accuracy.default.logprob: unknown dtype 'fp23'; known: fp64, fp32, fp16, bf16");
  EXPECT_EQ(parse_error(R"({"logprob": {"fp32": {"atol": 1, "rtoll": 1}}})"),
            "c.json: accuracy.default.logprob.fp32: unknown key 'rtoll'; did you mean 'rtol'?");
  EXPECT_EQ(parse_error(kDefault, R"({"sm91": {}})"),
            "c.json: accuracy.arch_overrides: unknown architecture 'sm91'; did you mean 'sm90'?");
  EXPECT_EQ(parse_error(kDefault, R"({"sm90": {"logprob": {"bf16": {"atol": 1}}}})"),
            "c.json: accuracy.arch_overrides.sm90.logprob.bf16: overrides a cell that accuracy.default lacks; add the "
            "cell there first");
}

TEST(RlKernelContract, EmptyAndMissingPartsAreErrors) {
  EXPECT_EQ(parse_error("{}"),
            "c.json: accuracy.default: expected at least one op_class with a dtype, got an empty object");
  EXPECT_EQ(error_of([] { Contract::parse(R"({"accuracy": {"default": {}}})", "c.json"); }),
            "c.json: accuracy.default: expected at least one op_class with a dtype, got an empty object");
  EXPECT_EQ(error_of([] { Contract::parse(R"({"batch_invariance": {"atol": 0, "rtol": 0}})", "c.json"); }),
            "c.json: key 'accuracy' is missing; add it");
  EXPECT_EQ(error_of([] { Contract::parse(fmt::format(R"({{"accuracy": {{"default": {}}}}})", kDefault), "c.json"); }),
            "c.json: key 'batch_invariance' is missing; add it");
  EXPECT_NE(error_of([] {
              Contract::parse(R"({"batch_invariance": {"atol": 0}, "accuracy": {"default": {}}, "judgments": {}})",
                              "c.json");
            }).find("c.json: unknown key 'judgments'"),
            std::string::npos);
}

}  // namespace
}  // namespace checkop::contract_rl_kernel_test
