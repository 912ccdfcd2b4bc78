# SPDX-License-Identifier: Apache-2.0
"""Vectors of linear_logp."""
from common import (IGNORE_INDEX, Stream, absolute, check_gradient, dot, flat, logit_gradients, logits_of, logp_forward, mp, mpf,
                    product, rows_of, slope, softmax, transformed, transposed, vector)


def linear_logp_vectors(tokens, hidden_size, vocab, with_bias, ignored=IGNORE_INDEX, ignored_tokens=(), carried=False,
                        temperature=mpf(1), softcap=mpf(0)):
    name = f"linear_logp_{tokens}x{hidden_size}x{vocab}" + ("_bias" if with_bias else "")
    name += f"_ignored_{ignored}" if ignored_tokens else ""
    name += f"_temperature_{float(temperature)}_softcap_{float(softcap)}" if temperature != 1 or softcap else ""
    random = Stream(tokens * 10000 + hidden_size * 100 + vocab + with_bias)
    hidden = rows_of(random.values(tokens * hidden_size), hidden_size)
    weight = rows_of(random.values(vocab * hidden_size, step=mpf(1) / 128), hidden_size)
    bias = random.values(vocab) if with_bias else [mpf(0)] * vocab
    ids, upstream = random.ids(tokens, vocab), random.values(tokens)
    for token in ignored_tokens:
        ids[token] = ignored
    attrs = {"ignore_index": ignored, "temperature": float(temperature), "softcap": float(softcap)}
    dims = {"batch": 1, "seq": tokens, "hidden": hidden_size, "vocab": vocab}
    inputs = {"hidden": flat(hidden), "lm_head_weight": flat(weight), "target_ids": ids}
    optionals = ["bias"] if with_bias else []
    if with_bias:
        inputs["bias"] = bias

    def changed(logits):
        return [[transformed(x, temperature, softcap) for x in row] for row in logits]

    raw = logits_of(hidden, weight, bias)
    logits = changed(raw)
    value, scale = logp_forward(logits, ids, ignored)
    # Each logit is itself a sum; its terms bound its FP64 rounding error.
    terms = [[x / temperature for x in row] for row in logits_of(absolute(hidden), absolute(weight), [abs(b) for b in bias])]
    scale = [s + 2 * max(row) if t != ignored else s for s, t, row in zip(scale, ids, terms)]
    yield vector(f"{name}/forward", "linear_logp", "forward", dims, inputs, {"logp": (value, scale)}, optionals, attrs)

    dlogits, dscale = logit_gradients(logits, ids, upstream, ignored)
    dscale = [[s + abs(g) * p * 2 * max(row) if t != ignored else s for s, p in zip(scales, softmax(z))]
              for scales, g, t, z, row in zip(dscale, upstream, ids, logits, terms)]
    slopes = [[slope(x, temperature, softcap) for x in row] for row in raw]
    dlogits, dscale = ([[d * s for d, s in zip(row, of_row)] for row, of_row in zip(values, slopes)] for values in (dlogits, dscale))
    dhidden, dhidden_scale = product(dlogits, weight), product(dscale, absolute(weight))
    dweight = product(transposed(dlogits), hidden)
    dweight_scale = product(transposed(dscale), absolute(hidden))
    dbias = [mp.fsum(column) for column in transposed(dlogits)]
    dbias_scale = [mp.fsum(column) for column in transposed(dscale)]

    def loss(h, w, b):
        logits = changed(logits_of(rows_of(h, hidden_size), rows_of(w, hidden_size), b))
        return dot(upstream, logp_forward(logits, ids, ignored)[0])

    h, w = flat(hidden), flat(weight)
    check_gradient(name + "/dhidden", lambda x: loss(x, w, bias), h, flat(dhidden))
    check_gradient(name + "/dlm_head_weight", lambda x: loss(h, x, bias), w, flat(dweight))
    check_gradient(name + "/dbias", lambda x: loss(h, w, x), bias, dbias)
    outputs = {"dhidden": (flat(dhidden), flat(dhidden_scale)), "dlm_head_weight": (flat(dweight), flat(dweight_scale))}
    if with_bias:
        outputs["dbias"] = (dbias, dbias_scale)
    inputs = {**inputs, "grad_logp": upstream}
    if carried:
        name += "_carried"
        for output in list(outputs)[1:]:
            carry = random.values(len(outputs[output][0]))
            inputs[output + "_carry"] = carry
            outputs[output] = tuple([a + f(b) for a, b in zip(values, carry)] for values, f in zip(outputs[output], (mpf, abs)))
            optionals = optionals + [output + "_carry"]
    yield vector(f"{name}/backward", "linear_logp", "backward", dims, inputs, outputs, optionals, attrs)


def vectors():
    for shape in ((1, 1, 1), (2, 3, 5), (5, 8, 17)):
        for with_bias in (False, True):
            yield from linear_logp_vectors(*shape, with_bias)
    yield from linear_logp_vectors(5, 8, 17, True, -100, (0, 3))
    yield from linear_logp_vectors(5, 8, 17, False, 4, (2,))
    for with_bias in (False, True):
        _, backward = linear_logp_vectors(5, 8, 17, with_bias, -100, (1,), carried=True)
        yield backward
    for with_bias, temperature, softcap in ((False, mpf("0.75"), mpf(0)), (True, mpf(1), mpf(2)), (True, mpf("1.25"), mpf(30))):
        yield from linear_logp_vectors(3, 8, 17, with_bias, -100, (1,), temperature=temperature, softcap=softcap)
