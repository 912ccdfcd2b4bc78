# SPDX-License-Identifier: Apache-2.0
"""Vectors of logp."""
from common import (IGNORE_INDEX, NEGATIVE_INFINITY, Stream, check_gradient, flat, logit_gradients, logp_forward, logsumexp, mpf,
                    slope, transformed, vector)


def logp_vectors(name, rows, ids, upstream, ignored=IGNORE_INDEX, temperature=mpf(1), softcap=mpf(0)):
    vocab = len(rows[0])
    dims = {"batch": 1, "seq": len(rows), "vocab": vocab}
    inputs = {"logits": flat(rows), "token_ids": ids}
    attrs = {"ignore_index": ignored, "temperature": float(temperature), "softcap": float(softcap)}

    def changed(row):
        return [transformed(x, temperature, softcap) for x in row]

    yield vector(f"{name}/forward", "logp", "forward", dims, inputs,
                 {"logp": logp_forward([changed(row) for row in rows], ids, ignored)}, attrs=attrs)
    gradients, scales = logit_gradients([changed(row) for row in rows], ids, upstream, ignored)
    slopes = [[slope(x, temperature, softcap) for x in row] for row in rows]
    gradients, scales = ([[d * s for d, s in zip(row, of_row)] for row, of_row in zip(values, slopes)]
                         for values in (gradients, scales))
    for x, t, g, row in zip(rows, ids, upstream, gradients):
        check_gradient(name + "/dlogits", lambda x: 0 if t == ignored else g * (changed(x)[t] - logsumexp(changed(x))), x, row)
    yield vector(f"{name}/backward", "logp", "backward", dims, {**inputs, "grad_logp": upstream},
                 {"dlogits": (flat(gradients), flat(scales))}, attrs=attrs)


def vectors():
    for vocab in (1, 2, 7, 129):
        random = Stream(vocab)
        rows = [random.values(vocab) for _ in range(3)]
        yield from logp_vectors(f"logp_v{vocab}", rows, random.ids(3, vocab), random.values(3))
    random = Stream(1000)
    equal = [[mpf("0.25")] * 7, [mpf(-80)] * 7, [mpf(9984)] * 7]
    yield from logp_vectors("logp_equal", equal, [0, 3, 6], [mpf(1), mpf("-0.5"), mpf(2)])
    for size in (80, 9984):  # 9984: the nearest to 1e4 that fits eight bits
        rows = [random.values(7) for _ in range(4)]
        rows[0][2] = mpf(size)                           # the target far above the rest
        rows[1][5] = mpf(size)                           # another logit far above the target
        rows[2] = [mpf(-size) if v != 4 else mpf(size) for v in range(7)]
        rows[3] = [mpf(size) if v % 2 else mpf(-size) for v in range(7)]
        yield from logp_vectors(f"logp_extreme_{size}", rows, [2, 0, 4, 1], random.values(4))
    masked = [[NEGATIVE_INFINITY] * 7 for _ in range(3)]
    masked[0][3] = mpf("1.5")                          # the only token, selected: probability one
    masked[1][3] = mpf("1.5")                          # the only token, another selected: logp is -inf
    masked[2][1], masked[2][6] = mpf(2), mpf("-0.75")  # two tokens left
    yield from logp_vectors("logp_masked", masked, [3, 0, 6], [mpf(1), mpf("0.5"), mpf(-2)])
    for ignored, ids in ((-100, [2, -100, 0, -100]), (0, [0, 6, 3, 0]), (7, [7, 7, 7, 7])):
        rows = [random.values(7) for _ in range(4)]
        yield from logp_vectors(f"logp_ignored_{ignored}", rows, ids, random.values(4), ignored)
    for case, temperature, softcap in (("temperature", mpf("0.75"), mpf(0)), ("softcap", mpf(1), mpf(2)),
                                       ("both", mpf("1.25"), mpf(30))):
        rows = [random.values(7) for _ in range(3)]
        yield from logp_vectors(f"logp_{case}", rows, [1, -100, 5], random.values(3), -100, temperature, softcap)
    yield from logp_vectors("logp_capped_infinity", [[NEGATIVE_INFINITY, mpf(1), mpf("0.5")]], [1], [mpf(1)], softcap=mpf(4))
