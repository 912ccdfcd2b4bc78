// SPDX-License-Identifier: Apache-2.0
// What the golds say, word for word, of input tensors whose values they can't use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "case/inputs.hpp"
#include "support/gold_helper.hpp"
#include "support/message_of.hpp"

namespace checkop::bad_input_test {
namespace {

/// What the gold of `c` says when the elements of input `name` from the first on are `values`.
std::string complaint(const Case& c, std::string_view name, const std::vector<double>& values) {
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& t) { return t.name == name; });
  if (input == inputs.end()) return "no input " + std::string(name);
  for (size_t i = 0; i < values.size(); ++i) input->set(static_cast<int64_t>(i), values[i]);
  return message_of([&] { collect_gold(c, inputs, 1); });
}

TEST(BadInput, IdsOfTokens) {
  const auto with_id = [](std::string_view op, const Dims& dims, std::string_view ids, double id) {
    return complaint(gold_case(op, "forward", DType::f32, dims), ids, {0, id});
  };
  EXPECT_EQ(with_id("embedding", {{"batch", 1}, {"seq", 2}, {"hidden", 2}, {"vocab", 3}}, "token_ids", 3),
            "input 'token_ids': element 1 is 3, outside [0, 3); give ids of existing tokens");
  EXPECT_EQ(
      with_id("logp", {{"batch", 1}, {"seq", 2}, {"vocab", 3}}, "token_ids", -1),
      "input 'token_ids': element 1 is -1, outside [0, 3); give ids of existing tokens, or the ignore_index -100");
}

TEST(BadInput, IdsOfActionsThatAreNotMasked) {
  const Case c = gold_case("ratio_kl", "forward", DType::f32, {{"batch", 1}, {"seq", 2}, {"vocab", 3}});
  std::vector<Tensor> inputs = make_inputs(c, 1);
  for (Tensor& input : inputs) {
    if (input.name == "attention_mask") input.set(1, 1);
    if (input.name == "action_ids") input.set(1, 3);
  }
  EXPECT_EQ(message_of([&] { collect_gold(c, inputs, 1); }),
            "input 'action_ids': element 1 is 3, outside [0, 3), and not masked; give ids of existing tokens wherever "
            "the mask is not 0");
}

TEST(BadInput, Positions) {
  const Case c = gold_case("rope", "forward", DType::f32, {{"batch", 1}, {"heads", 1}, {"seq", 2}, {"head_dim", 2}});
  EXPECT_EQ(complaint(c, "positions", {0, -1}), "input 'positions': element 1 is -1, below 0; count positions from 0");
}

TEST(BadInput, BoundsOfSequences) {
  const Case c =
      gold_case("varlen_attention", "forward", DType::f32,
                {{"tokens_q", 3}, {"tokens_k", 3}, {"q_heads", 1}, {"kv_heads", 1}, {"head_dim", 2}, {"seqs", 2}});
  const std::string hint = "; give bounds that start with 0, do not decrease, and end within the tokens";
  EXPECT_EQ(complaint(c, "cu_seqlens_q", {1, 2, 3}), "input 'cu_seqlens_q': element 0 is 1, not 0" + hint);
  EXPECT_EQ(complaint(c, "cu_seqlens_q", {0, 2, 1}),
            "input 'cu_seqlens_q': element 2 is 1, below the one before it" + hint);
  EXPECT_EQ(complaint(c, "cu_seqlens_q", {0, 2, 5}),
            "input 'cu_seqlens_q': element 2 is 5, beyond the 3 tokens" + hint);
}

TEST(BadInput, PagesOfSequences) {
  const Case c = gold_case("paged_attention", "forward", DType::f32,
                           {{"tokens_q", 3},
                            {"q_heads", 1},
                            {"kv_heads", 1},
                            {"head_dim", 2},
                            {"pages", 4},
                            {"page_size", 2},
                            {"seqs", 2},
                            {"max_pages", 3}});
  const std::string lengths = "; give as many keys as the sequence's max_pages pages of page_size keys hold, or fewer";
  EXPECT_EQ(complaint(c, "seq_lens", {0, 7}), "input 'seq_lens': element 1 is 7, outside [0, 6]" + lengths);
  EXPECT_EQ(complaint(c, "seq_lens", {-1, 0}), "input 'seq_lens': element 0 is -1, outside [0, 6]" + lengths);
  EXPECT_EQ(complaint(c, "block_table", {4}),
            "input 'block_table': sequence 0: entry 0 is 4, outside [0, 4); give an existing page for every page that "
            "holds keys; entries behind these are not read");
  EXPECT_EQ(
      complaint(c, "cu_seqlens_q", {0, 2, 5}),
      "input 'cu_seqlens_q': element 2 is 5, beyond the 3 tokens; give bounds that start with 0, do not decrease, "
      "and end within the tokens");
}

TEST(BadInput, OffsetsOfExperts) {
  const Case c =
      gold_case("grouped_gemm", "forward", DType::f32, {{"rows", 3}, {"k_dim", 2}, {"n_dim", 2}, {"experts", 2}});
  const std::string hint = "; give offsets that start with 0, do not decrease, and end within the rows";
  EXPECT_EQ(complaint(c, "offsets", {1, 2, 3}), "input 'offsets': element 0 is 1, not 0" + hint);
  EXPECT_EQ(complaint(c, "offsets", {0, 2, 1}), "input 'offsets': element 2 is 1, below the one before it" + hint);
  EXPECT_EQ(complaint(c, "offsets", {0, 2, 5}), "input 'offsets': element 2 is 5, beyond the 3 rows" + hint);
}

TEST(BadInput, CountsOfExperts) {
  const Case c = gold_case("masked_grouped_gemm", "forward", DType::f32,
                           {{"experts", 3}, {"capacity", 5}, {"k_dim", 2}, {"n_dim", 2}});
  const std::string hint = "; give as many rows as an expert has room for, or fewer";
  EXPECT_EQ(complaint(c, "counts", {-1, 0, 0}), "input 'counts': element 0 is -1, outside [0, 5]" + hint);
  EXPECT_EQ(complaint(c, "counts", {5, 0, 6}), "input 'counts': element 2 is 6, outside [0, 5]" + hint);
}

TEST(BadInput, OffsetsOfExpertsThatAreMultiplesOf128) {
  const Case c =
      gold_case("fp8_block_wgrad", "forward", DType::f32, {{"rows", 300}, {"k_dim", 2}, {"n_dim", 2}, {"experts", 2}});
  EXPECT_EQ(complaint(c, "offsets", {0, 100, 256}),
            "input 'offsets': element 1 is 100, not a multiple of 128; give multiples of 128 that start with 0, do not "
            "decrease, and end within the rows");
}

TEST(BadInput, BoundariesOfGroups) {
  const Case c = gold_case("grpo_loss", "forward", DType::f32,
                           {{"batch", 4}, {"seq", 1}, {"vocab", 3}, {"group_bounds", 3}}, {"group_boundaries"});
  const std::string hint = "; give boundaries that start with 0, increase, and end with the batch";
  EXPECT_EQ(complaint(c, "group_boundaries", {1, 2, 4}), "input 'group_boundaries': element 0 is 1, not 0" + hint);
  EXPECT_EQ(complaint(c, "group_boundaries", {0, 2, 3}),
            "input 'group_boundaries': element 2 is 3, not the batch, which is 4" + hint);
  EXPECT_EQ(complaint(c, "group_boundaries", {0, 0, 4}),
            "input 'group_boundaries': element 1 is 0, not above the one before it" + hint);
}

TEST(BadInput, SlotsOfExperts) {
  const Case c = gold_case("moe_permute", "forward", DType::f32,
                           {{"batch", 1}, {"seq", 1}, {"hidden", 2}, {"topk", 2}, {"rows", 2}, {"experts", 4}});
  EXPECT_EQ(complaint(c, "ids", {0, 7}),
            "input 'ids': element 1 is 7, neither in [0, 4) nor -1; give -1 to a slot that has none");
}

TEST(BadInput, LogitsWhoseChoiceRoundingDecides) {
  const Case c = gold_case("moe_route", "forward", DType::f32, {{"batch", 1}, {"seq", 1}, {"experts", 3}, {"topk", 1}});
  EXPECT_EQ(complaint(c, "logits", {2, 1, std::nextafter(2.0F, 3.0F)}),
            "input 'logits': token 0: the scores of experts 2 and 0 are closer than they err in fp32; give data whose "
            "choice does not depend on rounding");
}

TEST(BadInput, LogitsOfWhichRoundingDecidesThatTheyStay) {
  Case c = gold_case("logp", "forward", DType::f32, {{"batch", 1}, {"seq", 1}, {"vocab", 2}});
  const auto set = [&](std::string_view name, double value) {
    for (size_t i = 0; i < c.attrs.size(); ++i)
      if (c.op->attrs[i].name == name) c.attrs[i] = value;
  };
  set("top_p", 0.5);
  EXPECT_EQ(complaint(c, "logits", {3, 3}),
            "input 'logits': row 0: rounding in fp32 decides whether column 0 stays; give another top_k or top_p, or "
            "data whose choice does not depend on rounding");
  set("top_p", 1), set("top_k", 1), set("temperature", 0.7);
  EXPECT_EQ(complaint(c, "logits", {1, std::nextafter(1.0F, 2.0F)}),
            "input 'logits': row 0: rounding in fp32 decides whether column 0 stays; give another top_k or top_p, or "
            "data whose choice does not depend on rounding");
}

TEST(BadInput, LogSumExpsThatAreInfinite) {
  const Case c = gold_case("attention_merge_state", "forward", DType::f32,
                           {{"tokens", 1}, {"parts", 2}, {"heads", 2}, {"head_dim", 1}});
  EXPECT_EQ(complaint(c, "part_lse", {0, 1, -INFINITY, INFINITY}),
            "input 'part_lse': token 0, part 1, head 1 is infinite; give a finite number, or -inf for a part without "
            "keys");
}

}  // namespace
}  // namespace checkop::bad_input_test
