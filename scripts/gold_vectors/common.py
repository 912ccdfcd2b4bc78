# SPDX-License-Identifier: Apache-2.0
"""Shared by the vectors of all operators: exact inputs, mpmath formulas, the check of gradients, the JSON of a vector."""
import struct
import sys

import mpmath
from mpmath import mp, mpf

mp.dps = 50
NEGATIVE_INFINITY = mpf("-inf")
DIFFERENCE_LIMIT = mpf(10) ** -18  # between mp.diff at 50 digits and the formula
DIFFERENCES = 40                   # elements differentiated per tensor, evenly spread
IGNORE_INDEX = -100                # the operators' default


class Stream:
    """Small exact numbers from a 32-bit linear congruential generator (Knuth's MMIX-like constants, high bits used)."""

    def __init__(self, seed):
        self.state = (seed * 2654435761 + 1013904223) % 2**32

    def below(self, bound):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return (self.state >> 8) * bound >> 24

    def value(self, largest=127, step=mpf(1) / 32):
        return (self.below(2 * largest + 1) - largest) * step

    def values(self, count, **kind):
        return [self.value(**kind) for _ in range(count)]

    def ids(self, count, bound):
        return [self.below(bound) for _ in range(count)]


def to_double(x):
    """The double nearest to x as a JSON value; ids stay integers."""
    if isinstance(x, int):
        return x
    if mpmath.isinf(x):
        return "inf" if x > 0 else "-inf"
    return float(mpmath.nstr(x, 25))


def stored_exactly(x):
    """Whether bf16 and fp16 both hold the input x."""
    if mpmath.isinf(x):
        return True
    value = float(x)
    half = struct.unpack("<e", struct.pack("<e", value))[0]
    return mpf(value) == x and half == value and struct.pack("<f", value)[:2] == b"\0\0"


# --- definitions -----------------------------------------------------------------------------------------------------
def logsumexp(z):
    return mp.log(mp.fsum(mp.exp(v) for v in z))


def softmax(z):
    total = mp.fsum(mp.exp(v) for v in z)
    return [mp.exp(v) / total for v in z]


def transformed(x, temperature, softcap):
    """A logit after a soft cap, then a temperature."""
    return (softcap * mp.tanh(x / softcap) if softcap else x) / temperature


def slope(x, temperature, softcap):
    """Its derivative."""
    return (mp.sech(x / softcap) ** 2 if softcap else mpf(1)) / temperature


def logp_forward(rows, ids, ignored=IGNORE_INDEX):
    values, scales = [], []
    for z, t in zip(rows, ids):
        if t == ignored:
            values.append(mpf(0))
            scales.append(mpf(0))
            continue
        y = z[t] - logsumexp(z)
        values.append(y)
        # logp is the sum of the distance to the row's largest logit and the logarithm of the sum.
        scales.append(mpf(0) if mpmath.isinf(y) else max(1, abs(y)))
    return values, scales


def logit_gradients(rows, ids, upstream, ignored=IGNORE_INDEX):
    """d(sum_i g_i*logp_i)/dz per row, and |g|*(1[v = t] + p) as scale."""
    values, scales = [], []
    for z, t, g in zip(rows, ids, upstream):
        if t == ignored:
            values.append([mpf(0)] * len(z))
            scales.append([mpf(0)] * len(z))
            continue
        p = softmax(z)
        # 1 - p_t is computed as the sum of the other probabilities, so that it stays exact near p_t = 1.
        others = mp.fsum(q for v, q in enumerate(p) if v != t)
        values.append([g * others if v == t else -g * q for v, q in enumerate(p)])
        scales.append([abs(g) * ((v == t) + q) for v, q in enumerate(p)])
    return values, scales


def logits_of(hidden, weight, bias):
    return [[mp.fsum(h * w for h, w in zip(row, column)) + b for column, b in zip(weight, bias)] for row in hidden]


def dot(a, b):
    return mp.fsum(x * y for x, y in zip(a, b))


def absolute(rows):
    return [[abs(x) for x in row] for row in rows]


def product(a, b):
    """a[m, k] * b[k, n]"""
    columns = list(zip(*b))
    return [[dot(row, column) for column in columns] for row in a]


def transposed(a):
    return [list(column) for column in zip(*a)]


def flat(rows):
    return [x for row in rows for x in row]


def rows_of(values, columns):
    return [values[i:i + columns] for i in range(0, len(values), columns)]


def check_gradient(name, function, at, gradient):
    """Compares `gradient` with differences of function(list) -> number at evenly spread finite elements of `at`."""
    if mpmath.isinf(function(at)):
        return  # infinity has no differences; the other rows check the same formula
    stride = max(1, len(at) // DIFFERENCES)
    for i in range(0, len(at), stride):
        if mpmath.isinf(at[i]):
            continue
        numeric = mp.diff(lambda x: function(at[:i] + [x] + at[i + 1:]), at[i])
        if not abs(numeric - gradient[i]) <= DIFFERENCE_LIMIT * max(1, abs(gradient[i])):
            sys.exit(f"gold_vectors: {name}[{i}]: the formula gives {gradient[i]}, differences give {numeric}")


def vector(name, op, direction, dims, inputs, outputs, optionals=(), attrs=None):
    for tensor, values in inputs.items():
        if not all(isinstance(x, int) for x in values) and not all(stored_exactly(x) for x in values):
            sys.exit(f"gold_vectors: {name}: input {tensor} has values that bf16 or fp16 would round")
    with_attrs = {} if attrs is None else {"attrs": attrs}
    return {
        "name": name, "op": op, "pass": direction, "dims": dims, "optionals": list(optionals),
        "inputs": {tensor: [to_double(x) for x in values] for tensor, values in inputs.items()},
        "outputs": {tensor: {"value": [to_double(x) for x in value], "scale": [to_double(x) for x in scale]}
                    for tensor, (value, scale) in outputs.items()},
        **with_attrs,
    }
