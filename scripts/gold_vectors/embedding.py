# SPDX-License-Identifier: Apache-2.0
"""Vectors of embedding."""
from common import Stream, check_gradient, dot, flat, mpf, rows_of, vector


def embedding_vectors(name, table, ids, upstream):
    vocab, hidden = len(table), len(table[0])
    dims = {"batch": 1, "seq": len(ids), "vocab": vocab, "hidden": hidden}
    y = flat([table[i] for i in ids])
    yield vector(f"{name}/forward", "embedding", "forward", dims, {"token_ids": ids, "weight": flat(table)},
                 {"y": (y, [mpf(0)] * len(y))})
    value, scale = [mpf(0)] * (vocab * hidden), [mpf(0)] * (vocab * hidden)
    for token, i in enumerate(ids):
        for h in range(hidden):
            value[i * hidden + h] += upstream[token][h]
            scale[i * hidden + h] += abs(upstream[token][h])

    def loss(weight):
        rows = rows_of(weight, hidden)
        return dot(flat(upstream), flat([rows[i] for i in ids]))

    check_gradient(f"{name}/dweight", loss, flat(table), value)
    yield vector(f"{name}/backward", "embedding", "backward", dims, {"token_ids": ids, "grad_y": flat(upstream)},
                 {"dweight": (value, scale)})


def vectors():
    for vocab, hidden, tokens in ((1, 1, 1), (1, 3, 5), (7, 5, 4), (5, 7, 40)):
        random = Stream(vocab * 100 + hidden)
        yield from embedding_vectors(f"embedding_{vocab}x{hidden}_t{tokens}",
                                     rows_of(random.values(vocab * hidden), hidden), random.ids(tokens, vocab),
                                     rows_of(random.values(tokens * hidden), hidden))
