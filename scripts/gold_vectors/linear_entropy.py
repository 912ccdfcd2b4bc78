# SPDX-License-Identifier: Apache-2.0
"""Vectors of linear_entropy."""
from mpmath import mp, mpf

from common import (Stream, absolute, check_gradient, flat, logits_of, product, rows_of, softmax, transformed, transposed, vector)
from entropy import entropy, gradient


def linear_entropy_vectors(name, shape, with_bias=False, mask=None, temperature=mpf(1), softcap=mpf(0)):
    tokens, hidden_size, vocab = shape
    random = Stream(tokens * 10000 + hidden_size * 100 + vocab + with_bias + 7)
    hidden = rows_of(random.values(tokens * hidden_size), hidden_size)
    weight = rows_of(random.values(vocab * hidden_size, step=mpf(1) / 128), hidden_size)
    bias = random.values(vocab) if with_bias else [mpf(0)] * vocab
    upstream, kept = random.values(tokens), mask or [1] * tokens
    dims = {"batch": 1, "seq": tokens, "hidden": hidden_size, "vocab": vocab}
    inputs = {"hidden": flat(hidden), "lm_head_weight": flat(weight), **({"bias": bias} if with_bias else {}),
              **({"mask": mask} if mask else {})}
    optionals = [each for each in ("bias", "mask") if each in inputs]
    attrs = {"temperature": float(temperature), "softcap": float(softcap)}

    def value(h, w, b):
        return [entropy(row, temperature, softcap) if keep else mpf(0) for row, keep in zip(logits_of(h, w, b), kept)]

    logits = logits_of(hidden, weight, bias)
    # Each logit is itself a sum; its terms bound its FP64 rounding error, which the distances from the mean amplify.
    terms = [max(row) / temperature for row in logits_of(absolute(hidden), absolute(weight), [abs(b) for b in bias])]
    values = value(hidden, weight, bias)
    scales = [(1 + v) * (1 + t) if keep else mpf(0) for v, t, keep in zip(values, terms, kept)]
    yield vector(f"{name}/forward", "linear_entropy", "forward", dims, inputs, {"entropy": (values, scales)}, optionals, attrs)

    dx, sizes = [], []
    for row, g, term, keep in zip(logits, upstream, terms, kept):
        of_row, size = gradient(row, g, temperature, softcap) if keep else ([mpf(0)] * vocab, [mpf(0)] * vocab)
        p = softmax([transformed(x, temperature, softcap) for x in row])
        dx.append(of_row)
        sizes.append([(s + abs(g) * q / temperature) * (1 + term) if keep else mpf(0) for s, q in zip(size, p)])
    dhidden, dhidden_scale = product(dx, weight), product(sizes, absolute(weight))
    dweight, dweight_scale = product(transposed(dx), hidden), product(transposed(sizes), absolute(hidden))
    dbias = [mp.fsum(column) for column in transposed(dx)]

    def loss(h, w, b):
        return mp.fsum(g * v for g, v in zip(upstream, value(rows_of(h, hidden_size), rows_of(w, hidden_size), b)))

    h, w = flat(hidden), flat(weight)
    check_gradient(name + "/dhidden", lambda x: loss(x, w, bias), h, flat(dhidden))
    check_gradient(name + "/dlm_head_weight", lambda x: loss(h, x, bias), w, flat(dweight))
    check_gradient(name + "/dbias", lambda x: loss(h, w, x), bias, dbias)
    outputs = {"dhidden": (flat(dhidden), flat(dhidden_scale)), "dlm_head_weight": (flat(dweight), flat(dweight_scale))}
    if with_bias:
        outputs["dbias"] = (dbias, [mp.fsum(column) for column in transposed(sizes)])
    yield vector(f"{name}/backward", "linear_entropy", "backward", dims, {**inputs, "grad_entropy": upstream}, outputs,
                 optionals, attrs)


def vectors():
    for shape in ((1, 1, 1), (2, 3, 5), (5, 8, 17)):
        for with_bias in (False, True):
            name = "linear_entropy_" + "x".join(str(n) for n in shape) + ("_bias" if with_bias else "")
            yield from linear_entropy_vectors(name, shape, with_bias)
    yield from linear_entropy_vectors("linear_entropy_masked", (5, 4, 7), True, mask=[1, 0, 2, 0, 1])
    yield from linear_entropy_vectors("linear_entropy_temperature", (3, 4, 7), temperature=mpf("0.75"))
    yield from linear_entropy_vectors("linear_entropy_softcap", (3, 4, 7), True, softcap=mpf(2))
    yield from linear_entropy_vectors("linear_entropy_both", (3, 4, 7), True, mask=[1, 1, 0], temperature=mpf("1.25"), softcap=mpf(30))
