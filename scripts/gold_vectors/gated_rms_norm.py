# SPDX-License-Identifier: Apache-2.0
"""Vectors of gated_rms_norm."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector


def silu(x):
    return x / (1 + mp.exp(-x))


def silu_slope(x):
    """The derivative by the product rule: sigma + x sigma (1 - sigma), with 1 - sigma(x) = sigma(-x)."""
    return 1 / (1 + mp.exp(-x)) + x / ((1 + mp.exp(-x)) * (1 + mp.exp(x)))


def roots(row, size, eps):
    """The root mean square of the group of each column."""
    squares = [mp.fsum(x * x for x in row[i:i + size]) / size for i in range(0, len(row), size)]
    return [mp.sqrt(squares[h // size] + eps) for h in range(len(row))]


def gated(x, gate, weight, before, size, eps):
    if before:
        return [v * w * silu(g) / r for v, w, g, r in zip(x, weight, gate, roots(x, size, eps))]
    rows = [v * silu(g) for v, g in zip(x, gate)]
    return [v * w / r for v, w, r in zip(rows, weight, roots(rows, size, eps))]


def norm_gradient(row, products, size, eps):
    """d(sum_h products_h row_h/root) by row, and the size of its terms."""
    values, scales = [], []
    for start in range(0, len(row), size):
        part, factors = row[start:start + size], products[start:start + size]
        root = roots(part, size, eps)[0]
        total, most = dot(part, factors), mp.fsum(abs(p * f) for p, f in zip(part, factors))
        values += [f / root - p * total / (size * root**3) for p, f in zip(part, factors)]
        scales += [abs(f) / root + abs(p) * most / (size * root**3) for p, f in zip(part, factors)]
    return values, scales


def gradients(x, gate, weight, upstream, before, size, eps):
    """dx and dgate with their scales, and this row's terms of dweight."""
    if before:
        products = [g * w * silu(z) for g, w, z in zip(upstream, weight, gate)]
        dx, dx_scale = norm_gradient(x, products, size, eps)
        unit = [v / r for v, r in zip(x, roots(x, size, eps))]
        dgate = [g * u * w * silu_slope(z) for g, u, w, z in zip(upstream, unit, weight, gate)]
        terms = [g * u * silu(z) for g, u, z in zip(upstream, unit, gate)]
        return dx, dx_scale, dgate, [abs(v) for v in dgate], terms
    rows = [v * silu(z) for v, z in zip(x, gate)]
    ds, ds_scale = norm_gradient(rows, [g * w for g, w in zip(upstream, weight)], size, eps)
    return ([d * silu(z) for d, z in zip(ds, gate)], [d * abs(silu(z)) for d, z in zip(ds_scale, gate)],
            [d * v * silu_slope(z) for d, v, z in zip(ds, x, gate)],
            [d * abs(v) * (1 + abs(z)) for d, v, z in zip(ds_scale, x, gate)],
            [g * v / r for g, v, r in zip(upstream, rows, roots(rows, size, eps))])


def gated_rms_norm_vectors(name, hidden, attrs, seed):
    random = Stream(seed)
    x, gate, upstream = (rows_of(random.values(3 * hidden), hidden) for _ in range(3))
    weight = random.values(hidden)
    x[2][0] = gate[1][0] = mpf(0)
    options = attrs["norm_before_gate"], int(attrs["group_size"]) or hidden, mpf(attrs["eps"])
    dims = {"batch": 1, "seq": 3, "hidden": hidden}
    inputs = {"x": flat(x), "gate": flat(gate), "weight": weight}
    y = flat([gated(a, b, weight, *options) for a, b in zip(x, gate)])
    yield vector(f"{name}/forward", "gated_rms_norm", "forward", dims, inputs, {"y": (y, [abs(v) for v in y])},
                 attrs=attrs)
    dx, dx_scale, dgate, dgate_scale = [], [], [], []
    dweight, dweight_scale = [mpf(0)] * hidden, [mpf(0)] * hidden
    for a, b, g in zip(x, gate, upstream):
        values, scales, of_gate, of_gate_scale, terms = gradients(a, b, weight, g, *options)
        check_gradient(f"{name}/dx", lambda z: dot(g, gated(z, b, weight, *options)), a, values)
        check_gradient(f"{name}/dgate", lambda z: dot(g, gated(a, z, weight, *options)), b, of_gate)
        dx += values
        dx_scale += scales
        dgate += of_gate
        dgate_scale += of_gate_scale
        dweight = [d + t for d, t in zip(dweight, terms)]
        dweight_scale = [d + abs(t) for d, t in zip(dweight_scale, terms)]
    check_gradient(f"{name}/dweight", lambda w: mp.fsum(
        dot(g, gated(a, b, w, *options)) for a, b, g in zip(x, gate, upstream)), weight, dweight)
    yield vector(f"{name}/backward", "gated_rms_norm", "backward", dims, {**inputs, "grad_y": flat(upstream)},
                 {"dx": (dx, dx_scale), "dgate": (dgate, dgate_scale), "dweight": (dweight, dweight_scale)},
                 attrs=attrs)


def vectors():
    for before in (1, 0):
        for hidden, group in ((1, 0), (7, 0), (12, 4), (66, 33)):
            attrs = {"eps": 0.25 if hidden == 7 else 1e-6, "norm_before_gate": before, "group_size": group}
            name = f"gated_rms_norm_h{hidden}g{group}" + ("" if before else "_gate_first")
            yield from gated_rms_norm_vectors(name, hidden, attrs, hidden + 500 * before)
