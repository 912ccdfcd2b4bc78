# SPDX-License-Identifier: Apache-2.0
"""Vectors of whiten."""
from common import Stream, mp, mpf, vector


def whiten_vectors(name, batch, mask=None, seq=None, values=None, shift=1, unbiased=1, eps=mpf(1) / 4):
    seq = seq if mask is None else len(mask) // batch
    x = values or Stream(batch * 100 + seq).values(batch * seq)
    kept = [v for v, m in zip(x, mask or [1] * len(x)) if m]
    n = len(kept)
    y, scale = [mpf(0)] * len(x), [mpf(0)] * len(x)
    if n > 1:
        mean = mp.fsum(kept) / n
        # The variance as the mean distance of pairs, not from the mean.
        variance = mp.fsum((a - b) ** 2 for a in kept for b in kept) / (2 * n * n)
        if unbiased:
            variance *= mpf(n) / (n - 1)
        s = mp.sqrt(variance + eps)
        for i, v in enumerate(x):
            if mask is None or mask[i]:
                y[i] = (v - mean) / s + (0 if shift else mean)
                scale[i] = (abs(v) + mp.fsum(abs(k) for k in kept) / n) * (1 / s + 1)
    yield vector(f"{name}/forward", "whiten", "forward", {"batch": batch, "seq": seq},
                 {"x": x, **({"mask": mask} if mask else {})}, {"y": (y, scale)}, ["mask"] if mask else [],
                 {"shift": shift, "unbiased": unbiased, "eps": float(eps)})


def vectors():
    yield from whiten_vectors("whiten_one", 1, seq=1)
    yield from whiten_vectors("whiten_one_kept", 1, [0, 1, 0])
    yield from whiten_vectors("whiten_nothing", 2, [0] * 4)
    yield from whiten_vectors("whiten_all", 3, seq=5)
    yield from whiten_vectors("whiten_some", 2, [1, 0, 0, 1, 2, 1, 0, 1, 1, 1], unbiased=0)
    yield from whiten_vectors("whiten_not_shifted", 2, [1, 1, 0, 1, 1, 1], shift=0)
    yield from whiten_vectors("whiten_equal", 2, seq=3, values=[mpf(3) / 4] * 6)
