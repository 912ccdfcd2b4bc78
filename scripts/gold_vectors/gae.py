# SPDX-License-Identifier: Apache-2.0
"""Vectors of gae, by the sum over later tokens."""
from common import Stream, mpf, vector


def gae_vectors(name, mask, gamma, lam, with_last):
    batch, seq = len(mask), len(mask[0])
    random = Stream(batch * 100 + seq)
    rewards, values = ([random.values(seq) for _ in range(batch)] for _ in range(2))
    last = random.values(batch) if with_last else [mpf(0)] * batch
    advantages, returns, sizes, return_sizes = ([] for _ in range(4))
    for b in range(batch):
        tokens = [t for t in range(seq) if mask[b][t]]
        for t in range(seq):
            own, size = mpf(0), mpf(0)
            later = [s for s in tokens if s >= t] if mask[b][t] else []
            for k, s in enumerate(later):
                following = values[b][later[k + 1]] if k + 1 < len(later) else last[b]
                own += (gamma * lam) ** k * (rewards[b][s] + gamma * following - values[b][s])
                size += (gamma * lam) ** k * (abs(rewards[b][s]) + gamma * abs(following) + abs(values[b][s]))
            advantages.append(own)
            sizes.append(size)
            returns.append(own + values[b][t] if mask[b][t] else mpf(0))
            return_sizes.append(size + abs(values[b][t]) if mask[b][t] else mpf(0))
    inputs = {"rewards": sum(rewards, []), "values": sum(values, []), "mask": sum(mask, [])}
    yield vector(f"{name}/forward", "gae", "forward", {"batch": batch, "seq": seq},
                 {**inputs, **({"last_values": last} if with_last else {})},
                 {"advantages": (advantages, sizes), "returns": (returns, return_sizes)},
                 ["last_values"] if with_last else [], {"gamma": float(gamma), "lambda": float(lam)})


def vectors():
    one, half = mpf(1), mpf(1) / 2
    yield from gae_vectors("gae_one", [[1]], one, one, False)
    yield from gae_vectors("gae_nothing", [[0, 0], [0, 0]], one, one, True)
    yield from gae_vectors("gae_plain", [[1, 1, 2, 1, 1]], one, one, False)
    yield from gae_vectors("gae_gaps", [[0, 1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 1, 0, 1]], mpf(7) / 8, half, True)
    yield from gae_vectors("gae_one_step", [[1, 0, 1, 1]], half, mpf(0), True)
