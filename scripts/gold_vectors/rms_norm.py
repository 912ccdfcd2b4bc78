# SPDX-License-Identifier: Apache-2.0
"""Vectors of rms_norm."""
from common import Stream, check_gradient, flat, mp, mpf, rows_of, vector

EPS = mpf("1e-6")


def root(row):
    return 1 / mp.sqrt(mp.fsum(x * x for x in row) / len(row) + mpf(float(EPS)))


def normalized(row, weight):
    return [x * root(row) * w for x, w in zip(row, weight)]


def rms_norm_vectors(name, rows, weight, upstream, mask=None):
    hidden = len(weight)
    dims = {"batch": 1, "seq": len(rows), "hidden": hidden}
    inputs = {"x": flat(rows), "weight": weight}
    y = flat([normalized(row, weight) for row in rows])
    if mask is None:
        yield vector(f"{name}/forward", "rms_norm", "forward", dims, inputs, {"y": (y, [abs(v) for v in y])})

    dx, dx_scale = [], []
    dweight, dweight_scale = [mpf(0)] * hidden, [mpf(0)] * hidden
    for i, (row, grads) in enumerate(zip(rows, upstream)):
        r = root(row)
        terms = [g * w * x for g, w, x in zip(grads, weight, row)]
        mean, size = mp.fsum(terms) / hidden, mp.fsum(abs(t) for t in terms) / hidden
        own = [r * g * w - x * r**3 * mean for g, w, x in zip(grads, weight, row)]
        check_gradient(f"{name}/dx", lambda z, g=grads: mp.fsum(a * b for a, b in zip(g, normalized(z, weight))), row, own)
        dx += own
        dx_scale += [abs(r * g * w) + abs(x) * r**3 * size for g, w, x in zip(grads, weight, row)]
        if mask is None or mask[i] != 0:
            dweight = [d + g * x * r for d, g, x in zip(dweight, grads, row)]
            dweight_scale = [d + abs(g * x * r) for d, g, x in zip(dweight_scale, grads, row)]

    def kept_loss(w):
        return mp.fsum(g * v for i, (row, grads) in enumerate(zip(rows, upstream)) if mask is None or mask[i] != 0
                       for g, v in zip(grads, normalized(row, w)))

    check_gradient(f"{name}/dweight", kept_loss, weight, dweight)
    masked = {} if mask is None else {"mask": mask}
    yield vector(f"{name}/backward", "rms_norm", "backward", dims, {**inputs, "grad_y": flat(upstream), **masked},
                 {"dx": (dx, dx_scale), "dweight": (dweight, dweight_scale)}, optionals=list(masked))


def vectors():
    for hidden in (1, 2, 7, 65):
        random = Stream(hidden)
        rows, upstream = (rows_of(random.values(3 * hidden), hidden) for _ in range(2))
        yield from rms_norm_vectors(f"rms_norm_h{hidden}", rows, random.values(hidden), upstream)
    random = Stream(99)
    extreme = [[mpf(0)] * 7, [mpf(9984)] * 7, [mpf(2) ** -12 * (k + 1) for k in range(7)],
               [mpf(9984) if k == 3 else mpf(1) / 32 for k in range(7)]]
    upstream = rows_of(random.values(28), 7)
    weight = random.values(7)
    yield from rms_norm_vectors("rms_norm_extreme", extreme, weight, upstream)
    rows = rows_of(random.values(28), 7)
    yield from rms_norm_vectors("rms_norm_mask", rows, weight, upstream, mask=[1, 0, 2, 0])
    yield from rms_norm_vectors("rms_norm_all_masked", rows, weight, upstream, mask=[0, 0, 0, 0])
