// SPDX-License-Identifier: Apache-2.0
// Golds, inputs and operators from files.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "session/own_data.hpp"
#include "support/contract_helper.hpp"
#include "support/own_data_helper.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::own_data_test {
namespace {

using contract_test::error_of;

// --- gold and operator

TEST(OwnOperator, HasTheTensorsOfItsFiles) {
  const OwnOperator own("mine", "backward", Numerics::reduction, 64,
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

TEST(OwnGold, GivesEveryElementOnceWithItsCompanions) {
  const int64_t rows = 300, columns = 177;
  const auto value = [](int64_t i) { return i % 2 == 0 ? wave(i) : -wave(i); };
  const std::string file = write_tensors("gold", list(tensor("y", DType::f64, {rows, columns}, value),
                                                      tensor("magnitude/y", DType::f32, {rows, columns},
                                                             [](int64_t i) { return static_cast<double>(i % 7); })));
  const SafetensorsReader reader(file);
  const OwnOperator own("mine", "forward", Numerics::reduction, 1, {}, {{"y", DType::f32, {rows, columns}}});
  std::vector<int> seen(static_cast<size_t>(rows * columns));
  std::mutex mutex;
  const OwnGold gold(reader, own.as_case());
  gold.replay()(3, {}, [&](const GoldRows& block) {
    const std::lock_guard lock(mutex);
    for (int64_t i = 0; i < block.n_rows * block.columns; ++i) {
      const int64_t at = block.first_row * block.columns + i;
      ++seen[static_cast<size_t>(at)];
      ASSERT_EQ(block.value[i], value(at));
      ASSERT_EQ(block.magnitude[i], static_cast<double>(at % 7));
      ASSERT_EQ(block.rounding[i], std::abs(wave(at)));
    }
  });
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
}

TEST(OwnGold, HasNoRowsUnderRecipesSoThatNothingPassesByOne) {
  const std::string file = write_tensors("gold_without_recipes", list(tensor("y", DType::f64, {3, 4}, wave)));
  const SafetensorsReader reader(file);
  const OwnOperator own("mine", "forward", Numerics::reduction, 1, {}, {{"y", DType::bf16, {3, 4}}});
  const OwnGold gold(reader, own.as_case());
  int64_t rows = 0;
  const GoldSink count = [&](const GoldRows& block) { rows += block.n_rows; };
  gold.replay()(1, ActiveRecipes({"p_in_16_bit"}, DType::bf16, 0x1p-24, {{0, 6}}), count);
  EXPECT_EQ(rows, 0);
  gold.replay()(1, {}, count);
  EXPECT_EQ(rows, 3);
}

TEST(OwnGold, CompanionsAreKnownByTheTensorTheyBelongTo) {
  const std::string file =
      write_tensors("companions", list(tensor("y", DType::f64, {2}, wave), tensor("magnitude/y", DType::f64, {2}, wave),
                                       tensor("rounding/z", DType::f64, {2}, wave)));
  const SafetensorsReader reader(file);
  EXPECT_TRUE(OwnGold::is_companion(reader, "magnitude/y"));
  EXPECT_FALSE(OwnGold::is_companion(reader, "rounding/z"));
  EXPECT_FALSE(OwnGold::is_companion(reader, "y"));
}

TEST(OwnGold, TensorsThatDoNotFitAreRefused) {
  const std::string file = write_tensors(
      "unfit", list(tensor("y", DType::f64, {2, 3}, wave), tensor("n", DType::i32, {2}, [](int64_t) { return 1; }),
                    tensor("big", DType::i64, {1}, [](int64_t) { return 0x1p53; }), tensor("m", DType::f32, {4}, wave),
                    tensor("magnitude/m", DType::f32, {3}, wave), tensor("free", DType::f32, {2}, wave),
                    tensor("magnitude/free", DType::f32, {2}, [](int64_t i) { return i == 1 ? INFINITY : 1; })));
  const SafetensorsReader reader(file);
  const auto error = [&](const SafetensorsEntry& output) {
    const OwnOperator own("mine", "forward", Numerics::reduction, 1, {}, {output});
    return error_of([&] { OwnGold(reader, own.as_case()); });
  };
  EXPECT_NE(error({"x", DType::f32, {2}}).find("holds no tensor 'x'"), std::string::npos);
  EXPECT_NE(error({"y", DType::f32, {3, 2}}).find("has shape [2, 3], expected [3, 2]"), std::string::npos);
  EXPECT_NE(error({"n", DType::i64, {2}}).find("is int32, the output is int64"), std::string::npos);
  EXPECT_NE(error({"big", DType::i64, {1}}).find("of 2^53 and beyond"), std::string::npos);
  EXPECT_NE(error({"m", DType::f32, {4}}).find("'magnitude/m': has shape [3]"), std::string::npos);
  EXPECT_NE(error({"free", DType::f32, {2}}).find("'magnitude/free': holds inf at index 1"), std::string::npos);
  EXPECT_EQ(error({"y", DType::bf16, {2, 3}}), "no error");
}

// --- --input

constexpr char kMatmul[] =
    "--op matmul --dtype fp32 --device cpu --batch 1 --seq 2 --k-dim 3 --n-dim 4 --candidate native ";

TEST(OwnInputs, ReplaceGeneratedOnes) {
  const std::string file = write_tensors("captured", list(tensor("layer.7.a", DType::f32, {2, 3, 2}, wave)));
  const Case c = matmul_case();
  const OwnInputs given({"a=" + file + ":layer.7.a"}, "");
  given.require_fit({&c});
  const std::vector<Tensor> inputs = given.make(c, 1);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(inputs[0].at(i), static_cast<float>(wave(i)));
  EXPECT_EQ(inputs[1].at(0), make_inputs(c, 1)[1].at(0));
  EXPECT_EQ(given.origins(c), (std::map<std::string, std::string>{{"a", file + ":layer.7.a"}}));
}

TEST(OwnInputs, TensorsThatDoNotFitTheCaseAreRefused) {
  const std::string file =
      write_tensors("misfit", list(tensor("a", DType::f32, {2, 3}, wave), tensor("h", DType::f16, {2, 3, 2}, wave)));
  const Case c = matmul_case();
  const auto error = [&](const std::string& setting) {
    return error_of([&] { OwnInputs({setting}, "").require_fit({&c}); });
  };
  EXPECT_NE(error("a=" + file + ":a").find("has shape [2, 3], 'a' of matmul-fp32-2x3x2x4 has [2, 3, 2]"),
            std::string::npos);
  EXPECT_NE(error("a=" + file + ":h").find("is fp16, 'a' of matmul-fp32-2x3x2x4 is fp32"), std::string::npos);
  EXPECT_NE(error("x=" + file + ":a").find("matmul has no input 'x'"), std::string::npos);
  EXPECT_NE(error("a=" + file + ":q").find("holds no tensor 'q'"), std::string::npos);
  EXPECT_NE(error("grad_c=" + file + ":a").find("is an input of matmul/backward, which is not checked"),
            std::string::npos);
  for (const std::string& form :
       std::vector<std::string>{"a", "a=", "a=" + file, "=" + file + ":a", "a=:a", "a=" + file + ":"})
    EXPECT_NE(error(form).find("expected NAME=FILE:TENSOR"), std::string::npos) << form;
}

TEST(OwnInputs, IdsMustSelectSomething) {
  const Case c = linear_logp_case("forward", false);
  const auto replaced = [&](double id) {
    const std::string file =
        write_tensors("ids", list(tensor("t", DType::i64, {1, 6}, [&](int64_t i) { return i == 4 ? id : 0; })));
    return error_of([&] { OwnInputs({"target_ids=" + file + ":t"}, "").make(c, 1); });
  };
  EXPECT_EQ(replaced(4), "no error");
  EXPECT_EQ(replaced(-100), "no error");  // ignore_index
  EXPECT_NE(replaced(5).find("holds id 5 at index 4, expected 0 to 4 or -100"), std::string::npos);
  EXPECT_NE(replaced(-1).find("holds id -1"), std::string::npos);
}

TEST(OwnInputs, ProofsLookAtThem) {
  const std::string flags =
      "--op matmul --dtype fp32 --device cpu --batch 1 --seq 40 --k-dim 64 --n-dim 16 --candidate native "
      "--check invariance ";
  const auto data = [](const std::string& name, const std::function<double(int64_t)>& value) {
    const std::string file = write_tensors(
        name, list(tensor("a", DType::f32, {1, 40, 64}, value), tensor("b", DType::f32, {64, 16}, value)));
    return "--input a=" + file + ":a --input b=" + file + ":b ";
  };
  // No order of summation changes a sum of integers; generated data would reveal one.
  const ProcessResult whole = run_program(flags + data("whole", [](int64_t i) { return static_cast<double>(i % 5); }));
  expect_exit(whole, 1, "another order of summation changes at best 0 of the elements");
  expect_exit(whole, 1, "capture more rows");
  expect_exit(run_program(flags + data("proving", wave)), 0, "1 pass");
  expect_exit(run_program(flags), 0, "1 pass");
}

TEST(OwnInputs, ReportSaysWhereTheyComeFrom) {
  const std::string file =
      write_tensors("origin", list(tensor("t", DType::f32, {1, 2, 3}, wave), tensor("g", DType::f32, {1, 2, 4}, wave)));
  const std::string flags = kMatmul + ("--pass all --input a=" + file + ":t --input grad_c=" + file + ":g ");
  expect_exit(run_program(flags), 0, "seed=123 a=" + file + ":t  headroom");
  const ProcessResult result = run_program(flags + "--json");
  ASSERT_EQ(result.code, 0) << result.text;
  const auto cases = nlohmann::json::parse(result.text).at("candidates")[0].at("cases");
  ASSERT_EQ(cases.size(), 2u);
  for (const auto& c : cases) {
    const bool backward = c.at("pass") == "backward";
    EXPECT_EQ(c.at("given_inputs").at("a"), file + ":t");
    EXPECT_EQ(c.at("given_inputs").contains("grad_c"), backward);
    EXPECT_EQ(c.at("gold_file"), "");
    const auto repeat = c.at("repeat").get<std::string>();
    EXPECT_NE(repeat.find("--input a="), std::string::npos);
    EXPECT_EQ(repeat.find("--input grad_c=") != std::string::npos, backward);
    expect_exit(run_program(repeat.substr(repeat.find(' ') + 1)), 0, "1 pass");
  }
}

TEST(OwnInputs, RunJudgesByThem) {
  const std::string file = write_tensors("run", list(tensor("a", DType::f32, {1, 2, 3}, wave)));
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

/// What they leave out, and nothing else, is planted with payloads that must not be read.
TEST(OwnInputs, MasksAndIdsLeaveOutOfTheOtherInputs) {
  const auto keeps = [](int64_t i) { return i % 3 == 0 ? 0.0 : 1.0; };
  const std::string file = write_tensors(
      "masks", list(tensor("keys", DType::u8, {2, 11}, keeps), tensor("rows", DType::u8, {8, 6}, keeps),
                    tensor("ids", DType::i64, {1, 24}, [](int64_t i) { return static_cast<double>(i % 7); })));
  for (const std::string& flags :
       {"--op attention --batch 2 --q-heads 2 --kv-heads 1 --q-seq 11 --kv-seq 11 --head-dim 16 --with "
        "key_padding_mask "
        "--input key_padding_mask=" +
            file + ":keys",
        "--op pack --batch 8 --seq 6 --hidden 3 --input mask=" + file + ":rows",
        "--op linear_logp --batch 1 --seq 24 --hidden 8 --vocab 7 --input target_ids=" + file + ":ids"})
    expect_exit(run_program(flags + " --pass forward --dtype fp32 --candidate native --device cpu"), 0, "1 pass");
}

// --- --inputs and --gold

/// The results of tests/plugins/exec/own.py: y = 2 a.
std::string own_files(double factor) {
  const std::string inputs = write_tensors("own_inputs", list(tensor("a", DType::f32, {5, 7}, wave)));
  const std::string gold = write_tensors("own_gold", list(tensor("y", DType::f64, {5, 7}, [&](int64_t i) {
                                           return factor * static_cast<double>(static_cast<float>(wave(i)));
                                         })));
  return "--op doubling --inputs " + inputs + " --gold " + gold + " ";
}

std::string own_command() {
  return "--candidate exec --exec '" + std::string(CHECKOP_PYTHON) + " tests/plugins/exec/own.py' --device cpu ";
}

TEST(OwnOperator, IsJudgedByItsGold) {
  const ProcessResult right = run_program(own_files(2) + own_command() + kClass);
  expect_exit(right, 0, "doubling/forward  exec  fp32");
  const ProcessResult wrong = run_program(own_files(2.01) + own_command() + kClass);
  expect_exit(wrong, 1, "y[");
  expect_exit(wrong, 1, "repeat: check_operator --op doubling --pass forward --inputs ");
}

TEST(OwnOperator, ReportSaysByWhatItIsJudged) {
  const std::string flags = own_files(2) + own_command() + kClass;
  expect_exit(run_program(flags), 0, "the operator has no independent rows: batch invariance was not tested");
  expect_exit(run_program(flags + " --check invariance"), 2, "--check: invariance compares rows");
  expect_exit(run_program(flags + " --check accuracy"), 0, "1 pass");
  const ProcessResult result = run_program(flags + " --json");
  ASSERT_EQ(result.code, 0) << result.text;
  const auto c = nlohmann::json::parse(result.text).at("candidates")[0].at("cases")[0];
  EXPECT_EQ(c.at("gold_file"), path_of("own_gold"));
  EXPECT_EQ(c.at("given_inputs").at("a"), path_of("own_inputs") + ":a");
  EXPECT_EQ(c.at("outputs")[0].at("gold_dtype"), "fp64");
  EXPECT_EQ(c.at("checks").at("invariance"), "not run");
}

TEST(OwnOperator, OverlaysMustBeSoundToo) {
  const std::string contract = path_of("overlay") + ".json";
  std::ofstream(contract) << R"({"format": "check_operator/contract-2", "name": "overlay",
    "rules": [{"match": {}, "gates": [{"metric": "atol_rtol", "atol": 1e-3, "rtol": 1e-3}], "why": "w"}],
    "overlays": [{"match": {"arch": "sm90"}, "reason": "r", "owner": "o", "expires": "never", "add": [
      {"metric": "bound_ratio", "limit": 1, "lambda": 6, "step": 1, "max_chain": 256, "bias_ulps": 0}]}]})";
  const std::string flags = own_files(2) + own_command() + "--class reduction --contract " + contract;
  expect_exit(run_program(flags), 0, "1 pass");
  expect_exit(run_program(flags + " --arch-key sm90 --force-arch-key"), 2, "bound_ratio needs the magnitude");
}

TEST(OwnOperator, WhatIsMissingIsSaid) {
  const std::string files = own_files(2);
  expect_exit(run_program(files + own_command()), 2, "an operator of your own needs --gold FILE and --class CLASS");
  expect_exit(run_program(files + own_command() + "--class reduction"), 2, "needs the magnitude");
  expect_exit(run_program(files + own_command() + kClass + " --save-tensors x"), 2, "--save-tensors");
  expect_exit(run_program(files + own_command() + kClass + " --batch 3"), 2, "--batch: has no effect");
  expect_exit(run_program(files + own_command() + kClass + " --seed 3"), 2, "--seed: has no effect");
  expect_exit(run_program(files + own_command() + kClass + " --gold-rows 3"), 2, "--gold-rows: has no effect");
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
  inputs.push_back(tensor("bais", DType::f32, {4}, wave));
  const std::string file = write_tensors("matmul_inputs", std::move(inputs));
  Tensor again("magnitude/c", DType::f64, {1, 2, 4});
  for (int64_t i = 0; i < 8; ++i) again.set(i, 10);
  const std::string right = write_tensors("matmul_gold", list(std::move(gold), std::move(size)));
  const std::string off = write_tensors("matmul_wrong", list(std::move(wrong), std::move(again)));
  const std::string flags = "--op matmul --device cpu --candidate native --inputs " + file + " ";
  const ProcessResult plain = run_program(flags);
  expect_exit(plain, 0, "matmul/forward  native  fp32  batch=1 seq=2 k_dim=2 n_dim=4 a=" + file + ":a");
  expect_exit(plain, 0, "[ WARNING  ] " + file + ": 'bais' is no input of matmul/forward and was not used");
  expect_exit(run_program(flags + "--gold " + right), 0, "1 pass");
  expect_exit(run_program(flags + "--gold " + off), 1, "c[0,1,1] = ");
  expect_exit(run_program(flags + "--gold " + right + " --class reduction"), 2, "whose outputs have a class already");
}

}  // namespace
}  // namespace checkop::own_data_test
