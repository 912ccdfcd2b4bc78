# SPDX-License-Identifier: Apache-2.0
"""Vectors of swiglu."""
from common import Stream, check_gradient, mp, mpf, vector


def silu(x):
    return x / (1 + mp.exp(-x))


def slope(x):
    """d silu/dx = s + x s (1 - s), with 1 - s computed as 1 / (1 + e^x) so that it stays exact."""
    s, other = 1 / (1 + mp.exp(-x)), 1 / (1 + mp.exp(x))
    return s + x * s * other, s + abs(x) * s * other


def swiglu_vectors(name, gate, up, upstream):
    dims = {"batch": 1, "seq": 1, "hidden": len(gate)}
    inputs = {"gate": gate, "up": up}
    y = [silu(a) * b for a, b in zip(gate, up)]
    yield vector(f"{name}/forward", "swiglu", "forward", dims, inputs, {"y": (y, [abs(v) for v in y])})
    slopes = [slope(x) for x in gate]
    dgate = [g * b * s for g, b, (s, _) in zip(upstream, up, slopes)]
    dgate_scale = [abs(g * b) * s for g, b, (_, s) in zip(upstream, up, slopes)]
    dup = [g * silu(a) for g, a in zip(upstream, gate)]

    def loss(a, b):
        return mp.fsum(g * silu(x) * z for g, x, z in zip(upstream, a, b))

    check_gradient(f"{name}/dgate", lambda x: loss(x, up), gate, dgate)
    check_gradient(f"{name}/dup", lambda x: loss(gate, x), up, dup)
    yield vector(f"{name}/backward", "swiglu", "backward", dims, {**inputs, "grad_y": upstream},
                 {"dgate": (dgate, dgate_scale), "dup": (dup, [abs(v) for v in dup])})


def vectors():
    for hidden in (1, 2, 7, 65):
        random = Stream(hidden)
        yield from swiglu_vectors(f"swiglu_h{hidden}", *(random.values(hidden) for _ in range(3)))
    random = Stream(99)
    extreme = [mpf(0), mpf(80), mpf(-80), mpf(96), mpf(-96), mpf(9984), mpf(2) ** -12, -mpf(2) ** -12, mpf("-1.28125")]
    yield from swiglu_vectors("swiglu_extreme", extreme, random.values(9), random.values(9))
