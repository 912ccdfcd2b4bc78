// SPDX-License-Identifier: Apache-2.0
// paged_attention: attention of packed queries over keys and values that lie in pages, found by a table.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "attention.hpp"
#include "base/error.hpp"
#include "left_out.hpp"
#include "sequences.hpp"

namespace checkop {

extern const Emulation kPagedAttentionForward;  // emulation/paged_attention.cpp

namespace {

constexpr std::string_view kQueries = "tokens_q q_heads head_dim", kCache = "pages page_size kv_heads head_dim";
constexpr std::string_view kPerQuery = "head_dim max_pages*page_size";
enum Input : int { kOfQ, kOfKCache, kOfVCache, kOfQBounds, kOfTable, kOfLengths };
enum Output : int { kOfO, kOfLse };

constexpr std::array kForwardIn{TensorSpec{"q", kQueries, Fill::query},
                                TensorSpec{"k_cache", kCache, Fill::key},
                                TensorSpec{"v_cache", kCache},
                                TensorSpec{"cu_seqlens_q", "seqs+1", Fill::positions, "", DType::i32},
                                TensorSpec{"block_table", "seqs max_pages", Fill::positions, "", DType::i32},
                                TensorSpec{"seq_lens", "seqs", Fill::positions, "", DType::i32}};
constexpr std::array kForwardOut{
    OutputSpec{{"o", kQueries}, Numerics::contraction, kPerQuery},
    OutputSpec{
        {"lse", "tokens_q q_heads", Fill::normal, "", DType::f32, /*optional=*/true}, Numerics::logprob, kPerQuery}};

/// Which rows of the caches, seen as [pages*page_size, ...], hold the keys of each sequence.
class Pages {
 public:
  /// Throws InputError for a length beyond the table's pages, and for a page of keys that does not exist.
  Pages(const Tensor& cache, const Tensor& table, const Tensor& lengths)
      : pages_(cache.shape[0]), page_size_(cache.shape[1]), max_pages_(table.shape[1]), table_(integers(table)) {
    const std::vector<int64_t> n = integers(lengths);
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
  /// The keys or values of a sequence as one batch entry of attention: [1, kv_heads, n, head_dim].
  Tensor entry(const Tensor& cache, int64_t sequence) const {
    const int64_t n = length_of(bounds_, sequence), heads = cache.shape[2];
    Tensor entry(cache.name, cache.dtype, {1, heads, n, cache.shape[3]});
    const size_t bytes = static_cast<size_t>(cache.shape[3]) * info(cache.dtype).bytes;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t j = 0; j < n; ++j)
        std::memcpy(entry.bytes.data() + static_cast<size_t>(head * n + j) * bytes,
                    cache.bytes.data() + static_cast<size_t>(slot(sequence, j) * heads + head) * bytes, bytes);
    return entry;
  }

 private:
  static std::vector<int64_t> integers(const Tensor& tensor) {
    std::vector<int64_t> values(static_cast<size_t>(tensor.count()));
    decode_int(tensor.dtype, tensor.bytes.data(), values.data(), values.size());
    return values;
  }
  int64_t at(int64_t sequence, int64_t entry) const {
    return table_[static_cast<size_t>(sequence * max_pages_ + entry)];
  }

  int64_t pages_, page_size_, max_pages_;
  std::vector<int64_t> table_;
  SequenceBounds bounds_{0};
};

SequenceBounds queries_of(const GoldArgs& args) { return read_bounds(args.in(kOfQBounds), args.in(kOfQ).shape[0]); }

/// Gold of paged_attention: attention of every sequence by itself.
///   in:  q[tokens_q, q_heads, head_dim], k_cache, v_cache[pages, page_size, kv_heads, head_dim], cu_seqlens_q[seqs+1],
///        block_table[seqs, max_pages], seq_lens[seqs]
///   out: o, shaped as q; 0 from row cu_seqlens_q[seqs] on; optional lse[tokens_q, q_heads], there -inf
/// Sequence s has queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and seq_lens[s] keys, those of its queries included: key
/// j lies in page block_table[s][j / page_size], at j mod page_size. Query i of n is at key i + seq_lens[s] - n, from
/// where `causal` and the window count. Sequences may share pages. Never read, so that they may hold anything: table
/// entries behind the last page with keys, the caches where no sequence has a key, and queries behind the last
/// sequence. Throws InputError for bounds, lengths and pages that do not exist.
void forward(const GoldArgs& args) {
  const SequenceBounds queries = queries_of(args);
  const Pages pages(args);
  const int64_t q_heads = args.in(kOfQ).shape[1];
  for_sequences(args, queries, pages.bounds(), [&](int64_t s, unsigned threads) {
    const int64_t first = queries[static_cast<size_t>(s)], n = length_of(queries, s);
    const Tensor q = as_entry(args.in(kOfQ), first, n), k = pages.entry(args.in(kOfKCache), s),
                 v = pages.entry(args.in(kOfVCache), s);
    const std::array<const Tensor*, 4> inputs{&q, &k, &v, nullptr};
    GoldArgs own = args;
    own.inputs = inputs, own.threads = threads;
    own.sink = [&](const GoldRows& rows) { emit_entry(args, rows, q_heads, first, n); };
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
  return {2.0 * kForwardProducts * static_cast<double>(q.shape[1] * q.shape[2]) *
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
std::vector<int64_t> shuffled_pages(const FillArgs& args) {
  std::vector<int64_t> order(static_cast<size_t>(args.dim("pages")));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> drawn;
  for (size_t page = 0; page < order.size(); ++page) drawn.push_back(args.uniform("pages", page));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return drawn[static_cast<size_t>(a)] < drawn[static_cast<size_t>(b)]; });
  return order;
}

/// What a table entry behind the last page with keys holds: no page, a page that does not exist, or an existing one,
/// which LeftOut::finite has alone.
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
  const std::vector<int64_t> order = shuffled_pages(args);
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

constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, forward, check_forward, work, &kPagedAttentionForward, nullptr, kRecipes}};

}  // namespace

extern const Operator kPagedAttention;
constexpr Operator kPagedAttention{"paged_attention",
                                   "reduction",
                                   "o = attention of every packed sequence over the keys in its own pages",
                                   "seqs",
                                   kWindowAttrs,
                                   kPasses,
                                   check_window_sizes,
                                   refine,
                                   /*parallel_dim=*/"",
                                   /*left_out=*/"pages and table entries without keys"};

}  // namespace checkop
