# SPDX-License-Identifier: Apache-2.0
"""Vectors of lm_head."""
from common import (Stream, absolute, check_gradient, dot, flat, logits_of, mp, mpf, product, rows_of, transposed,
                    vector)


def lm_head_vectors(tokens, hidden_size, vocab, with_bias):
    name = f"lm_head_{tokens}x{hidden_size}x{vocab}" + ("_bias" if with_bias else "")
    random = Stream(tokens * 20000 + hidden_size * 200 + vocab * 2 + with_bias)
    hidden = rows_of(random.values(tokens * hidden_size), hidden_size)
    weight = rows_of(random.values(vocab * hidden_size), hidden_size)
    bias = random.values(vocab) if with_bias else [mpf(0)] * vocab
    upstream = rows_of(random.values(tokens * vocab), vocab)
    dims = {"batch": 1, "seq": tokens, "hidden": hidden_size, "vocab": vocab}
    inputs = {"hidden": flat(hidden), "weight": flat(weight)}
    optionals = ["bias"] if with_bias else []
    if with_bias:
        inputs["bias"] = bias

    terms = logits_of(absolute(hidden), absolute(weight), [abs(b) for b in bias])
    yield vector(f"{name}/forward", "lm_head", "forward", dims, inputs,
                 {"logits": (flat(logits_of(hidden, weight, bias)), flat(terms))}, optionals)

    def both(x, y):
        return flat(product(x, y)), flat(product(absolute(x), absolute(y)))

    outputs = {"dhidden": both(upstream, weight), "dweight": both(transposed(upstream), hidden)}
    columns = transposed(upstream)
    dbias = [mp.fsum(column) for column in columns]

    def loss(h, w, b):
        return dot(flat(upstream), flat(logits_of(rows_of(h, hidden_size), rows_of(w, hidden_size), b)))

    h, w = flat(hidden), flat(weight)
    check_gradient(name + "/dhidden", lambda x: loss(x, w, bias), h, outputs["dhidden"][0])
    check_gradient(name + "/dweight", lambda x: loss(h, x, bias), w, outputs["dweight"][0])
    check_gradient(name + "/dbias", lambda x: loss(h, w, x), bias, dbias)
    if with_bias:
        outputs["dbias"] = (dbias, [mp.fsum(abs(x) for x in column) for column in columns])
    yield vector(f"{name}/backward", "lm_head", "backward", dims, {**inputs, "grad_logits": flat(upstream)}, outputs,
                 optionals)


def vectors():
    for shape in ((1, 1, 1), (2, 7, 3), (4, 9, 13)):
        for with_bias in (False, True):
            yield from lm_head_vectors(*shape, with_bias)
