// SPDX-License-Identifier: Apache-2.0
// Emulates paged_attention as kernels compute it: attention of one sequence after the other, whose keys are gathered
// from its pages.
#include <algorithm>
#include <array>

#include "emulation/sequences.hpp"

namespace checkop {
namespace paged_attention {
namespace {

using namespace emulation;

// Faults in the use of the table.
constexpr FaultSpec kTableOfNext{"table_of_next_sequence", "a sequence reads the table of the next one", "nonfinite"};
constexpr FaultSpec kTableIgnored{"table_ignored", "the pages of all sequences are taken to lie in order", "nonfinite"};
constexpr FaultSpec kStaleEntry{"stale_entry", "the last page of a sequence is another one, as before it was given",
                                "nonfinite"};
constexpr FaultSpec kPageOffsetDropped{"page_offset_dropped", "every key is the first one of its page"};
constexpr FaultSpec kPageOffsetWraps{
    "page_offset_wraps", "where a page begins is counted in too few bits: here modulo 256 keys", "nonfinite"};
constexpr FaultSpec kPageSizeDoubled{"page_size_doubled", "pages are taken to hold twice as many keys", "nonfinite"};
constexpr FaultSpec kHeadsBeforeSlots{"heads_before_slots", "a page is read as [kv_heads, page_size]"};
constexpr FaultSpec kValuesOfFirstSequence{"values_by_first_table",
                                           "values are read by the table of the first sequence", "nonfinite"};
// Faults in the number of keys.
constexpr FaultSpec kFullPageDropped{"full_page_dropped", "a last page that is full counts as empty"};
constexpr FaultSpec kBegunPageDropped{"begun_page_dropped", "keys in a last page that is not full are not seen"};
constexpr FaultSpec kOnePageMore{"one_page_more", "the entry behind the last page is read, too", "nonfinite"};
constexpr FaultSpec kWholePageRead{"whole_page_read", "the last page is taken to be full", "nonfinite"};
constexpr FaultSpec kRestMultiplied{
    "rest_multiplied", "what follows the keys in their last page is multiplied by a probability of 0", "nonfinite"};
constexpr FaultSpec kOwnKeysUncounted{"own_keys_uncounted", "the keys of a sequence's own queries are not seen"};
constexpr FaultSpec kNoKeysDivided{"no_keys_divided", "a query without keys divides by its sum of 0", "nonfinite"};
// Faults in the outputs.
constexpr FaultSpec kOneQueryAlone{"one_query_alone", "of several queries of a sequence the last alone is computed"};

enum Input : int { kOfQ, kOfKCache, kOfVCache, kOfQBounds, kOfTable, kOfLengths, kOfSinks };

/// The caches and tables as the emulated kernel reads them.
class Pages {
 public:
  explicit Pages(const EmulationArgs& args)
      : a_(args.arithmetic),
        pages_(args.in(kOfKCache).shape[0]),
        page_size_(args.in(kOfKCache).shape[1]),
        heads_(args.in(kOfKCache).shape[2]),
        max_pages_(args.in(kOfTable).shape[1]),
        table_(args.integers(kOfTable)),
        lengths_(args.integers(kOfLengths)) {}

  int64_t own_keys(int64_t s) const { return lengths_[static_cast<size_t>(s)]; }
  /// The number of keys that the kernel takes sequence `s` to have.
  int64_t keys(int64_t s, int64_t queries) const {
    const int64_t own = own_keys(s), full = own / page_size_ * page_size_, most = max_pages_ * page_size_;
    const int64_t begun = (own + page_size_ - 1) / page_size_ * page_size_;
    if (a_.has(kFullPageDropped.name) && own == full && own > 0) return own - page_size_;
    if (a_.has(kBegunPageDropped.name)) return full;
    if (a_.has(kWholePageRead.name)) return begun;
    if (a_.has(kOnePageMore.name) && own > 0) return std::min(most, begun + page_size_);
    if (a_.has(kOwnKeysUncounted.name)) return std::max<int64_t>(0, own - queries);
    return own;
  }
  /// Slots behind the keys in their last page.
  int64_t rest(int64_t s) const { return (page_size_ - own_keys(s) % page_size_) % page_size_; }

  /// Keys [begin, begin + n) of every head of a cache, or values, of sequence `s`.
  Matrix gathered(const Matrix& cache, int64_t s, int64_t begin, int64_t n, bool of_values) const {
    Matrix moved = Matrix::zeros(heads_ * n, cache.columns);
    for (int64_t head = 0; head < heads_; ++head)
      for (int64_t j = 0; j < n; ++j)
        std::copy_n(cache.row(row_of(s, begin + j, head, of_values)), cache.columns, moved.row(head * n + j));
    return moved;
  }

 private:
  /// The row of the cache, seen as [pages*page_size*kv_heads, head_dim]. A page that does not exist is the nearest one.
  int64_t row_of(int64_t s, int64_t j, int64_t head, bool of_values) const {
    const int64_t size = a_.has(kPageSizeDoubled.name) ? 2 * page_size_ : page_size_;
    const int64_t slot = a_.has(kPageOffsetDropped.name) ? 0 : j % size;
    const int64_t page = page_of(s, j / size, of_values);
    if (a_.has(kHeadsBeforeSlots.name)) return (page * heads_ + head) * page_size_ + slot;
    constexpr int64_t kCounted = 256;
    const int64_t begin = a_.has(kPageOffsetWraps.name) ? page * page_size_ % kCounted : page * page_size_;
    return std::min(begin + slot, pages_ * page_size_ - 1) * heads_ + head;
  }
  int64_t page_of(int64_t s, int64_t entry, bool of_values) const {
    const int64_t sequences = std::ssize(lengths_);
    if (a_.has(kTableIgnored.name)) return (s * max_pages_ + entry) % pages_;
    if (a_.has(kTableOfNext.name)) s = (s + 1) % sequences;
    if (a_.has(kValuesOfFirstSequence.name) && of_values) s = 0;
    const int64_t page = std::clamp<int64_t>(table_[static_cast<size_t>(s * max_pages_ + entry)], 0, pages_ - 1);
    const bool is_last = (entry + 1) * page_size_ >= own_keys(s);
    return a_.has(kStaleEntry.name) && is_last ? (page + 1) % pages_ : page;
  }

  const Arithmetic& a_;
  const int64_t pages_, page_size_, heads_, max_pages_;
  const std::vector<int64_t> table_, lengths_;
};

/// Adds 0 times every row of `values`, which every key head has as many of, to the outputs [heads * n, head_dim].
void multiply_rest(const Matrix& values, int64_t kv_heads, Matrix& o) {
  for (int64_t row = 0; row < o.rows(); ++row) {
    const int64_t n = values.rows() / kv_heads, kv_head = row * kv_heads / o.rows();
    for (int64_t j = 0; j < n; ++j)
      for (int64_t d = 0; d < o.columns; ++d) o.row(row)[d] += 0 * values.row(kv_head * n + j)[d];
  }
}

/// Overwrites rows of an output of `of_token` elements a token, as some faults do.
void spoil(const EmulationArgs& args, const Pages& pages, int64_t of_token, std::vector<double>& to) {
  const Arithmetic& a = args.arithmetic;
  const std::vector<int64_t> bounds = args.integers(kOfQBounds);
  for (int64_t s = 0; s + 1 < std::ssize(bounds); ++s) {
    const int64_t first = bounds[static_cast<size_t>(s)], n = bounds[static_cast<size_t>(s) + 1] - first;
    if (a.has(kNoKeysDivided.name)) {
      const int64_t unseen = args.attrs[0] != 0 || pages.own_keys(s) == 0 ? n - pages.own_keys(s) : 0;
      std::fill_n(to.begin() + first * of_token, std::max<int64_t>(0, unseen) * of_token, NAN);
    }
    if (a.has(kOneQueryAlone.name) && n > 1)
      for (int64_t i = 0; i < n - 1; ++i)
        std::copy_n(to.begin() + (first + n - 1) * of_token, of_token, to.begin() + (first + i) * of_token);
    spill_tile(a, of_token, first, n, bounds.back(), to);
  }
  store_rest(a, kRestStale, bounds.back(), args.in(kOfQ).shape[0], to);
}

void forward(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const Matrix q = factor(args, kOfQ), k = factor(args, kOfKCache), v = factor(args, kOfVCache);
  const int64_t q_heads = args.in(kOfQ).shape[1], kv_heads = args.in(kOfKCache).shape[2];
  const Pages pages(args);
  const std::vector<int64_t> bounds = args.integers(kOfQBounds);
  std::vector<double>& all_lse = args.out(1);
  std::fill(all_lse.begin(), all_lse.end(), lse_without_keys(a));
  const int64_t sequences = std::ssize(bounds) - (a.has(kLastSequenceSkipped.name) ? 2 : 1);
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t first = bounds[static_cast<size_t>(s)], n = bounds[static_cast<size_t>(s) + 1] - first;
    const int64_t keys = pages.keys(s, n);
    const AttentionProblem problem =
        sequence_problem(args, kOfSinks, q_heads, kv_heads, heads_first(q, q_heads, first, n),
                         pages.gathered(k, s, 0, keys, false), pages.gathered(v, s, 0, keys, true));
    AttentionOutput own = attention_output(of_sequence(args, n, keys), problem);
    if (a.has(kRestMultiplied.name)) multiply_rest(pages.gathered(v, s, keys, pages.rest(s), true), kv_heads, own.o);
    const int64_t stored = stored_queries(a, bounds, n);
    store_heads(own.o, q_heads, n, first, stored, args.out(0));
    if (!all_lse.empty()) store_lse(a, std::move(own.lse), q_heads, n, first, stored, all_lse);
  }
  spoil(args, pages, q_heads * v.columns, args.out(0));
  if (!all_lse.empty()) spoil(args, pages, q_heads, all_lse);
  store_by_head(a, q_heads, all_lse);
}

constexpr std::array kPageFaults{kTableOfNext,        kTableIgnored,     kStaleEntry,       kPageOffsetDropped,
                                 kPageOffsetWraps,    kPageSizeDoubled,  kHeadsBeforeSlots, kValuesOfFirstSequence,
                                 kFullPageDropped,    kBegunPageDropped, kOnePageMore,      kWholePageRead,
                                 kRestMultiplied,     kOwnKeysUncounted, kNoKeysDivided,    kOneQueryAlone,
                                 kCausalOffsetIgnored};
constexpr std::array kPackFaults{kLastSequenceSkipped, kTileSpills, kLongQueriesLost, kRestStale};
constexpr std::array kForwardFaults =
    joined(joined(joined(joined(kSequenceFaults, kPageFaults), joined(kPackFaults, kPackedLseFaults)),
                  joined(kWindowFaults, kCapFaults)),
           kPackedSinkForwardFaults);

}  // namespace
}  // namespace paged_attention

extern const Emulation kPagedAttentionForward;
const Emulation kPagedAttentionForward{paged_attention::forward, paged_attention::kForwardFaults};

}  // namespace checkop
