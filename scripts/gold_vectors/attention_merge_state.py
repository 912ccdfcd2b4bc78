# SPDX-License-Identifier: Apache-2.0
"""Vectors of attention_merge_state: a softmax over the parts that have keys, as weights of their outputs."""
from common import NEGATIVE_INFINITY, Stream, check_gradient, dot, flat, logsumexp, mp, mpf, rows_of, softmax, vector


class Problem:
    """Rows of parts are numbered by token, then part, then head; rows of outputs by token, then head."""

    def __init__(self, tokens, parts, heads, size):
        self.tokens, self.parts, self.heads, self.size = tokens, parts, heads, size

    def rows(self, lse):
        """For every row of outputs: (its number, the rows of its parts that have keys)."""
        for t in range(self.tokens):
            for h in range(self.heads):
                own = [(t * self.parts + p) * self.heads + h for p in range(self.parts)]
                yield t * self.heads + h, [i for i in own if lse[i] != NEGATIVE_INFINITY]

    def forward(self, o, lse):
        """(o, its scales, lse, its scales)."""
        n = self.tokens * self.heads
        values, scales = ([[mpf(0)] * self.size for _ in range(n)] for _ in range(2))
        merged, merged_scales = [NEGATIVE_INFINITY] * n, [mpf(0)] * n
        for row, parts in self.rows(lse):
            if not parts:
                continue
            merged[row] = logsumexp([lse[i] for i in parts])
            merged_scales[row] = 1 + abs(merged[row]) + max(abs(lse[i]) for i in parts)
            weights = softmax([lse[i] for i in parts])
            for d in range(self.size):
                values[row][d] = mp.fsum(w * o[i][d] for w, i in zip(weights, parts))
                scales[row][d] = merged_scales[row] * mp.fsum(w * abs(o[i][d]) for w, i in zip(weights, parts))
        return values, scales, merged, merged_scales

    def backward(self, o, lse, grad, grad_lse):
        """((dpart_o, dpart_lse), their scales). The derivative of weight w_p by lse_q is w_p ([p = q] - w_q)."""
        do, do_scale = ([[mpf(0)] * self.size for _ in o] for _ in range(2))
        dlse, dlse_scale = ([mpf(0)] * len(lse) for _ in range(2))
        for row, parts in self.rows(lse):
            weights = softmax([lse[i] for i in parts]) if parts else []
            factor = 2 + 2 * max((abs(lse[i]) for i in parts), default=0)
            by_weight = [dot(grad[row], o[i]) for i in parts]
            sizes = [dot([abs(x) for x in grad[row]], [abs(x) for x in o[i]]) for i in parts]
            g = mpf(0) if grad_lse is None else grad_lse[row]
            for q, i in enumerate(parts):
                do[i] = [weights[q] * x for x in grad[row]]
                do_scale[i] = [factor * abs(x) for x in do[i]]
                dlse[i] = mp.fsum(by_weight[p] * weights[p] * ((p == q) - weights[q]) for p in range(len(parts))) + g * weights[q]
                dlse_scale[i] = factor * weights[q] * (sizes[q] + dot(weights, sizes) + abs(g))
        return (do, dlse), (do_scale, dlse_scale)


def merge_vectors(name, tokens, parts, heads, size, empty=(), step=mpf(1) / 32, of_lse=True):
    """empty: rows of parts without keys; step: of the log-sum-exps."""
    problem = Problem(tokens, parts, heads, size)
    random = Stream(tokens + 10 * parts + 100 * heads + 1000 * size)
    o = rows_of(random.values(tokens * parts * heads * size), size)
    lse = [NEGATIVE_INFINITY if i in empty else x
           for i, x in enumerate(random.values(tokens * parts * heads, step=step))]
    grad = rows_of(random.values(tokens * heads * size), size)
    grad_lse = random.values(tokens * heads) if of_lse else None
    dims = {"tokens": tokens, "parts": parts, "heads": heads, "head_dim": size}
    inputs = {"part_o": flat(o), "part_lse": lse}
    value, scale, merged, merged_scale = problem.forward(o, lse)
    outputs = {"o": (flat(value), flat(scale))}
    if of_lse:
        outputs["lse"] = (merged, merged_scale)
    yield vector(f"{name}/forward", "attention_merge_state", "forward", dims, inputs, outputs, ["lse"] * of_lse)

    values, scales = problem.backward(o, lse, grad, grad_lse)

    def loss(parts_of_o, parts_of_lse):
        result, _, of_row, _ = problem.forward(parts_of_o, parts_of_lse)
        total = dot(flat(grad), flat(result))
        return total + (mp.fsum(g * x for g, x in zip(grad_lse, of_row) if x != NEGATIVE_INFINITY) if of_lse else 0)

    check_gradient(f"{name}/dpart_o", lambda x: loss(rows_of(x, size), lse), flat(o), flat(values[0]))
    check_gradient(f"{name}/dpart_lse", lambda x: loss(o, x), lse, values[1])
    inputs = {**inputs, "grad_o": flat(grad)}
    if of_lse:
        inputs["grad_lse"] = grad_lse
    yield vector(f"{name}/backward", "attention_merge_state", "backward", dims, inputs,
                 {"dpart_o": (flat(values[0]), flat(scales[0])), "dpart_lse": (values[1], scales[1])},
                 ["grad_lse"] * of_lse)


def vectors():
    yield from merge_vectors("attention_merge_state_one", 1, 1, 1, 1)
    yield from merge_vectors("attention_merge_state_two", 2, 2, 1, 3, of_lse=False)
    yield from merge_vectors("attention_merge_state_heads", 2, 3, 2, 2)
    # One part of the first head has keys, none of the second head's.
    yield from merge_vectors("attention_merge_state_empty", 2, 3, 2, 2, empty=(0, 1, 2, 3, 5, 8))
    yield from merge_vectors("attention_merge_state_apart", 2, 4, 1, 2, step=mpf(4))
