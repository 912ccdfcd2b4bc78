# SPDX-License-Identifier: Apache-2.0
"""Vectors of adamw, with the update as in the paper: w minus lr times (decay w + m^ / (sqrt(v^) + eps))."""
from common import Stream, mp, mpf, vector


def adamw_vectors(name, step, numel, attrs, scale=None, found=None):
    lr, beta1, beta2, eps, decay = (mpf(attrs[key]) for key in ("lr", "beta1", "beta2", "eps", "weight_decay"))
    random = Stream(100 * step + numel)
    master, grad = random.values(numel), random.values(numel)
    # Before the first step, and in the last element, m and v are 0.
    m, v = ([x if step > 1 and i + 1 < numel else mpf(0) for i, x in enumerate(random.values(numel))] for _ in range(2))
    v = [abs(x) for x in v]
    factor = mpf(1) if scale is None else scale
    skipped = found is not None and found != 0
    out = {key: ([], []) for key in ("master_out", "m_out", "v_out", "param")}
    for i in range(numel):
        g = factor * grad[i]
        of_m, of_v, w = beta1 * m[i] + (1 - beta1) * g, beta2 * v[i] + (1 - beta2) * g * g, master[i]
        hat_m, hat_v = of_m / (1 - beta1 ** step), of_v / (1 - beta2 ** step)
        after = w - lr * (decay * w + hat_m / (mp.sqrt(hat_v) + eps))
        values = (w, m[i], v[i]) if skipped else (after, of_m, of_v)
        sizes = [abs(w) + lr, abs(m[i]) + abs(g), v[i] + g * g]
        for key, value, size in zip(("master_out", "m_out", "v_out"), values, sizes):
            out[key][0].append(value), out[key][1].append(size)
        out["param"][0].append(values[0]), out["param"][1].append(sizes[0])
    inputs = {"master": master, "m": m, "v": v, "grad": grad}
    given = {"grad_scale": scale, "found_inf": found}
    present = [key for key, value in given.items() if value is not None]
    yield vector(f"{name}/forward", "adamw", "forward", {"numel": numel}, {**inputs, **{key: [given[key]] for key in present}}, out,
                 present, {**attrs, "step": float(step)})


def vectors():
    usual = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    yield from adamw_vectors("adamw_first", 1, 3, usual)
    yield from adamw_vectors("adamw_third", 3, 9, usual, mpf(3) / 8)
    yield from adamw_vectors("adamw_large", 5, 7, {**usual, "lr": 0.25, "beta1": 0.5, "eps": 0.001, "weight_decay": 0.5})
    yield from adamw_vectors("adamw_skipped", 2, 4, usual, mpf(1) / 2, mpf(1))
    yield from adamw_vectors("adamw_not_skipped", 2, 4, usual, None, mpf(0))
