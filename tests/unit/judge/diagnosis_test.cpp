// SPDX-License-Identifier: Apache-2.0
// Every fault is recognised as itself and as no other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "case/sampling.hpp"
#include "device/buffers.hpp"
#include "judge/diagnosis.hpp"
#include "judge/gold.hpp"
#include "judge/gold_faults.hpp"
#include "operator/emulation.hpp"
#include "support/judge_helper.hpp"

namespace checkop::diagnosis_test {
namespace {

/// An output to corrupt as a matrix, with the last dimension as columns, and its stored gold.
struct Spoiled {
  Tensor& t;
  int64_t rows, columns;

  double at(int64_t r, int64_t c) const { return t.at(r * columns + c); }
  void set(int64_t r, int64_t c, double x) const { t.set(r * columns + c, x); }
  void each(const std::function<double(int64_t, int64_t, double)>& body) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) set(r, c, body(r, c, at(r, c)));
  }
  void take_row_from(int64_t step) const {
    std::vector<double> before;
    for (int64_t i = 0; i < rows * columns; ++i) before.push_back(t.at(i));
    each([&](int64_t r, int64_t c, double) {
      return before[static_cast<size_t>((r + step + rows) % rows * columns + c)];
    });
  }
};

struct Fault {
  const char* name;
  const char* looks_like;  ///< text that the diagnosis must contain, and that no other fault's diagnosis may contain
  void (*spoil)(const Spoiled&);
};

double off(double x) { return x + 0.3 * std::abs(x) + 0.1; }

constexpr std::array kFaults{
    Fault{"zeros", "the whole output is zeros",
          [](const Spoiled& s) { s.each([](auto, auto, double) { return 0.0; }); }},
    Fault{"rows_of_zeros", "the failing elements are zeros",
          [](const Spoiled& s) { s.each([](int64_t r, auto, double x) { return r == 5 || r == 8 ? 0 : x; }); }},
    Fault{"one_value", "all hold the same value, 0.5",
          [](const Spoiled& s) { s.each([](auto, auto, double) { return 0.5; }); }},
    Fault{"previous_row", "the gold of the row before", [](const Spoiled& s) { s.take_row_from(-1); }},
    Fault{"next_row", "the gold of the row after", [](const Spoiled& s) { s.take_row_from(1); }},
    Fault{"doubled", "are 2 times the gold",
          [](const Spoiled& s) { s.each([](auto, auto, double x) { return 2 * x; }); }},
    Fault{"halved", "are 1/2 of the gold",
          [](const Spoiled& s) { s.each([](auto, int64_t c, double x) { return c % 3 == 0 ? x / 2 : x; }); }},
    Fault{"scaled", "are 1.25 times the gold",
          [](const Spoiled& s) { s.each([](auto, auto, double x) { return 1.25 * x; }); }},
    Fault{"sign", "are -1 times the gold", [](const Spoiled& s) { s.each([](auto, auto, double x) { return -x; }); }},
    Fault{"tail_columns", "only in columns 192 to 199, behind the last whole tile of 64",
          [](const Spoiled& s) { s.each([](auto, int64_t c, double x) { return c >= 192 ? off(x) : x; }); }},
    Fault{"tail_rows", "only in rows 48 to 51, behind the last whole tile of 16",
          [](const Spoiled& s) { s.each([](int64_t r, auto, double x) { return r >= 48 ? off(x) : x; }); }},
    Fault{"tile_edges", "only in columns that are 31 modulo 32",
          [](const Spoiled& s) { s.each([](auto, int64_t c, double x) { return c % 32 == 31 ? off(x) : x; }); }},
    Fault{"every_second_tile", "only in columns that are 16 to 31 modulo 32",
          [](const Spoiled& s) { s.each([](auto, int64_t c, double x) { return c / 16 % 2 == 1 ? off(x) : x; }); }},
    Fault{"rows_of_tiles", "only in rows that are 0 modulo 16",
          [](const Spoiled& s) { s.each([](int64_t r, auto, double x) { return r % 16 == 0 ? off(x) : x; }); }},
};

/// 52 rows of 200 columns: not multiples of a tile. The gold of matmul's forward pass is as random as its inputs.
Case matmul_52x200(DType dtype) {
  return gold_case("matmul", "forward", dtype, {{"batch", 2}, {"seq", 26}, {"k_dim", 24}, {"n_dim", 200}});
}

std::string diagnosed(const Case& c, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                      size_t index = 0) {
  const Comparison comparison = judge_outputs(c, inputs, outputs, default_contract(), {}, 2)[index];
  EXPECT_FALSE(comparison.passed());
  return comparison.diagnosis;
}

TEST(Diagnosis, EachFaultIsSeenForWhatItIsAndForNothingElse) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Case c = matmul_52x200(dtype);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    for (const Fault& fault : kFaults) {
      std::vector<Tensor> outputs = rounded_gold(c, inputs);
      fault.spoil({outputs[0], 52, 200});
      const std::string text = diagnosed(c, inputs, outputs);
      for (const Fault& other : kFaults)
        EXPECT_EQ(text.find(other.looks_like) != std::string::npos, other.name == fault.name)
            << info(dtype).name << " " << fault.name << ": " << text;
    }
  }
}

TEST(Diagnosis, IsASentence) {
  const Case c = matmul_52x200(DType::f32);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto said = [&](void (*spoil)(const Spoiled&)) {
    std::vector<Tensor> outputs = rounded_gold(c, inputs);
    spoil({outputs[0], 52, 200});
    return diagnosed(c, inputs, outputs);
  };
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, auto, double) { return 0.5; }); }),
            "the failing elements all hold the same value, 0.5");
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, auto, double x) { return 2 * x; }); }),
            "the failing elements are 2 times the gold");
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, auto, double x) { return 1.25 * x; }); }),
            "the failing elements are 1.25 times the gold");
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, auto, double x) { return (1 + 4e-5) * x; }); }),
            "it looks like 1.00004 times the gold");
  EXPECT_EQ(said([](const Spoiled& s) {
              for (int64_t i = 0; i < 200; ++i) {
                const double x = s.at(7, i);
                s.set(7, i, s.at(30, i)), s.set(30, i, x);
              }
            }),
            "rows 7 and 30 have changed places");
  EXPECT_EQ(said([](const Spoiled& s) {
              for (int64_t r = 0; r < 52; ++r) {
                for (int64_t i = 64; i < 80; ++i) {
                  const double x = s.at(r, i);
                  s.set(r, i, s.at(r, i + 16)), s.set(r, i + 16, x);
                }
              }
            }),
            "columns 64 to 79 and 80 to 95 have changed places");
  EXPECT_EQ(said([](const Spoiled& s) {
              for (int64_t r = 0; r < 16; ++r) {
                for (int64_t i = 0; i < r; ++i) {
                  const double x = s.at(16 + r, 32 + i);
                  s.set(16 + r, 32 + i, s.at(16 + i, 32 + r)), s.set(16 + i, 32 + r, x);
                }
              }
            }),
            "the block of 16 x 16 elements at row 16, column 32 is transposed");
  EXPECT_EQ(said([](const Spoiled& s) {
              for (int64_t r = 9; r < 20; ++r) {
                int64_t largest = 0;
                for (int64_t i = 0; i < 200; ++i)
                  if (std::abs(s.at(r, i)) > std::abs(s.at(r, largest))) largest = i;
                for (int64_t i = 0; i < 200; ++i)
                  if (i != largest) s.set(r, i, 0);
              }
            }),
            "of every failing row only the largest element is not 0");
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, int64_t i, double x) { return i >= 189 ? off(x) : x; }); }),
            "it fails only in columns 189 to 199, the last 11");
  EXPECT_EQ(said([](const Spoiled& s) { s.each([](auto, int64_t i, double x) { return i == 199 ? off(x) : x; }); }),
            "it fails only in column 199, the last one");
  EXPECT_EQ(said([](const Spoiled& s) {
              for (const int64_t r : {11, 37})
                for (int64_t i = 0; i < 200; i += 3) s.set(r, i, off(s.at(r, i)) + 0.001 * static_cast<double>(i * r));
            }),
            "it fails only where seq is 11 of 0 to 25");
}

TEST(Diagnosis, NothingIsSaidOfElementsThatHaveNothingInCommon) {
  const Case c = matmul_52x200(DType::f32);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t at = i * i * 6 + 7 * i;
    outputs[0].set(at, off(outputs[0].at(at)) * (1 + 0.01 * static_cast<double>(i)));
  }
  EXPECT_EQ(diagnosed(c, inputs, outputs), "");
}

TEST(Diagnosis, ARightOutputHasNone) {
  const Case c = matmul_52x200(DType::bf16);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  EXPECT_EQ(judge_outputs(c, inputs, rounded_gold(c, inputs), default_contract(), {}, 1)[0].diagnosis, "");
}

TEST(Diagnosis, TruncationIsSeenInSixteenBits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Case c = matmul_52x200(dtype);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    std::vector<Tensor> outputs = rounded_gold(c, inputs);
    const auto gold = collect_gold(c, inputs, 1);
    for (int64_t i = 0; i < outputs[0].count(); ++i) {
      const double y = gold[0].value[static_cast<size_t>(i)], x = outputs[0].at(i);
      if (std::abs(x) > std::abs(y)) outputs[0].set(i, x - std::copysign(2 * half_ulp(dtype, y), y));
    }
    EXPECT_EQ(diagnosed(c, inputs, outputs), "it looks like rounding toward zero, not to nearest");
  }
}

TEST(Diagnosis, AResultThatWentThroughSixteenBitsIsSeen) {
  const Case c = matmul_52x200(DType::f32);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  for (const DType narrow : {DType::bf16, DType::f16}) {
    std::vector<Tensor> outputs = rounded_gold(c, inputs);
    Tensor through("x", narrow, {1});
    for (int64_t i = 0; i < outputs[0].count(); ++i) {
      through.set(0, outputs[0].at(i));
      outputs[0].set(i, through.at(0));
    }
    EXPECT_EQ(diagnosed(c, inputs, outputs),
              "the failing elements have no more bits than " + std::string(info(narrow).name));
  }
}

TEST(Diagnosis, ElementsThatWereNotWrittenAreTold) {
  const Case c = matmul_52x200(DType::bf16);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto diagnosed_with = [&](uint16_t bits) {
    std::vector<Tensor> outputs = rounded_gold(c, inputs);
    for (int64_t i = 400; i < 600; ++i) std::memcpy(outputs[0].bytes.data() + 2 * i, &bits, 2);
    return diagnosed(c, inputs, outputs);
  };
  const auto poison = static_cast<uint16_t>(poison_of(DType::bf16).output[0]);
  EXPECT_EQ(diagnosed_with(poison),
            fmt::format("the failing elements hold the bits that outputs are filled with before a "
                        "launch, {:#x}: they were not written",
                        poison));
  for (const uint16_t nan : {0x7fc0, 0x7fff, 0xffff, 0xffc0})
    EXPECT_EQ(diagnosed_with(nan), "the failing elements are NaN");  // as GPUs compute them
}

TEST(Diagnosis, OutputsOfAFileWereAllWritten) {
  const Case c = matmul_52x200(DType::bf16);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto poison = static_cast<uint16_t>(poison_of(DType::bf16).output[0]);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  for (int64_t i = 400; i < 600; ++i) std::memcpy(outputs[0].bytes.data() + 2 * i, &poison, 2);
  for (const bool copies_outputs : {false, true}) {
    Subject subject;
    subject.copies_outputs = copies_outputs;
    const Comparison comparison = judge_outputs(c, inputs, outputs, default_contract(), subject, 1)[0];
    EXPECT_EQ(comparison.diagnosis.find("not written") == std::string::npos, copies_outputs) << comparison.diagnosis;
    EXPECT_EQ(comparison.nonfinite, 200);
  }
}

TEST(Diagnosis, AFaultOfMaskedTokensNamesTheMask) {
  const Case c = gold_case("ratio_kl", "backward", DType::f32, {{"batch", 2}, {"seq", 16}, {"vocab", 40}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const Tensor& mask = inputs[input_index(*c.pass, "attention_mask")];
  for (const bool masked : {true, false}) {
    std::vector<Tensor> outputs = rounded_gold(c, inputs);
    for (int64_t r = 0; r < 32; ++r)
      if ((mask.at(r) == 0) == masked) outputs[0].set(r * 40 + r, off(outputs[0].at(r * 40 + r)));
    const std::string text = diagnosed(c, inputs, outputs);
    EXPECT_EQ(text.find("only where attention_mask is 0") != std::string::npos, masked) << text;
  }
}

TEST(Diagnosis, OneColumnARowIsEnough) {
  const Case c = gold_case("logp", "forward", DType::bf16, {{"batch", 2}, {"seq", 25}, {"vocab", 40}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  outputs[0].set(17, outputs[0].at(16));
  EXPECT_EQ(
      diagnosed(c, inputs, outputs),
      "one element alone fails, in row 17, column 0: failing rows hold the gold of the row before: row 17 that of "
      "row 16");
}

TEST(Diagnosis, AGoldOfSampledRowsIsEnough) {
  const Case c = matmul_52x200(DType::f32);
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  Spoiled{outputs[0], 52, 200}.take_row_from(1);
  const std::vector<RowSet> rows{{false, {0, 7, 30, 51}}};
  const Comparison comparison = judge_outputs(c, inputs, outputs, default_contract(), {}, 1, rows)[0];
  EXPECT_NE(comparison.diagnosis.find("the gold of the row after"), std::string::npos) << comparison.diagnosis;
}

// --- faults that are known -------------------------------------------------------------------------------------------

/// The diagnosis of output 0 of a kernel with that fault, which sums in a different order than the emulation that it is
/// compared with.
std::string said_of(const Case& c, std::string_view fault, const Plan& plan = {Plan::Order::serial}) {
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<const Tensor*> present;
  for (const Tensor& tensor : inputs) present.push_back(tensor.name.empty() ? nullptr : &tensor);
  std::vector<Tensor> outputs = make_outputs(c);
  Values values;
  for (const Tensor& output : outputs) values.emplace_back(output.name.empty() ? 0 : output.count());
  const Arithmetic arithmetic(plan, fault);
  c.pass->emulation->run({present, c.attrs, arithmetic, values, 1});
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].name.empty())
      info(outputs[i].dtype).encode(values[i].data(), outputs[i].bytes.data(), values[i].size());
  }
  return judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].diagnosis;
}

// --- what must not be taken for a known fault

TEST(EmulatedFault, MustGiveTheElementsThatPassToo) {
  const Case c = gold_case("rms_norm", "forward", DType::f32, {{"batch", 2}, {"seq", 60}, {"hidden", 80}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  const Tensor& x = inputs[0];
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  // One element is what root_left_out would make of it: the others say that the root is there.
  double squares = 0;
  for (int64_t i = 0; i < 80; ++i) squares += x.at(i) * x.at(i);
  outputs[0].set(3, outputs[0].at(3) / std::sqrt(squares / 80));
  const std::string text = diagnosed(c, inputs, outputs);
  EXPECT_EQ(text.find("root_left_out"), std::string::npos) << text;
  EXPECT_TRUE(text.starts_with("one element alone fails, in row 0, column 3")) << text;
}

TEST(EmulatedFault, FlushedSubnormalsAreNone) {
  const Case c = gold_case("logp", "backward", DType::f16, {{"batch", 2}, {"seq", 4}, {"vocab", 4000}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  for (int64_t i = 0; i < outputs[0].count(); ++i)
    if (std::abs(outputs[0].at(i)) < std::ldexp(1.0, -14)) outputs[0].set(i, 0);
  EXPECT_EQ(diagnosed(c, inputs, outputs), "subnormal numbers of fp16, those below 6.1e-05, are flushed to zero");
}

TEST(EmulatedFault, IsNamedWhateverTheOrderOfTheSums) {
  const Case logits = gold_case("logp", "backward", DType::bf16, {{"batch", 2}, {"seq", 8}, {"vocab", 700}});
  EXPECT_TRUE(said_of(logits, "last_tile_skipped").starts_with("is as where the last tile of a sum is left out"));
  EXPECT_TRUE(said_of(logits, "softmax_term_dropped").starts_with("is as where the softmax term is missing"));
  const Case product =
      gold_case("matmul", "forward", DType::f32, {{"batch", 1}, {"seq", 8}, {"k_dim", 300}, {"n_dim", 40}});
  // The recipe tf32_operands is the same rounding.
  EXPECT_TRUE(said_of(product, "tf32_factors")
                  .starts_with("looks like that of a kernel where operands of products are rounded to TF32"));
  const std::string of_bf16 = said_of(product, "bf16_accumulator", {Plan::Order::pairwise});
  EXPECT_NE(of_bf16.find("where sums are kept in bf16"), std::string::npos) << of_bf16;
  EXPECT_EQ(said_of(product, ""), "");
}

TEST(EmulatedFault, OfALargeCaseOneRowIsEnough) {
  const Case c = gold_case("logp", "forward", DType::f32, {{"batch", 2}, {"seq", 256}, {"vocab", 100000}});
  ASSERT_GT(gold_work(c) * static_cast<double>(c.pass->emulation->faults.size()), 5e8);
  const std::string text = said_of(c, "wrong_label");
  EXPECT_TRUE(text.starts_with("looks like that of a kernel where the id is one too large (wrong_label)")) << text;
}

// The weight's gradient of a large case has gigabytes, and one is computed for each fault.
TEST(EmulatedFault, AppliesWithEveryTensorThatItNeeds) {
  const auto applies = [](std::string_view needs, const std::set<std::string, std::less<>>& optionals) {
    FaultSpec fault{"any", ""};
    fault.needs = needs;
    return fault.applies_with(optionals);
  };
  EXPECT_TRUE(applies("", {}));
  EXPECT_TRUE(applies("sinks lse", {"lse", "o", "sinks"}));
  EXPECT_FALSE(applies("sinks lse", {"sinks"}));
  EXPECT_FALSE(applies("-mask", {"mask"}));
  EXPECT_TRUE(applies("-mask", {"sinks"}));
}

TEST(EmulatedFault, OfAPartHoldsItsRowsAlone) {
  const Case c =
      gold_case("linear_logp", "backward", DType::bf16, {{"batch", 4}, {"seq", 2}, {"hidden", 8}, {"vocab", 30}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  EmulatedFaults emulated(c, inputs, 1);
  const Values& values = emulated.values({1, 2, false}, "wrong_label", {});
  EXPECT_EQ(values[0].size(), 2u * 8) << "dhidden of two tokens";
  EXPECT_EQ(values[1].capacity(), 0u);
  EXPECT_EQ(emulated.values({}, "wrong_label", {})[1].size(), 30u * 8);
}

// Outputs that are not asked for change none of the others.
TEST(EmulatedFault, SkipsEmptyOutputs) {
  int64_t n_skipped = 0;
  for (const Operator* op : operators()) {
    const Pass& pass = op->passes.back();
    if (pass.emulation == nullptr || !pass.emulation->skips_empty) continue;
    Case c = gold_case(op->name, pass.name, DType::f32, test_dims(*op, 4));
    for (const std::string_view name : optionals_of(pass)) c.optionals.emplace(name);
    c = fitted(c);
    const std::vector<Tensor> inputs = make_inputs(c, 1);
    std::vector<const Tensor*> in;
    for (const Tensor& tensor : inputs) in.push_back(tensor.name.empty() ? nullptr : &tensor);
    for (const FaultSpec& fault : pass.emulation->faults) {
      const std::vector<int64_t> bounds = part_bounds(c);
      Values all, part;
      for (const OutputSpec& output : pass.outputs) {
        const auto count = static_cast<size_t>(element_count(shape_of(c, output.tensor)));
        all.emplace_back(count);
        part.emplace_back(is_per_row(*op, output.tensor) ? count : 0);
      }
      const Arithmetic arithmetic({}, fault.name);
      for (Values* values : {&all, &part}) pass.emulation->run({in, c.attrs, arithmetic, *values, 1, bounds});
      for (size_t i = 0; i < part.size(); ++i) {
        if (!is_per_row(*op, pass.outputs[i].tensor)) {
          ++n_skipped;
          EXPECT_TRUE(part[i].empty()) << op->name << " " << fault.name;
        } else {
          EXPECT_TRUE(std::ranges::equal(part[i], all[i], is_same)) << op->name << " " << fault.name;
        }
      }
    }
  }
  EXPECT_GE(n_skipped, 100);
}

// What emulations share must not depend on the faults before.
TEST(EmulatedFault, IsTheSameAfterOthers) {
  for (const std::string_view op : {"linear_logp", "linear_entropy", "linear_policy_loss", "tp_linear_logp"}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {  // rounding to TF32 changes values of fp32 alone
      Case c = gold_case(op, "backward", dtype, test_dims(*find_operator(op), 4));
      for (const std::string_view name : optionals_of(*c.pass)) c.optionals.emplace(name);
      c = fitted(c);
      const std::vector<Tensor> inputs = make_inputs(c, 1);
      EmulatedFaults shared(c, inputs, 1);
      for (const FaultSpec& fault : c.pass->emulation->faults) {
        for (const Plan& plan : {Plan{}, Plan{Plan::Order::reversed}}) {
          EmulatedFaults alone(c, inputs, 1);
          const Values &one = shared.values({}, fault.name, plan), &other = alone.values({}, fault.name, plan);
          for (size_t i = 0; i < one.size(); ++i)
            EXPECT_TRUE(std::ranges::equal(one[i], other[i], is_same))
                << op << " " << fault.name << " " << c.pass->outputs[i].tensor.name;
        }
      }
    }
  }
}

TEST(EmulatedFault, IsNotGuessedWhereNoneFits) {
  const Case c = gold_case("logp", "forward", DType::f32, {{"batch", 2}, {"seq", 8}, {"vocab", 700}});
  const std::vector<Tensor> inputs = make_inputs(c, 1);
  std::vector<Tensor> outputs = rounded_gold(c, inputs);
  outputs[0].set(3, outputs[0].at(3) + 0.01);
  EXPECT_EQ(judge_outputs(c, inputs, outputs, default_contract(), {}, 1)[0].diagnosis.find("where"), std::string::npos);
}

}  // namespace
}  // namespace checkop::diagnosis_test
