# SPDX-License-Identifier: Apache-2.0
"""Vectors of moe_combine."""
from common import Stream, check_gradient, dot, flat, mpf, rows_of, vector


def moe_combine_vectors(name, batch, hidden, topk, rows, positions):
    tokens = len(positions) // topk
    random = Stream(tokens * 1000 + hidden * 10 + topk)
    x, weights = rows_of(random.values(rows * hidden), hidden), random.values(len(positions))
    upstream = rows_of(random.values(tokens * hidden), hidden)
    dims = {"batch": batch, "seq": tokens // batch, "hidden": hidden, "topk": topk, "rows": rows}
    inputs = {"x_perm": flat(x), "positions": positions, "weights": weights}
    pairs = [(slot // topk, slot, row) for slot, row in enumerate(positions) if row >= 0]

    def combined(x, weights):
        y = [[mpf(0)] * hidden for _ in range(tokens)]
        for token, slot, row in pairs:
            y[token] = [total + weights[slot] * v for total, v in zip(y[token], x[row])]
        return y

    def sizes(rows):
        return [[abs(v) for v in row] for row in rows]

    yield vector(f"{name}/forward", "moe_combine", "forward", dims, inputs,
                 {"y": (flat(combined(x, weights)), flat(combined(sizes(x), [abs(w) for w in weights])))})
    dx, dweights, scale = [[mpf(0)] * hidden for _ in range(rows)], [mpf(0)] * len(weights), [mpf(0)] * len(weights)
    for token, slot, row in pairs:
        dx[row] = [weights[slot] * g for g in upstream[token]]
        dweights[slot], scale[slot] = dot(upstream[token], x[row]), dot(sizes(upstream)[token], sizes(x)[row])

    def loss(x, weights):
        return dot(flat(upstream), flat(combined(x, weights)))

    check_gradient(f"{name}/dx_perm", lambda v: loss(rows_of(v, hidden), weights), flat(x), flat(dx))
    check_gradient(f"{name}/dweights", lambda w: loss(x, w), weights, dweights)
    yield vector(f"{name}/backward", "moe_combine", "backward", dims, {**inputs, "grad_y": flat(upstream)},
                 {"dx_perm": (flat(dx), flat(sizes(dx))), "dweights": (dweights, scale)})


def vectors():
    yield from moe_combine_vectors("moe_combine_one", 1, 1, 1, 1, [0])
    yield from moe_combine_vectors("moe_combine_nothing", 2, 3, 2, 5, [-1] * 4)
    yield from moe_combine_vectors("moe_combine_all", 2, 5, 3, 12, [7, 0, 11, 1, 4, 2, 9, 3, 10, 5, 6, 8])
    yield from moe_combine_vectors("moe_combine_some", 1, 7, 4, 20, [19, -1, 0, 6, -1, -1, -1, -1, 2, 3, -1, 1, -1, 9, 14, 8])
