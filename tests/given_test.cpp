// SPDX-License-Identifier: Apache-2.0
// Golds, inputs and operators out of files, and the commands that take them.
#include "given.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "contract_helper.hpp"
#include "error.hpp"
#include "given_inputs.hpp"
#include "inputs.hpp"
#include "process.hpp"
#include "run_helper.hpp"

namespace checkop {
namespace {

using contract_test::error_of;

std::string path_of(const std::string& name) { return testing::TempDir() + "given_" + name + ".safetensors"; }

Tensor tensor(const std::string& name, DType dtype, const Shape& shape, const std::function<double(int64_t)>& value) {
  Tensor result(name, dtype, shape);
  for (int64_t i = 0; i < result.count(); ++i) result.set(i, value(i));
  return result;
}

/// Values of no order, none of them 0, that fp32 does not hold exactly.
double wave(int64_t i) { return 1.5 + std::sin(static_cast<double>(i) * 1.7) + 1e-9; }

std::string write(const std::string& name, std::vector<Tensor> tensors) {
  write_safetensors(path_of(name), tensors);
  return path_of(name);
}

std::vector<Tensor> list(Tensor first) {
  std::vector<Tensor> tensors;
  tensors.push_back(std::move(first));
  return tensors;
}
template <typename... More>
std::vector<Tensor> list(Tensor first, More... more) {
  std::vector<Tensor> tensors = list(std::move(first));
  (tensors.push_back(std::move(more)), ...);
  return tensors;
}

// --- gold and operator
// -----------------------------------------------------------------------------------------------------------------

TEST(GivenOperator, HasTheTensorsOfItsFiles) {
  const GivenOperator own("mine", "backward", Numerics::reduction, 64,
                          {{"x", DType::bf16, {2, 3}}, {"ids", DType::i64, {}}},
                          {{"dx", DType::f32, {2, 3}}, {"n", DType::i32, {5}}});
  const Case& c = own.as_case();
  ASSERT_EQ(c.pass->inputs.size(), 2u);
  EXPECT_EQ(shape_of(c, c.pass->inputs[0]), (Shape{2, 3}));
  EXPECT_EQ(shape_of(c, c.pass->inputs[1]), Shape());
  EXPECT_EQ(dtype_of(c, c.pass->outputs[0].tensor), DType::f32);
  EXPECT_EQ(c.pass->outputs[0].numerics, Numerics::reduction);
  EXPECT_EQ(c.pass->outputs[1].numerics, Numerics::exact);
  EXPECT_EQ(sum_terms(c, c.pass->outputs[0]), 64);
  EXPECT_EQ(row_count(c), 1);
}

TEST(GivenGold, GivesEveryElementOnceWithItsCompanions) {
  const int64_t rows = 300, columns = 177;
  const std::string file = write("gold", list(tensor("y", DType::f64, {rows, columns}, wave),
                                              tensor("magnitude/y", DType::f32, {rows, columns},
                                                     [](int64_t i) { return static_cast<double>(i % 7); })));
  const SafetensorsReader reader(file);
  const GivenOperator own("mine", "forward", Numerics::reduction, 1, {}, {{"y", DType::f32, {rows, columns}}});
  std::vector<int> seen(static_cast<size_t>(rows * columns));
  std::mutex mutex;
  const GivenGold gold(reader, own.as_case());
  gold.replay()(3, [&](const GoldRows& block) {
    const std::lock_guard lock(mutex);
    for (int64_t i = 0; i < block.n_rows * block.columns; ++i) {
      const int64_t at = block.first_row * block.columns + i;
      ++seen[static_cast<size_t>(at)];
      ASSERT_EQ(block.value[i], wave(at));
      ASSERT_EQ(block.magnitude[i], static_cast<double>(at % 7));
      ASSERT_EQ(block.rounding[i], std::abs(wave(at)));
    }
  });
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

TEST(GivenGold, CompanionsAreKnownByTheTensorTheyBelongTo) {
  const std::string file =
      write("companions", list(tensor("y", DType::f64, {2}, wave), tensor("magnitude/y", DType::f64, {2}, wave),
                               tensor("rounding/z", DType::f64, {2}, wave)));
  const SafetensorsReader reader(file);
  EXPECT_TRUE(GivenGold::is_companion(reader, "magnitude/y"));
  EXPECT_FALSE(GivenGold::is_companion(reader, "rounding/z"));
  EXPECT_FALSE(GivenGold::is_companion(reader, "y"));
}

TEST(GivenGold, TensorsThatDoNotFitAreRefused) {
  const std::string file = write(
      "unfit", list(tensor("y", DType::f64, {2, 3}, wave), tensor("n", DType::i32, {2}, [](int64_t) { return 1; }),
                    tensor("big", DType::i64, {1}, [](int64_t) { return 0x1p53; }), tensor("m", DType::f32, {4}, wave),
                    tensor("magnitude/m", DType::f32, {3}, wave)));
  const SafetensorsReader reader(file);
  const auto error = [&](const SafetensorsEntry& output) {
    const GivenOperator own("mine", "forward", Numerics::reduction, 1, {}, {output});
    return error_of([&] { GivenGold(reader, own.as_case()); });
  };
  EXPECT_NE(error({"x", DType::f32, {2}}).find("holds no tensor 'x'"), std::string::npos);
  EXPECT_NE(error({"y", DType::f32, {3, 2}}).find("has shape [2, 3], expected [3, 2]"), std::string::npos);
  EXPECT_NE(error({"n", DType::i64, {2}}).find("is int32, the output is int64"), std::string::npos);
  EXPECT_NE(error({"big", DType::i64, {1}}).find("of 2^53 and beyond"), std::string::npos);
  EXPECT_NE(error({"m", DType::f32, {4}}).find("'magnitude/m': has shape [3]"), std::string::npos);
  EXPECT_EQ(error({"y", DType::bf16, {2, 3}}), "no error");
}

// --- compare
// -----------------------------------------------------------------------------------------------------------------

/// Two files that agree but for what `spoil` does to the first one's y.
std::string pair_of_files(const std::string& name, const std::function<void(Tensor&)>& spoil = {}) {
  Tensor y = tensor("y", DType::f32, {6, 32}, wave);
  if (spoil) spoil(y);
  const std::string got =
      write(name + "_got", list(std::move(y), tensor("ids", DType::i64, {4}, [](int64_t i) { return i * 3.0; })));
  const std::string gold = write(
      name + "_gold",
      list(tensor("y", DType::f64, {6, 32}, wave), tensor("ids", DType::i64, {4}, [](int64_t i) { return i * 3.0; })));
  return "compare " + got + " " + gold + " ";
}

constexpr char kClass[] = "--contract contracts/policies/assert_close.json --class reduction";

TEST(CompareCommand, EqualTensorsPass) {
  const ProcessResult result = run_program(pair_of_files("equal") + kClass);
  expect_exit(result, 0, "y/forward  given_equal_got.safetensors  fp32");
  expect_exit(result, 0, "2 pass");
}

TEST(CompareCommand, ElementThatIsOffFailsWithItsPlaceAndARepeatLine) {
  const std::string files = pair_of_files("off", [](Tensor& y) { y.set(37, y.at(37) + 0.5); });
  const ProcessResult result = run_program(files + kClass);
  expect_exit(result, 1, "y[1,5] = ");
  expect_exit(result, 1,
              "repeat: check_operator " + files +
                  "--contract contracts/policies/assert_close.json --class reduction --pass forward --filter y");
  expect_exit(run_program(files + kClass + " --filter 'id*'"), 0, "1 pass");
}

TEST(CompareCommand, NanFails) {
  expect_exit(run_program(pair_of_files("nan", [](Tensor& y) { y.set(0, NAN); }) + kClass), 1, "not finite");
}

TEST(CompareCommand, IntegersAreComparedByTheirBits) {
  const std::string got = write("ids_got", list(tensor("ids", DType::i64, {3}, [](int64_t i) { return i + 1.0; })));
  const std::string gold = write("ids_gold", list(tensor("ids", DType::i64, {3}, [](int64_t i) { return i * 1.0; })));
  expect_exit(run_program("compare " + got + " " + gold + " " + kClass), 1, "the bits must be equal; 3 of 3");
}

TEST(CompareCommand, MissingAndMisshapenTensorsFail) {
  const std::string got = write("few_got", list(tensor("b", DType::f32, {4, 2}, wave)));
  const std::string gold =
      write("few_gold", list(tensor("a", DType::f64, {2}, wave), tensor("b", DType::f64, {2, 4}, wave)));
  const ProcessResult result = run_program("compare " + got + " " + gold + " " + kClass);
  expect_exit(result, 1, "holds no tensor 'a'");
  expect_exit(result, 1, "'b' has shape [4, 2], its gold [2, 4]");
}

TEST(CompareCommand, TensorWithoutGoldIsNamed) {
  const std::string got =
      write("more_got", list(tensor("a", DType::f32, {4, 2}, wave), tensor("b", DType::f32, {2}, wave)));
  const std::string gold = write("more_gold", list(tensor("a", DType::f64, {4, 2}, wave)));
  expect_exit(run_program("compare " + got + " " + gold + " " + kClass), 0, "'b' has no gold in");
}

TEST(CompareCommand, BoundsNeedMagnitudes) {
  const std::string files = pair_of_files("bounds");
  expect_exit(run_program(files + "--class reduction --filter y"), 2,
              "bound_ratio needs the magnitude of every element of 'y'");
  const std::string gold = write(
      "with_magnitude", list(tensor("y", DType::f64, {6, 32}, wave), tensor("magnitude/y", DType::f64, {6, 32}, wave)));
  const std::string got = path_of("bounds_got");
  expect_exit(run_program("compare " + got + " " + gold + " --class reduction"), 0, "1 pass");
  // Of 1e-5 relative: assert_close takes it, bounds of a sum of one term do not; those of a long sum do.
  Tensor y = tensor("y", DType::f32, {6, 32}, [](int64_t i) { return wave(i) * (1 + 2e-6); });
  const std::string far = write("far", list(std::move(y)));
  expect_exit(run_program("compare " + far + " " + gold + " --class reduction"), 1, "the bound");
  expect_exit(run_program("compare " + far + " " + gold + " --class reduction --terms 4096"), 0, "1 pass");
}

TEST(CompareCommand, GoldThatIsNoFinerSaysNothingAboutStoring) {
  const std::string got = write("same_got", list(tensor("y", DType::f32, {6, 32}, wave)));
  expect_exit(
      run_program("compare " + got + " " + got + " --contract contracts/policies/two_times.json --class reduction"), 2,
      "no finer than the output");
}

TEST(CompareCommand, QuestionsThatMakeNoSenseAreRefused) {
  const std::string files = pair_of_files("questions");
  expect_exit(run_program(files), 2, "--class: says which rules judge the tensors");
  expect_exit(run_program(files + "--class reductoin"), 2, "did you mean 'reduction'?");
  expect_exit(run_program(files + kClass + " --filter none"), 2, "holds no tensor of --filter");
  expect_exit(run_program(files + kClass + " --terms 0"), 2, "--terms: expected 1 or more");
  expect_exit(run_program("compare README.md README.md " + std::string(kClass)), 2, "no safetensors file");
  expect_exit(run_program(files + kClass + " --pass sideways"), 2, "--pass");
}

TEST(CompareCommand, ReportIsJson) {
  const ProcessResult result = run_program(pair_of_files("json") + kClass + " --json");
  EXPECT_EQ(result.code, 0) << result.text;
  const auto report = nlohmann::json::parse(result.text);
  EXPECT_EQ(report.at("exit_code"), 0);
  EXPECT_TRUE(report.at("complete").get<bool>());
}

// --- --input
// -----------------------------------------------------------------------------------------------------------------

constexpr char kMatmul[] =
    "--op matmul --dtype fp32 --device cpu --batch 1 --seq 2 --k-dim 3 --n-dim 4 --candidate native ";

TEST(GivenInputs, ReplaceGeneratedOnes) {
  const std::string file = write("captured", list(tensor("layer.7.a", DType::f32, {2, 3, 2}, wave)));
  const Case c = matmul_case();
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const double before = inputs[1].at(0);
  const GivenInputs given({"a=" + file + ":layer.7.a"}, "");
  given.require_fit(c);
  given.replace(c, inputs);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(inputs[0].at(i), static_cast<float>(wave(i)));
  EXPECT_EQ(inputs[1].at(0), before);
}

TEST(GivenInputs, TensorsThatDoNotFitTheCaseAreRefused) {
  const std::string file =
      write("misfit", list(tensor("a", DType::f32, {2, 3}, wave), tensor("h", DType::f16, {2, 3, 2}, wave)));
  const Case c = matmul_case();
  const auto error = [&](const std::string& setting) {
    return error_of([&] { GivenInputs({setting}, "").require_fit(c); });
  };
  EXPECT_NE(error("a=" + file + ":a").find("has shape [2, 3], 'a' of matmul-fp32-2x3x2x4 has [2, 3, 2]"),
            std::string::npos);
  EXPECT_NE(error("a=" + file + ":h").find("is fp16, 'a' of matmul-fp32-2x3x2x4 is fp32"), std::string::npos);
  EXPECT_NE(error("x=" + file + ":a").find("matmul has no input 'x'"), std::string::npos);
  EXPECT_NE(error("a=" + file + ":q").find("holds no tensor 'q'"), std::string::npos);
  EXPECT_EQ(error("grad_c=" + file + ":a"), "no error");  // of the other pass
  for (const std::string& form :
       std::vector<std::string>{"a", "a=", "a=" + file, "=" + file + ":a", "a=:a", "a=" + file + ":"})
    EXPECT_NE(error(form).find("expected NAME=FILE:TENSOR"), std::string::npos) << form;
}

TEST(GivenInputs, IdsMustSelectSomething) {
  const Case c = linear_logp_case("forward", false);
  const auto replaced = [&](double id) {
    const std::string file =
        write("ids", list(tensor("t", DType::i64, {1, 6}, [&](int64_t i) { return i == 4 ? id : 0; })));
    std::vector<Tensor> inputs = make_inputs(c, 1);
    return error_of([&] { GivenInputs({"target_ids=" + file + ":t"}, "").replace(c, inputs); });
  };
  EXPECT_EQ(replaced(4), "no error");
  EXPECT_EQ(replaced(-100), "no error");  // ignore_index
  EXPECT_NE(replaced(5).find("holds id 5 at index 4, expected 0 to 4 or -100"), std::string::npos);
  EXPECT_NE(replaced(-1).find("holds id -1"), std::string::npos);
}

TEST(GivenInputs, RunJudgesByThem) {
  const std::string file = write("run", list(tensor("a", DType::f32, {1, 2, 3}, wave)));
  const std::string flag = "--input a=" + file + ":a ";
  const ProcessResult plain = run_program(kMatmul + std::string("--json")),
                      given = run_program(kMatmul + flag + "--json");
  ASSERT_EQ(given.code, 0) << given.text;
  const auto hash = [](const ProcessResult& result) {
    return nlohmann::json::parse(result.text).at("candidates")[0].at("cases")[0].at("data_hash");
  };
  EXPECT_NE(hash(plain), hash(given));
  expect_exit(run_program(kMatmul + flag + "--json"), 0, "--input a=" + file + ":a");
  expect_exit(run_program(kMatmul + std::string("--input a=missing:a")), 2, "cannot be opened");
}

// --- --inputs and --gold
// -----------------------------------------------------------------------------------------------------------------

/// What tests/exec/own.py computes: y = 2 a.
std::string own_files(double factor) {
  const std::string inputs = write("own_inputs", list(tensor("a", DType::f32, {5, 7}, wave)));
  const std::string gold = write("own_gold", list(tensor("y", DType::f64, {5, 7}, [&](int64_t i) {
                                   return factor * static_cast<double>(static_cast<float>(wave(i)));
                                 })));
  return "--op doubling --inputs " + inputs + " --gold " + gold + " ";
}

std::string own_command() {
  return "--candidate exec --exec '" + std::string(CHECKOP_PYTHON) + " tests/exec/own.py' --device cpu ";
}

TEST(OwnOperator, IsJudgedByItsGold) {
  const ProcessResult right = run_program(own_files(2) + own_command() + kClass);
  expect_exit(right, 0, "doubling/forward  exec  fp32");
  const ProcessResult wrong = run_program(own_files(2.01) + own_command() + kClass);
  expect_exit(wrong, 1, "y[");
  expect_exit(wrong, 1, "repeat: check_operator --op doubling --pass forward --inputs ");
}

TEST(OwnOperator, WhatIsMissingIsSaid) {
  const std::string files = own_files(2);
  expect_exit(run_program(files + own_command()), 2, "an operator of your own needs --gold FILE and --class CLASS");
  expect_exit(run_program(files + own_command() + "--class reduction"), 2, "needs the magnitude");
  expect_exit(run_program(files + own_command() + kClass + " --save-tensors x"), 2, "--save-tensors");
  expect_exit(run_program(files + own_command() + kClass + " --batch 3"), 2, "--batch: has no effect");
  expect_exit(run_program("--op doubling --gold x --class exact"), 2, "--gold: has no effect without --inputs");
  expect_exit(run_program("--op logp --class exact"), 2, "--class: has no effect without --gold");
}

TEST(OwnGold, JudgesAnOperatorThatIsKnown) {
  const Case c = matmul_case(1, 2);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  Tensor gold("c", DType::f64, {1, 2, 4}), wrong("c", DType::f64, {1, 2, 4}),
      size("magnitude/c", DType::f64, {1, 2, 4});
  for (int64_t i = 0; i < 8; ++i) {
    gold.set(i, product(inputs, i / 4, i % 4));
    wrong.set(i, gold.at(i) + (i == 5 ? 1 : 0));
    size.set(i, 10);
  }
  const std::string file = write("matmul_inputs", std::move(inputs));
  Tensor again("magnitude/c", DType::f64, {1, 2, 4});
  for (int64_t i = 0; i < 8; ++i) again.set(i, 10);
  const std::string right = write("matmul_gold", list(std::move(gold), std::move(size)));
  const std::string off = write("matmul_wrong", list(std::move(wrong), std::move(again)));
  const std::string flags = "--op matmul --device cpu --candidate native --inputs " + file + " ";
  expect_exit(run_program(flags), 0, "matmul/forward  native  fp32  batch=1 seq=2 k_dim=2 n_dim=4");
  expect_exit(run_program(flags + "--gold " + right), 0, "1 pass");
  expect_exit(run_program(flags + "--gold " + off), 1, "c[0,1,1] = ");
  expect_exit(run_program(flags + "--gold " + right + " --class reduction"), 2, "says itself what its outputs are");
}

}  // namespace
}  // namespace checkop
