# SPDX-License-Identifier: Apache-2.0
"""Vectors of all_gather: copies, and the sums of all_reduce. Together the ranks have the whole message."""
from all_reduce import ORDERS, SIZES, copied, summed


def vectors():
    for leaves, numel in SIZES:
        yield copied("all_gather", "forward", leaves, numel, "x", "y")
        for order in ORDERS:
            yield summed("all_gather", "backward", order, leaves, numel, "grad_y", "dx")
