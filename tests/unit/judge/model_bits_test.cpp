// SPDX-License-Identifier: Apache-2.0
// Gate bits_of_model: which outputs it judges, what it says of outputs that differ, and what a contract may require.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "case/inputs.hpp"
#include "judge/model_bits.hpp"
#include "operator/model.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"

namespace checkop::model_bits_test {
namespace {

using namespace contract_test;

const std::string kContract = CHECKOP_SOURCE_DIR "/tests/data/contracts/bits_of_model.json";

// --- the models of passes --------------------------------------------------------------------------------------------

struct ModelCase {
  const char *op, *pass;
  DType dtype;
  bool bias;
};

Case case_of(const ModelCase& m, int64_t rows = 37) {
  const bool of_codes = std::string_view(m.op).find("fp8") != std::string_view::npos;
  const Dims dims =
      of_codes                              ? Dims{{"batch", 1},   {"seq", rows},  {"rows", rows}, {"capacity", rows},
                      {"experts", 5}, {"k_dim", 300}, {"n_dim", 140}}
      : std::string_view(m.op) == "lm_head" ? Dims{{"batch", 1}, {"seq", rows}, {"hidden", 45}, {"vocab", 70}}
      : std::string_view(m.op) == "masked_grouped_gemm"
          ? Dims{{"experts", 5}, {"capacity", rows}, {"k_dim", 45}, {"n_dim", 70}}
      : std::string_view(m.op) == "grouped_gemm" ? Dims{{"rows", rows}, {"k_dim", 45}, {"n_dim", 70}, {"experts", 5}}
                                                 : Dims{{"batch", 1}, {"seq", rows}, {"k_dim", 45}, {"n_dim", 70}};
  std::set<std::string, std::less<>> optionals;
  if (m.bias) optionals.insert("bias");
  return gold_case(m.op, m.pass, m.dtype, dims, optionals);
}

const ModelCase kCases[] = {
    {"matmul", "forward", DType::bf16, false},
    {"matmul", "forward", DType::f16, false},
    {"matmul", "backward", DType::bf16, false},
    {"matmul", "backward", DType::f16, false},
    {"det_gemm", "forward", DType::bf16, false},
    {"det_gemm", "backward", DType::f16, false},
    {"lm_head", "forward", DType::bf16, false},
    {"lm_head", "forward", DType::f16, true},
    {"lm_head", "backward", DType::bf16, true},
    {"lm_head", "backward", DType::f16, false},
    {"grouped_gemm", "forward", DType::bf16, false},
    {"grouped_gemm", "forward", DType::f16, false},
    {"grouped_gemm", "backward", DType::bf16, false},
    {"grouped_gemm", "backward", DType::f16, false},
    {"masked_grouped_gemm", "forward", DType::bf16, false},
    {"masked_grouped_gemm", "backward", DType::f16, false},
    {"fp8_block_gemm", "forward", DType::bf16, false},
    {"fp8_block_gemm", "forward", DType::f32, false},
    {"grouped_fp8_block_gemm", "forward", DType::f32, false},
    {"masked_grouped_fp8_block_gemm", "forward", DType::f16, false},
};

/// The order that the hardware has.
ModelOrder own_order(const Case& c) { return {kModelledArchs[0].block_of(*c.pass)}; }

/// All outputs of `c` as `order` computes them; outputs without a model contain the gold.
std::vector<Tensor> modelled(const Case& c, const std::vector<Tensor>& inputs, const ModelOrder& order) {
  std::vector<Tensor> outputs = make_outputs(c);
  const auto gold = collect_gold(c, inputs, 1);
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t k = 0; k < gold[i].value.size(); ++k) outputs[i].set(static_cast<int64_t>(k), gold[i].value[k]);
  std::vector<const Tensor*> in;
  for (const Tensor& tensor : inputs) in.push_back(tensor.name.empty() ? nullptr : &tensor);
  const std::vector<RowSet> all(outputs.size());
  c.pass->model({in, all, order, 2, [&](int output, int64_t row, const float* values) {
                   Tensor& to = outputs[static_cast<size_t>(output)];
                   const int64_t columns = to.shape.back();
                   for (int64_t j = 0; j < columns; ++j) to.set(row * columns + j, static_cast<double>(values[j]));
                 }});
  return outputs;
}

std::vector<Comparison> judged_on_sm90(const Case& c, const std::vector<Tensor>& inputs,
                                       const std::vector<Tensor>& outputs, const std::vector<RowSet>& rows = {}) {
  return judge_outputs(c, inputs, outputs, Contract::load(kContract), {"sm90", "any"}, 2, rows);
}

// The bounds around the gold show that the model reads each operand in the right place; the gate shows that all
// elements are compared.
TEST(BitsOfModel, EveryModelIsWithinTheBoundsAndEqualsItself) {
  for (const ModelCase& m : kCases) {
    const Case c = case_of(m);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    const std::vector<Comparison> all = judged_on_sm90(c, inputs, modelled(c, inputs, own_order(c)));
    for (size_t i = 0; i < all.size(); ++i) {
      const OutputSpec& spec = c.pass->outputs[i];
      if (!is_present(c, spec.tensor)) continue;
      EXPECT_TRUE(all[i].passed()) << case_name(c) << " " << spec.tensor.name;
      ASSERT_EQ(all[i].model.has_value(), spec.numerics == Numerics::contraction) << spec.tensor.name;
      if (!all[i].model) continue;
      EXPECT_EQ(all[i].model->compared, element_count(shape_of(c, spec.tensor)));
      EXPECT_EQ(describe(*all[i].model), fmt::format("0 of {} differ", all[i].model->compared));
    }
  }
}

TEST(BitsOfModel, EveryOrderIsToldFromTheOthers) {
  // Long sums in fp16, whose 11 bits show the order. Three orders give the same bits here and must not be
  // distinguished.
  const Dims dims{{"batch", 1}, {"seq", 16}, {"k_dim", 2048}, {"n_dim", 192}};
  for (const Case& c :
       {gold_case("matmul", "forward", DType::f16, dims), gold_case("fp8_block_gemm", "forward", DType::f32, dims)}) {
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    const std::span<const ModelOrder> orders = all_orders(own_order(c).width);
    EXPECT_EQ(orders.front(), own_order(c));
    for (const ModelOrder& order : orders) {
      const Comparison got = judged_on_sm90(c, inputs, modelled(c, inputs, order)).front();
      ASSERT_TRUE(got.model);
      if (order == own_order(c)) {
        EXPECT_TRUE(got.passed());
        continue;
      }
      EXPECT_FALSE(got.passed()) << to_string(order);
      EXPECT_GT(got.model->different, 0) << to_string(order);
      ASSERT_EQ(got.model->orders.size(), orders.size());
      EXPECT_EQ(got.model->orders.front().order, to_string(order));
      EXPECT_EQ(got.model->orders.front().equal, 1.0) << to_string(order);
      EXPECT_LT(got.model->orders[1].equal, 1.0) << got.model->orders[1].order;
    }
  }
}

TEST(BitsOfModel, OneElementOffByItsLastBitFails) {
  for (const ModelCase& m : kCases) {
    const Case c = case_of(m);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    for (size_t output = 0; output < c.pass->outputs.size(); ++output) {
      std::vector<Tensor> outputs = modelled(c, inputs, own_order(c));
      if (outputs[output].name.empty() || c.pass->outputs[output].numerics != Numerics::contraction) continue;
      const int64_t at = outputs[output].count() - 1;
      outputs[output].bytes.data()[static_cast<size_t>(at) * info(outputs[output].dtype).bytes] ^= std::byte{1};
      const std::vector<Comparison> all = judged_on_sm90(c, inputs, outputs);
      EXPECT_FALSE(all[output].gates_hold()) << case_name(c);
      EXPECT_EQ(all[output].model->different, 1);
      EXPECT_EQ(all[output].model->first_index, at);
      EXPECT_EQ(all[output].model->got_bits ^ all[output].model->model_bits, 1U);
      EXPECT_EQ(all[output].model->orders.front().order, to_string(own_order(c)));
    }
  }
}

// Rows of no expert and experts without rows among them.
TEST(BitsOfModel, GroupsHaveTheBitsOfProductsOfTheirRowsAlone) {
  const Case c = case_of({"grouped_gemm", "backward", DType::f16, false}, 90);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t e = 0; e < 6; ++e) inputs[2].set(e, std::array{0, 19, 19, 60, 61, 80}[static_cast<size_t>(e)]);
  const std::vector<Tensor> outputs = modelled(c, inputs, {});
  const int64_t k_dim = 45, n_dim = 70;
  for (const int64_t e : {0, 2, 3, 4}) {
    const auto first = static_cast<int64_t>(inputs[2].at(e)), rows = static_cast<int64_t>(inputs[2].at(e + 1)) - first;
    const Case own = case_of({"matmul", "backward", DType::f16, false}, rows);
    std::vector<Tensor> own_inputs = make_inputs(own, 1);
    const auto copy = [&](const Tensor& from, int64_t at, Tensor& to) {
      for (int64_t i = 0; i < to.count(); ++i) to.set(i, from.at(at + i));
    };
    copy(inputs[0], first * k_dim, own_inputs[0]);
    for (int64_t i = 0; i < n_dim * k_dim; ++i)  // matmul has b as [k_dim, n_dim]
      own_inputs[1].set(i % k_dim * n_dim + i / k_dim, inputs[1].at(e * n_dim * k_dim + i));
    copy(inputs[3], first * n_dim, own_inputs[2]);
    const std::vector<Tensor> own_outputs = modelled(own, own_inputs, {});
    for (int64_t i = 0; i < rows * k_dim; ++i)
      ASSERT_EQ(outputs[0].at(first * k_dim + i), own_outputs[0].at(i)) << e << " " << i;
    for (int64_t i = 0; i < n_dim * k_dim; ++i)
      ASSERT_EQ(outputs[1].at(e * n_dim * k_dim + i), own_outputs[1].at(i % k_dim * n_dim + i / k_dim))
          << e << " " << i;
  }
  for (int64_t i = 0; i < n_dim * k_dim; ++i) EXPECT_EQ(outputs[1].at(n_dim * k_dim + i), 0) << i;
  for (int64_t i = 80 * k_dim; i < 90 * k_dim; ++i) EXPECT_EQ(outputs[0].at(i), 0) << i;
}

// Rows of no expert hold NaN.
TEST(BitsOfModel, GroupsOfCodesHaveTheBitsOfProductsOfTheirRowsAlone) {
  for (const char* op : {"grouped_fp8_block_gemm", "masked_grouped_fp8_block_gemm"}) {
    const bool masked = std::string_view(op).starts_with("masked");
    const Case c = case_of({op, "forward", DType::f32, false}, masked ? 20 : 90);
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const std::array firsts = masked ? std::array{0, 20, 40, 60, 80, 100} : std::array{0, 19, 19, 60, 61, 80};
    const std::array counts = masked ? std::array{20, 0, 7, 1, 19} : std::array{19, 0, 41, 1, 19};
    for (int64_t e = 0; e < inputs[4].count(); ++e)
      inputs[4].set(e, masked ? counts[static_cast<size_t>(e)] : firsts[static_cast<size_t>(e)]);
    const int64_t k_dim = 300, n_dim = 140, blocks = 3, all_rows = inputs[0].count() / k_dim;
    std::vector<char> used(static_cast<size_t>(all_rows));
    for (size_t e = 0; e < counts.size(); ++e) std::fill_n(used.begin() + firsts[e], counts[e], 1);
    for (int64_t i = 0; i < inputs[0].count(); ++i)
      inputs[0].set(i, used[static_cast<size_t>(i / k_dim)] == 1 ? static_cast<double>(i * 37 % 97 - 48) / 8 : NAN);
    for (int64_t i = 0; i < inputs[1].count(); ++i)
      inputs[1].set(i, used[static_cast<size_t>(i / blocks)] == 1 ? 0.5 + static_cast<double>(i % 5) / 4 : NAN);
    const std::vector<Tensor> outputs = modelled(c, inputs, own_order(c));
    for (size_t e = 0; e < counts.size(); ++e) {
      const int64_t rows = counts[e], first = firsts[e], expert = static_cast<int64_t>(e);
      if (rows == 0) continue;
      const Case own = case_of({"fp8_block_gemm", "forward", DType::f32, false}, rows);
      std::vector<Tensor> own_inputs = make_inputs(own, 1);
      for (const auto& [index, at] : {std::pair{0, first * k_dim}, std::pair{1, first * blocks},
                                      std::pair{2, expert * n_dim * k_dim}, std::pair{3, expert * 2 * blocks}}) {
        Tensor& to = own_inputs[static_cast<size_t>(index)];
        for (int64_t i = 0; i < to.count(); ++i) to.set(i, inputs[static_cast<size_t>(index)].at(at + i));
      }
      const std::vector<Tensor> own_outputs = modelled(own, own_inputs, own_order(own));
      for (int64_t i = 0; i < rows * n_dim; ++i)
        ASSERT_EQ(outputs[0].at(first * n_dim + i), own_outputs[0].at(i)) << op << " " << e << " " << i;
    }
    for (int64_t i = 0; i < outputs[0].count(); ++i)
      ASSERT_TRUE(used[static_cast<size_t>(i / n_dim)] == 1 || outputs[0].at(i) == 0) << op << " " << i;
  }
}

TEST(BitsOfModel, TheBiasIsAddedInFp32AndTheSumRoundedOnce) {
  Case c =
      gold_case("lm_head", "forward", DType::bf16, {{"batch", 1}, {"seq", 1}, {"hidden", 1}, {"vocab", 1}}, {"bias"});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  // 1 + 2^-8 + 2^-9 rounds up. The product alone, 1 + 2^-8, is a tie that rounds to 1, from where 2^-9 is lost.
  inputs[0].set(0, 1 + 0x1p-4), inputs[1].set(0, 1 + 0x1p-4), inputs[2].set(0, -0x1p-3 + 0x1p-9);
  const double exact = (1 + 0x1p-4) * (1 + 0x1p-4) - 0x1p-3 + 0x1p-9;
  ASSERT_EQ(exact, 1 + 0x1p-8 + 0x1p-9);
  const std::vector<Tensor> outputs = modelled(c, inputs, {});
  EXPECT_EQ(outputs[0].at(0), 1 + 0x1p-7);
  EXPECT_TRUE(judged_on_sm90(c, inputs, outputs).front().passed());
}

TEST(BitsOfModel, ANaNEqualsANaNAndNothingElse) {
  const Case c = case_of({"matmul", "forward", DType::bf16, false});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = modelled(c, inputs, {});
  const int64_t columns = outputs[0].shape.back();
  const auto model_of = [&] { return *judged_on_sm90(c, inputs, outputs).front().model; };
  outputs[0].set(3, NAN);
  EXPECT_EQ(model_of().different, 1);  // where the model gives a number
  inputs[0].set(0, NAN);               // the first row
  EXPECT_EQ(model_of().different, columns - 1);
  for (int64_t j = 0; j < columns; ++j) {
    const uint16_t bits = j % 2 == 0 ? 0x7fff : 0xff81;  // alternately the tensor cores' own NaN and another NaN
    std::memcpy(outputs[0].bytes.data() + 2 * j, &bits, 2);
  }
  EXPECT_EQ(model_of().different, 0);
  outputs[0].set(5, INFINITY);
  EXPECT_EQ(model_of().different, 1);
}

TEST(BitsOfModel, LooksAtTheSampledRowsAlone) {
  const Case c = case_of({"matmul", "backward", DType::bf16, false});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = modelled(c, inputs, {});
  const std::vector<RowSet> rows{{false, {0, 5, 36}}, {false, {2, 44}}};
  outputs[1].bytes.data()[2 * 3 * 70] ^= std::byte{1};  // row 3 of db
  std::vector<Comparison> all = judged_on_sm90(c, inputs, outputs, rows);
  EXPECT_EQ(describe(*all[0].model), "0 of 135 differ");
  EXPECT_EQ(describe(*all[1].model), "0 of 140 differ");
  outputs[1].bytes.data()[2 * (2 * 70 + 9)] ^= std::byte{1};
  all = judged_on_sm90(c, inputs, outputs, rows);
  EXPECT_EQ(all[1].model->different, 1);
  EXPECT_EQ(all[1].model->first_index, 2 * 70 + 9);
  EXPECT_EQ(all[1].model->rows_tried, 1);
}

TEST(BitsOfModel, ABatchWithoutRowsHasZeroGradientsOfWeights) {
  const Case c = case_of({"matmul", "backward", DType::bf16, false}, 0);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = modelled(c, inputs, {});
  EXPECT_EQ(describe(*judged_on_sm90(c, inputs, outputs)[1].model), "0 of 3150 differ");
  outputs[1].set(7, -0.0);
  EXPECT_EQ(judged_on_sm90(c, inputs, outputs)[1].model->different, 1);
}

// --- contracts -------------------------------------------------------------------------------------------------------

constexpr std::string_view kModelGate =
    R"({"metric": "bits_of_model", "arch": "sm90", "block": 16, "order": "ascending"})";
constexpr std::string_view kCodeGate =
    R"({"metric": "bits_of_model", "arch": "sm90", "block": 32, "order": "ascending"})";
const std::string kMatmul16 = R"({"op": "matmul", "dtype": ["bf16", "fp16"]})";

std::string rule_with_model(std::string_view match, std::string_view gate = kModelGate) {
  return fmt::format(R"({{"match": {}, "gates": [{}, {}], "why": "w"}})", match, kGate, gate);
}

std::string adding(std::string_view match, std::string_view gates = kModelGate, std::string_view more = "") {
  return fmt::format(R"({{"match": {}, "add": [{}], "reason": "r", "owner": "o", "expires": "2026-01-31"{}}})", match,
                     gates, more);
}

bool asks(const Gates& all) {
  return std::any_of(all.all.begin(), all.all.end(), [](const Gate& g) { return g.metric == Metric::bits_of_model; });
}

Judged product(DType dtype = DType::bf16) { return judged("matmul", "forward", "c", dtype); }

TEST(BitsOfModel, IsAskedOfItsOwnArchitectureAlone) {
  const Contract contract = parse({rule("{}"), rule_with_model(kMatmul16)});
  EXPECT_TRUE(asks(gates(contract, product(), "sm90", "cuda")));
  EXPECT_TRUE(asks(gates(contract, product(DType::f16), "sm90")));
  EXPECT_FALSE(asks(gates(contract, product(), "sm80", "cuda")));
  EXPECT_FALSE(asks(gates(contract, product())));
  EXPECT_FALSE(asks(gates(contract, product(DType::f32), "sm90")));
  EXPECT_EQ(gates(contract, product()).numbers.size(), keys_of(Metric::bound_ratio).size());
}

TEST(BitsOfModel, AnOverlayAddsIt) {
  const std::string match = R"({"arch": "sm90", "candidate": "cuda", "op": "matmul", "dtype": "bf16"})";
  const Contract contract = parse({rule("{}")}, overlays({adding(match)}), parse_date("2026-06-01").value());
  const Gates got = gates(contract, product(), "sm90", "cuda");
  ASSERT_TRUE(asks(got)) << "what an overlay adds outlives its date";
  EXPECT_EQ(got.all.size(), 2U);
  EXPECT_EQ(got.all[0].source, "c.json: rules[0].gates[0]");
  EXPECT_EQ(got.all[1].source, "c.json: overlays[0].add[0]");
  EXPECT_EQ(got.numbers.back().path, "overlays[0].add[0]");
  EXPECT_EQ(got.numbers.back().reason, "r");
  EXPECT_EQ(model_order(got.all[1]), ModelOrder{});
  EXPECT_FALSE(asks(gates(contract, product(), "sm90", "cuda-mine")));
  EXPECT_FALSE(asks(gates(contract, product(), "sm80", "cuda")));
  EXPECT_FALSE(asks(gates(contract, product(DType::f16), "sm90", "cuda")));
}

TEST(BitsOfModel, AnOverlayAddsAnyGate) {
  const Contract contract = parse(
      {rule("{}")}, overlays({adding(R"({"candidate": "mine", "op": "logp"})", R"({"metric": "ulp", "limit": 3})")}));
  const Gates got = gates(contract, judged("logp", "forward", "logp"), "", "mine");
  ASSERT_EQ(got.all.size(), 2U);
  EXPECT_EQ(got.all[1].metric, Metric::ulp);
  EXPECT_EQ(got.all[1].limit, 3.0);
}

std::string added_error(std::string_view match, std::string_view gates = kModelGate) {
  return rules_error({rule("{}")}, overlays({adding(match, gates)}));
}

TEST(BitsOfModel, WhatNoModelCoversIsAnError) {
  const std::string none = "of which there is no model";
  EXPECT_NE(rules_error({rule_with_model("{}")}).find(none), std::string::npos);
  EXPECT_NE(rules_error({rule_with_model(R"({"op": "matmul"})")}).find("matmul/forward c fp64"), std::string::npos);
  EXPECT_NE(rules_error({rule_with_model(R"({"op": "lm_head", "dtype": "bf16"})")}).find("lm_head/backward dbias"),
            std::string::npos);
  EXPECT_NE(added_error(R"({"arch": "sm90", "op": "attention", "dtype": "bf16"})").find(none), std::string::npos);
  EXPECT_EQ(rules_error({rule_with_model(R"({"op": "lm_head", "dtype": "bf16", "numerics": "contraction"})")}),
            "no error");
}

TEST(BitsOfModel, WrongKeysAreErrors) {
  const auto gate_with = [](std::string_view arch, std::string_view block, std::string_view order) {
    return rules_error({rule_with_model(
        kMatmul16,
        fmt::format(R"({{"metric": "bits_of_model", "arch": {}, "block": {}, "order": {}}})", arch, block, order))});
  };
  EXPECT_EQ(gate_with(R"("sm90")", "16", R"("ascending")"), "no error");
  EXPECT_NE(gate_with(R"("sm80")", "16", R"("ascending")").find("unknown arch 'sm80'"), std::string::npos);
  EXPECT_NE(
      gate_with(R"("sm90")", "8", R"("ascending")").find("sm90 adds 16 products of 16-bit operands at once, not 8"),
      std::string::npos);
  const std::string of_codes = R"({"arch": "sm90", "op": "fp8_block_gemm", "dtype": ["bf16", "fp16", "fp32"]})";
  EXPECT_EQ(added_error(of_codes),
            "c.json: overlays[0].add[0].block: sm90 adds 32 products of e4m3 codes at once, not 16, and overlays[0] "
            "matches fp8_block_gemm/forward d fp32 (case fp32); write \"block\": 32");
  EXPECT_EQ(added_error(of_codes, kCodeGate), "no error");
  EXPECT_NE(gate_with(R"("sm90")", "32", R"("ascending")").find("write \"block\": 16"), std::string::npos);
  EXPECT_NE(gate_with(R"("sm90")", "16", R"("descending")").find("unknown order 'descending'"), std::string::npos);
  EXPECT_NE(gate_with("90", "16", R"("ascending")").find("expected"), std::string::npos);
  EXPECT_NE(rules_error({rule_with_model(kMatmul16, R"({"metric": "bits_of_model", "arch": "sm90"})")}).find("block"),
            std::string::npos);
  const std::string alone =
      fmt::format(R"({{"match": {}, "gates": [{}], "elements": "unjudged", "why": "w"}})", kMatmul16, kModelGate);
  EXPECT_NE(rules_error({alone}).find("a gate beside bits_of_model"), std::string::npos);
}

TEST(BitsOfModel, WhatAnOverlayAddsTwiceOrInVainIsAnError) {
  const std::string match = R"({"arch": "sm90", "op": "matmul", "dtype": "bf16"})";
  EXPECT_NE(rules_error({rule("{}"), rule_with_model(kMatmul16)}, overlays({adding(match)}))
                .find("rules[1] has a gate 'bits_of_model' for matmul/forward c bf16"),
            std::string::npos);
  const std::string other = R"({"candidate": "c*", "op": "matmul", "dtype": ["bf16", "fp16"]})";
  EXPECT_NE(rules_error({rule("{}")}, overlays({adding(match), adding(other)}))
                .find("overlays[0] and overlays[1] both add a gate 'bits_of_model'"),
            std::string::npos);
  EXPECT_EQ(added_error(R"({"arch": "sm80", "op": "matmul", "dtype": "bf16"})"),
            "c.json: overlays[0].add[0]: a model of sm90, added for sm80; let both name the same architecture");
  EXPECT_NE(added_error(match, "").find("at least one gate"), std::string::npos);
  EXPECT_NE(rules_error({rule(R"({"op": "logp"})")}, overlays({adding(match)})).find("no rule judges these outputs"),
            std::string::npos);
  const std::string neither = R"({"match": {"arch": "sm90"}, "reason": "r", "owner": "o", "expires": "never"})";
  EXPECT_NE(rules_error({rule("{}")}, overlays({neither})).find("set"), std::string::npos);
}

TEST(BitsOfModel, TheDefaultContractAsksItOfTheKernelsThatPromiseIt) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  const Judged outputs[] = {
      product(), judged("matmul", "backward", "db", DType::f16), judged("det_gemm", "backward", "da", DType::bf16),
      judged("lm_head", "forward", "logits", DType::f16), judged("lm_head", "backward", "dweight", DType::bf16)};
  for (const Judged& j : outputs) {
    EXPECT_TRUE(asks(gates(contract, j, "sm90", "cuda")));
    EXPECT_TRUE(asks(gates(contract, j, "sm90", "cuda-sm90")));
    EXPECT_FALSE(asks(gates(contract, j, "sm90", "cublas")));
    EXPECT_FALSE(asks(gates(contract, j, "sm80", "cuda")));
  }
  for (const char* op : {"fp8_block_gemm", "grouped_fp8_block_gemm", "masked_grouped_fp8_block_gemm"}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      const Judged j = judged(op, "forward", "d", dtype);
      EXPECT_TRUE(asks(gates(contract, j, "sm90", "cuda-sm90")));
      EXPECT_FALSE(asks(gates(contract, j, "sm90", "cuda")));
    }
  }
  EXPECT_FALSE(asks(gates(contract, judged("lm_head", "backward", "dbias", DType::bf16), "sm90", "cuda")));
}

// --- the program -----------------------------------------------------------------------------------------------------

std::string command(std::string_view candidate, std::string_view arch = "--arch-key sm90 --force-arch-key") {
  return fmt::format(
      "--op matmul,det_gemm,lm_head --device cpu --contract {} --plugin {}/modelled.so "
      "--candidate {} --dtype bf16 --batch 1 --seq 24 --k-dim 1024 --n-dim 96 --hidden 1024 --vocab 96 --check-grad {}",
      kContract, kPluginFolder, candidate, arch);
}

TEST(BitsOfModel, ACandidateThatKeepsTheOrderPasses) {
  const ProcessResult result = run_program(command("ascending"));
  expect_exit(result, 0, "6 pass");
  EXPECT_NE(result.text.find("bits_of_model: 0 of 2304 differ"), std::string::npos) << result.text;
}

TEST(BitsOfModel, ACandidateThatSplitsKIsToldSo) {
  const ProcessResult result = run_program(command("split_k_2"));
  EXPECT_EQ(result.code, 1) << result.text;
  EXPECT_NE(result.text.find("nearest order: split_k 2 (100 % equal)"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("the model of sm90 has"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("of its rows: split_k 2 100 %, "), std::string::npos) << result.text;
  expect_exit(run_program(command("split_k_2", "--arch-key none")), 0, "6 pass");
}

std::string command_of_codes(std::string_view candidate) {
  return fmt::format(
      "--op fp8_block_gemm,grouped_fp8_block_gemm,masked_grouped_fp8_block_gemm --device cpu --contract {} "
      "--plugin {}/modelled.so --candidate {} --dtype fp32 --batch 1 --seq 24 --rows 24 --experts 2 --capacity 12 "
      "--k-dim 1024 --n-dim 96 --arch-key sm90 --force-arch-key",
      kContract, kPluginFolder, candidate);
}

TEST(BitsOfModel, ACandidateThatAddsCodesAsTheHardwareDoesPasses) {
  const ProcessResult result = run_program(command_of_codes("ascending"));
  expect_exit(result, 0, "3 pass");
  EXPECT_NE(result.text.find("bits_of_model: 0 of 2304 differ"), std::string::npos) << result.text;
}

// Sums in fp32 are nearer to the gold, and are not what the hardware gives.
TEST(BitsOfModel, ACandidateThatAddsCodesInFp32Fails) {
  const ProcessResult chain = run_program(command_of_codes("serial_fma"));
  EXPECT_EQ(chain.code, 1) << chain.text;
  EXPECT_NE(chain.text.find("nearest order: serial fma (100 % equal)"), std::string::npos) << chain.text;
  EXPECT_NE(chain.text.find("3 fail"), std::string::npos) << chain.text;
  const ProcessResult native = run_program(command_of_codes("native"));
  EXPECT_EQ(native.code, 1) << native.text;
  EXPECT_NE(native.text.find("3 fail"), std::string::npos) << native.text;
}

TEST(BitsOfModel, ACandidateOffByOneBitFails) {
  const ProcessResult result = run_program(command("one_ulp"));
  expect_exit(result, 1, "bits_of_model: 1 of 2304 differ; nearest order: ascending 16");
}

TEST(BitsOfModel, ContractsExplainIt) {
  const ProcessResult result =
      run_program("contract explain --op lm_head --dtype bf16 --arch-key sm90 --candidate cuda --check-grad");
  expect_exit(result, 0, "the bits of sm90's tensor cores: ascending 16");
  EXPECT_NE(result.text.find("overlays[6].add[0]"), std::string::npos) << result.text;
  expect_exit(run_program("contract explain --op fp8_block_gemm --dtype bf16 --arch-key sm90 --candidate cuda-sm90"), 0,
              "the bits of sm90's tensor cores: ascending 32 in every 128 codes, times their scales added to one fp32 "
              "sum, one rounding");
}

}  // namespace
}  // namespace checkop::model_bits_test
