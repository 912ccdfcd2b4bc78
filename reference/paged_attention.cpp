// SPDX-License-Identifier: Apache-2.0
// paged_attention: attention of packed queries over keys and values that lie in pages, found by a table.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "attention.hpp"
#include "base/error.hpp"
#include "left_out.hpp"
#include "rearranged.hpp"
#include "sequences.hpp"

namespace checkop {

extern const Emulation kPagedAttentionForward;  // emulation/paged_attention.cpp

namespace paged_attention {
namespace {

constexpr std::string_view kQueries = "tokens_q q_heads head_dim", kCache = "pages page_size kv_heads head_dim",
                           kOutputs = "tokens_q q_heads v_dim", kValues = "pages page_size kv_heads v_dim";
constexpr std::string_view kPerQuery = "head_dim max_pages*page_size";
enum Input : int { kOfQ, kOfKCache, kOfVCache, kOfQBounds, kOfTable, kOfLengths, kOfSinks };
enum Output : int { kOfO, kOfLse };

constexpr std::array kForwardIn{TensorSpec{"q", kQueries, Fill::query},
                                TensorSpec{"k_cache", kCache, Fill::key},
                                TensorSpec{"v_cache", kValues},
                                TensorSpec{"cu_seqlens_q", "seqs+1", Fill::positions, "", DType::i32},
                                TensorSpec{"block_table", "seqs max_pages", Fill::positions, "", DType::i32},
                                TensorSpec{"seq_lens", "seqs", Fill::positions, "", DType::i32},
                                kSinks};
constexpr std::array kForwardOut{
    OutputSpec{{"o", kOutputs}, Numerics::contraction, kPerQuery},
    OutputSpec{
        {"lse", "tokens_q q_heads", Fill::normal, "", DType::f32, /*optional=*/true}, Numerics::logprob, kPerQuery}};

/// Which rows of the caches, seen as [pages*page_size, ...], hold the keys of each sequence.
class Pages {
 public:
  /// Throws InputError for a length beyond the table's pages, and for a page of keys that does not exist.
  Pages(const Tensor& cache, const Tensor& table, const Tensor& lengths)
      : pages_(cache.shape[0]), page_size_(cache.shape[1]), max_pages_(table.shape[1]), table_(integers_of(table)) {
    const std::vector<int64_t> n = integers_of(lengths);
    for (size_t s = 0; s < n.size(); ++s) {
      if (n[s] < 0 || n[s] > max_pages_ * page_size_) {
        throw InputError("input 'seq_lens'",
                         fmt::format("element {} is {}, outside [0, {}]", s, n[s], max_pages_ * page_size_),
                         "give as many keys as the sequence's max_pages pages of page_size keys hold, or fewer");
      }
      bounds_.push_back(bounds_.back() + n[s]);
      for (int64_t entry = 0; entry < used_pages(n[s]); ++entry) {
        const int64_t page = at(static_cast<int64_t>(s), entry);
        if (page >= 0 && page < pages_) continue;
        throw InputError("input 'block_table'",
                         fmt::format("sequence {}: entry {} is {}, outside [0, {})", s, entry, page, pages_),
                         "give an existing page for every page that holds keys; entries behind these are not read");
      }
    }
  }
  explicit Pages(const GoldArgs& args) : Pages(args.in(kOfKCache), args.in(kOfTable), args.in(kOfLengths)) {}

  /// The keys' bounds if the sequences were packed one after the other.
  const SequenceBounds& bounds() const { return bounds_; }
  int64_t used_pages(int64_t keys) const { return (keys + page_size_ - 1) / page_size_; }
  int64_t slots() const { return pages_ * page_size_; }
  int64_t slot(int64_t sequence, int64_t key) const {
    return at(sequence, key / page_size_) * page_size_ + key % page_size_;
  }
  /// 1 for every slot that holds a key of a sequence.
  std::vector<char> used() const {
    std::vector<char> used(static_cast<size_t>(slots()));
    for (int64_t s = 0; s + 1 < std::ssize(bounds_); ++s)
      for (int64_t j = 0; j < length_of(bounds_, s); ++j) used[static_cast<size_t>(slot(s, j))] = 1;
    return used;
  }
  /// The keys or values of these sequences as the batch of attention: [sequences, kv_heads, n, width].
  Tensor batch(const Tensor& cache, const SequenceBatch& sequences) const {
    const int64_t n = length_of(bounds_, sequences.front()), heads = cache.shape[2];
    Tensor batch(cache.name, cache.dtype, {std::ssize(sequences), heads, n, cache.shape[3]});
    const size_t bytes = static_cast<size_t>(cache.shape[3]) * info(cache.dtype).bytes;
    std::byte* to = batch.bytes.data();
    for (const int64_t sequence : sequences) {
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t j = 0; j < n; ++j, to += bytes)
          std::memcpy(to, cache.bytes.data() + static_cast<size_t>(slot(sequence, j) * heads + head) * bytes, bytes);
    }
    return batch;
  }

 private:
  int64_t at(int64_t sequence, int64_t entry) const {
    return table_[static_cast<size_t>(sequence * max_pages_ + entry)];
  }

  int64_t pages_, page_size_, max_pages_;
  std::vector<int64_t> table_;
  SequenceBounds bounds_{0};
};

SequenceBounds queries_of(const GoldArgs& args) { return read_bounds(args.in(kOfQBounds), args.in(kOfQ).shape[0]); }

/// Gold of paged_attention: attention of every sequence by itself.
///   in:  q[tokens_q, q_heads, head_dim], k_cache[pages, page_size, kv_heads, head_dim], v_cache[pages, page_size,
///        kv_heads, v_dim], cu_seqlens_q[seqs+1], block_table[seqs, max_pages], seq_lens[seqs], optional sinks[q_heads]
///   out: o[tokens_q, q_heads, v_dim]; 0 from row cu_seqlens_q[seqs] on; optional lse[tokens_q, q_heads], there -inf
/// Sequence s has queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and seq_lens[s] keys, those of its queries included: key
/// j lies in page block_table[s][j / page_size], at j mod page_size. Query i of n is at key i + seq_lens[s] - n, from
/// where `causal` and the window count. Sequences may share pages. Never read, so that they may hold anything: table
/// entries behind the last page with keys, the caches where no sequence has a key, and queries behind the last
/// sequence. Throws InputError for bounds, lengths and pages that do not exist.
void forward(const GoldArgs& args) {
  const SequenceBounds queries = queries_of(args);
  const Pages pages(args);
  const int64_t q_heads = args.in(kOfQ).shape[1];
  for_sequences(args, queries, pages.bounds(), [&](const SequenceBatch& sequences, unsigned threads) {
    const Tensor q = as_batch(args.in(kOfQ), queries, sequences), k = pages.batch(args.in(kOfKCache), sequences),
                 v = pages.batch(args.in(kOfVCache), sequences);
    const std::array<const Tensor*, 5> inputs{&q, &k, &v, nullptr, args.inputs[kOfSinks]};
    GoldArgs own = args;
    own.inputs = inputs, own.threads = threads;
    own.sink = [&](const GoldRows& rows) { emit_sequence(args, rows, q_heads, queries, sequences); };
    attention_forward(own, 1);
  });
  emit_rest(args, kOfO, queries.back());
  if (!args.output_shapes[kOfLse].empty())
    emit_rest(args, kOfLse, queries.back(), -std::numeric_limits<double>::infinity());
}

void check_forward(const IdentityArgs& args) {
  check_rest(args, kOfO, read_bounds(args.in(kOfQBounds), args.in(kOfQ).shape[0]).back());
}

/// See attention_work(). Slots without a key and rows behind the last sequence are not read.
Work work(const GoldArgs& args) {
  const SequenceBounds queries = queries_of(args);
  const Pages pages(args);
  const Tensor &q = args.in(kOfQ), &k = args.in(kOfKCache), &v = args.in(kOfVCache);
  const std::vector<char> used = pages.used();
  const auto unread_slots = static_cast<double>(std::count(used.begin(), used.end(), 0));
  const double of_slot = static_cast<double>(k.bytes.size() + v.bytes.size()) / static_cast<double>(pages.slots());
  return {kForwardProducts.operations(q.shape[2], v.shape[3]) * static_cast<double>(q.shape[1]) *
              kept_pairs(queries, pages.bounds(), AttentionAttrs(args.attrs)),
          rest_bytes(q, queries.back()) + unread_slots * of_slot};
}

/// How many keys a generated sequence has.
enum class KeyCount : uint8_t {
  drawn,      ///< as many as its queries, or more
  full_page,  ///< the last page is full
  none,
  begun_page,  ///< one key in the last page
  most,        ///< all pages of the table
};
/// In turn; draw_bounds() has the queries of the same sequences.
constexpr std::array kKeyCounts{KeyCount::drawn,      KeyCount::full_page,  KeyCount::none,
                                KeyCount::begun_page, KeyCount::most,       KeyCount::drawn,
                                KeyCount::none,       KeyCount::begun_page, KeyCount::full_page};

/// The number of keys of sequence `s`; at least that of its queries where the table has room, unless there are none.
int64_t draw_length(const FillArgs& args, int64_t s, int64_t queries) {
  const int64_t page = args.dim("page_size"), most = args.dim("max_pages") * page;
  if (args.mode == InputMode::constant) return most;
  if (args.ignored_every == 1) return 0;
  const int64_t least = std::min(std::max<int64_t>(queries, 1), most);
  const auto more =
      static_cast<int64_t>(args.uniform("keys", static_cast<uint64_t>(s)) * static_cast<double>(most - least + 1));
  const int64_t drawn = least + std::min(more, most - least);
  switch (kKeyCounts[static_cast<size_t>(s) % kKeyCounts.size()]) {
    case KeyCount::drawn:
      return drawn;
    case KeyCount::full_page:
      return (drawn + page - 1) / page * page;
    case KeyCount::none:
      return 0;
    case KeyCount::begun_page:
      return std::max(least, (drawn - 1) / page * page + 1);
    case KeyCount::most:
      return most;
  }
  return drawn;
}

/// The pages in a random order.
std::vector<int64_t> shuffled_pages(int64_t pages, const std::function<double(std::string_view, uint64_t)>& uniform,
                                    std::string_view stream) {
  std::vector<int64_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> drawn;
  for (size_t page = 0; page < order.size(); ++page) drawn.push_back(uniform(stream, page));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return drawn[static_cast<size_t>(a)] < drawn[static_cast<size_t>(b)]; });
  return order;
}

/// What a table entry behind the last page with keys holds: no page, a page that does not exist, or an existing one.
/// With LeftOut::finite it is always an existing one.
int64_t unread_entry(const FillArgs& args, int64_t entry, int64_t page) {
  const int64_t pages = args.dim("pages");
  if (args.left_out == LeftOut::finite) return page;
  const std::array<int64_t, 4> kinds{-1, page, pages, std::numeric_limits<int32_t>::max()};
  return kinds[static_cast<size_t>(entry) % kinds.size()];
}

/// Gives every sequence pages in a random order. Every fourth sequence shares the first half of its pages with the one
/// before it. Pages that are left over belong to none; if there are too few, some belong to several sequences.
void draw_table(const FillArgs& args, const std::vector<int64_t>& lengths, Tensor& table) {
  constexpr int64_t kSharesEvery = 4;
  const std::vector<int64_t> order = shuffled_pages(args.dim("pages"), args.uniform, "pages");
  const int64_t max_pages = args.dim("max_pages"), page_size = args.dim("page_size");
  const auto used_pages = [&](int64_t s) { return (lengths[static_cast<size_t>(s)] + page_size - 1) / page_size; };
  size_t next = 0;
  for (int64_t s = 0; s < std::ssize(lengths); ++s) {
    const int64_t used = used_pages(s);
    const int64_t shared = s % kSharesEvery == 1 ? (std::min(used, used_pages(s - 1)) + 1) / 2 : 0;
    for (int64_t entry = 0; entry < max_pages; ++entry) {
      const int64_t at = s * max_pages + entry;
      if (entry < shared) {
        table.set(at, table.at(at - max_pages));
      } else if (entry < used) {
        table.set(at, static_cast<double>(order[next++ % order.size()]));
      } else {
        const int64_t page = order[(next + static_cast<size_t>(entry - used)) % order.size()];
        table.set(at, static_cast<double>(unread_entry(args, entry, page)));
      }
    }
  }
}

/// Draws the sequences and their pages; see draw_bounds(), draw_length() and draw_table(). What is not read holds
/// payloads.
void refine(const FillArgs& args) {
  Tensor &bounds = *args.find("cu_seqlens_q"), &table = *args.find("block_table"), &seq_lens = *args.find("seq_lens");
  draw_bounds(args, bounds, nullptr, "tokens_q", "tokens_q");
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < seq_lens.count(); ++s) {
    lengths.push_back(draw_length(args, s, static_cast<int64_t>(bounds.at(s + 1) - bounds.at(s))));
    seq_lens.set(s, static_cast<double>(lengths.back()));
  }
  draw_table(args, lengths, table);
  plant_sinks(args);
  plant_rest(args, *args.find("q"), static_cast<int64_t>(bounds.at(bounds.count() - 1)));
  const std::vector<char> used = Pages(*args.find("k_cache"), table, seq_lens).used();
  for (const std::string_view name : {"k_cache", "v_cache"}) {
    Tensor& cache = *args.find(name);
    for (size_t slot = 0; slot < used.size(); ++slot)
      if (used[slot] == 0)
        plant_payload(args, cache, cache.shape[2] * cache.shape[3], static_cast<int64_t>(slot),
                      payload_kind(args, slot));
  }
}

const std::array kRecipes = of_tokens(kAttentionForwardRecipes);

Pages pages_of(const RearrangeArgs& args) { return {args.in(kOfKCache), args.in(kOfTable), args.in(kOfLengths)}; }

/// Page from[i] becomes page i.
std::optional<Rearranged> with_pages(const RearrangeArgs& args, const std::vector<int64_t>& from) {
  const Tensor &k = args.in(kOfKCache), &v = args.in(kOfVCache), &table = args.in(kOfTable);
  const Pages pages = pages_of(args);
  std::vector<int64_t> place(from.size()), entries = integers_of(table);
  for (size_t i = 0; i < from.size(); ++i) place[static_cast<size_t>(from[i])] = static_cast<int64_t>(i);
  bool moves = false;
  for (int64_t s = 0; s < table.shape[0]; ++s) {
    for (int64_t e = 0; e < pages.used_pages(length_of(pages.bounds(), s)); ++e) {
      int64_t& entry = entries[static_cast<size_t>(s * table.shape[1] + e)];
      const int64_t there = place[static_cast<size_t>(entry)];
      moves |= there != entry;
      entry = there;
    }
  }
  if (!moves) return {};
  Rearranged other;
  other.inputs.resize(args.inputs.size());
  other.inputs[kOfKCache] = with_blocks(k, k.shape, from, k.bytes.size() / from.size());
  other.inputs[kOfVCache] = with_blocks(v, v.shape, from, v.bytes.size() / from.size());
  other.inputs[kOfTable] = of_integers(table, table.shape, entries);
  return other;
}

std::optional<Rearranged> shuffle_pages(const RearrangeArgs& args) {
  return with_pages(args, shuffled_pages(args.in(kOfKCache).shape[0], args.uniform, "moved pages"));
}

std::optional<Rearranged> reverse_pages(const RearrangeArgs& args) {
  std::vector<int64_t> from(static_cast<size_t>(args.in(kOfKCache).shape[0]));
  std::iota(from.rbegin(), from.rend(), 0);
  return with_pages(args, from);
}

/// Rotates the content of the slots without a key, and of the table entries behind the pages with keys: each holds what
/// the next one did. So they hold nothing that the case does not allow.
std::optional<Rearranged> refill_rest(const RearrangeArgs& args) {
  const Tensor &k = args.in(kOfKCache), &v = args.in(kOfVCache), &table = args.in(kOfTable);
  const Pages pages = pages_of(args);
  const auto rotate = [](std::vector<int64_t>& all, const std::vector<size_t>& places) {
    for (size_t i = 0; i + 1 < places.size(); ++i) std::swap(all[places[i]], all[places[i + 1]]);
  };
  const std::vector<char> used = pages.used();
  std::vector<int64_t> slots(used.size()), entries = integers_of(table);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<size_t> free_slots, free_entries;
  for (size_t slot = 0; slot < used.size(); ++slot)
    if (used[slot] == 0) free_slots.push_back(slot);
  for (int64_t s = 0; s < table.shape[0]; ++s)
    for (int64_t e = pages.used_pages(length_of(pages.bounds(), s)); e < table.shape[1]; ++e)
      free_entries.push_back(static_cast<size_t>(s * table.shape[1] + e));
  if (free_slots.size() < 2 && free_entries.size() < 2) return {};
  rotate(slots, free_slots), rotate(entries, free_entries);
  Rearranged other;
  other.inputs.resize(args.inputs.size());
  other.inputs[kOfKCache] = with_blocks(k, k.shape, slots, k.bytes.size() / slots.size());
  other.inputs[kOfVCache] = with_blocks(v, v.shape, slots, v.bytes.size() / slots.size());
  other.inputs[kOfTable] = of_integers(table, table.shape, entries);
  return other;
}

/// Queries [begin, end) of a sequence, in a launch of their own.
struct Chunk {
  int64_t sequence, begin, end;
};

/// A launch of these chunks, as if the keys behind each were not there yet. `rows` are those of the case. Only with a
/// causal mask has a query the same keys then.
std::optional<Rearranged> with_chunks(const RearrangeArgs& args, const std::vector<Chunk>& chunks,
                                      std::vector<int64_t> rows) {
  if (chunks.empty() || !AttentionAttrs(args.attrs).causal) return {};
  const Tensor &q = args.in(kOfQ), &of_bounds = args.in(kOfQBounds), &table = args.in(kOfTable),
               &of_lengths = args.in(kOfLengths);
  const std::vector<int64_t> bounds = integers_of(of_bounds), lengths = integers_of(of_lengths);
  const int64_t n = std::ssize(chunks), max_pages = table.shape[1];
  std::vector<int64_t> new_bounds{0}, new_lengths, sequences;
  for (const Chunk& chunk : chunks) {
    const auto s = static_cast<size_t>(chunk.sequence);
    new_bounds.push_back(new_bounds.back() + chunk.end - chunk.begin);
    new_lengths.push_back(std::max<int64_t>(0, lengths[s] - (bounds[s + 1] - bounds[s]) + chunk.end));
    sequences.push_back(chunk.sequence);
  }
  Rearranged other;
  other.dims = {{"seqs", n}};
  other.inputs.resize(args.inputs.size());
  other.inputs[kOfQBounds] = of_integers(of_bounds, {n + 1}, new_bounds);
  other.inputs[kOfLengths] = of_integers(of_lengths, {n}, new_lengths);
  other.inputs[kOfTable] =
      with_blocks(table, {n, max_pages}, sequences, static_cast<size_t>(max_pages) * info(table.dtype).bytes);
  if (!rows.empty()) {
    other.dims["tokens_q"] = std::ssize(rows);
    other.inputs[kOfQ] = with_rows(q, rows);
    other.rows = {{"tokens_q", std::move(rows)}};
  }
  return other;
}

/// Every sequence in chunks of at most `most` queries, all in one launch.
template <int64_t most>
std::optional<Rearranged> cut_queries(const RearrangeArgs& args) {
  const std::vector<int64_t> bounds = integers_of(args.in(kOfQBounds));
  std::vector<Chunk> chunks;
  bool cuts = false;
  for (int64_t s = 0; s + 1 < std::ssize(bounds); ++s) {
    const int64_t n = length_of(bounds, s);
    for (int64_t begin = 0; begin < n; begin += most) chunks.push_back({s, begin, std::min(begin + most, n)});
    cuts |= n > most;
  }
  return cuts ? with_chunks(args, chunks, {}) : std::optional<Rearranged>();
}

/// The last query of every sequence, or with `alone` that of the sequence with the most keys: a step of decoding.
template <bool alone>
std::optional<Rearranged> decode(const RearrangeArgs& args) {
  const std::vector<int64_t> bounds = integers_of(args.in(kOfQBounds)), lengths = integers_of(args.in(kOfLengths));
  std::vector<Chunk> chunks;
  for (int64_t s = 0; s + 1 < std::ssize(bounds); ++s)
    if (const int64_t n = length_of(bounds, s); n > 0) chunks.push_back({s, n - 1, n});
  const auto has_less_keys = [&](const Chunk& a, const Chunk& b) {
    return lengths[static_cast<size_t>(a.sequence)] < lengths[static_cast<size_t>(b.sequence)];
  };
  if (alone && !chunks.empty()) chunks = {*std::max_element(chunks.begin(), chunks.end(), has_less_keys)};
  std::vector<int64_t> rows;
  for (const Chunk& chunk : chunks) rows.push_back(bounds[static_cast<size_t>(chunk.sequence)] + chunk.end - 1);
  return with_chunks(args, chunks, rows);
}

constexpr std::array kRearrangements{
    Rearrangement{"pages", "pages in a random order", "tokens_q", 1, shuffle_pages},
    Rearrangement{"pages", "pages in reverse", "tokens_q", 1, reverse_pages},
    Rearrangement{"pages", "other contents where no key lies", "tokens_q", 1, refill_rest},
    Rearrangement{"phase", "one query at a time", "tokens_q", 2, cut_queries<1>},
    Rearrangement{"phase", "the last query of every sequence", "tokens_q", 2, decode<false>},
    Rearrangement{"phase", "the last query of the longest sequence alone", "tokens_q", 2, decode<true>},
    Rearrangement{"phase", "chunks of 17 queries", "tokens_q", 18, cut_queries<17>},
    Rearrangement{"phase", "chunks of 128 queries", "tokens_q", 129, cut_queries<128>},
    Rearrangement{"phase", "chunks of 512 queries", "tokens_q", 513, cut_queries<512>},
};

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work, &kPagedAttentionForward, nullptr, kRecipes}};

}  // namespace
}  // namespace paged_attention

extern const Operator kPagedAttention;
constexpr Operator kPagedAttention{"paged_attention",
                                   "reduction",
                                   "o = attention of every packed sequence over the keys in its own pages",
                                   "seqs",
                                   kWindowAttrs,
                                   paged_attention::kPasses,
                                   check_window_sizes,
                                   paged_attention::refine,
                                   /*parallel_dim=*/"",
                                   /*left_out=*/"pages and table entries without keys",
                                   paged_attention::kRearrangements};

}  // namespace checkop
