# SPDX-License-Identifier: Apache-2.0
"""Vectors of logp."""
from common import (IGNORE_INDEX, NEGATIVE_INFINITY, Stream, check_gradient, flat, logit_gradients, logp_forward, logsumexp, mp, mpf,
                    slope, transformed, vector)


def logp_vectors(name, rows, ids, upstream, ignored=IGNORE_INDEX, temperature=mpf(1), softcap=mpf(0)):
    vocab = len(rows[0])
    dims = {"batch": 1, "seq": len(rows), "vocab": vocab}
    inputs = {"logits": flat(rows), "token_ids": ids}
    attrs = {"ignore_index": ignored, "temperature": float(temperature), "softcap": float(softcap), "top_k": 0, "top_p": 1.0,
             "keep_target": 0}

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


def kept(z, target, top_k, top_p, keep_target):
    """Columns that stay, from the definitions: a column stays if fewer than top_k come before it, and if those before it
    among the top_k have less than top_p of their probability."""
    before = [[v for v, y in enumerate(z) if y > x or (y == x and v < column)] for column, x in enumerate(z)]
    of_k = [v for v in range(len(z)) if not top_k or len(before[v]) < top_k]
    total = mp.fsum(mp.exp(z[v]) for v in of_k)
    of_p = [v for v in of_k if mp.fsum(mp.exp(z[w]) for w in before[v]) < top_p * total]
    return sorted(set(of_p) | ({target} if keep_target else set()))


def truncated_vectors(name, rows, ids, upstream, top_k, top_p, keep_target=0, temperature=mpf(1)):
    """Truncated to the columns that stay, a row is a row of fewer logits."""
    vocab = len(rows[0])
    dims = {"batch": 1, "seq": len(rows), "vocab": vocab}
    inputs = {"logits": flat(rows), "token_ids": ids}
    attrs = {"ignore_index": IGNORE_INDEX, "temperature": float(temperature), "softcap": 0.0, "top_k": top_k, "top_p": float(top_p),
             "keep_target": keep_target}
    values, scales, gradients, sizes = [], [], [], []
    for row, t, g in zip(rows, ids, upstream):
        z = [x / temperature for x in row]
        columns = kept(z, t, top_k, top_p, keep_target)
        own, size = [mpf(0)] * vocab, [mpf(0)] * vocab
        if t in columns:
            few, place = [z[v] for v in columns], columns.index(t)
            value, scale = logp_forward([few], [place])
            of_few, of_sizes = logit_gradients([few], [place], [g])
            for v, d, s in zip(columns, of_few[0], of_sizes[0]):
                own[v], size[v] = d / temperature, s / temperature
            check_gradient(name + "/dlogits", lambda x: g * (x[t] / temperature - logsumexp([x[v] / temperature for v in columns])),
                           row, own)
        else:
            value, scale = [NEGATIVE_INFINITY], [mpf(0)]
        values, scales, gradients, sizes = values + value, scales + scale, gradients + own, sizes + size
    yield vector(f"{name}/forward", "logp", "forward", dims, inputs, {"logp": (values, scales)}, attrs=attrs)
    yield vector(f"{name}/backward", "logp", "backward", dims, {**inputs, "grad_logp": upstream}, {"dlogits": (gradients, sizes)},
                 attrs=attrs)


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
    rows = [random.values(9) for _ in range(3)] + [[mpf(1), mpf(2), mpf(1), mpf(0), mpf(1), mpf(1), mpf(-1), mpf(2), mpf(0)]]
    for ids in ([0, 4, 8, 2], [5, 1, 3, 5]):  # of the last row, 2 is in the set of four, and 5, as large, is not
        case = f"logp_truncated_{ids[0]}"
        yield from truncated_vectors(f"{case}/top_k", rows, ids, random.values(4), 4, 1)
        yield from truncated_vectors(f"{case}/top_p", rows, ids, random.values(4), 0, mpf("0.75"), temperature=mpf(2))
        yield from truncated_vectors(f"{case}/both", rows, ids, random.values(4), 5, mpf("0.625"))
        yield from truncated_vectors(f"{case}/kept", rows, ids, random.values(4), 3, mpf("0.5"), 1, mpf("0.75"))
