# SPDX-License-Identifier: Apache-2.0
"""Vectors of reduce_scatter: the sums of all_reduce, and copies. Together the ranks have the whole message."""
from all_reduce import ORDERS, SIZES, copied, summed


def vectors():
    for leaves, numel in SIZES:
        for order in ORDERS:
            yield summed("reduce_scatter", "forward", order, leaves, numel, "x", "y")
        yield copied("reduce_scatter", "backward", leaves, numel, "grad_y", "dx")
