// SPDX-License-Identifier: Apache-2.0
// check_operator compare.
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/own_data_helper.hpp"
#include "support/process.hpp"

namespace checkop::compare_command_test {
namespace {

/// Two files that agree, except for the change that `spoil` makes to the first one's y.
std::string pair_of_files(const std::string& name, const std::function<void(Tensor&)>& spoil = {}) {
  Tensor y = tensor("y", DType::f32, {6, 32}, wave);
  if (spoil) spoil(y);
  const std::string got = write_tensors(
      name + "_got", list(std::move(y), tensor("ids", DType::i64, {4}, [](int64_t i) { return i * 3.0; })));
  const std::string gold = write_tensors(
      name + "_gold",
      list(tensor("y", DType::f64, {6, 32}, wave), tensor("ids", DType::i64, {4}, [](int64_t i) { return i * 3.0; })));
  return "compare " + got + " " + gold + " ";
}

TEST(CompareCommand, EqualTensorsPass) {
  const ProcessResult result = run_program(pair_of_files("equal") + kClass);
  expect_exit(result, 0, "y/forward  own_data_equal_got.safetensors  fp32");
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
  const std::string got =
      write_tensors("ids_got", list(tensor("ids", DType::i64, {3}, [](int64_t i) { return i + 1.0; })));
  const std::string gold =
      write_tensors("ids_gold", list(tensor("ids", DType::i64, {3}, [](int64_t i) { return i * 1.0; })));
  expect_exit(run_program("compare " + got + " " + gold + " " + kClass), 1, "the bits must be equal; 3 of 3");
}

TEST(CompareCommand, MissingAndMisshapenTensorsFail) {
  const std::string got = write_tensors("few_got", list(tensor("b", DType::f32, {4, 2}, wave)));
  const std::string gold =
      write_tensors("few_gold", list(tensor("a", DType::f64, {2}, wave), tensor("b", DType::f64, {2, 4}, wave)));
  const ProcessResult result = run_program("compare " + got + " " + gold + " " + kClass);
  expect_exit(result, 1, "holds no tensor 'a'");
  expect_exit(result, 1, "'b' has shape [4, 2], its gold [2, 4]");
}

TEST(CompareCommand, IntegersAreNotComparedWithNumbersOfAnotherKind) {
  const auto ids = [](int64_t i) { return i * 1.0; };
  const std::string got =
      write_tensors("kind_got", list(tensor("ids", DType::f32, {3}, ids), tensor("y", DType::f32, {3}, wave)));
  const std::string gold =
      write_tensors("kind_gold", list(tensor("ids", DType::i64, {3}, ids), tensor("y", DType::f32, {3}, wave)));
  const ProcessResult result = run_program("compare " + got + " " + gold + " " + kClass);
  expect_exit(result, 1, "'ids' is fp32, its gold int64");
  expect_exit(result, 1, "1 pass");
}

TEST(CompareCommand, TensorWithoutGoldIsNamed) {
  const std::string got =
      write_tensors("more_got", list(tensor("a", DType::f32, {4, 2}, wave), tensor("b", DType::f32, {2}, wave)));
  const std::string gold = write_tensors("more_gold", list(tensor("a", DType::f64, {4, 2}, wave)));
  expect_exit(run_program("compare " + got + " " + gold + " " + kClass), 0, "'b' has no gold in");
}

TEST(CompareCommand, BoundsNeedMagnitudes) {
  const std::string files = pair_of_files("bounds");
  expect_exit(run_program(files + "--class reduction --filter y"), 2,
              "bound_ratio needs the magnitude of every element of 'y'");
  const std::string gold = write_tensors(
      "with_magnitude", list(tensor("y", DType::f64, {6, 32}, wave), tensor("magnitude/y", DType::f64, {6, 32}, wave)));
  const std::string got = path_of("bounds_got");
  expect_exit(run_program("compare " + got + " " + gold + " --class reduction"), 0, "1 pass");
  // A relative error of 2e-6: assert_close accepts it, bounds of a one-term sum do not, bounds of a long sum do.
  Tensor y = tensor("y", DType::f32, {6, 32}, [](int64_t i) { return wave(i) * (1 + 2e-6); });
  const std::string far = write_tensors("far", list(std::move(y)));
  expect_exit(run_program("compare " + far + " " + gold + " --class reduction"), 1, "the bound");
  expect_exit(run_program("compare " + far + " " + gold + " --class reduction --terms 4096"), 0, "1 pass");
}

TEST(CompareCommand, GoldThatIsNoFinerSaysNothingAboutStoring) {
  const std::string got = write_tensors("same_got", list(tensor("y", DType::f32, {6, 32}, wave)));
  expect_exit(
      run_program("compare " + got + " " + got + " --contract contracts/policies/two_times.json --class reduction"), 2,
      "needs a gold in a wider dtype than the output");
}

TEST(CompareCommand, AReferenceSetsTheScaleOfErrors) {
  const std::string policy = " --contract contracts/policies/vs_reference.json --class composite";
  const auto off_by = [](double relative) {
    return [relative](int64_t i) { return wave(i) * (1 + (i % 2 == 0 ? relative : -relative)); };
  };
  const std::string got = write_tensors("of_reference_got", list(tensor("y", DType::f32, {6, 32}, off_by(3e-6))));
  const auto gold = [&](const char* name, double relative) {
    return write_tensors(name, list(tensor("y", DType::f64, {6, 32}, wave),
                                    tensor("reference/y", DType::f32, {6, 32}, off_by(relative))));
  };
  expect_exit(run_program("compare " + got + " " + gold("of_reference_near", 2e-6) + policy), 0, "1 pass");
  expect_exit(run_program("compare " + got + " " + gold("of_reference_far", 1e-6) + policy), 1,
              "so many times the error of the reference");
  // A reference that errs as much as zeros do proves nothing.
  expect_exit(run_program("compare " + got + " " + gold("of_reference_wild", 1) + policy), 1, "vacuous");
  expect_exit(run_program("compare " + got + " " +
                          write_tensors("of_no_reference", list(tensor("y", DType::f64, {6, 32}, wave))) + policy),
              2, "add a tensor 'reference/y' to it");
  expect_exit(run_program("--op silu --device cpu --candidate native --contract contracts/policies/vs_reference.json"),
              2, "vs_reference needs a reference beside the gold of 'y', and silu has none");
}

TEST(CompareCommand, QuestionsThatMakeNoSenseAreRefused) {
  const std::string files = pair_of_files("questions");
  expect_exit(run_program(files), 2, "--class: is needed to select the rules that judge the tensors");
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
  const auto c = report.at("candidates")[0].at("cases")[0];
  EXPECT_EQ(c.at("gold_file"), path_of("json_gold"));
  EXPECT_EQ(c.at("outputs")[0].at("gold_dtype"), "int64");  // the dtype of ids
}

TEST(CompareCommand, OnlyGradientsOfKnownInputsAreCalledSo) {
  const std::string file = write_tensors("named", list(tensor("decoder.weight", DType::f32, {3, 2}, wave)));
  const ProcessResult result = run_program("compare " + file + " " + file + " --pass backward --json " + kClass);
  ASSERT_EQ(result.code, 0) << result.text;
  EXPECT_EQ(nlohmann::json::parse(result.text).at("candidates")[0].at("cases")[0].at("outputs")[0].at("message"), "");
}

}  // namespace
}  // namespace checkop::compare_command_test
