# SPDX-License-Identifier: Apache-2.0
"""Vectors of all_reduce; and what reduce_scatter and all_gather share with it."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector

ORDERS = (-1, 0, 1)
SIZES = [(1, 3), (2, 5), (5, 7), (8, 17)]  # leaves, numel


def leaves_of(leaves, numel, seed):
    """Leaves whose sums bf16 holds, so that no order rounds: multiples of 1/4 from -3.75 to 3.75."""
    return rows_of(Stream(seed + 100 * leaves + numel).values(leaves * numel, largest=15, step=mpf(1) / 4), numel)


def sums(rows):
    return [mp.fsum(column) for column in zip(*rows)]


def sizes_of(rows):
    return sums([[abs(v) for v in row] for row in rows])


def summed(op, direction, order, leaves, numel, tensor, output, seed=0):
    """A pass that adds up leaves."""
    rows = leaves_of(leaves, numel, seed)
    return vector(f"{op}_{leaves}x{numel}_order{order}/{direction}", op, direction,
                  {"leaves": leaves, "numel": numel, "world_size": min(leaves, 3)}, {tensor: flat(rows)},
                  {output: (sums(rows), sizes_of(rows))}, attrs={"order": order})


def copied(op, direction, leaves, numel, tensor, output):
    """A pass that copies a message."""
    values = Stream(numel).values(numel)
    return vector(f"{op}_{leaves}x{numel}/{direction}", op, direction,
                  {"leaves": leaves, "numel": numel, "world_size": min(leaves, 3)}, {tensor: values},
                  {output: (values, [mpf(0)] * numel)}, attrs={"order": 0})


def vectors():
    for leaves, numel in SIZES:
        for order in ORDERS:
            yield summed("all_reduce", "forward", order, leaves, numel, "x", "y")
            yield summed("all_reduce", "backward", order, leaves, numel, "grad_y", "dx", seed=7)
        # The gradient of every leaf is the sum of all upstream gradients.
        x, upstream = leaves_of(leaves, numel, 0), leaves_of(leaves, numel, 7)

        def loss(v):
            y = sums(rows_of(v, numel))
            return mp.fsum(dot(row, y) for row in upstream)

        check_gradient(f"all_reduce_{leaves}x{numel}/dx", loss, flat(x), sums(upstream) * leaves)
