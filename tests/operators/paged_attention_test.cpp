// SPDX-License-Identifier: Apache-2.0
// paged_attention: every sequence is attention over the keys in its pages, in the gold and in the bits of the native
// candidate; what is never read; the kinds of generated sequences; pages that do not exist.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "support/rows_helper.hpp"
#include "tensor/bits.hpp"

namespace checkop::paged_attention_test {
namespace {

constexpr int64_t kQHeads = 4, kKvHeads = 2, kWidth = 5, kTokens = 90, kSeqs = 9;
constexpr double kNoKeys = -std::numeric_limits<double>::infinity();

Case paged(DType dtype, int64_t page_size = 4, int64_t pages = 160, int64_t max_pages = 17) {
  return gold_case("paged_attention", "forward", dtype,
                   {{"tokens_q", kTokens},
                    {"q_heads", kQHeads},
                    {"kv_heads", kKvHeads},
                    {"head_dim", kWidth},
                    {"pages", pages},
                    {"page_size", page_size},
                    {"seqs", kSeqs},
                    {"max_pages", max_pages}},
                   {"lse"});
}

/// One sequence of a case: its tokens, its keys, and where these lie.
struct Sequence {
  Sequence(const Case& c, std::vector<Tensor>& inputs, int64_t s)
      : first(static_cast<int64_t>(input(c, inputs, "cu_seqlens_q").at(s))),
        queries(static_cast<int64_t>(input(c, inputs, "cu_seqlens_q").at(s + 1)) - first),
        keys(static_cast<int64_t>(input(c, inputs, "seq_lens").at(s))),
        page_size(c.dims.at("page_size")) {
    const int64_t max_pages = c.dims.at("max_pages");
    for (int64_t entry = 0; entry < max_pages; ++entry)
      table.push_back(static_cast<int64_t>(input(c, inputs, "block_table").at(s * max_pages + entry)));
  }
  int64_t pages() const { return (keys + page_size - 1) / page_size; }
  int64_t slot(int64_t key) const { return table[static_cast<size_t>(key / page_size)] * page_size + key % page_size; }

  int64_t first, queries, keys, page_size;
  std::vector<int64_t> table;
};

/// A sequence as a case of attention, and its inputs; copied element by element.
struct Alone {
  Alone(const Case& c, std::vector<Tensor>& inputs, const Sequence& s) {
    as_attention = gold_case("attention", "forward", c.dtype,
                             {{"batch", 1},
                              {"q_heads", kQHeads},
                              {"kv_heads", kKvHeads},
                              {"q_seq", s.queries},
                              {"kv_seq", s.keys},
                              {"head_dim", kWidth}},
                             {"lse"});
    as_attention.attrs = c.attrs, as_attention.optionals = c.optionals;
    Tensor& q = own.emplace_back("q", c.dtype, Shape{1, kQHeads, s.queries, kWidth});
    for (int64_t i = 0; i < q.count(); ++i) {
      const int64_t d = i % kWidth, token = i / kWidth % s.queries, head = i / kWidth / s.queries;
      q.set(i, input(c, inputs, "q").at(((s.first + token) * kQHeads + head) * kWidth + d));
    }
    for (const std::string_view name : {"k_cache", "v_cache"}) {
      Tensor to(std::string(name.substr(0, 1)), c.dtype, Shape{1, kKvHeads, s.keys, kWidth});
      for (int64_t i = 0; i < to.count(); ++i) {
        const int64_t d = i % kWidth, key = i / kWidth % s.keys, head = i / kWidth / s.keys;
        to.set(i, input(c, inputs, name).at((s.slot(key) * kKvHeads + head) * kWidth + d));
      }
      own.push_back(std::move(to));
    }
    own.emplace_back();  // no mask
    const Tensor& sinks = input(c, inputs, "sinks");
    if (sinks.name.empty()) {
      own.emplace_back();
      return;
    }
    Tensor& to = own.emplace_back(sinks.name, sinks.dtype, sinks.shape);
    for (int64_t i = 0; i < to.count(); ++i) to.set(i, sinks.at(i));
  }

  Case as_attention;
  std::vector<Tensor> own;
};

/// Calls body(element of the packed output, element of the sequence's own output) for output 0 (o) or 1 (lse).
template <class Body>
void for_elements(const Sequence& s, size_t output, const Body& body) {
  const int64_t width = output == 0 ? kWidth : 1;
  for (int64_t head = 0; head < kQHeads; ++head)
    for (int64_t i = 0; i < s.queries; ++i)
      for (int64_t d = 0; d < width; ++d)
        body(((s.first + i) * kQHeads + head) * width + d, (head * s.queries + i) * width + d);
}

TEST(PagedAttention, GoldIsThatOfAttentionOverTheKeysInThePages) {
  for (const bool windowed : {false, true}) {
    Case c = paged(DType::f64);
    if (windowed) c.attrs = {1, 0.5, 3, -1, 2}, c.optionals.insert("sinks");
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const std::vector<GoldOutput> all = collect_gold(c, inputs, 1);
    int compared = 0;
    for (int64_t number = 0; number < kSeqs; ++number) {
      const Sequence s(c, inputs, number);
      if (s.queries == 0 || s.keys == 0) continue;
      ++compared;
      const Alone alone(c, inputs, s);
      const std::vector<GoldOutput> one = collect_gold(alone.as_attention, alone.own, 1);
      for (size_t o = 0; o < 2; ++o) {
        for_elements(s, o, [&](int64_t there, int64_t here) {
          const auto at = static_cast<size_t>(there), own = static_cast<size_t>(here);
          ASSERT_EQ(all[o].value[at], one[o].value[own]) << number << " " << there;
          ASSERT_EQ(all[o].magnitude[at], one[o].magnitude[own]) << number << " " << there;
          ASSERT_EQ(all[o].rounding[at], one[o].rounding[own]) << number << " " << there;
        });
      }
    }
    EXPECT_GE(compared, 4);
  }
}

TEST(PagedAttention, NativeHasTheBitsOfAttentionOverTheKeysInThePages) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Case c = paged(dtype);
    c.optionals.insert("sinks");
    std::vector<Tensor> inputs = make_inputs(c, 1);
    const NativeAnswer all = run_native(c, inputs);
    ASSERT_EQ(all.result.status, RunStatus::ok) << all.result.message;
    for (int64_t number = 0; number < kSeqs; ++number) {
      const Sequence s(c, inputs, number);
      if (s.queries == 0 || s.keys == 0) continue;
      const Alone alone(c, inputs, s);
      const NativeAnswer one = run_native(alone.as_attention, alone.own);
      for (size_t o = 0; o < 2; ++o) {
        const DType of_output = o == 0 ? dtype : DType::f32;
        for_elements(s, o, [&](int64_t there, int64_t here) {
          ASSERT_EQ(load_bits(of_output, all.outputs[o].bytes.data(), there),
                    load_bits(of_output, one.outputs[o].bytes.data(), here))
              << number << " " << there;
        });
      }
    }
  }
}

/// Slots of the caches that hold a key.
std::set<int64_t> slots_with_keys(const Case& c, std::vector<Tensor>& inputs) {
  std::set<int64_t> slots;
  for (int64_t number = 0; number < kSeqs; ++number) {
    const Sequence s(c, inputs, number);
    for (int64_t key = 0; key < s.keys; ++key) slots.insert(s.slot(key));
  }
  return slots;
}

TEST(PagedAttention, WhatHoldsNoKeyIsNeverRead) {
  const Case c = paged(DType::f32);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto expected = gold_and_native(c, inputs);
  const std::set<int64_t> used = slots_with_keys(c, inputs);
  const int64_t slots = c.dims.at("pages") * c.dims.at("page_size"), max_pages = c.dims.at("max_pages");
  ASSERT_LT(std::ssize(used), slots);
  const auto end = static_cast<int64_t>(input(c, inputs, "cu_seqlens_q").at(kSeqs));
  ASSERT_LT(end, kTokens);
  for (const double content : {std::nan(""), HUGE_VAL, 1e30}) {
    for (const double entry : {-1.0, 160.0, 2147483647.0}) {
      int64_t entries = 0;
      for (int64_t slot = 0; slot < slots; ++slot)
        for (int64_t i = 0; !used.contains(slot) && i < kKvHeads * kWidth; ++i)
          for (const std::string_view name : {"k_cache", "v_cache"})
            input(c, inputs, name).set(slot * kKvHeads * kWidth + i, content);
      for (int64_t i = end * kQHeads * kWidth; i < kTokens * kQHeads * kWidth; ++i)
        input(c, inputs, "q").set(i, content);
      for (int64_t number = 0; number < kSeqs; ++number)
        for (int64_t at = Sequence(c, inputs, number).pages(); at < max_pages; ++at, ++entries)
          input(c, inputs, "block_table").set(number * max_pages + at, entry);
      ASSERT_GT(entries, 0);
      EXPECT_EQ(gold_and_native(c, inputs), expected) << content << " " << entry;
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t of_token = i % 2 == 0 ? kQHeads * kWidth : kQHeads;
    for (int64_t at = end * of_token; at < kTokens * of_token; ++at)
      EXPECT_EQ(expected[i][static_cast<size_t>(at)], i % 2 == 0 ? 0 : kNoKeys) << i << " " << at;
  }
}

// As sequences that pad a captured graph have it, whatever their tables hold.
TEST(PagedAttention, QueriesOfASequenceWithoutKeysAreZeroWithAnLseOfMinusInfinity) {
  const Case c = paged(DType::f32);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto all = gold_and_native(c, inputs);
  int64_t queries = 0;
  for (int64_t number = 0; number < kSeqs; ++number) {
    const Sequence s(c, inputs, number);
    if (s.keys > 0) continue;
    queries += s.queries;
    for (size_t i = 0; i < all.size(); ++i)
      for_elements(s, i % 2, [&](int64_t at, int64_t) {
        EXPECT_EQ(all[i][static_cast<size_t>(at)], i % 2 == 0 ? 0 : kNoKeys) << i << " " << at;
      });
  }
  EXPECT_GT(queries, 0);
}

TEST(PagedAttention, TheLseOfAQueryWithoutKeysIsItsSink) {
  Case c = paged(DType::f32);
  c.optionals.insert("sinks");
  std::vector<Tensor> inputs = make_inputs(c, 1);
  const auto all = gold_and_native(c, inputs);
  int64_t queries = 0;
  for (int64_t number = 0; number < kSeqs; ++number) {
    const Sequence s(c, inputs, number);
    if (s.keys > 0) continue;
    queries += s.queries;
    for (size_t i = 1; i < all.size(); i += 2)
      for_elements(s, 1, [&](int64_t at, int64_t) {
        EXPECT_EQ(all[i][static_cast<size_t>(at)], input(c, inputs, "sinks").at(at % kQHeads)) << i << " " << at;
      });
  }
  EXPECT_GT(queries, 0);
}

TEST(PagedAttention, DrawnSequencesAreOfEveryKind) {
  const Case c = paged(DType::f32);
  std::vector<Tensor> inputs = make_inputs(c, 1);
  bool full = false, begun = false, none = false, decodes = false, several = false, behind = false;
  std::map<int64_t, std::set<int64_t>> sequences_of_page;
  for (int64_t number = 0; number < kSeqs; ++number) {
    const Sequence s(c, inputs, number);
    EXPECT_TRUE(s.keys == 0 || s.keys >= s.queries) << number;
    full |= s.keys > 0 && s.keys % s.page_size == 0, begun |= s.keys % s.page_size == 1, none |= s.keys == 0;
    decodes |= s.queries == 1 && s.keys > 1, several |= s.queries > 1 && s.keys > s.queries;
    for (int64_t entry = 0; entry < std::ssize(s.table); ++entry) {
      const int64_t page = s.table[static_cast<size_t>(entry)];
      if (entry < s.pages()) sequences_of_page[page].insert(number);
      behind |= entry >= s.pages() && (page < 0 || page >= c.dims.at("pages"));
    }
  }
  EXPECT_TRUE(full && begun && none && decodes && several && behind);
  const auto is_shared = [](const auto& page) { return page.second.size() > 1; };
  EXPECT_TRUE(std::any_of(sequences_of_page.begin(), sequences_of_page.end(), is_shared));
  EXPECT_LT(std::ssize(sequences_of_page), c.dims.at("pages"));  // some are free
}

TEST(PagedAttention, NativeRefusesPagesThatDoNotExist) {
  const auto message_with = [](std::string_view name, int64_t element, double value) {
    const Case c = paged(DType::f32);
    std::vector<Tensor> inputs = make_inputs(c, 1);
    input(c, inputs, name).set(element, value);
    const NativeAnswer native = run_native(c, inputs);
    EXPECT_EQ(native.result.status, RunStatus::failed);
    return native.result.message;
  };
  EXPECT_EQ(message_with("seq_lens", 3, 69), "seq_lens[3] = 69 is below 0 or beyond the 17 pages of a sequence");
  EXPECT_EQ(message_with("block_table", 0, 160), "block_table[0, 0] = 160 is none of the 160 pages");
  EXPECT_EQ(message_with("block_table", 0, -1), "block_table[0, 0] = -1 is none of the 160 pages");
}

}  // namespace
}  // namespace checkop::paged_attention_test
