# SPDX-License-Identifier: Apache-2.0
"""Vectors of attention, scaled by 1/sqrt(head_dim); with windows, soft caps, sinks and gradients of lse."""
from common import (NEGATIVE_INFINITY, Stream, check_gradient, dot, flat, logsumexp, mp, mpf, rows_of, slope, softmax,
                    transformed, vector)

DEFAULTS = {"causal": 1, "scale": -1, "window_left": -1, "window_right": -1, "softcap": 0}


def rounded(x):
    """x with eight significant bits: what a forward pass may have saved."""
    if x == 0 or mp.isinf(x):
        return x
    mantissa, exponent = mp.frexp(x)
    return mp.ldexp(mp.nint(mantissa * 256), exponent - 8)


def weights_and_lse(scores, sink=None):
    """Softmax of scores whose denominator has one more term, exp(sink): ([weight of each], weight of the sink, lse)."""
    logits = scores + ([] if sink is None else [sink])
    if not logits:
        return [], mpf(0), NEGATIVE_INFINITY
    p = softmax(logits)
    return p[:len(scores)], mpf(0) if sink is None else p[-1], logsumexp(logits)


class Problem:
    """Sizes, mask, and the numbering of rows: by batch entry, then head, then position."""

    def __init__(self, batch, q_heads, kv_heads, q_seq, kv_seq, size, mask, attrs=None, v_size=None):
        self.batch, self.q_heads, self.kv_heads = batch, q_heads, kv_heads
        self.q_seq, self.kv_seq, self.size, self.mask = q_seq, kv_seq, size, mask
        self.v_size = size if v_size is None else v_size
        self.scale = 1 / mp.sqrt(size)
        attrs = {} if attrs is None else attrs
        self.left, self.softcap = attrs.get("window_left", -1), mpf(attrs.get("softcap", 0))
        self.right = 0 if attrs.get("causal", 1) else attrs.get("window_right", -1)

    def query(self, b, h, i):
        return ((b * self.q_heads + h) * self.q_seq + i)

    def key(self, b, h, j):
        return ((b * self.kv_heads + h // (self.q_heads // self.kv_heads)) * self.kv_seq + j)

    def rows(self):
        """For every query: (query row, key rows that it sees)."""
        for b in range(self.batch):
            for h in range(self.q_heads):
                for i in range(self.q_seq):
                    own = i + self.kv_seq - self.q_seq
                    seen = [j for j in range(self.kv_seq)
                            if (self.left < 0 or j >= own - self.left) and (self.right < 0 or j <= own + self.right)]
                    kept = [j for j in seen if self.mask is None or self.mask[b * self.kv_seq + j] != 0]
                    yield self.query(b, h, i), [self.key(b, h, j) for j in kept]

    def scores(self, q, k, keys):
        return [transformed(self.scale * dot(q, k[j]), 1, self.softcap) for j in keys]

    def slopes(self, q, k, keys):
        """Derivatives of the scores by what the cap is applied to."""
        return [slope(self.scale * dot(q, k[j]), 1, self.softcap) for j in keys]

    def sizes(self, q, k, keys):
        """How much an FP64 rounding of the scores is amplified: 1 + twice the largest sum of magnitudes."""
        terms = [self.scale * dot([abs(x) for x in q], [abs(x) for x in k[j]]) for j in keys]
        return 1 + 2 * max(terms, default=0)

    def head(self, row):
        return row // self.q_seq % self.q_heads

    def sink(self, row, sinks):
        return None if sinks is None else sinks[self.head(row)]

    def forward(self, q, k, v, sinks=None):
        zero = [mpf(0)] * self.v_size
        values, scales = [zero] * len(q), [zero] * len(q)
        for i, keys in self.rows():
            p, _, _ = weights_and_lse(self.scores(q[i], k, keys), self.sink(i, sinks))
            values[i] = [mp.fsum(a * v[j][d] for a, j in zip(p, keys)) for d in range(self.v_size)]
            factor = self.sizes(q[i], k, keys)
            scales[i] = [factor * mp.fsum(a * abs(v[j][d]) for a, j in zip(p, keys)) for d in range(self.v_size)]
        return values, scales

    def lse(self, q, k, sinks=None):
        """The log-sum-exp of every query's scores and sink, and its scales."""
        values, scales = [NEGATIVE_INFINITY] * len(q), [mpf(0)] * len(q)
        for i, keys in self.rows():
            _, _, values[i] = weights_and_lse(self.scores(q[i], k, keys), self.sink(i, sinks))
            if values[i] != NEGATIVE_INFINITY:
                scales[i] = self.sizes(q[i], k, keys) + abs(values[i])
        return values, scales

    def backward(self, q, k, v, grad, sinks=None, grad_lse=None):
        """(dq, dk, dv, dsinks) and their scales, term by term from the definitions."""
        def zeros(rows, size):
            return [[mpf(0)] * size for _ in rows]

        results, scales = ((zeros(q, self.size), zeros(k, self.size), zeros(v, self.v_size),
                            [[mpf(0)] for _ in range(self.q_heads)]) for _ in range(2))

        def add(which, row, weight, weight_scale, values):
            for d, x in enumerate(values):
                results[which][row][d] += weight * x
                scales[which][row][d] += weight_scale * abs(x)

        for i, keys in self.rows():
            p, of_sink, _ = weights_and_lse(self.scores(q[i], k, keys), self.sink(i, sinks))
            factor, g = self.sizes(q[i], k, keys), mpf(0) if grad_lse is None else grad_lse[i]
            dp = [dot(grad[i], v[j]) for j in keys]
            dp_size = [dot([abs(x) for x in grad[i]], [abs(x) for x in v[j]]) for j in keys]
            mean, mean_size = dot(p, dp), dot(p, dp_size) + abs(g)
            add(3, self.head(i), of_sink * (g - mean), 2 * of_sink * mean_size * factor, [mpf(1)])
            for a, d, s, of_cap, j in zip(p, dp, dp_size, self.slopes(q[i], k, keys), keys):
                ds, ds_size = self.scale * a * (d - mean + g) * of_cap, 2 * self.scale * a * (s + mean_size) * factor
                if self.softcap:
                    ds_size *= 1 + 2 / self.softcap  # the derivative of the slope
                add(0, i, ds, ds_size, k[j])
                add(1, j, ds, ds_size, q[i])
                add(2, j, a, a * factor, grad[i])
        return results, scales


def attention_vectors(batch, q_heads, kv_heads, q_seq, kv_seq, size, mask=None, saves=False, attrs=None, sinks=None,
                      of_lse=False, v_size=None):
    """saves: the forward pass gives lse, the backward pass gets o and lse. of_lse: there is a gradient of lse."""
    name = f"attention_{batch}x{q_heads}x{kv_heads}x{q_seq}x{kv_seq}x{size}"
    name += ("_mask" if mask else "") + ("_saved" if saves else "")
    name += ("_sinks" if sinks else "") + ("_of_lse" if of_lse else "")
    name += "".join(f"_{attr}_{value}" for attr, value in (attrs or {}).items())
    name += "" if v_size is None else f"_v{v_size}"
    random = Stream(batch + 10 * q_heads + 100 * q_seq + 1000 * kv_seq + 10000 * size)
    queries, keys = batch * q_heads * q_seq, batch * kv_heads * kv_seq
    of_v = size if v_size is None else v_size
    q, grad = (rows_of(random.values(queries * width), width) for width in (size, of_v))
    k, v = (rows_of(random.values(keys * width), width) for width in (size, of_v))
    grad_lse = random.values(queries) if of_lse else None
    sinks = None if sinks is None else [mpf(x) for x in sinks]
    problem = Problem(batch, q_heads, kv_heads, q_seq, kv_seq, size, mask, attrs, v_size)
    dims = {"batch": batch, "q_heads": q_heads, "kv_heads": kv_heads, "q_seq": q_seq, "kv_seq": kv_seq,
            "head_dim": size}
    if v_size is not None:
        dims["v_dim"] = v_size
    given = None if attrs is None else {**DEFAULTS, **attrs}
    inputs = {"q": flat(q), "k": flat(k), "v": flat(v)}
    optionals = []
    if mask is not None:
        inputs["key_padding_mask"], optionals = mask, ["key_padding_mask"]
    if sinks is not None:
        inputs["sinks"], optionals = sinks, optionals + ["sinks"]
    value, scale = problem.forward(q, k, v, sinks)
    forward_outputs = {"o": (flat(value), flat(scale))}
    if saves:
        forward_outputs["lse"] = problem.lse(q, k, sinks)
    yield vector(f"{name}/forward", "attention", "forward", dims, inputs, forward_outputs,
                 optionals + ["lse"] * saves, given)

    values, scales = problem.backward(q, k, v, grad, sinks, grad_lse)
    differentiated = [("dq", q), ("dk", k), ("dv", v)] + ([] if sinks is None else [("dsinks", [[x] for x in sinks])])
    for which, (label, at) in enumerate(differentiated):
        def loss(x, which=which):
            moved = [q, k, v, sinks]
            moved[which] = x if which == 3 else rows_of(x, of_v if which == 2 else size)
            total = dot(flat(grad), flat(problem.forward(*moved)[0]))
            if of_lse:
                lse = problem.lse(moved[0], moved[1], moved[3])[0]
                total += mp.fsum(g * x for g, x in zip(grad_lse, lse) if x != NEGATIVE_INFINITY)
            return total

        check_gradient(f"{name}/{label}", loss, flat(at), flat(values[which]))
    outputs = {label: (flat(values[i]), flat(scales[i])) for i, (label, _) in enumerate(differentiated)}
    inputs = {**inputs, "grad_o": flat(grad)}
    if saves:
        inputs["o"] = [rounded(x) for x in flat(value)]
        inputs["lse"] = [rounded(x) for x in forward_outputs["lse"][0]]
        optionals = optionals + ["lse", "o"]
    if of_lse:
        inputs["grad_lse"], optionals = grad_lse, optionals + ["grad_lse"]
    yield vector(f"{name}/backward", "attention", "backward", dims, inputs, outputs, optionals, given)


def vectors():
    yield from attention_vectors(1, 1, 1, 1, 1, 1)
    yield from attention_vectors(1, 2, 1, 3, 3, 4)
    yield from attention_vectors(1, 4, 2, 2, 5, 3)               # decoding: more keys than queries
    yield from attention_vectors(1, 1, 1, 5, 3, 2)               # more queries than keys: two queries see none
    yield from attention_vectors(1, 2, 1, 4, 3, 4, saves=True)   # the lse of the first query is -inf
    yield from attention_vectors(1, 2, 2, 2, 4, 2, [1, 0, 2, 1], saves=True)
    yield from attention_vectors(2, 2, 2, 3, 4, 3, [1, 0, 2, 1, 0, 0, 1, 1])  # the second entry's first query sees none
    yield from attention_vectors(1, 2, 1, 4, 6, 2, saves=True, attrs={"window_left": 1})
    yield from attention_vectors(1, 1, 1, 5, 3, 2, attrs={"causal": 0, "window_left": 1, "window_right": 0})
    yield from attention_vectors(1, 1, 1, 3, 6, 2, attrs={"causal": 0, "window_right": 1})
    yield from attention_vectors(1, 2, 1, 2, 4, 3, [1, 0, 2, 1], saves=True, attrs={"softcap": 2})
    yield from attention_vectors(1, 1, 1, 3, 5, 2, attrs={"window_left": 2, "softcap": 0.5})
    yield from attention_vectors(1, 2, 1, 3, 4, 3, saves=True, sinks=[0.5, -1.25])
    yield from attention_vectors(2, 2, 1, 4, 3, 2, sinks=[2, -0.5], of_lse=True)  # the lse of the first query is its sink
    yield from attention_vectors(1, 2, 2, 2, 4, 2, [1, 0, 2, 1], saves=True, of_lse=True)
    yield from attention_vectors(1, 2, 1, 3, 5, 2, saves=True, attrs={"window_left": 1, "softcap": 1}, sinks=[3, 0.25],
                                 of_lse=True)
    yield from attention_vectors(1, 2, 1, 3, 4, 3, saves=True, sinks=[0.5, -1.25], of_lse=True, v_size=2)
    yield from attention_vectors(2, 2, 2, 2, 3, 2, [1, 0, 2, 1, 0, 1], v_size=5)
