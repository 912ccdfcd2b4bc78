# SPDX-License-Identifier: Apache-2.0
"""Vectors of moe_permute: experts without slots, one expert, gaps between experts, slots and tokens without an expert."""
from common import Stream, check_gradient, dot, flat, mpf, rows_of, vector


def places(ids, topk, experts, align):
    """The slots in the order of their rows, None in gaps, and where each expert begins."""
    rows, offsets = [], [0]
    for expert in range(experts):
        rows += sorted((slot for slot, i in enumerate(ids) if i == expert), key=lambda slot: divmod(slot, topk))
        rows += [None] * (-len(rows) % align)
        offsets.append(len(rows))
    return rows, offsets


def moe_permute_vectors(name, batch, hidden, topk, experts, rows, align, ids):
    tokens = len(ids) // topk
    random = Stream(tokens * 1000 + hidden * 10 + experts)
    x, upstream = rows_of(random.values(tokens * hidden), hidden), rows_of(random.values(rows * hidden), hidden)
    dims = {"batch": batch, "seq": tokens // batch, "hidden": hidden, "topk": topk, "experts": experts, "rows": rows}
    attrs = {"align": align}
    slots, offsets = places(ids, topk, experts, align)
    slots += [None] * (rows - len(slots))
    positions = [slots.index(slot) if slot in slots else -1 for slot in range(len(ids))]

    def permuted(x):
        return [[mpf(0)] * hidden if slot is None else x[slot // topk] for slot in slots]

    def exact(values):
        return values, [0] * len(values)

    yield vector(f"{name}/forward", "moe_permute", "forward", dims, {"x": flat(x), "ids": ids},
                 {"x_perm": exact(flat(permuted(x))), "src": exact([-1 if s is None else s for s in slots]),
                  "positions": exact(positions), "offsets": exact(offsets)}, attrs=attrs)

    dx, scale = [mpf(0)] * (tokens * hidden), [mpf(0)] * (tokens * hidden)
    for row, slot in enumerate(slots):
        for h in range(0 if slot is None else hidden):
            dx[slot // topk * hidden + h] += upstream[row][h]
            scale[slot // topk * hidden + h] += abs(upstream[row][h])

    def loss(values):
        return dot(flat(upstream), flat(permuted(rows_of(values, hidden))))

    check_gradient(f"{name}/dx", loss, flat(x), dx)
    yield vector(f"{name}/backward", "moe_permute", "backward", dims,
                 {"positions": positions, "grad_x_perm": flat(upstream)}, {"dx": (dx, scale)}, attrs=attrs)


def vectors():
    yield from moe_permute_vectors("moe_permute_one", 1, 1, 1, 1, 1, 1, [0])
    yield from moe_permute_vectors("moe_permute_one_expert", 2, 3, 1, 1, 6, 1, [0] * 4)
    yield from moe_permute_vectors("moe_permute_none", 1, 2, 2, 3, 4, 2, [-1] * 4)
    yield from moe_permute_vectors("moe_permute_empty_experts", 1, 4, 2, 7, 10, 1, [5, 1, 1, 3, 3, 5, 5, 1, 1, 5])
    yield from moe_permute_vectors("moe_permute_gaps", 3, 5, 3, 5, 40, 4,
                                   [4, 0, 2, -1, 2, 0, 2, 4, -1, -1, -1, -1, 0, 2, 3, 3, 4, 2])
