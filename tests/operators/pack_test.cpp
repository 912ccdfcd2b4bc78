// SPDX-License-Identifier: Apache-2.0
// pack: which rows are kept and where they go, in the gold and in the native candidate; values that must not leak.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "case/inputs.hpp"
#include "device/device.hpp"
#include "device/plugin.hpp"
#include "run/runner.hpp"
#include "session/saved_case.hpp"
#include "support/built.hpp"
#include "support/contract_helper.hpp"
#include "support/gold_helper.hpp"
#include "tensor/safetensors.hpp"

namespace checkop::pack_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kBatch = 3, kSeq = 4, kHidden = 5, kRows = kBatch * kSeq;

using Mask = std::vector<double>;
using Outputs = std::vector<std::vector<double>>;

const Mask kNothing(kRows, 0.0), kEverything(kRows, 1.0), kFirst{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    kLast{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, kSome{0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1};

Case pack(std::string_view pass, DType dtype = DType::f32) {
  return gold_case("pack", pass, dtype, {{"batch", kBatch}, {"seq", kSeq}, {"hidden", kHidden}});
}

/// x or grad_packed is 1, 2, 3, ... row by row.
std::vector<Tensor> inputs_of(const Case& c, const Mask& mask) {
  std::vector<Tensor> inputs;
  for (const TensorSpec& spec : c.pass->inputs) {
    inputs.push_back(gold_input(c, spec, [&](int64_t i) {
      return spec.fill == Fill::mask ? mask[static_cast<size_t>(i)] : static_cast<double>(i + 1);
    }));
  }
  return inputs;
}

Tensor& rows_input(const Case& c, std::vector<Tensor>& inputs) { return inputs[c.pass->name == "forward" ? 0 : 1]; }

/// Runs the native candidate and returns its outputs.
std::vector<Tensor> answer_of_native(const Case& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> outputs = make_outputs(c);
  const auto device = open_cpu_device();
  for (const Candidate& candidate : load_plugin(native_plugin("pack"))) {
    if (candidate.pass != c.pass->name) continue;
    const RunResult run = run_candidate(*device, candidate, c, inputs, outputs, RunChecks{});
    EXPECT_EQ(run.status, RunStatus::ok) << run.message;
    for (const OutputRun& output : run.outputs) EXPECT_EQ(output.unwritten, 0);
  }
  return outputs;
}

/// The gold's outputs, which the native candidate must equal.
Outputs outputs_of(const Case& c, const std::vector<Tensor>& inputs) {
  Outputs gold;
  for (const GoldOutput& output : collect_gold(c, inputs, 1)) gold.push_back(output.value);
  const std::vector<Tensor> native = answer_of_native(c, inputs);
  for (size_t i = 0; i < gold.size(); ++i) {
    for (int64_t e = 0; e < native[i].count(); ++e) {
      EXPECT_EQ(native[i].at(e), gold[i][static_cast<size_t>(e)]) << native[i].name << e;
    }
  }
  return gold;
}

/// The first elements of the rows.
std::vector<double> first_column(const std::vector<double>& matrix) {
  std::vector<double> column;
  for (size_t i = 0; i < matrix.size(); i += kHidden) column.push_back(matrix[i]);
  return column;
}

TEST(Pack, RowsKeptFollowOneAnotherThenZeros) {
  const Case c = pack("forward");
  const Outputs out = outputs_of(c, inputs_of(c, kSome));
  EXPECT_EQ(first_column(out[0]), (std::vector<double>{6, 11, 41, 56, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(out[0][4], 10);
  EXPECT_EQ(out[1], (std::vector<double>{0, 2, 2, 4}));
}

TEST(Pack, GradientsGoBackToTheRowsKept) {
  const Case c = pack("backward");
  const Outputs out = outputs_of(c, inputs_of(c, kSome));
  EXPECT_EQ(first_column(out[0]), (std::vector<double>{0, 1, 6, 0, 0, 0, 0, 0, 11, 0, 0, 16}));
  EXPECT_EQ(out[0][9], 5);
}

TEST(Pack, WithNothingKeptAllIsZero) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = pack(pass);
    for (const auto& output : outputs_of(c, inputs_of(c, kNothing))) {
      for (const double x : output) EXPECT_EQ(x, 0) << pass;
    }
  }
}

TEST(Pack, WithEverythingKeptRowsStayWhereTheyAre) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = pack(pass);
    std::vector<Tensor> inputs = inputs_of(c, kEverything);
    const Outputs out = outputs_of(c, inputs);
    for (int64_t i = 0; i < kRows * kHidden; ++i)
      EXPECT_EQ(out[0][static_cast<size_t>(i)], rows_input(c, inputs).at(i));
    if (out.size() == 2) {
      EXPECT_EQ(out[1], (std::vector<double>{0, 4, 8, 12}));
    }
  }
}

TEST(Pack, OneRowAtEitherEndIsFound) {
  const Case c = pack("forward"), back = pack("backward");
  for (const bool last : {false, true}) {
    const Mask& mask = last ? kLast : kFirst;
    const Outputs out = outputs_of(c, inputs_of(c, mask));
    EXPECT_EQ(out[0][0], last ? 56 : 1);
    EXPECT_EQ(out[0][kHidden], 0);
    EXPECT_EQ(out[1], (last ? std::vector<double>{0, 0, 0, 1} : std::vector<double>{0, 1, 1, 1}));
    EXPECT_EQ(first_column(outputs_of(back, inputs_of(back, mask))[0])[last ? 11 : 0], 1);
  }
}

// Summing the mask's values, or keeping only rows whose mask is 1, would give different results.
TEST(Pack, AnyValueButZeroKeepsOneRow) {
  Mask twos = kSome;
  for (size_t i = 0; i < twos.size(); ++i) twos[i] *= i % 2 == 0 ? 2 : 255;
  for (const char* pass : {"forward", "backward"}) {
    const Case c = pack(pass);
    EXPECT_EQ(outputs_of(c, inputs_of(c, twos)), outputs_of(c, inputs_of(c, kSome))) << pass;
  }
}

// Forward: rows of x that are not kept. Backward: rows of the upstream gradient after the last kept one.
TEST(Pack, WhatIsNotKeptNeverLeaks) {
  for (const char* pass : {"forward", "backward"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Case c = pack(pass, dtype);
      const std::vector<Tensor> clean = inputs_of(c, kSome);
      std::vector<Tensor> spoilt = inputs_of(c, kSome);
      for (int64_t r = 0; r < kRows; ++r) {
        const bool used = c.pass->name == "forward" ? kSome[static_cast<size_t>(r)] != 0 : r < 4;
        for (int64_t h = 0; h < kHidden && !used; ++h) {
          rows_input(c, spoilt).set(r * kHidden + h, h % 2 == 0 ? kNan : HUGE_VAL);
        }
      }
      EXPECT_EQ(outputs_of(c, spoilt), outputs_of(c, clean)) << pass;
    }
  }
}

TEST(Pack, ANanThatIsKeptIsCopied) {
  const Case c = pack("forward");
  std::vector<Tensor> inputs = inputs_of(c, kSome);
  inputs[0].set(5, kNan);
  EXPECT_TRUE(std::isnan(collect_gold(c, inputs, 1)[0].value[0]));
  const std::vector<Tensor> native = answer_of_native(c, inputs);
  EXPECT_TRUE(std::isnan(native[0].at(0)));
  const Contract contract = Contract::load(CHECKOP_SOURCE_DIR "/contracts/default.json");
  EXPECT_TRUE(judge_outputs(c, inputs, native, contract, {}, 1)[0].passed());
}

// With 100 rows an offset that is 1 too large is within rl_kernel.json's tolerance for bf16.
TEST(Pack, OffsetsAreJudgedToTheLastUnit) {
  for (const char* name : {"default", "rl_kernel"}) {
    const Contract contract = Contract::load(std::string(CHECKOP_SOURCE_DIR "/contracts/") + name + ".json");
    Case c = pack("forward", DType::bf16);
    c.dims["seq"] = 100;
    const std::vector<Tensor> inputs = inputs_of(c, Mask(kBatch * 100, 1.0));
    std::vector<Tensor> outputs = answer_of_native(c, inputs);
    EXPECT_TRUE(judge_outputs(c, inputs, outputs, contract, {}, 1)[1].passed()) << name;
    outputs[1].set(3, 301);
    EXPECT_EQ(judge_outputs(c, inputs, outputs, contract, {}, 1)[1].out_of_bound, 1) << name;
  }
}

TEST(Pack, GeneratedMasksHaveSequencesOfEveryKind) {
  Case c = pack("forward");
  c.dims = {{"batch", 5}, {"seq", 16}, {"hidden", 1}};
  const Tensor mask = std::move(make_inputs(c, 1)[1]);
  const auto kept = [&](int64_t b) {
    std::vector<int64_t> rows;
    for (int64_t s = 0; s < 16; ++s) {
      if (mask.at(b * 16 + s) != 0) rows.push_back(s);
    }
    return rows;
  };
  EXPECT_GT(kept(0).size(), 4u);
  EXPECT_LT(kept(0).size(), 16u);
  EXPECT_TRUE(kept(1).empty());
  EXPECT_EQ(kept(2), (std::vector<int64_t>{15}));
  EXPECT_EQ(kept(3), (std::vector<int64_t>{0}));
  EXPECT_GT(kept(4).size(), 4u);
  c.input_mode = InputMode::constant;
  const Tensor all = std::move(make_inputs(c, 1)[1]);
  for (int64_t i = 0; i < all.count(); ++i) EXPECT_EQ(all.at(i), 1);
}

TEST(Pack, ShapesFollowFromTheSequences) {
  const Case c = pack("forward");
  EXPECT_EQ(shape_of(c, c.pass->outputs[0].tensor), (Shape{kRows, kHidden}));
  EXPECT_EQ(shape_of(c, c.pass->outputs[1].tensor), (Shape{kBatch + 1}));
  EXPECT_EQ(case_name(c), "pack-fp32-3x4x5");
  for (const OutputSpec& output : c.pass->outputs) EXPECT_FALSE(is_per_row(*c.op, output.tensor));
}

TEST(Pack, ASavedCaseIsReadBackAsItWas) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = pack(pass);
    const std::vector<Tensor> inputs = inputs_of(c, kSome);
    const std::string folder = testing::TempDir() + "pack_saved";
    const SavedCase saved = load_case(save_case(folder, c, "mine", "sm90", inputs, answer_of_native(c, inputs), 1));
    EXPECT_EQ(saved.c.dims, c.dims);
    ASSERT_EQ(saved.outputs.size(), c.pass->outputs.size());
    EXPECT_EQ(saved.outputs[0].shape, shape_of(c, c.pass->outputs[0].tensor));
  }
}

TEST(Pack, ASavedCaseWhoseExtentsDoNotFitIsRefused) {
  const std::string path = testing::TempDir() + "pack_misfit.safetensors";
  const auto error = [&](int64_t packed_rows, int64_t offsets) {
    {
      const SafetensorsWriter file(
          path,
          {{"input/x", DType::f32, {3, 4, 5}},
           {"input/mask", DType::u8, {3, 4}},
           {"output/packed", DType::f32, {packed_rows, 5}},
           {"output/cu_seqlens", DType::i64, {offsets}}},
          {{"op", "pack"}, {"pass", "forward"}, {"candidate", "x"}, {"attrs", "{}"}, {"seed", "1"}});
    }
    return contract_test::error_of([&] { load_case(path); });
  };
  EXPECT_EQ(error(12, 4), "no error");
  EXPECT_NE(error(11, 4).find("'packed': has shape [11, 5], expected [12, 5]"), std::string::npos) << error(11, 4);
  EXPECT_EQ(error(12, 3),
            path + ": tensor 'output/cu_seqlens': has batch = 2, another tensor has 3; give tensors of one case");
}

}  // namespace
}  // namespace checkop::pack_test
