# SPDX-License-Identifier: Apache-2.0
"""Vectors of qk_norm_rope: heads that are normalised and turned, with the matrices of both."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector
from rope import USUAL, angles, scales, turned


def normalized(row, weight, eps):
    root = mp.sqrt(mp.fsum(x * x for x in row) / len(row) + eps)
    return [x * w / root for x, w in zip(row, weight)]


def jacobian(row, weight, eps):
    """d normalized_i / d row_j"""
    n, square = len(row), mp.fsum(x * x for x in row) / len(row) + eps
    return [[w * ((i == j) / mp.sqrt(square) - row[i] * x / (n * square**mpf("1.5"))) for j, x in enumerate(row)]
            for i, w in enumerate(weight)]


def side_of(name, rows, weight, upstream, turns, attrs):
    """The turned heads, dx and dweight, each with its scale. One angle list for each row."""
    eps, offset = mpf(attrs["eps"]), mpf(attrs["weight_offset"])
    used = [w + offset for w in weight]
    heads = [normalized(row, used, eps) for row in rows]
    out, out_scale = turned(heads, turns, 1, attrs), scales(heads, turns, attrs)
    back, back_scale = turned(upstream, turns, -1, attrs), scales(upstream, turns, attrs)
    dx, dx_scale = [], []
    dweight, dweight_scale = [mpf(0)] * len(weight), [mpf(0)] * len(weight)
    for row, g, size in zip(rows, back, back_scale):
        matrix = jacobian(row, used, eps)
        dx += [mp.fsum(g[i] * matrix[i][j] for i in range(len(row))) for j in range(len(row))]
        dx_scale += [mp.fsum(size[i] * abs(matrix[i][j]) for i in range(len(row))) + abs(row[j]) for j in range(len(row))]
        unit = normalized(row, [mpf(1)] * len(row), eps)
        dweight = [d + a * b for d, a, b in zip(dweight, g, unit)]
        dweight_scale = [d + a * abs(b) for d, a, b in zip(dweight_scale, size, unit)]

    def loss(x, w):
        made = [normalized(row, [v + offset for v in w], eps) for row in rows_of(x, len(w))]
        return dot(flat(upstream), flat(turned(made, turns, 1, attrs)))

    check_gradient(f"{name}/dx", lambda x: loss(x, weight), flat(rows), dx)
    check_gradient(f"{name}/dweight", lambda w: loss(flat(rows), w), weight, dweight)
    return (flat(out), flat(out_scale)), (dx, dx_scale), (dweight, dweight_scale)


def qk_norm_rope_vectors(name, tokens, size, own, positions, three=None):
    attrs = {"eps": 0.25, "weight_offset": 0, **USUAL, **own}
    random, heads = Stream(tokens * 100 + size), {"q": 2, "k": 1}
    token_turns = angles(three or [[p] * 3 for p in positions], size, attrs)
    inputs, forward, backward, upstreams = {}, {}, {}, {}
    for side, count in heads.items():
        rows, upstream = (rows_of(random.values(tokens * count * size), size) for _ in range(2))
        weight = random.values(size)
        turns = [token_turns[row // count] for row in range(tokens * count)]
        forward[f"{side}_out"], backward[f"d{side}"], backward[f"d{side}_weight"] = side_of(
            f"{name}/{side}", rows, weight, upstream, turns, attrs)
        inputs[side], inputs[f"{side}_weight"], upstreams[f"grad_{side}_out"] = flat(rows), weight, flat(upstream)
    inputs["positions"] = positions
    optionals = []
    if three:
        inputs["mrope_positions"], optionals = flat(three), ["mrope_positions"]
    dims = {"tokens": tokens, "q_heads": heads["q"], "kv_heads": heads["k"], "head_dim": size}
    yield vector(f"{name}/forward", "qk_norm_rope", "forward", dims, inputs, forward, optionals, attrs)
    yield vector(f"{name}/backward", "qk_norm_rope", "backward", dims, {**inputs, **upstreams}, backward, optionals, attrs)


def vectors():
    yield from qk_norm_rope_vectors("qk_norm_rope_small", 1, 2, {}, [7])
    yield from qk_norm_rope_vectors("qk_norm_rope", 3, 6, {}, [5, 0, 4095])
    yield from qk_norm_rope_vectors("qk_norm_rope_partial", 2, 10, {"rotary_dim": 4, "interleaved": 1, "weight_offset": 1},
                                    [3, 3])
    yield from qk_norm_rope_vectors("qk_norm_rope_three", 3, 12, {"section_h": 2, "section_w": 1}, [0, 1, 2],
                                    three=[[4, 4, 4], [5, 6, 9], [5, 7, 8]])
