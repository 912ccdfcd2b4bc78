# SPDX-License-Identifier: Apache-2.0
"""Vectors of silu."""
from common import Stream, check_gradient, mp, mpf, vector


def silu(x):
    return x / (1 + mp.exp(-x))


def silu_vectors(name, x, upstream):
    dims = {"batch": 1, "seq": 1, "hidden": len(x)}
    y = [silu(v) for v in x]
    yield vector(f"{name}/forward", "silu", "forward", dims, {"x": x}, {"y": (y, [abs(v) for v in y])})
    # 1 - s = 1/(1 + e^x): no digits are lost for large x.
    dx, scale = [], []
    for v, g in zip(x, upstream):
        s, other = 1 / (1 + mp.exp(-v)), 1 / (1 + mp.exp(v))
        dx.append(g * s * (1 + v * other))
        scale.append(abs(g) * s * (1 + abs(v) * other))
    check_gradient(f"{name}/dx", lambda z: mp.fsum(g * silu(v) for g, v in zip(upstream, z)), x, dx)
    yield vector(f"{name}/backward", "silu", "backward", dims, {"x": x, "grad_y": upstream}, {"dx": (dx, scale)})


def vectors():
    for hidden in (1, 2, 7, 65):
        random = Stream(hidden)
        yield from silu_vectors(f"silu_h{hidden}", random.values(hidden), random.values(hidden))
    random = Stream(99)
    extreme = [mpf(0), mpf(80), mpf(-80), mpf(96), mpf(-96), mpf(9984), mpf(2) ** -12, -mpf(2) ** -12, mpf("-1.28125")]
    yield from silu_vectors("silu_extreme", extreme, random.values(9))
