# SPDX-License-Identifier: Apache-2.0
"""Vectors of varlen_attention, causal and scaled by 1/sqrt(head_dim): attention of each sequence, masked by its own ends."""
from attention import DEFAULTS, rounded, weights_and_lse
from common import (NEGATIVE_INFINITY, Stream, check_gradient, dot, flat, mp, mpf, rows_of, slope, transformed, vector)


class Pack:
    """Which keys each query of a packed tensor sees. Rows are numbered by token, then head."""

    def __init__(self, q_heads, kv_heads, size, of_q, of_k, rest_q, rest_k, attrs, sinks, v_size):
        self.left, self.softcap, self.sinks = attrs["window_left"], mpf(attrs["softcap"]), sinks
        self.q_heads, self.kv_heads, self.size, self.v_size = q_heads, kv_heads, size, v_size
        self.q_bounds = [sum(of_q[:s]) for s in range(len(of_q) + 1)]
        self.k_bounds = [sum(of_k[:s]) for s in range(len(of_k) + 1)]
        self.tokens_q, self.tokens_k = sum(of_q) + rest_q, sum(of_k) + rest_k
        self.scale = 1 / mp.sqrt(size)

    def rows(self):
        """For every query of a sequence: (query row, key rows that it sees)."""
        for s in range(len(self.q_bounds) - 1):
            first_q, end_q, first_k, end_k = *self.q_bounds[s:s + 2], *self.k_bounds[s:s + 2]
            for token in range(first_q, end_q):
                behind = end_q - 1 - token  # queries after this one, which see as many more keys
                for h in range(self.q_heads):
                    kv_head = h * self.kv_heads // self.q_heads
                    begin_k = first_k if self.left < 0 else max(first_k, end_k - behind - 1 - self.left)
                    yield token * self.q_heads + h, [j * self.kv_heads + kv_head for j in range(begin_k, end_k - behind)]

    def weights(self, i, q, k, keys, sinks):
        """((the probabilities, the sink's, lse), and how much an FP64 rounding of the scores is amplified)."""
        terms = [self.scale * dot([abs(x) for x in q], [abs(x) for x in k[j]]) for j in keys]
        scores = [transformed(self.scale * dot(q, k[j]), 1, self.softcap) for j in keys]
        return weights_and_lse(scores, None if sinks is None else sinks[i % self.q_heads]), 1 + 2 * max(terms, default=0)

    def zeros(self, tokens, heads, size):
        return [[mpf(0)] * size for _ in range(tokens * heads)]

    def forward(self, q, k, v, sinks):
        """(o, its scales, lse, its scales)."""
        values, scales = (self.zeros(self.tokens_q, self.q_heads, self.v_size) for _ in range(2))
        lse, lse_scales = [NEGATIVE_INFINITY] * len(values), [mpf(0)] * len(values)
        for i, keys in self.rows():
            (p, _, lse[i]), factor = self.weights(i, q[i], k, keys, sinks)
            lse_scales[i] = 0 if lse[i] == NEGATIVE_INFINITY else factor + abs(lse[i])
            values[i] = [mp.fsum(a * v[j][d] for a, j in zip(p, keys)) for d in range(self.v_size)]
            scales[i] = [factor * mp.fsum(a * abs(v[j][d]) for a, j in zip(p, keys)) for d in range(self.v_size)]
        return values, scales, lse, lse_scales

    def backward(self, q, k, v, grad, grad_lse):
        """((dq, dk, dv, dsinks), their scales), term by term."""
        both = [(self.zeros(self.tokens_q, self.q_heads, self.size), self.zeros(self.tokens_k, self.kv_heads, self.size),
                 self.zeros(self.tokens_k, self.kv_heads, self.v_size), [[mpf(0)] for _ in range(self.q_heads)]) for _ in range(2)]

        def add(which, row, weight, size, values):
            for d, x in enumerate(values):
                both[0][which][row][d] += weight * x
                both[1][which][row][d] += size * abs(x)

        for i, keys in self.rows():
            (p, of_sink, _), factor = self.weights(i, q[i], k, keys, self.sinks)
            g = mpf(0) if grad_lse is None else grad_lse[i]
            dp = [dot(grad[i], v[j]) for j in keys]
            sizes = [dot([abs(x) for x in grad[i]], [abs(x) for x in v[j]]) for j in keys]
            mean, mean_size = dot(p, dp), dot(p, sizes) + abs(g)
            add(3, i % self.q_heads, of_sink * (g - mean), 2 * of_sink * mean_size * factor, [mpf(1)])
            for a, d, s, j in zip(p, dp, sizes, keys):
                of_cap = slope(self.scale * dot(q[i], k[j]), 1, self.softcap)
                ds, size = self.scale * a * (d - mean + g) * of_cap, 2 * self.scale * a * (s + mean_size) * factor
                if self.softcap:
                    size *= 1 + 2 / self.softcap  # the derivative of the slope
                add(0, i, ds, size, k[j])
                add(1, j, ds, size, q[i])
                add(2, j, a, a * factor, grad[i])
        return both


def varlen_vectors(name, q_heads, kv_heads, size, of_q, of_k=None, rest_q=0, rest_k=0, attrs=None, sinks=None,
                   of_lse=False, saves=False, v_size=None):
    """of_lse: the forward pass gives lse, the backward pass gets its gradient; saves: it gets o and lse."""
    sinks = None if sinks is None else [mpf(x) for x in sinks]
    given = {**DEFAULTS, **(attrs or {})}
    of_v = size if v_size is None else v_size
    pack = Pack(q_heads, kv_heads, size, of_q, of_q if of_k is None else of_k, rest_q, rest_k, given, sinks, of_v)
    random = Stream(q_heads + 10 * size + 100 * pack.tokens_q + 1000 * pack.tokens_k)
    q, grad = (rows_of(random.values(pack.tokens_q * q_heads * width), width) for width in (size, of_v))
    k, v = (rows_of(random.values(pack.tokens_k * kv_heads * width), width) for width in (size, of_v))
    grad_lse = random.values(pack.tokens_q * q_heads) if of_lse else None
    dims = {"tokens_q": pack.tokens_q, "tokens_k": pack.tokens_k, "q_heads": q_heads, "kv_heads": kv_heads,
            "head_dim": size, "seqs": len(of_q)}
    if v_size is not None:
        dims["v_dim"] = v_size
    inputs, optionals = {"q": flat(q), "k": flat(k), "v": flat(v), "cu_seqlens_q": pack.q_bounds}, []
    if of_k is not None:
        inputs["cu_seqlens_k"], optionals = pack.k_bounds, ["cu_seqlens_k"]
    if sinks is not None:
        inputs["sinks"], optionals = sinks, optionals + ["sinks"]
    value, scale, lse, lse_scale = pack.forward(q, k, v, sinks)
    outputs = {"o": (flat(value), flat(scale))}
    if of_lse:
        outputs["lse"] = (lse, lse_scale)
    yield vector(f"{name}/forward", "varlen_attention", "forward", dims, inputs, outputs, optionals + ["lse"] * of_lse,
                 given)

    values, scales = pack.backward(q, k, v, grad, grad_lse)
    differentiated = [("dq", q), ("dk", k), ("dv", v)] + ([] if sinks is None else [("dsinks", [[x] for x in sinks])])
    for which, (label, at) in enumerate(differentiated):
        def loss(x, which=which):
            moved = [q, k, v, sinks]
            moved[which] = x if which == 3 else rows_of(x, of_v if which == 2 else size)
            o, _, lse, _ = pack.forward(*moved)
            total = dot(flat(grad), flat(o))
            if of_lse:
                total += mp.fsum(g * x for g, x in zip(grad_lse, lse) if x != NEGATIVE_INFINITY)
            return total

        check_gradient(f"{name}/{label}", loss, flat(at), flat(values[which]))
    outputs = {label: (flat(values[i]), flat(scales[i])) for i, (label, _) in enumerate(differentiated)}
    inputs = {**inputs, "grad_o": flat(grad)}
    if of_lse:
        inputs["grad_lse"], optionals = grad_lse, optionals + ["grad_lse"]
    if saves:
        inputs["o"], inputs["lse"] = ([rounded(x) for x in saved] for saved in (flat(value), lse))
        optionals = optionals + ["lse", "o"]
    yield vector(f"{name}/backward", "varlen_attention", "backward", dims, inputs, outputs, optionals, given)


def vectors():
    yield from varlen_vectors("varlen_attention_one", 1, 1, 1, [1])
    yield from varlen_vectors("varlen_attention_no_sequence", 1, 1, 2, [], rest_q=2, rest_k=1)
    yield from varlen_vectors("varlen_attention_empty_ones", 2, 1, 3, [0, 3, 0, 0, 1, 0], rest_q=2, rest_k=2)
    yield from varlen_vectors("varlen_attention_decode", 4, 2, 2, [1, 1, 2], [4, 1, 3])
    # Sequences without queries, without keys, and with fewer keys than queries.
    yield from varlen_vectors("varlen_attention_uneven", 2, 2, 3, [0, 2, 4, 1], [2, 0, 3, 1], rest_q=1, rest_k=2)
    yield from varlen_vectors("varlen_attention_sinks", 4, 2, 2, [2, 3, 0], [3, 2, 1], rest_q=1, sinks=[0.5, -2, 3, 0],
                              of_lse=True)
    yield from varlen_vectors("varlen_attention_saved", 2, 1, 3, [1, 3, 2], [2, 2, 0], rest_q=1, saves=True)
    yield from varlen_vectors("varlen_attention_window", 2, 1, 2, [4, 1], attrs={"window_left": 1, "softcap": 1},
                              of_lse=True)
    yield from varlen_vectors("varlen_attention_small_values", 4, 2, 3, [2, 1], [3, 2], rest_q=1, rest_k=1,
                              sinks=[0.5, -2, 3, 0], of_lse=True, v_size=2)
    yield from varlen_vectors("varlen_attention_large_values", 2, 1, 2, [1, 3], v_size=5, saves=True)
