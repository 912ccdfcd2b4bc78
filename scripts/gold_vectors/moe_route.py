# SPDX-License-Identifier: Apache-2.0
"""Vectors of moe_route: three kinds of scores, groups, a bias, equal scores."""
from common import Stream, check_gradient, dot, flat, logsumexp, mp, mpf, rows_of, vector

DEFAULTS = {"score": 0, "n_group": 1, "topk_group": 1, "group_top": 2, "renorm": 1, "norm_eps": 0, "route_scale": 1}


def score_of(z, attrs):
    if attrs["score"] == 0:
        return [mp.exp(x - logsumexp(z)) for x in z]
    return [1 / (1 + mp.exp(-x)) for x in z] if attrs["score"] == 1 else list(z)


def chosen(z, bias, topk, attrs):
    biased = [s + b for s, b in zip(score_of(z, attrs), bias)]
    size = len(z) // attrs["n_group"]
    groups = [range(g * size, (g + 1) * size) for g in range(attrs["n_group"])]

    def of_group(group):
        return sum(sorted((biased[e] for e in group), reverse=True)[:attrs["group_top"]])

    open_ = sorted(groups, key=lambda g: (-of_group(g), g[0]))[:attrs["topk_group"]] if len(groups) > 1 else groups
    return sorted((e for g in open_ for e in g), key=lambda e: (-biased[e], e))[:topk]


def weights_of(z, ids, attrs):
    if attrs["score"] == 2:
        of_ids = [z[e] for e in ids]
        return [attrs["route_scale"] * mp.exp(x - logsumexp(of_ids)) for x in of_ids]
    s = score_of(z, attrs)
    total = sum(s[e] for e in ids) + attrs["norm_eps"] if attrs["renorm"] else 1
    return [attrs["route_scale"] * s[e] / total for e in ids]


def gradients(z, ids, g, attrs):
    """By the quotient rule, with the derivatives of each score by each logit; and the size of the terms."""
    n, c, eps = len(z), attrs["route_scale"], attrs["norm_eps"]
    if attrs["score"] == 2:
        p = [w / c for w in weights_of(z, ids, attrs)]
        value, scale = [mpf(0)] * n, [mpf(0)] * n
        for j, f in enumerate(ids):
            terms = [c * g[i] * p[i] * ((i == j) - p[j]) for i in range(len(ids))]
            value[f], scale[f] = mp.fsum(terms), mp.fsum(abs(t) for t in terms)
        return value, scale
    s = score_of(z, attrs)
    total = sum(s[e] for e in ids) + eps
    value, scale = [mpf(0)] * n, [mpf(0)] * n
    for v in range(n):
        for i, e in enumerate(ids):
            def slope(e):  # ds_e/dz_v
                return s[e] * ((e == v) - s[v]) if attrs["score"] == 0 else (e == v) * s[e] * (1 - s[e])
            if attrs["renorm"]:
                terms = [slope(e) / total, -s[e] / total ** 2 * sum(slope(f) for f in ids)]
            else:
                terms = [slope(e)]
            value[v] += c * g[i] * mp.fsum(terms)
            scale[v] += abs(c * g[i]) * mp.fsum(abs(t) for t in terms)
            if attrs["renorm"]:
                scale[v] += abs(c * g[i]) * s[e] / total * s[v] / total
    return value, scale


def moe_route_vectors(name, tokens, experts, topk, biased=False, step=1, **given):
    attrs = {**DEFAULTS, **given}
    random = Stream(tokens * 1000 + experts * 10 + topk + len(name))
    z = [[mpf(random.below(127 // step) - 63 // step) * step / 32 for _ in range(experts)] for _ in range(tokens)]
    bias = random.values(experts) if biased else [mpf(0)] * experts
    g = rows_of(random.values(tokens * topk), topk)
    dims = {"batch": 1, "seq": tokens, "experts": experts, "topk": topk}
    optionals = ["bias"] if biased else []
    numbers = {key: float(value) for key, value in attrs.items()}
    inputs = {"logits": flat(z), **({"bias": bias} if biased else {})}
    ids = [chosen(row, bias, topk, attrs) for row in z]
    counts = [sum(row.count(e) for row in ids) for e in range(experts)]
    weights = flat([weights_of(row, own, attrs) for row, own in zip(z, ids)])
    yield vector(f"{name}/forward", "moe_route", "forward", dims, inputs,
                 {"ids": (flat(ids), [0] * len(flat(ids))), "weights": (weights, [abs(w) * 4 for w in weights]),
                  "counts": (counts, [0] * experts)}, optionals, numbers)
    value, scale = [], []
    for t in range(tokens):
        own_value, own_scale = gradients(z[t], ids[t], g[t], attrs)
        check_gradient(f"{name}/dlogits", lambda row: dot(g[t], weights_of(row, ids[t], attrs)), z[t], own_value)
        value += own_value
        scale += own_scale
    yield vector(f"{name}/backward", "moe_route", "backward", dims, {**inputs, "ids": flat(ids), "grad_weights": flat(g)},
                 {"dlogits": (value, scale)}, optionals, numbers)


def vectors():
    yield from moe_route_vectors("moe_route_one", 2, 1, 1)
    for score in range(3):
        yield from moe_route_vectors(f"moe_route_{score}", 3, 9, 3, score=score, route_scale=mpf(5) / 2)
        yield from moe_route_vectors(f"moe_route_{score}_equal", 3, 8, 3, step=32, score=score)
        yield from moe_route_vectors(f"moe_route_{score}_bias", 2, 7, 2, biased=True, score=score, renorm=0)
    yield from moe_route_vectors("moe_route_groups", 4, 12, 3, biased=True, score=1, n_group=4, topk_group=2,
                                 norm_eps=mpf(1) / 4)
    yield from moe_route_vectors("moe_route_all", 2, 5, 5)
