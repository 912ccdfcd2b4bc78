# SPDX-License-Identifier: Apache-2.0
"""Vectors of rope."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector

THETA = mpf(10) ** 6


def angles(positions, size):
    return [[position * THETA ** (-mpf(2 * i) / size) for i in range(size // 2)] for position in positions]


def turned(rows, turns, sign):
    """Rotates the pairs (i, i + D/2) of every row by sign*angle; row r is at position r modulo the length."""
    values = []
    for number, x in enumerate(rows):
        half, angle = len(x) // 2, turns[number % len(turns)]
        low = [x[i] * mp.cos(a) - sign * x[half + i] * mp.sin(a) for i, a in enumerate(angle)]
        high = [x[half + i] * mp.cos(a) + sign * x[i] * mp.sin(a) for i, a in enumerate(angle)]
        values.append(low + high)
    return values


def scales(rows, turns):
    """The FP64 error grows with the angle, because it comes from rounding the angle."""
    values = []
    for number, x in enumerate(rows):
        half, angle = len(x) // 2, turns[number % len(turns)]
        values.append([(abs(x[i]) + abs(x[half + i])) * (1 + a) for i, a in enumerate(angle)] * 2)
    return values


def rope_vectors(batch, heads, positions, size):
    seq = len(positions)
    name = f"rope_{batch}x{heads}x{seq}x{size}"
    random = Stream(batch * 1000 + heads * 100 + seq * 10 + size)
    rows = batch * heads * seq
    x, upstream = rows_of(random.values(rows * size), size), rows_of(random.values(rows * size), size)
    dims = {"batch": batch, "heads": heads, "seq": seq, "head_dim": size}
    turns = angles(positions, size)
    yield vector(f"{name}/forward", "rope", "forward", dims, {"x": flat(x), "positions": positions},
                 {"y": (flat(turned(x, turns, 1)), flat(scales(x, turns)))})
    gradient = flat(turned(upstream, turns, -1))
    check_gradient(name + "/dx", lambda v: dot(flat(upstream), flat(turned(rows_of(v, size), turns, 1))), flat(x),
                   gradient)
    yield vector(f"{name}/backward", "rope", "backward", dims, {"positions": positions, "grad_y": flat(upstream)},
                 {"dx": (gradient, flat(scales(upstream, turns)))})


def vectors():
    yield from rope_vectors(1, 1, [0], 2)
    yield from rope_vectors(2, 3, [0, 1, 2, 3], 6)
    yield from rope_vectors(1, 2, [5, 0, 4095, 131071, 131071], 8)
