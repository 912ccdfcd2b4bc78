# SPDX-License-Identifier: Apache-2.0
"""Vectors of rope."""
from common import Stream, check_gradient, dot, flat, mp, mpf, rows_of, vector

USUAL = {"theta": 1e6, "rotary_dim": -1, "interleaved": 0, "scaling": 0, "factor": 1, "original_length": 8192,
         "low_freq_factor": 1, "high_freq_factor": 4, "beta_fast": 32, "beta_slow": 1, "truncate": 1,
         "attention_factor": -1, "section_h": 0, "section_w": 0, "sections_interleaved": 0}


def llama3(frequency, attrs):
    """By wavelength, as it was published: short ones stay, long ones are divided, between them a linear mixture."""
    wavelength, length = 2 * mp.pi / frequency, mpf(attrs["original_length"])
    low, high = mpf(attrs["low_freq_factor"]), mpf(attrs["high_freq_factor"])
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / mpf(attrs["factor"])
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / mpf(attrs["factor"]) + smooth * frequency


def yarn(i, frequency, size, attrs):
    def index(rotations):
        return size * mp.log(mpf(attrs["original_length"]) / (rotations * 2 * mp.pi)) / (2 * mp.log(mpf(attrs["theta"])))

    first, last = index(mpf(attrs["beta_fast"])), index(mpf(attrs["beta_slow"]))
    if attrs["truncate"]:
        first, last = mp.floor(first), mp.ceil(last)
    first, last = max(first, mpf(0)), min(last, mpf(size - 1))
    if first == last:
        last += mpf(0.001)
    ramp = min(max((i - first) / (last - first), mpf(0)), mpf(1))
    return frequency / mpf(attrs["factor"]) * ramp + frequency * (1 - ramp)


def columns(attrs, size):
    """The columns of each pair."""
    rotary = size if attrs["rotary_dim"] < 0 else attrs["rotary_dim"]
    if attrs["interleaved"]:
        return [(i, i + 1) for i in range(0, rotary, 2)]
    return [(i, i + rotary // 2) for i in range(rotary // 2)]


def section(i, pairs, attrs):
    h, w = attrs["section_h"], attrs["section_w"]
    if attrs["sections_interleaved"]:
        return 1 if i in range(1, 3 * h, 3) else 2 if i in range(2, 3 * w, 3) else 0
    return ([0] * (pairs - h - w) + [1] * h + [2] * w)[i]


def angles(positions, size, attrs):
    """For each triple of positions the angle of each pair."""
    pairs = len(columns(attrs, size))
    frequencies = []
    for i in range(pairs):
        frequency = mpf(attrs["theta"]) ** (-mpf(i) / pairs)
        frequencies.append([frequency, frequency / mpf(attrs["factor"]), llama3(frequency, attrs),
                            yarn(i, frequency, 2 * pairs, attrs)][attrs["scaling"]])
    return [[triple[section(i, pairs, attrs)] * f for i, f in enumerate(frequencies)] for triple in positions]


def attention_factor(attrs):
    if attrs["attention_factor"] >= 0:
        return mpf(attrs["attention_factor"])
    return mpf("0.1") * mp.log(attrs["factor"]) + 1 if attrs["scaling"] == 3 and attrs["factor"] > 1 else mpf(1)


def turned(rows, turns, sign, attrs):
    """Every row turned by sign*angle; row r by turns[r]."""
    values, factor = [], attention_factor(attrs)
    for x, angle in zip(rows, turns):
        y = list(x)
        for (low, high), a in zip(columns(attrs, len(x)), angle):
            y[low] = factor * (x[low] * mp.cos(a) - sign * x[high] * mp.sin(a))
            y[high] = factor * (x[high] * mp.cos(a) + sign * x[low] * mp.sin(a))
        values.append(y)
    return values


def scales(rows, turns, attrs):
    """The FP64 error grows with the angle, because it comes from rounding the angle."""
    values, factor = [], attention_factor(attrs)
    for x, angle in zip(rows, turns):
        sizes = [abs(v) for v in x]
        for (low, high), a in zip(columns(attrs, len(x)), angle):
            sizes[low] = sizes[high] = factor * (abs(x[low]) + abs(x[high])) * (1 + a)
        values.append(sizes)
    return values


def rope_vectors(batch, heads, positions, size, own=None, kind="positions", name=""):
    """`positions` for one sequence; with another kind for all of them, one after the other."""
    attrs = {**USUAL, **(own or {})}
    seq = len(positions) if kind == "positions" else len(positions) // batch
    name = name or f"rope_{batch}x{heads}x{seq}x{size}"
    random = Stream(batch * 1000 + heads * 100 + seq * 10 + size)
    rows = batch * heads * seq
    x, upstream = rows_of(random.values(rows * size), size), rows_of(random.values(rows * size), size)
    dims = {"batch": batch, "heads": heads, "seq": seq, "head_dim": size}
    triples = positions if kind == "mrope_positions" else [[p] * 3 for p in positions]
    of_token = angles(triples, size, attrs)
    turns = [of_token[(0 if kind == "positions" else row // (heads * seq) * seq) + row % seq] for row in range(rows)]
    given = {"positions": list(range(seq)) if kind != "positions" else positions}
    if kind != "positions":
        given[kind] = flat(positions) if kind == "mrope_positions" else positions
    optionals = [k for k in given if k != "positions"]
    yield vector(f"{name}/forward", "rope", "forward", dims, {"x": flat(x), **given},
                 {"y": (flat(turned(x, turns, 1, attrs)), flat(scales(x, turns, attrs)))}, optionals, attrs)
    gradient = flat(turned(upstream, turns, -1, attrs))
    check_gradient(name + "/dx", lambda v: dot(flat(upstream), flat(turned(rows_of(v, size), turns, 1, attrs))), flat(x),
                   gradient)
    yield vector(f"{name}/backward", "rope", "backward", dims, {**given, "grad_y": flat(upstream)},
                 {"dx": (gradient, flat(scales(upstream, turns, attrs)))}, optionals, attrs)


def vectors():
    yield from rope_vectors(1, 1, [0], 2)
    yield from rope_vectors(2, 3, [0, 1, 2, 3], 6)
    yield from rope_vectors(1, 2, [5, 0, 4095, 131071, 131071], 8)
    yield from rope_vectors(1, 2, [3, 200], 8, {"rotary_dim": 6, "interleaved": 1}, name="rope_interleaved")
    yield from rope_vectors(1, 1, [3, 200], 6, {"rotary_dim": 4, "scaling": 1, "factor": 4}, name="rope_linear")
    yield from rope_vectors(1, 1, [3, 9000], 16, {"theta": 5e5, "scaling": 2, "factor": 8}, name="rope_llama3")
    for truncate, factor in ((1, -1), (0, -1), (1, 1.25)):
        yield from rope_vectors(1, 1, [3, 9000], 16, {"theta": 1.5e5, "scaling": 3, "factor": 32, "original_length": 4096,
                                                      "truncate": truncate, "attention_factor": factor},
                                name=f"rope_yarn_{truncate}_{factor}")
    yield from rope_vectors(2, 2, [7, 7, 1, 1048576, 0, 12], 4, kind="batch_positions", name="rope_batch_positions")
    three = [[1, 1, 1], [2, 3, 7], [2, 4, 8], [900, 13, 5]]
    for mixed in (0, 1):
        yield from rope_vectors(2, 1, three, 16, {"section_h": 2, "section_w": 2, "sections_interleaved": mixed},
                                kind="mrope_positions", name=f"rope_three_{mixed}")
