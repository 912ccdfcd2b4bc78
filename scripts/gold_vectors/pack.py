# SPDX-License-Identifier: Apache-2.0
"""Vectors of pack: masks that keep nothing, everything, only the ends; a 2 in the mask keeps a row like a 1."""
from common import Stream, check_gradient, dot, flat, mpf, rows_of, vector


def packed_rows(rows, mask, hidden):
    kept = [row for row, m in zip(rows, mask) if m]
    return kept + [[mpf(0)] * hidden] * (len(mask) - len(kept))


def pack_vectors(name, batch, hidden, mask):
    seq, zeros = len(mask) // batch, [mpf(0)] * (len(mask) * hidden)
    random = Stream(len(mask) * 100 + hidden)
    x, upstream = (rows_of(random.values(len(mask) * hidden), hidden) for _ in range(2))
    dims = {"batch": batch, "seq": seq, "hidden": hidden}
    ends = [sum(m > 0 for m in mask[:b * seq]) for b in range(batch + 1)]
    yield vector(f"{name}/forward", "pack", "forward", dims, {"x": flat(x), "mask": mask},
                 {"packed": (flat(packed_rows(x, mask, hidden)), zeros), "cu_seqlens": (ends, [0] * len(ends))})

    dx = []
    for row, m in enumerate(mask):
        dx += upstream[sum(k > 0 for k in mask[:row])] if m else [mpf(0)] * hidden

    def loss(values):
        return dot(flat(upstream), flat(packed_rows(rows_of(values, hidden), mask, hidden)))

    check_gradient(f"{name}/dx", loss, flat(x), dx)
    yield vector(f"{name}/backward", "pack", "backward", dims, {"mask": mask, "grad_packed": flat(upstream)},
                 {"dx": (dx, zeros)})


def vectors():
    for name, batch, hidden, mask in (
            ("pack_one_row", 1, 1, [1]),
            ("pack_nothing_kept", 2, 3, [0] * 6),
            ("pack_all_kept", 2, 3, [1, 2, 1, 1, 1, 2]),
            ("pack_ends_alone", 3, 2, [1, 0, 0, 0, 0, 0, 0, 0, 1]),
            ("pack_an_empty_sequence", 4, 5, [0, 2, 1, 0, 0, 0, 2, 2, 2, 0, 0, 1])):
        yield from pack_vectors(name, batch, hidden, mask)
