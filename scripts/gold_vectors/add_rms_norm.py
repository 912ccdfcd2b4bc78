# SPDX-License-Identifier: Apache-2.0
"""Vectors of add_rms_norm. Its sums are exact in every dtype; add_rms_norm_test.cpp has those that round."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector


def normalized(row, weight, eps):
    root = mp.sqrt(mp.fsum(x * x for x in row) / len(row) + eps)
    return [x * w / root for x, w in zip(row, weight)]


def gradient(row, weight, upstream, eps):
    """The quotient rule for x_h w_h/root, and the size of its terms."""
    hidden, root = len(row), mp.sqrt(mp.fsum(x * x for x in row) / len(row) + eps)
    products = [g * w * x for g, w, x in zip(upstream, weight, row)]
    total, size = mp.fsum(products), mp.fsum(abs(p) for p in products)
    values = [g * w / root - x * total / (hidden * root**3) for g, w, x in zip(upstream, weight, row)]
    scales = [abs(g * w) / root + abs(x) * size / (hidden * root**3) for g, w, x in zip(upstream, weight, row)]
    return values, scales


def add_rms_norm_vectors(name, x, residual, weight, of_y, of_sum, attrs):
    hidden, eps = len(weight), mpf(attrs["eps"])
    used = [w + mpf(attrs["weight_offset"]) for w in weight]
    dims = {"batch": 1, "seq": len(x), "hidden": hidden}
    inputs = {"x": flat(x), "residual": flat(residual), "weight": weight}
    sums = [[a + b for a, b in zip(*rows)] for rows in zip(x, residual)]
    y = flat([normalized(s, used, eps) for s in sums])
    yield vector(f"{name}/forward", "add_rms_norm", "forward", dims, inputs,
                 {"y": (y, [abs(v) for v in y]), "residual_out": (flat(sums), [mpf(0)] * len(y))}, attrs=attrs)

    dx, dx_scale = [], []
    dweight, dweight_scale = [mpf(0)] * hidden, [mpf(0)] * hidden
    for a, b, s, g, r in zip(x, residual, sums, of_y, of_sum):
        values, scales = gradient(s, used, g, eps)
        own = [v + upstream for v, upstream in zip(values, r)]
        for start in (a, b):  # x and residual have the same gradient
            other = b if start is a else a
            check_gradient(f"{name}/dx", lambda z: dot(g, normalized([p + q for p, q in zip(z, other)], used, eps)) +
                           dot(r, [p + q for p, q in zip(z, other)]), start, own)
        dx += own
        dx_scale += [scale + abs(upstream) for scale, upstream in zip(scales, r)]
        terms = [p * q for p, q in zip(g, normalized(s, [mpf(1)] * hidden, eps))]
        dweight = [d + t for d, t in zip(dweight, terms)]
        dweight_scale = [d + abs(t) for d, t in zip(dweight_scale, terms)]
    offset = mpf(attrs["weight_offset"])
    check_gradient(f"{name}/dweight", lambda w: mp.fsum(
        dot(g, normalized(s, [v + offset for v in w], eps)) for s, g in zip(sums, of_y)), weight, dweight)
    yield vector(f"{name}/backward", "add_rms_norm", "backward", dims,
                 {**inputs, "grad_y": flat(of_y), "grad_residual_out": flat(of_sum)},
                 {"dx": (dx, dx_scale), "dweight": (dweight, dweight_scale)}, attrs=attrs)


def vectors():
    usual = {"eps": 1e-6, "round_sum": 1, "weight_offset": 0}
    for hidden, attrs in ((1, usual), (7, usual), (65, {**usual, "round_sum": 0}),
                          (7, {"eps": 0.25, "round_sum": 1, "weight_offset": 1})):
        random = Stream(hidden + 300 + int(attrs["weight_offset"]))
        x, residual, of_y, of_sum = (rows_of(random.values(3 * hidden), hidden) for _ in range(4))
        residual[2] = [-v for v in x[2]]  # a row of zeros
        name = f"add_rms_norm_h{hidden}" + ("_offset" if attrs["weight_offset"] else "")
        yield from add_rms_norm_vectors(name, x, residual, random.values(hidden), of_y, of_sum, attrs)
