// SPDX-License-Identifier: Apache-2.0
// Ignored rows: ignore_index in the gold and in the native candidates, and the contents of generated inputs there.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "contract/contract.hpp"
#include "device/device.hpp"
#include "judge/compare.hpp"
#include "left_out.hpp"
#include "run/runner.hpp"
#include "support/built.hpp"
#include "support/rows_helper.hpp"

namespace checkop::left_out_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kRows = 8, kHidden = 12, kVocab = 21;
const Dims kDims{{"batch", 2}, {"seq", kRows / 2}, {"hidden", kHidden}, {"vocab", kVocab}};

struct Question {
  std::string_view op, ids, features;
};
constexpr Question kQuestions[] = {{"logp", "token_ids", "logits"}, {"linear_logp", "target_ids", "hidden"}};

std::string error_of(const Case& c) {
  try {
    validate(c);
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

Case case_of(const Question& question, std::string_view pass, double ignore_index) {
  Dims dims = kDims;
  if (question.op == "logp") dims.erase("hidden");
  Case c = gold_case(question.op, pass, DType::f32, dims);
  if (question.op == "linear_logp") c.optionals = {"bias"};
  c.attrs[0] = ignore_index;
  c.ignored_every = 0;
  return c;
}

/// Rows 2 and 5 are ignored and hold `content`; the other ids are 1, 3 and the like, never ignore_index.
std::vector<Tensor> inputs_with(const Case& c, const Question& question, double content) {
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (int64_t row = 0; row < kRows; ++row) {
    const bool out = row == 2 || row == 5;
    input(c, inputs, question.ids).set(row, out ? c.attrs[0] : static_cast<double>(2 * row + 1));
    if (out) set_row(input(c, inputs, question.features), row, content);
  }
  return inputs;
}

// Ignored ids inside and outside the vocabulary: 0 is what tokenizers pad with, 20 the last id.
TEST(LeftOut, RowsAreZeroAndNothingOfThemReachesTheRest) {
  for (const Question& question : kQuestions) {
    for (const char* pass : {"forward", "backward"}) {
      for (const double index : {-100.0, -1.0, 0.0, 20.0, 21.0, 1e15}) {
        Case c = case_of(question, pass, index);
        c.grad_mode = GradMode::ones;  // others are 0 in some rows
        const auto expected = gold_and_native(c, inputs_with(c, question, 0.5));
        for (const double content : {kNan, kInf, -kInf, 1e30}) {
          EXPECT_EQ(gold_and_native(c, inputs_with(c, question, content)), expected)
              << question.op << " " << pass << " " << index;
        }
        // The output with one value per row
        for (const auto& values : {expected.front(), expected[expected.size() / 2]}) {
          const size_t columns = values.size() / kRows;
          for (size_t i = 0; i < values.size(); ++i) {
            const size_t row = i / columns;
            EXPECT_EQ(values[i] == 0, row == 2 || row == 5) << question.op << " " << pass << " " << index << " " << i;
          }
        }
      }
    }
  }
}

TEST(LeftOut, ExactZeroIsAskedOfTheRow) {
  for (const Question& question : kQuestions) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = case_of(question, pass, -100);
      const GoldOutput gold = collect_gold(c, inputs_with(c, question, kNan), 1)[0];
      for (int64_t i = 0; i < gold.columns; ++i) {
        const auto at = static_cast<size_t>(5 * gold.columns + i);
        EXPECT_EQ(gold.magnitude[at], 0) << question.op << " " << pass;
        EXPECT_EQ(gold.rounding[at], 0) << question.op << " " << pass;
      }
    }
  }
}

TEST(LeftOut, WeightGradientsAreThoseOfTheOtherRows) {
  const Case c = case_of(kQuestions[1], "backward", -100);
  std::vector<Tensor> with = inputs_with(c, kQuestions[1], kNan);
  // The same without the ignored rows: an upstream gradient of 0 removes a row's contribution.
  std::vector<Tensor> without = inputs_with(c, kQuestions[1], 0.5);
  for (const int64_t row : {2, 5}) {
    input(c, without, "target_ids").set(row, 4);
    input(c, without, "grad_logp").set(row, 0);
  }
  const auto got = collect_gold(c, with, 1), expected = collect_gold(c, without, 1);
  for (const size_t output : {1u, 2u}) EXPECT_EQ(got[output].value, expected[output].value);
}

TEST(LeftOut, EveryRowMayBe) {
  for (const Question& question : kQuestions) {
    for (const char* pass : {"forward", "backward"}) {
      Case c = case_of(question, pass, -100);
      c.ignored_every = 1;
      for (const auto& values : gold_and_native(c, make_inputs(c, 1)))
        EXPECT_EQ(values, std::vector<double>(values.size(), 0.0));
    }
  }
}

TEST(LeftOut, OtherIdsOutsideTheVocabularyAreRefused) {
  for (const Question& question : kQuestions) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = case_of(question, pass, 0);
      for (const double id : {-100.0, -1.0, 21.0}) {
        auto inputs = inputs_with(c, question, kNan);
        input(c, inputs, question.ids).set(4, id);
        EXPECT_THROW(collect_gold(c, inputs, 1), InputError) << question.op << " " << id;
        const NativeAnswer native = run_native(c, inputs);
        EXPECT_EQ(native.result.status, RunStatus::failed);
        EXPECT_NE(native.result.message.find(std::string(question.ids) + "[4]"), std::string::npos)
            << native.result.message;
      }
    }
  }
}

TEST(LeftOut, TheIndexMustBeAnInteger) {
  for (const Question& question : kQuestions) {
    for (const double index : {0.5, kNan, kInf, -0x1p60}) {
      EXPECT_NE(error_of(case_of(question, "forward", index)).find("--ignore-index: expected an integer"),
                std::string::npos)
          << index;
    }
    EXPECT_EQ(error_of(case_of(question, "forward", -7)), "no error");
  }
}

TEST(LeftOut, NegativePeriodsAreRefusedAndShownInTheName) {
  Case c = case_of(kQuestions[0], "forward", -100);
  EXPECT_EQ(case_name(c), "logp-fp32-2x4x21~ignored0");
  EXPECT_NE(case_flags(c).find(" --ignored-every 0 "), std::string::npos);
  c.ignored_every = 8;
  EXPECT_EQ(case_name(c), "logp-fp32-2x4x21");
  c.ignored_every = -1;
  EXPECT_NE(error_of(c).find("--ignored-every: expected an integer >= 0, got -1"), std::string::npos);
}

std::vector<int64_t> ignored_rows(const Case& c, int64_t rows) {
  Case sized = c;
  sized.dims["batch"] = 1, sized.dims["seq"] = rows;
  std::vector<Tensor> inputs = make_inputs(sized, 1);
  std::vector<int64_t> found;
  for (int64_t row = 0; row < rows; ++row) {
    if (input(sized, inputs, "token_ids").at(row) == c.attrs[0]) found.push_back(row);
  }
  return found;
}

TEST(LeftOut, OneGeneratedRowInEightIsIgnored) {
  Case c = case_of(kQuestions[0], "forward", -100);
  EXPECT_TRUE(ignored_rows(c, 64).empty());
  c.ignored_every = 8;
  EXPECT_TRUE(ignored_rows(c, 7).empty());
  EXPECT_EQ(ignored_rows(c, 8), std::vector<int64_t>{7});
  const std::vector<int64_t> found = ignored_rows(c, 64), more = ignored_rows(c, 640);
  ASSERT_EQ(found.size(), 8u);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i] / 8, static_cast<int64_t>(i));
  EXPECT_TRUE(std::equal(found.begin(), found.end(), more.begin()));  // for any number of rows
  std::set<int64_t> places;
  for (const int64_t row : more) places.insert(row % 8);
  EXPECT_EQ(places.size(), 8u);
  c.input_mode = InputMode::constant;
  EXPECT_TRUE(ignored_rows(c, 64).empty());
}

TEST(LeftOut, RowsAreIgnoredInRunsOfTheSizeThatIsAskedFor) {
  Case c = case_of(kQuestions[0], "forward", -100);
  c.ignored_every = 3, c.ignored_run = 5;
  EXPECT_TRUE(ignored_rows(c, 10).empty());
  EXPECT_EQ(ignored_rows(c, 12), (std::vector<int64_t>{10, 11}));  // the part of the third run that exists
  EXPECT_EQ(ignored_rows(c, 15), (std::vector<int64_t>{10, 11, 12, 13, 14}));
  const std::vector<int64_t> found = ignored_rows(c, 600);
  ASSERT_EQ(found.size(), 200u);
  std::set<int64_t> places;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i] / 15, static_cast<int64_t>(i / 5));
    EXPECT_EQ(found[i] % 5, static_cast<int64_t>(i % 5));
    places.insert(found[i] % 15 / 5);
  }
  EXPECT_EQ(places.size(), 3u);
  EXPECT_EQ(case_name(c), "logp-fp32-2x4x21~ignored3~runs5");
  EXPECT_NE(case_flags(c).find(" --ignored-every 3 --ignored-run 5 "), std::string::npos);
  c.ignored_run = 0;
  EXPECT_NE(error_of(c).find("--ignored-run: expected an integer >= 1, got 0"), std::string::npos);
}

TEST(LeftOut, IgnoredRowsHoldNanInfinitiesOrTheirOwnContentInTurn) {
  for (const Question& question : kQuestions) {
    Case c = case_of(question, "forward", -100);
    c.ignored_every = 1;
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const Tensor& features = input(c, inputs, question.features);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < features.shape.back(); ++i) {
        const double x = features.at(row * features.shape.back() + i);
        EXPECT_EQ(std::isnan(x), row % 4 == 0) << row;
        EXPECT_EQ(std::isinf(x), row % 4 == 2) << row;
        EXPECT_EQ(row % 4 == 2 && x < 0, row % 4 == 2 && i % 2 != 0) << row;
      }
    }
  }
}

/// Counts NaN and infinities of `tensor` in rows where left_out(row), and in the others.
template <class LeftOut>
std::pair<int64_t, int64_t> nonfinite(const Tensor& tensor, int64_t columns, LeftOut left_out) {
  std::pair<int64_t, int64_t> found{0, 0};
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (std::isfinite(tensor.at(i))) continue;
    (left_out(i / columns) ? found.first : found.second) += 1;
  }
  return found;
}

TEST(LeftOut, MaskedTokensHoldWhatMustNotBeReadAndActiveOnesDoNot) {
  for (const char* op : {"ratio_kl", "grpo_loss"}) {
    Dims dims{{"batch", 8}, {"seq", 16}, {"vocab", kVocab}};
    if (op == std::string("grpo_loss")) dims["group_bounds"] = 2;
    const Case c = gold_case(op, "backward", DType::f32, dims);
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const auto masked = [&](int64_t row) {
      bool out = false;
      for (const Tensor& tensor : inputs) out |= tensor.name.ends_with("_mask") && tensor.at(row) == 0;
      return out;
    };
    for (const char* name : {"policy_logits", "ref_logits", "old_logps"}) {
      const Tensor& tensor = input(c, inputs, name);
      const auto [inside, outside] = nonfinite(tensor, tensor.shape.size() < 3 ? 1 : kVocab, masked);
      EXPECT_GT(inside, 0) << op << " " << name;
      EXPECT_EQ(outside, 0) << op << " " << name;
    }
    std::set<double> ids;
    for (int64_t row = 0; row < 128; ++row) {
      if (masked(row)) ids.insert(input(c, inputs, "action_ids").at(row));
    }
    EXPECT_TRUE(ids.contains(-100) && ids.contains(kVocab)) << op;
  }
}

TEST(LeftOut, MaskedKeysHoldWhatMustNotBeRead) {
  const Case c =
      gold_case("attention", "forward", DType::f32,
                {{"batch", 3}, {"q_heads", 4}, {"kv_heads", 2}, {"q_seq", 5}, {"kv_seq", 17}, {"head_dim", 8}},
                {"key_padding_mask"});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const Tensor& mask = input(c, inputs, "key_padding_mask");
  for (const char* name : {"k", "v"}) {
    const auto [inside, outside] =
        nonfinite(input(c, inputs, name), 8, [&](int64_t row) { return mask.at(row / (2 * 17) * 17 + row % 17) == 0; });
    EXPECT_GT(inside, 0) << name;
    EXPECT_EQ(outside, 0) << name;
  }
}

/// Calls body(name, row, values) for every row of every floating-point input that the two sets of data differ in.
template <class Body>
void for_each_changed_row(const Case& c, const Body& body) {
  const std::vector<Tensor> strict = make_inputs(c, 1), finite = make_inputs(c, 1, LeftOut::finite);
  for (size_t i = 0; i < strict.size(); ++i) {
    if (strict[i].name.empty() || !info(strict[i].dtype).is_float) continue;
    const int64_t columns = c.op->op_class == "logprob" && strict[i].shape.size() < 3 ? 1 : strict[i].shape.back();
    std::vector<double> before(static_cast<size_t>(columns)), after(before);
    for (int64_t row = 0; row < strict[i].count() / columns; ++row) {
      decode_row(strict[i], row, before);
      decode_row(finite[i], row, after);
      if (before != after) body(strict[i].name, row, before, after);
    }
  }
}

Case case_with_left_out(std::string_view op, DType dtype) {
  Dims dims{{"batch", 8}, {"seq", 16}, {"vocab", kVocab}};
  if (op == "grpo_loss") dims["group_bounds"] = 2;
  if (op == "linear_logp") dims["hidden"] = kHidden;
  if (op == "pack") dims = {{"batch", 8}, {"seq", 16}, {"hidden", kHidden}};
  if (op == "attention")
    dims = {{"batch", 3}, {"q_heads", 2}, {"kv_heads", 2}, {"q_seq", 5}, {"kv_seq", 17}, {"head_dim", 8}};
  return gold_case(op, op == "pack" ? "forward" : "backward", dtype, dims,
                   op == "attention" ? std::set<std::string, std::less<>>{"key_padding_mask"}
                                     : std::set<std::string, std::less<>>{});
}

constexpr std::string_view kOperatorsThatLeaveOut[] = {"logp",      "linear_logp", "ratio_kl",
                                                       "grpo_loss", "pack",        "attention"};

TEST(LeftOut, FiniteNumbersStandWhereNanAndInfinitiesDid) {
  for (const std::string_view op : kOperatorsThatLeaveOut) {
    EXPECT_NE(find_operator(op)->left_out, "") << op;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      int64_t rows = 0;
      std::set<bool> negative;
      for_each_changed_row(case_with_left_out(op, dtype),
                           [&](const std::string& name, int64_t row, const auto& before, const auto& after) {
                             double largest = 0;
                             for (size_t i = 0; i < after.size(); ++i) {
                               EXPECT_FALSE(std::isfinite(before[i])) << op << " " << name << " " << row;
                               EXPECT_TRUE(std::isfinite(after[i])) << op << " " << name << " " << row;
                               EXPECT_NE(after[i], 0) << op << " " << name << " " << row;
                               largest = std::max(largest, std::abs(after[i]));
                               negative.insert(after[i] < 0);
                             }
                             EXPECT_GE(largest, 24) << op << " " << name << " " << row;
                             ++rows;
                           });
      EXPECT_GT(rows, 0) << op;
      EXPECT_EQ(negative.size(), 2u) << op;
    }
  }
}

TEST(LeftOut, TheGoldDoesNotReadThem) {
  for (const std::string_view op : kOperatorsThatLeaveOut) {
    const Case c = case_with_left_out(op, DType::f32);
    const auto strict = collect_gold(c, make_inputs(c, 1), 1),
               finite = collect_gold(c, make_inputs(c, 1, LeftOut::finite), 1);
    for (size_t i = 0; i < strict.size(); ++i) EXPECT_EQ(strict[i].value, finite[i].value) << op << " " << i;
  }
}

TEST(LeftOut, IdsOfMaskedTokensAreThoseOfTokensWithFiniteNumbers) {
  for (const std::string_view op : {"ratio_kl", "grpo_loss"}) {
    const Case c = case_with_left_out(op, DType::f32);
    std::vector<Tensor> finite = make_inputs(c, 1, LeftOut::finite);
    const Tensor& ids = input(c, finite, "action_ids");
    for (int64_t i = 0; i < ids.count(); ++i) {
      EXPECT_GE(ids.at(i), 0) << op;
      EXPECT_LT(ids.at(i), kVocab) << op;
    }
  }
}

// A kernel adds the least number of fp16 to a masked score, or -inf: the score itself must be finite.
TEST(LeftOut, ScoresOfMaskedKeysAreFiniteInFp16) {
  constexpr int64_t kHeadDim = 256, kKeys = 64, kQueries = 64;
  const Case c = gold_case(
      "attention", "forward", DType::f16,
      {{"batch", 1}, {"q_heads", 1}, {"kv_heads", 1}, {"q_seq", kQueries}, {"kv_seq", kKeys}, {"head_dim", kHeadDim}},
      {"key_padding_mask"});
  std::vector<Tensor> inputs = make_inputs(c, 1, LeftOut::finite);
  double largest = 0;
  for (int64_t q = 0; q < kQueries; ++q) {
    for (int64_t key = 0; key < kKeys; ++key) {
      double score = 0;
      for (int64_t i = 0; i < kHeadDim; ++i) score += inputs[0].at(q * kHeadDim + i) * inputs[1].at(key * kHeadDim + i);
      largest = std::max(largest, std::abs(score));
    }
  }
  EXPECT_GT(largest, 1000);   // far above the scores of other keys
  EXPECT_LT(largest, 32752);  // half of the largest number of fp16
}

// In the mutants' test NaN exposes these faults. Here the rows hold numbers, and the values expose them.
TEST(LeftOut, CountingARowShowsWithoutNanToo) {
  const Contract contract = Contract::load(std::string(CHECKOP_SOURCE_DIR) + "/contracts/default.json");
  const std::vector<Candidate> candidates = load_plugin(std::string(kPluginFolder) + "/mutants.so");
  const auto device = open_cpu_device();
  int runs = 0;
  for (const Question& question : kQuestions) {
    for (const char* pass : {"forward", "backward"}) {
      const Case c = case_of(question, pass, -100);
      const std::vector<Tensor> inputs = inputs_with(c, question, 0.5);
      for (const Candidate& candidate : candidates) {
        const bool counts =
            candidate.name == "mutant-ignored_row_counted" || candidate.name == "mutant-ignored_as_id_zero";
        if (candidate.op != question.op || candidate.pass != pass || !counts) continue;
        std::vector<Tensor> outputs = make_outputs(c);
        ASSERT_EQ(run_candidate(*device, candidate, c, inputs, outputs, RunChecks{}).status, RunStatus::ok);
        const Comparison comparison = judge_outputs(c, inputs, outputs, contract, {}, 1)[0];
        EXPECT_EQ(comparison.nonfinite, 0) << candidate.name;
        EXPECT_EQ(comparison.out_of_bound, 2 * comparison.count / kRows) << question.op << " " << candidate.name;
        ++runs;
      }
    }
  }
  EXPECT_EQ(runs, 8);
}

}  // namespace
}  // namespace checkop::left_out_test
