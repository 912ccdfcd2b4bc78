# SPDX-License-Identifier: Apache-2.0
"""Vectors of kv_cache_attention, causal and scaled by 1/sqrt(head_dim): attention over cached and new keys."""
from attention import Problem
from common import Stream, check_gradient, dot, flat, rows_of, vector


def joined(cached, new, heads):
    """Joins cached and new rows head by head; a head has len(rows) / heads rows of each."""
    c, n = len(cached) // heads, len(new) // heads
    return [row for h in range(heads) for row in cached[h * c:(h + 1) * c] + new[h * n:(h + 1) * n]]


def parted(rows, heads, n_cached):
    """The inverse of joined()."""
    length = len(rows) // heads
    cached = [row for i, row in enumerate(rows) if i % length < n_cached]
    return cached, [row for i, row in enumerate(rows) if i % length >= n_cached]


def kv_cache_vectors(batch, q_heads, kv_heads, cache_seq, new_seq, size, mask=None, v_size=None):
    name = f"kv_cache_attention_{batch}x{q_heads}x{kv_heads}x{cache_seq}x{new_seq}x{size}" + ("_mask" if mask else "")
    name += "" if v_size is None else f"_v{v_size}"
    random = Stream(batch + 10 * q_heads + 100 * cache_seq + 1000 * new_seq + 10000 * size)
    heads = batch * kv_heads
    widths = (size, size if v_size is None else v_size)
    q, grad = (rows_of(random.values(batch * q_heads * new_seq * width), width) for width in widths)
    k_cache, v_cache = (rows_of(random.values(heads * cache_seq * width), width) for width in widths)
    k_new, v_new = (rows_of(random.values(heads * new_seq * width), width) for width in widths)
    problem = Problem(batch, q_heads, kv_heads, new_seq, cache_seq + new_seq, size, mask, v_size=v_size)
    dims = {"batch": batch, "q_heads": q_heads, "kv_heads": kv_heads, "q_seq": new_seq, "new_seq": new_seq,
            "cache_seq": cache_seq, "head_dim": size}
    if v_size is not None:
        dims["v_dim"] = v_size
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k_new": k_new, "v_new": v_new}
    inputs, optionals = {label: flat(rows) for label, rows in tensors.items()}, []
    if mask is not None:
        inputs["key_padding_mask"], optionals = mask, ["key_padding_mask"]

    def forward(t):
        return problem.forward(t["q"], joined(t["k_cache"], t["k_new"], heads), joined(t["v_cache"], t["v_new"], heads))

    value, scale = forward(tensors)
    yield vector(f"{name}/forward", "kv_cache_attention", "forward", dims, inputs, {"o": (flat(value), flat(scale))},
                 optionals)

    sides = problem.backward(q, joined(k_cache, k_new, heads), joined(v_cache, v_new, heads), grad)
    outputs = {"dq": tuple(flat(side[0]) for side in sides)}
    for which, letter in ((1, "k"), (2, "v")):
        values, scales = (parted(side[which], heads, cache_seq) for side in sides)
        for part, label in enumerate(("cache", "new")):
            outputs[f"d{letter}_{label}"] = (flat(values[part]), flat(scales[part]))
    for label, rows in tensors.items():
        def loss(x, label=label):
            return dot(flat(grad), flat(forward({**tensors, label: rows_of(x, widths[label.startswith("v")])})[0]))

        check_gradient(f"{name}/d{label}", loss, flat(rows), outputs[f"d{label}"][0])
    yield vector(f"{name}/backward", "kv_cache_attention", "backward", dims, {**inputs, "grad_o": flat(grad)}, outputs,
                 optionals)


def vectors():
    yield from kv_cache_vectors(1, 1, 1, 1, 1, 1)
    yield from kv_cache_vectors(1, 2, 1, 4, 1, 3)                # one step of decoding
    yield from kv_cache_vectors(1, 4, 2, 2, 3, 2)
    yield from kv_cache_vectors(2, 2, 2, 3, 2, 2, [1, 0, 2, 1, 1, 0, 0, 0, 0, 1])  # the second entry keeps only its last key
    yield from kv_cache_vectors(1, 4, 2, 2, 3, 2, v_size=3)
