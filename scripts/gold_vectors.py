#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/gold_vectors.json: what the FP64 gold must give, computed with mpmath at 50 digits.

An independent source: formulas are written out here from the definitions, with no code shared with reference/, and each
gradient is checked against numerical differentiation of the forward formula before it is written. Every input has at
most eight significant bits and a small exponent, so that fp32, fp16 and bf16 store it exactly.
Numbers are the shortest decimals that give the double nearest to the exact value; infinities are strings. `scale` is
the size of the terms that an element is the sum of: rounding in FP64 may err by a few units of 1e-16 times that.
Usage: gold_vectors.py [FILE]
"""
import json
import os
import struct
import sys

import mpmath
from mpmath import mp, mpf

mp.dps = 50
NEGATIVE_INFINITY = mpf("-inf")
DIFFERENCE_LIMIT = mpf(10) ** -18  # of mp.diff at 50 digits against the formula
DIFFERENCES = 40                   # elements that are differentiated per tensor; spread evenly


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


def logp_forward(rows, ids):
    values, scales = [], []
    for z, t in zip(rows, ids):
        y = z[t] - logsumexp(z)
        values.append(y)
        # The distance to the row's largest logit and the logarithm of the sum are what is added.
        scales.append(mpf(0) if mpmath.isinf(y) else max(1, abs(y)))
    return values, scales


def logit_gradients(rows, ids, upstream):
    """d(sum_i g_i*logp_i)/dz per row, and |g|*(1[v = t] + p) as scale."""
    values, scales = [], []
    for z, t, g in zip(rows, ids, upstream):
        p = softmax(z)
        # 1 - p_t as the sum of the others, which is how the exact value stays exact near p_t = 1.
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


# --- vectors ---------------------------------------------------------------------------------------------------------
def check_gradient(name, function, at, gradient):
    """Compares `gradient` with differences of function(list) -> number at evenly spread finite elements of `at`."""
    if mpmath.isinf(function(at)):
        return  # no differences of infinity; the same formula is checked in the other rows
    stride = max(1, len(at) // DIFFERENCES)
    for i in range(0, len(at), stride):
        if mpmath.isinf(at[i]):
            continue
        numeric = mp.diff(lambda x: function(at[:i] + [x] + at[i + 1:]), at[i])
        if not abs(numeric - gradient[i]) <= DIFFERENCE_LIMIT * max(1, abs(gradient[i])):
            sys.exit(f"gold_vectors.py: {name}[{i}]: the formula gives {gradient[i]}, differences give {numeric}")


def vector(name, op, direction, dims, inputs, outputs, optionals=()):
    for tensor, values in inputs.items():
        if not tensor.endswith("ids") and not all(stored_exactly(x) for x in values):
            sys.exit(f"gold_vectors.py: {name}: input {tensor} has values that bf16 or fp16 would round")
    return {
        "name": name, "op": op, "pass": direction, "dims": dims, "optionals": list(optionals),
        "inputs": {tensor: [to_double(x) for x in values] for tensor, values in inputs.items()},
        "outputs": {tensor: {"value": [to_double(x) for x in value], "scale": [to_double(x) for x in scale]}
                    for tensor, (value, scale) in outputs.items()},
    }


def logp_vectors(name, rows, ids, upstream):
    vocab = len(rows[0])
    dims = {"batch": 1, "seq": len(rows), "vocab": vocab}
    inputs = {"logits": flat(rows), "token_ids": ids}
    yield vector(f"{name}/forward", "logp", "forward", dims, inputs, {"logp": logp_forward(rows, ids)})
    gradients, scales = logit_gradients(rows, ids, upstream)
    for z, t, g, row in zip(rows, ids, upstream, gradients):
        check_gradient(name + "/dlogits", lambda x: g * (x[t] - logsumexp(x)), z, row)
    yield vector(f"{name}/backward", "logp", "backward", dims, {**inputs, "grad_logp": upstream},
                 {"dlogits": (flat(gradients), flat(scales))})


def all_logp_vectors():
    for vocab in (1, 2, 7, 129):
        random = Stream(vocab)
        rows = [random.values(vocab) for _ in range(3)]
        yield from logp_vectors(f"logp_v{vocab}", rows, random.ids(3, vocab), random.values(3))
    random = Stream(1000)
    equal = [[mpf("0.25")] * 7, [mpf(-80)] * 7, [mpf(9984)] * 7]
    yield from logp_vectors("logp_equal", equal, [0, 3, 6], [mpf(1), mpf("-0.5"), mpf(2)])
    for size in (80, 9984):  # 9984: the number of eight bits that is nearest to 1e4
        rows = [random.values(7) for _ in range(4)]
        rows[0][2] = mpf(size)                           # the target far above the rest
        rows[1][5] = mpf(size)                           # another far above the target
        rows[2] = [mpf(-size) if v != 4 else mpf(size) for v in range(7)]
        rows[3] = [mpf(size) if v % 2 else mpf(-size) for v in range(7)]
        yield from logp_vectors(f"logp_extreme_{size}", rows, [2, 0, 4, 1], random.values(4))
    masked = [[NEGATIVE_INFINITY] * 7 for _ in range(3)]
    masked[0][3] = mpf("1.5")                          # the only token, selected: probability one
    masked[1][3] = mpf("1.5")                          # the only token, another selected: logp is -inf
    masked[2][1], masked[2][6] = mpf(2), mpf("-0.75")  # two tokens left
    yield from logp_vectors("logp_masked", masked, [3, 0, 6], [mpf(1), mpf("0.5"), mpf(-2)])


def linear_logp_vectors(tokens, hidden_size, vocab, with_bias):
    name = f"linear_logp_{tokens}x{hidden_size}x{vocab}" + ("_bias" if with_bias else "")
    random = Stream(tokens * 10000 + hidden_size * 100 + vocab + with_bias)
    hidden = rows_of(random.values(tokens * hidden_size), hidden_size)
    weight = rows_of(random.values(vocab * hidden_size, step=mpf(1) / 128), hidden_size)
    bias = random.values(vocab) if with_bias else [mpf(0)] * vocab
    ids, upstream = random.ids(tokens, vocab), random.values(tokens)
    dims = {"batch": 1, "seq": tokens, "hidden": hidden_size, "vocab": vocab}
    inputs = {"hidden": flat(hidden), "lm_head_weight": flat(weight), "target_ids": ids}
    optionals = ["bias"] if with_bias else []
    if with_bias:
        inputs["bias"] = bias

    logits = logits_of(hidden, weight, bias)
    value, scale = logp_forward(logits, ids)
    # Each logit is itself a sum; its terms bound what FP64 loses in it.
    terms = logits_of(absolute(hidden), absolute(weight), [abs(b) for b in bias])
    scale = [s + 2 * max(row) for s, row in zip(scale, terms)]
    yield vector(f"{name}/forward", "linear_logp", "forward", dims, inputs, {"logp": (value, scale)}, optionals)

    dlogits, dscale = logit_gradients(logits, ids, upstream)
    dscale = [[s + abs(g) * p * 2 * max(row) for s, p in zip(scales, softmax(z))]
              for scales, g, z, row in zip(dscale, upstream, logits, terms)]
    dhidden, dhidden_scale = product(dlogits, weight), product(dscale, absolute(weight))
    dweight = product(transposed(dlogits), hidden)
    dweight_scale = product(transposed(dscale), absolute(hidden))
    dbias = [mp.fsum(column) for column in transposed(dlogits)]
    dbias_scale = [mp.fsum(column) for column in transposed(dscale)]

    def loss(h, w, b):
        return dot(upstream, logp_forward(logits_of(rows_of(h, hidden_size), rows_of(w, hidden_size), b), ids)[0])

    h, w = flat(hidden), flat(weight)
    check_gradient(name + "/dhidden", lambda x: loss(x, w, bias), h, flat(dhidden))
    check_gradient(name + "/dlm_head_weight", lambda x: loss(h, x, bias), w, flat(dweight))
    check_gradient(name + "/dbias", lambda x: loss(h, w, x), bias, dbias)
    outputs = {"dhidden": (flat(dhidden), flat(dhidden_scale)), "dlm_head_weight": (flat(dweight), flat(dweight_scale))}
    if with_bias:
        outputs["dbias"] = (dbias, dbias_scale)
    yield vector(f"{name}/backward", "linear_logp", "backward", dims, {**inputs, "grad_logp": upstream}, outputs,
                 optionals)


def matmul_vectors(rows, inner, columns):
    name = f"matmul_{rows}x{inner}x{columns}"
    random = Stream(rows * 10000 + inner * 100 + columns)
    a, b = rows_of(random.values(rows * inner), inner), rows_of(random.values(inner * columns), columns)
    upstream = rows_of(random.values(rows * columns), columns)
    dims = {"batch": 1, "seq": rows, "k_dim": inner, "n_dim": columns}
    inputs = {"a": flat(a), "b": flat(b)}

    def both(x, y):
        return flat(product(x, y)), flat(product(absolute(x), absolute(y)))

    yield vector(f"{name}/forward", "matmul", "forward", dims, inputs, {"c": both(a, b)})
    outputs = {"da": both(upstream, transposed(b)), "db": both(transposed(a), upstream)}

    def loss(x, y):
        return dot(flat(upstream), flat(product(rows_of(x, inner), rows_of(y, columns))))

    check_gradient(name + "/da", lambda x: loss(x, flat(b)), flat(a), outputs["da"][0])
    check_gradient(name + "/db", lambda x: loss(flat(a), x), flat(b), outputs["db"][0])
    yield vector(f"{name}/backward", "matmul", "backward", dims, {**inputs, "grad_c": flat(upstream)}, outputs)


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "tests", "data", "gold_vectors.json")
    vectors = list(all_logp_vectors())
    for shape in ((1, 1, 1), (2, 3, 5), (5, 8, 17)):
        for with_bias in (False, True):
            vectors += linear_logp_vectors(*shape, with_bias)
    for shape in ((1, 1, 1), (1, 7, 3), (4, 33, 6)):
        vectors += matmul_vectors(*shape)
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"format": "check_operator/gold_vectors-1", "made_by": "scripts/gold_vectors.py", "vectors": [\n')
        file.write(",\n".join(json.dumps(v, sort_keys=True, separators=(",", ":")) for v in vectors))
        file.write("\n]}\n")
    print(f"{path}: {len(vectors)} vectors, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
