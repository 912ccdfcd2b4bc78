# SPDX-License-Identifier: Apache-2.0
"""Vectors of ratio_kl."""
from common import Stream, check_gradient, flat, logsumexp, mp, mpf, softmax, vector


def logp(z, t):
    return z[t] - logsumexp(z)


def token(policy, ref, t, old):
    """ratio, kl, d and the magnitude of the terms that the exponents are summed from."""
    lp, lr = logp(policy, t), logp(ref, t)
    d = lr - lp
    return mp.exp(lp - old), mp.expm1(d) - d, d, 1 + abs(lp) + abs(lr) + abs(old)



def ratio_kl_vectors(name, policy, ref, ids, mask, old, g_ratio, g_kl):
    vocab = len(policy[0])
    dims = {"batch": 1, "seq": len(policy), "vocab": vocab}
    inputs = {"policy_logits": flat(policy), "ref_logits": flat(ref), "action_ids": ids, "attention_mask": mask,
              "old_logps": old}
    ratio, kl, ratio_scale, kl_scale, gradient, gradient_scale = [], [], [], [], [], []
    for z, r, t, m, o, a, b in zip(policy, ref, ids, mask, old, g_ratio, g_kl):
        if m == 0:
            ratio.append(mpf(1))
            kl.append(mpf(0))
            ratio_scale.append(mpf(0))
            kl_scale.append(mpf(0))
            gradient.append([mpf(0)] * vocab)
            gradient_scale.append([mpf(0)] * vocab)
            continue
        rho, k3, d, size = token(z, r, t, o)
        ratio.append(rho)
        ratio_scale.append(rho * size)
        kl.append(k3)
        kl_scale.append(abs(mp.expm1(d)) * size + mp.exp(d) + 1 + abs(d))
        c = a * rho + b * (1 - mp.exp(d))
        c_scale = size * (abs(a) * rho + abs(b) * (1 + mp.exp(d)))
        p = softmax(z)
        others = mp.fsum(q for v, q in enumerate(p) if v != t)
        row = [c * others if v == t else -c * q for v, q in enumerate(p)]
        check_gradient(name + "/dpolicy_logits",
                       lambda x: a * token(x, r, t, o)[0] + b * token(x, r, t, o)[1], z, row)
        gradient.append(row)
        gradient_scale.append([c_scale * ((v == t) + q) for v, q in enumerate(p)])
    yield vector(f"{name}/forward", "ratio_kl", "forward", dims, inputs,
                 {"ratio": (ratio, ratio_scale), "kl": (kl, kl_scale)})
    yield vector(f"{name}/backward", "ratio_kl", "backward", dims, {**inputs, "grad_ratio": g_ratio, "grad_kl": g_kl},
                 {"dpolicy_logits": (flat(gradient), flat(gradient_scale))})


def vectors():
    for vocab in (1, 2, 7, 129):
        random = Stream(vocab + 500)
        policy = [random.values(vocab) for _ in range(4)]
        ref = [random.values(vocab) for _ in range(4)]
        mask = [1, 0, 2, 1]
        ids = random.ids(4, vocab)
        ids[1] = -100  # masked: never read
        old = [random.value() - 2 for _ in range(4)]
        yield from ratio_kl_vectors(f"ratio_kl_v{vocab}", policy, ref, ids, mask, old, random.values(4),
                                    random.values(4))
    random = Stream(77)
    policy = [random.values(7) for _ in range(4)]
    near = [list(row) for row in policy]  # d is 0, tiny, then about 10 and -10
    near[1][3] += mpf(1) / 64
    near[2][4] = policy[2][4] + 10 if abs(policy[2][4]) < 2 else mpf(10)
    near[3][5] = mpf(-10)
    yield from ratio_kl_vectors("ratio_kl_near", policy, near, [0, 2, 4, 5], [1, 1, 1, 1],
                                [mpf("-1.5"), mpf(-2), mpf(-20), mpf(4)], random.values(4), random.values(4))
    yield from ratio_kl_vectors("ratio_kl_masked", policy, near, [7, -1, 1000, -100], [0, 0, 0, 0],
                                random.values(4), random.values(4), random.values(4))
