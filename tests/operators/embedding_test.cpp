// SPDX-License-Identifier: Apache-2.0
// Special about embedding: bits are copied, rows without tokens are written as zeros, ids are checked in both passes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "support/gold_helper.hpp"
#include "support/run_helper.hpp"

namespace checkop::embedding_test {
namespace {

const Dims kDims{{"batch", 2}, {"seq", 3}, {"vocab", 11}, {"hidden", 5}};

TEST(Embedding, IdsOutsideTheVocabularyAreAnInputErrorInBothPasses) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = gold_case("embedding", pass, DType::f32, kDims);
    for (const double id : {11.0, -1.0, -100.0}) {
      std::vector<Tensor> inputs = gold_inputs(c);
      inputs[0].set(4, id);
      EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << pass << " accepted " << id;
    }
  }
}

TEST(Embedding, RowsWithoutATokenAreExactZerosWithNoRoomForError) {
  const Case c = gold_case("embedding", "backward", DType::f32, kDims);
  std::vector<Tensor> inputs = gold_inputs(c);
  for (int64_t t = 0; t < 6; ++t) {
    inputs[0].set(t, t < 5 ? 7 : 2);
    for (int64_t h = 0; h < 5; ++h) inputs[1].set(t * 5 + h, 1 + static_cast<double>(h));
  }
  const GoldOutput dweight = collect_gold(c, inputs, 1)[0];
  for (int64_t v = 0; v < 11; ++v) {
    for (int64_t h = 0; h < 5; ++h) {
      const auto i = static_cast<size_t>(v * 5 + h);
      EXPECT_EQ(dweight.value[i] == 0, v != 7 && v != 2) << v << " " << h;
      EXPECT_EQ(dweight.magnitude[i] == 0, v != 7) << v << " " << h;
    }
  }
}

TEST(Embedding, ForwardCopiesAreJudgedByTheirBits) {
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  const Case c = gold_case("embedding", "forward", DType::f32, kDims);
  const std::vector<Tensor> inputs = gold_inputs(c);
  std::vector<Tensor> outputs = make_outputs(c);
  const GoldOutput gold = collect_gold(c, inputs, 1)[0];
  for (size_t i = 0; i < gold.value.size(); ++i) outputs[0].set(static_cast<int64_t>(i), gold.value[i]);
  EXPECT_TRUE(judge_outputs(c, inputs, outputs, contract, {}, 1)[0].passed());
  const double x = outputs[0].at(8);
  outputs[0].set(8, x + std::ldexp(std::abs(x), -23));
  EXPECT_EQ(judge_outputs(c, inputs, outputs, contract, {}, 1)[0].out_of_bound, 1);
}

}  // namespace
}  // namespace checkop::embedding_test
