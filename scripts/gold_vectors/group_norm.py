# SPDX-License-Identifier: Apache-2.0
"""Vectors of group_norm: groups of equal rewards, of all but one equal, of one."""
from common import Stream, mp, mpf, vector

DEFAULTS = {"samples_per_prompt": 2, "scale": 1, "unbiased": 1, "eps": mpf(1) / 1024, "leave_one_out": 0, "singleton": 0}


def advantage(r, group, i, attrs):
    if len(group) == 1:
        return r if attrs["singleton"] else mpf(0)
    others = group[:i] + group[i + 1:] if attrs["leave_one_out"] else group
    n = len(others)
    mean = mp.fsum(others) / n
    squares = mp.fsum((a - b) ** 2 for a in others for b in others) / (2 * n)
    if squares == 0 or not attrs["scale"]:
        return r - mean
    return (r - mean) / (mp.sqrt(squares / (n - 1 if attrs["unbiased"] else n)) + attrs["eps"])


def group_norm_vectors(name, groups, boundaries=False, **given):
    attrs = {**DEFAULTS, "samples_per_prompt": 2 if boundaries else len(groups[0]), **given}
    rewards = sum(groups, [])
    bounds = [sum(len(g) for g in groups[:i]) for i in range(len(groups) + 1)]
    value = [advantage(r, group, i, attrs) for group in groups for i, r in enumerate(group)]
    scale = [4 * (abs(v) + abs(v / r if r else v) * mp.fsum(abs(x) for x in rewards)) for v, r in zip(value, rewards)]
    yield vector(f"{name}/forward", "group_norm", "forward",
                 {"batch": len(rewards), "group_bounds": len(bounds) if boundaries else 2},
                 {"rewards": rewards, **({"group_boundaries": bounds} if boundaries else {})},
                 {"advantages": (value, scale)}, ["group_boundaries"] if boundaries else [],
                 {key: float(v) for key, v in attrs.items()})


def vectors():
    random, usual = Stream(7), mpf(15) / 16
    several = [random.values(5) for _ in range(3)]
    yield from group_norm_vectors("group_norm_pair", [random.values(2)])
    yield from group_norm_vectors("group_norm_equal", [[usual] * 3, random.values(3)])
    for leave_one_out in range(2):
        yield from group_norm_vectors(f"group_norm_one_differs_{leave_one_out}", [[usual, usual, mpf(0), usual]],
                                      leave_one_out=leave_one_out)
        yield from group_norm_vectors(f"group_norm_{leave_one_out}", several, leave_one_out=leave_one_out, unbiased=0)
        yield from group_norm_vectors(f"group_norm_unscaled_{leave_one_out}", several, leave_one_out=leave_one_out, scale=0)
        yield from group_norm_vectors(f"group_norm_single_{leave_one_out}", [[usual], random.values(3), [mpf(2)]], True,
                                      singleton=leave_one_out)
