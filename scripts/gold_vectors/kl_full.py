# SPDX-License-Identifier: Apache-2.0
"""Vectors of kl_full."""
import mpmath
from mpmath import mp, mpf

from common import NEGATIVE_INFINITY, Stream, check_gradient, flat, softmax, vector


def divergence(p, q):
    """KL(p|q), where 0 ln 0 is 0."""
    return mp.fsum(a * mp.log(a / b) if b else mp.inf for a, b in zip(p, q) if a)


def loss(student, teacher, beta, temperature):
    s, t = (softmax([x / temperature for x in row]) for row in (student, teacher))
    if beta in (0, 1):
        return divergence(s, t) if beta else divergence(t, s)
    m = [beta * b + (1 - beta) * a for a, b in zip(s, t)]
    return beta * divergence(t, m) + (1 - beta) * divergence(s, m)


def gradient(student, teacher, beta, temperature, g):
    """By the chain rule through the softmax: dS_v/dx_w = S_v ([v = w] - S_w)/temperature, and dloss/dS_v."""
    s, t = (softmax([x / temperature for x in row]) for row in (student, teacher))
    by_s = []
    for a, b in zip(s, t):
        if beta == 0:
            by_s.append(-b / a if a else mpf(0))
        elif beta == 1:
            by_s.append(mp.log(a / b) + 1 if a else mpf(0))
        else:  # of the two terms in M, what M's change adds is constant, and vanishes
            by_s.append((1 - beta) * mp.log(a / (beta * b + (1 - beta) * a)) if a else mpf(0))
    mean = mp.fsum(a * d for a, d in zip(s, by_s))
    values = [g / temperature * a * (d - mean) for a, d in zip(s, by_s)]
    scales = [abs(g) / temperature * (a * (1 + abs(d) + abs(mean)) + b) for a, b, d in zip(s, t, by_s)]
    return values, scales


def kl_full_vectors(name, students, teachers, upstream, beta=mpf(0), temperature=mpf(1), mask=None):
    vocab = len(students[0])
    dims = {"batch": 1, "seq": len(students), "vocab": vocab}
    kept = mask or [1] * len(students)
    inputs = {"student": flat(students), "teacher": flat(teachers), **({"mask": mask} if mask else {})}
    attrs = {"beta": float(beta), "temperature": float(temperature)}
    optionals = ["mask"] if mask else []
    rows = list(zip(students, teachers, kept))
    values = [loss(s, t, beta, temperature) if keep else mpf(0) for s, t, keep in rows]
    # The terms of the sum are logarithms, as large as the distances between logits.
    finite = [[x for x in s + t if not mpmath.isinf(x)] for s, t, _ in rows]
    scales = [(2 + (max(x) - min(x)) / temperature) * 2 if keep else mpf(0) for x, keep in zip(finite, kept)]
    yield vector(f"{name}/forward", "kl_full", "forward", dims, inputs, {"loss": (values, scales)}, optionals, attrs)
    gradients, sizes = [], []
    for (s, t, keep), g, scale in zip(rows, upstream, scales):
        value, size = gradient(s, t, beta, temperature, g) if keep else ([mpf(0)] * vocab, [mpf(0)] * vocab)
        gradients.append(value)
        sizes.append([each * scale for each in size])
        if keep:
            check_gradient(name + "/dstudent", lambda x: g * loss(x, t, beta, temperature), s, value)
    yield vector(f"{name}/backward", "kl_full", "backward", dims, {**inputs, "grad_loss": upstream},
                 {"dstudent": (flat(gradients), flat(sizes))}, optionals, attrs)


def vectors():
    random = Stream(4000)
    for vocab in (1, 2, 7, 129):
        rows = [random.values(vocab) for _ in range(6)]
        yield from kl_full_vectors(f"kl_full_v{vocab}", rows[:3], rows[3:], random.values(3))
    for name, beta, temperature in (("reverse", mpf(1), mpf(1)), ("half", mpf("0.5"), mpf(1)), ("eighth", mpf("0.125"), mpf("0.75")),
                                    ("temperature", mpf(0), mpf(2)), ("reverse_temperature", mpf(1), mpf("1.25"))):
        rows = [random.values(7) for _ in range(6)]
        yield from kl_full_vectors(f"kl_full_{name}", rows[:3], rows[3:], random.values(3), beta, temperature)
    rows = [random.values(7) for _ in range(2)]
    for beta in (mpf(0), mpf("0.25"), mpf(1)):
        yield from kl_full_vectors(f"kl_full_equal_{float(beta)}", rows, rows, random.values(2), beta)
    students, teachers = ([random.values(7) for _ in range(2)] for _ in range(2))
    teachers[0][2] = teachers[1][0] = teachers[1][5] = NEGATIVE_INFINITY  # T = 0 adds nothing to KL(T|S)
    yield from kl_full_vectors("kl_full_no_teacher", students, teachers, random.values(2))
    students[0][2] = NEGATIVE_INFINITY
    yield from kl_full_vectors("kl_full_neither", students, teachers, random.values(2), mpf("0.5"))
    infinite = [row[:] for row in students]
    infinite[0][3] = NEGATIVE_INFINITY  # T > 0 = S: the loss is infinite
    forward, _ = kl_full_vectors("kl_full_infinite", infinite, teachers, random.values(2))
    yield forward
    rows = [random.values(7) for _ in range(8)]
    yield from kl_full_vectors("kl_full_masked", rows[:4], rows[4:], random.values(4), mpf("0.5"), mask=[1, 0, 2, 0])
