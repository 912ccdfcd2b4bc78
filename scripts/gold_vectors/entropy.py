# SPDX-License-Identifier: Apache-2.0
"""Vectors of entropy."""
import mpmath
from mpmath import mp, mpf

from common import NEGATIVE_INFINITY, Stream, check_gradient, flat, slope, softmax, transformed, vector


def entropy(row, temperature, softcap):
    """-sum p log p, from the definition; log p as a difference of logits, so that it stays exact near p = 1."""
    z = [transformed(x, temperature, softcap) for x in row]
    top = max(z)
    log_sum = mp.log(mp.fsum(mp.exp(v - top) for v in z))
    terms = [p * (log_sum + top - v) for p, v in zip(softmax(z), z) if not mpmath.isinf(v)]
    return mp.fsum(terms)


def gradient(row, g, temperature, softcap):
    """g p (mean - z) dz/dx, and the size of its parts as scale."""
    z = [transformed(x, temperature, softcap) for x in row]
    top, p = max(z), softmax(z)
    below = [mpf(0) if mpmath.isinf(v) else top - v for v in z]  # of -inf p is 0
    mean = mp.fsum(q * b for q, b in zip(p, below))
    slopes = [slope(x, temperature, softcap) for x in row]
    return ([g * q * (b - mean) * s for q, b, s in zip(p, below, slopes)],
            [abs(g) * q * (b + mean) * s for q, b, s in zip(p, below, slopes)])


def entropy_vectors(name, rows, upstream, temperature=mpf(1), softcap=mpf(0), mask=None):
    vocab = len(rows[0])
    dims = {"batch": 1, "seq": len(rows), "vocab": vocab}
    kept = mask or [1] * len(rows)
    inputs = {"logits": flat(rows), **({"mask": mask} if mask else {})}
    attrs = {"temperature": float(temperature), "softcap": float(softcap)}
    optionals = ["mask"] if mask else []
    values = [entropy(row, temperature, softcap) if keep else mpf(0) for row, keep in zip(rows, kept)]
    scales = [max(1, value) if keep else mpf(0) for value, keep in zip(values, kept)]
    yield vector(f"{name}/forward", "entropy", "forward", dims, inputs, {"entropy": (values, scales)}, optionals, attrs)
    gradients, sizes = [], []
    for row, g, keep in zip(rows, upstream, kept):
        value, size = gradient(row, g, temperature, softcap) if keep else ([mpf(0)] * vocab, [mpf(0)] * vocab)
        gradients.append(value)
        sizes.append(size)
        if keep:
            check_gradient(name + "/dlogits", lambda x: g * entropy(x, temperature, softcap), row, value)
    yield vector(f"{name}/backward", "entropy", "backward", dims, {**inputs, "grad_entropy": upstream},
                 {"dlogits": (flat(gradients), flat(sizes))}, optionals, attrs)


def vectors():
    for vocab in (1, 2, 7, 129):
        random = Stream(vocab + 40)
        rows = [random.values(vocab) for _ in range(3)]
        yield from entropy_vectors(f"entropy_v{vocab}", rows, random.values(3))
    random = Stream(2000)
    rows = [random.values(7) for _ in range(3)]
    yield from entropy_vectors("entropy_temperature", rows, random.values(3), temperature=mpf("0.75"))
    yield from entropy_vectors("entropy_softcap", rows, random.values(3), softcap=mpf(2))
    yield from entropy_vectors("entropy_both", rows, random.values(3), temperature=mpf("1.25"), softcap=mpf(30))
    yield from entropy_vectors("entropy_equal", [[mpf("0.25")] * 7, [mpf(-80)] * 7], [mpf(1), mpf("-0.5")])
    peaked = [random.values(7) for _ in range(2)]
    peaked[0][2], peaked[1][5] = mpf(80), mpf(-80)
    yield from entropy_vectors("entropy_peaked", peaked, random.values(2))
    lacking = [random.values(7) for _ in range(2)]
    lacking[0] = [NEGATIVE_INFINITY if v != 3 else mpf("1.5") for v in range(7)]  # one token: entropy 0
    lacking[1][1] = lacking[1][6] = NEGATIVE_INFINITY
    yield from entropy_vectors("entropy_minus_infinity", lacking, random.values(2))
    rows = [random.values(7) for _ in range(4)]
    yield from entropy_vectors("entropy_masked", rows, random.values(4), mask=[1, 0, 2, 0])
