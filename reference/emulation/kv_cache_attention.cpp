// SPDX-License-Identifier: Apache-2.0
// Emulates kv_cache_attention as kernels compute it: attention over one array, the cache followed by the new keys.
#include "emulation/attention.hpp"

namespace checkop {
namespace kv_cache_attention {
namespace {

using namespace emulation;

constexpr std::string_view kMask = "key_padding_mask", kNoMask = "-key_padding_mask";
constexpr FaultSpec kNewKeysFirst{"new_keys_first", "the new keys come before the cache", "accuracy", "", kNoMask};
/// The mask does not match the keys, so masked keys are read.
constexpr FaultSpec kMaskedNewKeysFirst{"masked_new_keys_first",
                                        "the new keys come before the cache, but the mask is in the original order",
                                        "nonfinite", "", kMask};
constexpr FaultSpec kNewKeysSkipped{"new_keys_skipped", "new keys are ignored"};
constexpr FaultSpec kCacheSkipped{"cache_skipped", "the cache is not seen"};
constexpr FaultSpec kCacheEndOverwritten{
    "cache_end_overwritten", "the first new key lies where the cache's last one was", "accuracy", "", kNoMask};
constexpr FaultSpec kCacheOfFirstEntry{"cache_of_first_entry", "every batch entry reads the cache of the first",
                                       "accuracy", "", kNoMask};
constexpr FaultSpec kKeyCacheAsValues{"key_cache_as_values", "the values of cached keys are read from k_cache"};
constexpr FaultSpec kNewGradientsNotOffset{"new_gradients_not_offset",
                                           "dk_new and dv_new are those of the first keys, not of the last"};

int64_t n_cached(const EmulationArgs& args) { return args.in(1).shape[2]; }
int64_t n_new(const EmulationArgs& args) { return args.in(3).shape[2]; }

/// Input `index` with this number of columns: zeros behind its own, or fewer.
Matrix with_columns(const EmulationArgs& args, int index, int64_t columns) {
  const Matrix given = factor(args, index);
  Matrix m = Matrix::zeros(given.rows(), columns);
  for (int64_t row = 0; row < m.rows(); ++row)
    std::copy_n(given.row(row), std::min(columns, given.columns), m.row(row));
  return m;
}

/// For every head, the rows of input `cache`, then those of input `fresh`.
Matrix together(const EmulationArgs& args, int cache, int fresh) {
  const Arithmetic& a = args.arithmetic;
  const Matrix second = factor(args, fresh), first = with_columns(args, cache, second.columns);
  const int64_t kv_heads = args.in(cache).shape[1], heads = args.in(cache).shape[0] * kv_heads;
  const int64_t cached = n_cached(args), added = n_new(args), width = first.columns;
  const bool swapped = a.has(kNewKeysFirst.name) || a.has(kMaskedNewKeysFirst.name);
  const int64_t cached_at = swapped ? added : 0;
  const int64_t added_at = swapped ? 0 : a.has(kCacheEndOverwritten.name) ? cached - 1 : cached;
  Matrix all = Matrix::zeros(heads * (cached + added), width);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t read = a.has(kCacheOfFirstEntry.name) ? head % kv_heads : head;
    float* to = all.row(head * (cached + added));
    std::copy_n(first.row(read * cached), cached * width, to + cached_at * width);
    std::copy_n(second.row(head * added), added * width, to + added_at * width);
  }
  return all;
}

AttentionProblem problem(const EmulationArgs& args) {
  const Arithmetic& a = args.arithmetic;
  const bool mistaken = a.has(kKeyCacheAsValues.name);
  AttentionProblem p = attention_problem(args, together(args, 1, 3), together(args, mistaken ? 1 : 2, 4), 5);
  const bool no_new = a.has(kNewKeysSkipped.name), no_cache = a.has(kCacheSkipped.name);
  for (size_t i = 0; i < p.keep.size() && (no_new || no_cache); ++i) {
    const bool is_new = static_cast<int64_t>(i) % p.kv_seq >= n_cached(args);
    if (is_new ? no_new : no_cache) p.keep[i] = 0;
  }
  return p;
}

/// Stores rows [first, first + n) of every head.
void store_part(const Matrix& all, int64_t kv_seq, int64_t first, int64_t n, std::vector<double>& to) {
  to.clear();
  for (int64_t row = first; row < all.rows(); row += kv_seq) to.insert(to.end(), all.row(row), all.row(row + n));
}

void forward(const EmulationArgs& args) { store(attention_output(args, problem(args)).o, args.out(0)); }

void backward(const EmulationArgs& args) {
  const AttentionProblem p = problem(args);
  const AttentionGradients gradients = attention_gradients(args, p, factor(args, 6));
  store(gradients.dq, args.out(0));
  const int64_t cached = n_cached(args), added = n_new(args);
  const int64_t new_from = args.arithmetic.has(kNewGradientsNotOffset.name) ? 0 : cached;
  store_part(gradients.dk, p.kv_seq, 0, cached, args.out(1));
  store_part(gradients.dv, p.kv_seq, 0, cached, args.out(2));
  store_part(gradients.dk, p.kv_seq, new_from, added, args.out(3));
  store_part(gradients.dv, p.kv_seq, new_from, added, args.out(4));
}

constexpr std::array kCacheFaults{kNewKeysFirst,        kMaskedNewKeysFirst, kNewKeysSkipped,  kCacheSkipped,
                                  kCacheEndOverwritten, kCacheOfFirstEntry,  kKeyCacheAsValues};
constexpr std::array kForwardFaults = joined(kAttentionForwardFaults, kCacheFaults);
constexpr std::array kBackwardFaults =
    joined(joined(kForwardFaults, kAttentionGradientFaults), std::array{kNewGradientsNotOffset});

}  // namespace
}  // namespace kv_cache_attention

extern const Emulation kKvCacheAttentionForward, kKvCacheAttentionBackward;
const Emulation kKvCacheAttentionForward{kv_cache_attention::forward, kv_cache_attention::kForwardFaults};
const Emulation kKvCacheAttentionBackward{kv_cache_attention::backward, kv_cache_attention::kBackwardFaults};

}  // namespace checkop
