// SPDX-License-Identifier: Apache-2.0
// paged_attention / native: CPU; the keys and values of every sequence are copied from its pages and go through
// attention, as cpu/attention.hpp has it.
//   inputs: q, k_cache, v_cache, cu_seqlens_q, block_table, seq_lens, sinks     outputs: o, lse
//   q: [tokens_q, q_heads, D]   k_cache: [pages, page_size, kv_heads, D] fp32|bf16|fp16
//   o: [tokens_q, q_heads, E]   v_cache: [pages, page_size, kv_heads, E]
//   cu_seqlens_q: [seqs + 1], block_table: [seqs, max_pages], seq_lens: [seqs] int32   lse: [tokens_q, q_heads] fp32,
//   may be absent; sinks: [q_heads], may be absent. Table entries behind the pages with keys are not read. Rows behind
//   the last sequence become 0, in lse -inf.
//   Limits and expected error: those of attention of one sequence. A query's bits depend on its own keys alone: neither
//   on the pages that these lie in, nor on the queries of the same call.
#include "cpu/sequences.hpp"

namespace {

using native::Refusal;
using native::attention::bounds_of;
using native::attention::EntryTensor;
using native::attention::size;
using native::attention::Tokens;

std::string text(int64_t n) { return std::to_string(n); }

/// The pages of all sequences.
struct Cache {
  Cache(const checkop_call& c, int64_t sequences) : k(c.inputs[1]), v(c.inputs[2]) {
    check(k, "k_cache"), check(v, "v_cache");
    if (!std::equal(k.shape, k.shape + 3, v.shape) || v.dtype != k.dtype)
      throw Refusal(CHECKOP_FAILED, "v_cache: dtype or extents differ from those of k_cache");
    pages = k.shape[0], page_size = k.shape[1], heads = k.shape[2], width = k.shape[3], v_width = v.shape[3];
    const checkop_tensor &of_table = c.inputs[4], &of_lengths = c.inputs[5];
    native::Extent rows{"sequences", sequences}, columns{"max_pages"}, lengths{"sequences", sequences};
    if (of_table.rank != 2) throw Refusal(CHECKOP_FAILED, "block_table: expected rank 2");
    native::check_matrix(of_table, "block_table", CHECKOP_I32, rows, columns);
    native::check_list(of_lengths, "seq_lens", CHECKOP_I32, lengths);
    table = static_cast<const int32_t*>(of_table.data), seq_lens = static_cast<const int32_t*>(of_lengths.data);
    max_pages = columns.value;
  }

  /// The number of keys. Refuses one beyond the table, and pages of keys that do not exist.
  int64_t count(int64_t s) const {
    const int64_t n = seq_lens[s];
    if (n < 0 || n > max_pages * page_size)
      throw Refusal(CHECKOP_FAILED, "seq_lens[" + text(s) + "] = " + text(n) + " is below 0 or beyond the " +
                                        text(max_pages) + " pages of a sequence");
    for (int64_t j = 0; j < n; j += page_size)
      if (page(s, j) < 0 || page(s, j) >= pages)
        throw Refusal(CHECKOP_FAILED, "block_table[" + text(s) + ", " + text(j / page_size) +
                                          "] = " + text(page(s, j)) + " is none of the " + text(pages) + " pages");
    return n;
  }
  /// The first n keys, or values, of a sequence as one batch entry.
  EntryTensor entry(const checkop_tensor& cache, int64_t s, int64_t n) const {
    EntryTensor all(cache.dtype, heads, n, cache.shape[3]);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t head = 0; head < heads; ++head)
        all.take(head, j, cache, (page(s, j) * page_size + j % page_size) * heads + head);
    return all;
  }

  const checkop_tensor &k, &v;
  int64_t pages, page_size, heads, width, v_width, max_pages;

 private:
  static void check(const checkop_tensor& t, const char* name) {
    if (t.rank != 4) throw Refusal(CHECKOP_FAILED, std::string(name) + ": expected rank 4");
    native::Extent rows{"pages * page_size * kv_heads"}, columns{"head_dim"};
    native::check_matrix(t, name, t.dtype, rows, columns);
  }
  int64_t page(int64_t s, int64_t key) const { return table[s * max_pages + key / page_size]; }

  const int32_t *table, *seq_lens;
};

checkop_status forward(const checkop_call* call) {
  return native::run(call, [](const checkop_call& c) {
    native::check_counts(c, 7, 2);
    const Tokens q(c.inputs[0], "q"), to(c.outputs[0], "o");
    native::check_computed_dtype(q.tensor.dtype);
    const std::vector<int64_t> bounds = bounds_of(c.inputs[3], "cu_seqlens_q", q.count);
    const Cache cache(c, static_cast<int64_t>(bounds.size()) - 1);
    if (cache.k.dtype != q.tensor.dtype || cache.width != q.width)
      throw Refusal(CHECKOP_FAILED, "k_cache: dtype or head_dim differ from those of q");
    to.require_like(q, cache.v_width, "o");
    const checkop_tensor& lse = c.outputs[1];
    const bool has_lse = native::attention::check_of_queries(lse, "lse", q);
    for (size_t s = 0; s + 1 < bounds.size(); ++s) {
      const int64_t first = bounds[s], n = bounds[s + 1] - first, keys = cache.count(static_cast<int64_t>(s));
      if (n == 0) continue;
      EntryTensor of_q = q.entry(first, n), k = cache.entry(cache.k, static_cast<int64_t>(s), keys),
                  v = cache.entry(cache.v, static_cast<int64_t>(s), keys);
      EntryTensor o(q.tensor.dtype, q.heads, n, cache.v_width), of_lse;
      if (has_lse) of_lse = EntryTensor(CHECKOP_F32, q.heads, n, 1);
      native::attention::run_entry(c, native::attention::forward, {of_q.view(), k.view(), v.view(), {}, c.inputs[6]},
                                   {o.view(), of_lse.view_of_rows()});
      to.store(o, first, n);
      if (has_lse) of_lse.put_column(lse, first);
    }
    to.clear_from(bounds.back());
    if (has_lse) native::attention::clear_lse_from(bounds.back(), lse);
  });
}

constexpr checkop_kernel kKernels[] = {
    {sizeof(checkop_kernel), "native", "paged_attention", "forward", CHECKOP_CPU, 0, 0, nullptr, forward},
};
constexpr checkop_plugin kPlugin{CHECKOP_ABI_VERSION, std::size(kKernels), kKernels};

}  // namespace

CHECKOP_EXPORT const checkop_plugin* check_operator_plugin(void) { return &kPlugin; }
