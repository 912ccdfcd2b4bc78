# SPDX-License-Identifier: Apache-2.0
"""Vectors of paged_attention, scaled by 1/sqrt(head_dim): every query token looks its keys up in the table, one by one."""
from attention import weights_and_lse
from common import NEGATIVE_INFINITY, Stream, dot, flat, mp, mpf, rows_of, transformed, vector

DEFAULTS = {"causal": 1, "scale": -1, "window_left": -1, "window_right": -1, "softcap": 0}


class Cache:
    """Keys and values by page, position in the page and head."""

    def __init__(self, random, pages, page_size, heads, size, v_size):
        self.pages, self.page_size, self.heads, self.size = pages, page_size, heads, size
        self.k, self.v = (rows_of(random.values(pages * page_size * heads * width), width) for width in (size, v_size))

    def row(self, page, position, head):
        return (page * self.page_size + position) * self.heads + head


def seen_by(query, queries, keys, attrs):
    """The keys, counted from the sequence's first one, that a query of it sees."""
    own, right = keys - queries + query, 0 if attrs["causal"] else attrs["window_right"]
    return [j for j in range(keys) if (right < 0 or j - own <= right)
            and (attrs["window_left"] < 0 or own - j <= attrs["window_left"])]


def paged_vectors(name, q_heads, kv_heads, size, pages, page_size, sequences, rest=0, attrs=None, sinks=None,
                  v_size=None):
    """sequences: for each (number of queries, number of keys, table)."""
    attrs = {**DEFAULTS, **(attrs or {})}
    tokens = sum(queries for queries, _, _ in sequences) + rest
    random = Stream(q_heads + 10 * size + 100 * tokens + 1000 * pages + 10000 * page_size)
    q = rows_of(random.values(tokens * q_heads * size), size)
    of_v = size if v_size is None else v_size
    cache = Cache(random, pages, page_size, kv_heads, size, of_v)
    o, o_scale = ([[mpf(0)] * of_v for _ in q] for _ in range(2))
    lse, lse_scale = [NEGATIVE_INFINITY] * len(q), [mpf(0)] * len(q)
    first = 0
    for queries, keys, table in sequences:
        for i in range(queries):
            for head in range(q_heads):
                at, kv_head = (first + i) * q_heads + head, head // (q_heads // kv_heads)
                rows = [cache.row(table[j // page_size], j % page_size, kv_head)
                        for j in seen_by(i, queries, keys, attrs)]
                if not rows and sinks is None:
                    continue
                scores = [transformed(dot(q[at], cache.k[row]) / mp.sqrt(size), 1, mpf(attrs["softcap"])) for row in rows]
                sizes = [dot([abs(x) for x in q[at]], [abs(x) for x in cache.k[row]]) / mp.sqrt(size) for row in rows]
                p, _, lse[at] = weights_and_lse(scores, None if sinks is None else mpf(sinks[head]))
                factor = 1 + 2 * max(sizes, default=0)
                for d in range(of_v):
                    o[at][d] = mp.fsum(a * cache.v[row][d] for a, row in zip(p, rows))
                    o_scale[at][d] = factor * mp.fsum(a * abs(cache.v[row][d]) for a, row in zip(p, rows))
                lse_scale[at] = factor + abs(lse[at])
        first += queries
    widest = max((len(table) for _, _, table in sequences), default=1)
    dims = {"tokens_q": tokens, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": size, "pages": pages,
            "page_size": page_size, "seqs": len(sequences), "max_pages": widest}
    if v_size is not None:
        dims["v_dim"] = v_size
    bounds = [sum(queries for queries, _, _ in sequences[:s]) for s in range(len(sequences) + 1)]
    inputs = {"q": flat(q), "k_cache": flat(cache.k), "v_cache": flat(cache.v), "cu_seqlens_q": bounds,
              "block_table": flat(table for _, _, table in sequences), "seq_lens": [keys for _, keys, _ in sequences]}
    if sinks is not None:
        inputs["sinks"] = [mpf(x) for x in sinks]
    yield vector(f"{name}/forward", "paged_attention", "forward", dims, inputs,
                 {"o": (flat(o), flat(o_scale)), "lse": (lse, lse_scale)}, ["lse"] + ["sinks"] * (sinks is not None),
                 attrs)


def vectors():
    yield from paged_vectors("paged_attention_one", 1, 1, 1, 1, 1, [(1, 1, [0])])
    # A full last page, an entry behind it that is no page, a sequence without keys, one whose table is not read at all.
    yield from paged_vectors("paged_attention_decode", 4, 2, 3, 5, 2,
                             [(1, 4, [3, 1, -1]), (1, 5, [0, 4, 2]), (2, 0, [99, -7, 5]), (0, 0, [-1, -1, -1])], rest=1)
    # A shared first page, several new queries, and pages of one key.
    yield from paged_vectors("paged_attention_shared", 2, 1, 2, 4, 3, [(2, 5, [2, 0]), (3, 4, [2, 3])])
    yield from paged_vectors("paged_attention_single_keys", 1, 1, 2, 6, 1, [(2, 3, [5, 0, 4]), (1, 2, [1, 5, 9])])
    yield from paged_vectors("paged_attention_more_queries", 2, 2, 2, 2, 2, [(4, 3, [1, 0])])
    yield from paged_vectors("paged_attention_window", 2, 1, 2, 4, 2, [(2, 6, [3, 0, 2])],
                             attrs={"window_left": 1, "softcap": 2})
    yield from paged_vectors("paged_attention_full", 1, 1, 3, 3, 2, [(3, 4, [2, 1])], attrs={"causal": 0, "window_right": 1})
    yield from paged_vectors("paged_attention_sinks", 4, 2, 2, 5, 2, [(2, 5, [3, 0, 2]), (1, 0, [1, 1, 1])],
                             sinks=[0.5, -2, 3, 0])
    yield from paged_vectors("paged_attention_small_values", 4, 2, 3, 5, 2, [(1, 4, [3, 1, 0]), (2, 5, [0, 4, 2])], v_size=2)
    yield from paged_vectors("paged_attention_large_values", 2, 2, 2, 4, 3, [(2, 5, [2, 0])], v_size=5)
