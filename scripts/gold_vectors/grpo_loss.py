# SPDX-License-Identifier: Apache-2.0
"""Vectors of grpo_loss."""
from common import Stream, check_gradient, flat, mp, mpf, softmax, vector
from ratio_kl import token


def advantages(rewards, bounds, eps):
    """(r - mu)/sqrt(max(var, eps^2)) per group, and the magnitude of the subtracted terms."""
    values, scales = [], []
    for begin, end in zip(bounds, bounds[1:]):
        group = rewards[begin:end]
        mean = mp.fsum(group) / len(group)
        deviation = mp.sqrt(max(mp.fsum((r - mean) ** 2 for r in group) / len(group), eps ** 2))
        values += [(r - mean) / deviation for r in group]
        scales += [0 if min(group) == max(group) else (abs(r) + abs(mean)) / deviation for r in group]
    return values, scales


def token_terms(policy, ref, t, old, a, clip):
    """L and kl of a token."""
    ratio, kl, _, _ = token(policy, ref, t, old)
    return -min(ratio * a, min(max(ratio, 1 - clip), 1 + clip) * a), kl


def grpo_vectors(name, random, batch, seq, vocab, bounds, rewards, masks, old_of, attrs, by_boundaries):
    clip, beta, eps = (mpf(attrs[key]) for key in ("clip_eps", "beta", "eps"))
    rows = batch * seq
    policy = [random.values(vocab) for _ in range(rows)]
    ref = [random.values(vocab) for _ in range(rows)]
    attention, completion = masks
    active = [i for i in range(rows) if attention[i] and completion[i]]
    ids = [random.below(vocab) if i in active else -100 for i in range(rows)]
    old = old_of(policy, ids)
    g = random.value()
    a, a_scale = advantages(rewards, bounds, eps)
    n = max(mpf(len(active)), mpf("1e-8"))

    losses, kls, loss_scale, kl_scale = [], [], [], []
    gradient, gradient_scale = [[mpf(0)] * vocab for _ in range(rows)], [[mpf(0)] * vocab for _ in range(rows)]
    for i in active:
        z, r, t, o, adv, adv_scale = policy[i], ref[i], ids[i], old[i], a[i // seq], a_scale[i // seq]
        loss, kl = token_terms(z, r, t, o, adv, clip)
        ratio, _, d, size = token(z, r, t, o)
        losses.append(loss)
        kls.append(kl)
        loss_scale.append((ratio * size + 2) * (abs(adv) + adv_scale))
        kl_scale.append(abs(mp.expm1(d)) * size + mp.exp(d) + 1 + abs(d))
        unclipped = ratio <= 1 + clip if adv >= 0 else ratio >= 1 - clip
        c = g / n * ((-adv * ratio if unclipped else 0) + beta * (1 - mp.exp(d)))
        c_scale = abs(g) / n * size * (ratio * (abs(adv) + adv_scale) + beta * (1 + mp.exp(d)))
        p = softmax(z)
        gradient[i] = [c * ((v == t) - q) for v, q in enumerate(p)]
        gradient_scale[i] = [c_scale * ((v == t) + q) for v, q in enumerate(p)]

        def objective(x):
            l, k = token_terms(x, r, t, o, adv, clip)
            return g / n * (l + beta * k)
        check_gradient(name + "/dpolicy_logits", objective, z, gradient[i])
    policy_loss, kl = mp.fsum(losses) / n, mp.fsum(kls) / n
    policy_scale, kl_scale = mp.fsum(loss_scale) / n, mp.fsum(kl_scale) / n

    dims = {"batch": batch, "seq": seq, "vocab": vocab, "group_bounds": len(bounds)}
    inputs = {"policy_logits": flat(policy), "ref_logits": flat(ref), "action_ids": ids, "attention_mask": attention,
              "old_logps": old, "rewards": rewards, "completion_mask": completion}
    if by_boundaries:
        inputs["group_boundaries"] = bounds
    optionals = ["group_boundaries"] if by_boundaries else []
    yield vector(f"{name}/forward", "grpo_loss", "forward", dims, inputs,
                 {"loss": ([policy_loss + beta * kl], [policy_scale + beta * kl_scale]),
                  "policy_loss": ([policy_loss], [policy_scale]), "kl": ([kl], [kl_scale])}, optionals, attrs)
    yield vector(f"{name}/backward", "grpo_loss", "backward", dims, {**inputs, "grad_loss": [g]},
                 {"dpolicy_logits": (flat(gradient), flat(gradient_scale))}, optionals, attrs)


def near(distance):
    """Old log-probabilities `distance` below the policy's, rounded to multiples of 1/32."""
    def old_of(policy, ids):
        return [mpf(0) if t < 0 else mp.nint((token(z, z, t, mpf(0))[3] - 1) / 2 * -32) / 32 - distance[i % len(distance)]
                for i, (z, t) in enumerate(zip(policy, ids))]
    return old_of


def vectors():
    def attrs(samples=2, beta=0.0):
        return {"samples_per_prompt": samples, "clip_eps": 0.2, "beta": beta, "eps": 1e-6}
    distance = [mpf(0), mpf("0.5"), mpf("-0.5"), mpf("0.0625")]
    random = Stream(4242)
    every = [1] * 12
    some = ([1, 0, 2, 1, 1, 1, 0, 1, 2, 1, 1, 1], [1, 1, 1, 0, 1, 2, 1, 1, 1, 1, 0, 1])
    rewards = random.values(4)
    yield from grpo_vectors("grpo_pairs", random, 4, 3, 7, [0, 2, 4], rewards, (every, every), near(distance), attrs(),
                            False)
    yield from grpo_vectors("grpo_beta", random, 4, 3, 7, [0, 4], rewards, some, near(distance), attrs(4, 0.04), False)
    yield from grpo_vectors("grpo_boundaries", random, 6, 2, 5, [0, 1, 3, 6], random.values(6), some, near(distance),
                            attrs(2, 0.04), True)
    yield from grpo_vectors("grpo_zero_variance", random, 4, 3, 7, [0, 2, 4], [mpf("0.75")] * 2 + [mpf(1), mpf(-1)],
                            some, near(distance), attrs(), False)
    yield from grpo_vectors("grpo_masked", random, 4, 3, 3, [0, 2, 4], rewards, (every, [0] * 12), near(distance),
                            attrs(2, 0.04), False)
