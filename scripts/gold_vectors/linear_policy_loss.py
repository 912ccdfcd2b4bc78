# SPDX-License-Identifier: Apache-2.0
"""Vectors of linear_policy_loss."""
from mpmath import mp, mpf

from common import (Stream, absolute, check_gradient, flat, logits_of, logsumexp, product, rows_of, slope, softmax, transformed,
                    transposed, vector)
from entropy import entropy
from entropy import gradient as entropy_gradient
from policy_loss import DEFAULTS, Batch


class Problem:
    """Tokens whose log-probabilities and entropies come from hidden states."""

    def __init__(self, tensors, attrs):
        self.tensors, self.attrs = tensors, attrs
        self.temperature, self.softcap = attrs["temperature"], attrs["softcap"]
        self.seq = len(tensors["mask"][0])

    def by_row(self, values):
        return rows_of(values, self.seq)

    def tokens(self, hidden, weight, bias):
        """Log-probability and entropy of every token; 0 where the mask is 0."""
        logps, entropies = [], []
        for row, t, keep in zip(logits_of(hidden, weight, bias), flat(self.tensors["target_ids"]), flat(self.tensors["mask"])):
            z = [transformed(x, self.temperature, self.softcap) for x in row]
            logps.append(z[t] - logsumexp(z) if keep else mpf(0))
            entropies.append(entropy(row, self.temperature, self.softcap) if keep else mpf(0))
        return logps, entropies

    def batch(self, logps):
        return Batch({**self.tensors, "logps": self.by_row(logps)}, self.attrs)


def linear_policy_loss_vectors(name, tensors, attrs, upstream):
    attrs = {**DEFAULTS, "temperature": mpf(1), "softcap": mpf(0), **attrs}
    p = Problem(tensors, attrs)
    hidden, weight = tensors["hidden"], tensors["lm_head_weight"]
    vocab, hidden_size = len(weight), len(weight[0])
    bias = tensors.get("bias", [mpf(0)] * vocab)
    dims = {"batch": len(tensors["mask"]), "seq": p.seq, "hidden": hidden_size, "vocab": vocab}
    logps, entropies = p.tokens(hidden, weight, bias)
    batch = p.batch(logps)

    total, scale = mpf(0), mpf(0)
    for i, j in batch.tokens():
        lp, at = logps[i * p.seq + j], i * p.seq + j
        terms = [batch.weight(i, j) * batch.objective(i, j, lp, lp), attrs["kl_coef"] * batch.kl(i, j, lp),
                 -attrs["entropy_coef"] * entropies[at]]
        total += batch.share(i) * mp.fsum(terms)
        scale += batch.share(i) * mp.fsum(abs(term) for term in terms)
    # Each logit is itself a sum; its terms bound its FP64 rounding error, which ratios and distances amplify.
    terms = [1 + max(row) / p.temperature for row in logits_of(absolute(hidden), absolute(weight), [abs(b) for b in bias])]
    kept = flat(tensors["mask"])
    outputs = {"loss": ([total], [scale * 8 * max(terms)]),
               "logps": (logps, [(1 + abs(v)) * t if keep else mpf(0) for v, t, keep in zip(logps, terms, kept)]),
               "entropy": (entropies, [(1 + v) * t if keep else mpf(0) for v, t, keep in zip(entropies, terms, kept)])}
    inputs = {key: flat(tensors[key]) for key in ("hidden", "lm_head_weight", "target_ids", "old_logps", "advantages", "mask")}
    for key in ("bias", "ref_logps", "rollout_logps", "denom"):
        if key in tensors:
            inputs[key] = [tensors[key]] if key == "denom" else tensors[key] if key == "bias" else flat(tensors[key])
    optionals = [key for key in ("bias", "ref_logps", "rollout_logps", "denom") if key in tensors]
    numbers = {key: float(value) for key, value in attrs.items()}
    yield vector(f"{name}/forward", "linear_policy_loss", "forward", dims, inputs, outputs, optionals, numbers)

    def part(i, j, lp, h):
        """What token (i, j) adds to the loss, where everything that gets no gradient stays as it was."""
        frozen = logps[i * p.seq + j]
        return upstream * batch.share(i) * (batch.weight(i, j) * batch.objective(i, j, lp, frozen)
                                            + attrs["kl_coef"] * batch.kl_to_differentiate(i, j, lp) - attrs["entropy_coef"] * h)

    def loss(h, w, b):
        lps, hs = p.tokens(rows_of(h, hidden_size), rows_of(w, hidden_size), b)
        return mp.fsum(part(i, j, lps[i * p.seq + j], hs[i * p.seq + j]) for i, j in batch.tokens())

    raw = logits_of(hidden, weight, bias)
    dx, sizes = [[mpf(0)] * vocab for _ in raw], [[mpf(0)] * vocab for _ in raw]
    for i, j in batch.tokens():
        at, t = i * p.seq + j, tensors["target_ids"][i][j]
        c = mp.diff(lambda x: part(i, j, x, entropies[at]), logps[at])
        e = -upstream * batch.share(i) * attrs["entropy_coef"]
        probabilities = softmax([transformed(x, p.temperature, p.softcap) for x in raw[at]])
        of_entropy, of_size = entropy_gradient(raw[at], e, p.temperature, p.softcap)
        of_slope = [slope(x, p.temperature, p.softcap) for x in raw[at]]
        dx[at] = [c * ((v == t) - q) * s + d for v, (q, s, d) in enumerate(zip(probabilities, of_slope, of_entropy))]
        sizes[at] = [(abs(c) * ((v == t) + q) / p.temperature + s + abs(e) * q / p.temperature) * 8 * terms[at]
                     for v, (q, s) in enumerate(zip(probabilities, of_size))]
    dhidden, dweight = product(dx, weight), product(transposed(dx), hidden)
    dbias = [mp.fsum(column) for column in transposed(dx)]
    h, w = flat(hidden), flat(weight)
    check_gradient(name + "/dhidden", lambda x: loss(x, w, bias), h, flat(dhidden))
    check_gradient(name + "/dlm_head_weight", lambda x: loss(h, x, bias), w, flat(dweight))
    check_gradient(name + "/dbias", lambda x: loss(h, w, x), bias, dbias)
    outputs = {"dhidden": (flat(dhidden), flat(product(sizes, absolute(weight)))),
               "dlm_head_weight": (flat(dweight), flat(product(transposed(sizes), absolute(hidden))))}
    if "bias" in tensors:
        outputs["dbias"] = (dbias, [mp.fsum(column) for column in transposed(sizes)])
    yield vector(f"{name}/backward", "linear_policy_loss", "backward", dims, {**inputs, "grad_loss": [upstream]}, outputs,
                 optionals, numbers)


def made(random, batch, seq, *optionals, hidden_size=3, vocab=5):
    """Old log-probabilities lie near the targets' own, on both sides of every limit, none of them at one."""
    tokens = batch * seq
    hidden = rows_of(random.values(tokens * hidden_size), hidden_size)
    weight = rows_of(random.values(vocab * hidden_size, step=mpf(1) / 128), hidden_size)
    bias = random.values(vocab) if "bias" in optionals else [mpf(0)] * vocab
    ids = random.ids(tokens, vocab)
    mask = [0 if random.below(4) == 0 else 1 for _ in range(tokens)]
    about = [mp.nint(8 * (row[t] - logsumexp(row))) / 8 for row, t in zip(logits_of(hidden, weight, bias), ids)]

    def near(base):
        return rows_of([x + random.value(4, mpf(1) / 8) + mpf(1) / 16 for x in base], seq)

    tensors = {"hidden": hidden, "lm_head_weight": weight, "target_ids": rows_of(ids, seq), "old_logps": near(about),
               "advantages": rows_of([random.value(40) + mpf(1) / 64 for _ in range(tokens)], seq), "mask": rows_of(mask, seq)}
    if "bias" in optionals:
        tensors["bias"] = bias
    if "ref_logps" in optionals:
        tensors["ref_logps"] = near(about)
    if "rollout_logps" in optionals:
        tensors["rollout_logps"] = rows_of([x + random.value(4, mpf(1) / 8) for x in flat(tensors["old_logps"])], seq)
    if "denom" in optionals:
        tensors["denom"] = mpf(24)
    return tensors


def vectors():
    random = Stream(77)
    half, eighth = mpf("0.5"), mpf("0.125")
    yield from linear_policy_loss_vectors("linear_policy_loss_plain", made(random, 2, 3), {}, mpf(1))
    yield from linear_policy_loss_vectors("linear_policy_loss_bias", made(random, 2, 3, "bias"), {"entropy_coef": half}, mpf("1.5"))
    yield from linear_policy_loss_vectors("linear_policy_loss_everything", made(random, 2, 3, "bias", "ref_logps", "rollout_logps", "denom"),
                                          {"is_mode": 1, "is_low": mpf("0.75"), "is_high": mpf("1.25"), "kl_coef": half, "entropy_coef": eighth,
                                           "temperature": mpf("1.25"), "softcap": mpf(4)}, mpf(2))
    yield from linear_policy_loss_vectors("linear_policy_loss_temperature", made(random, 2, 3), {"temperature": mpf("0.75"), "entropy_coef": half},
                                          mpf(1))
    yield from linear_policy_loss_vectors("linear_policy_loss_sequence", made(random, 2, 3),
                                          {"ratio_level": 1, "aggregation": 2, "clip_low": eighth, "clip_high": eighth}, mpf(1))
    yield from linear_policy_loss_vectors("linear_policy_loss_cispo", made(random, 2, 3, "bias"), {"objective": 1, "aggregation": 3}, mpf(1))
    nothing = made(random, 1, 3, "bias")
    nothing["mask"] = [[0] * 3]
    yield from linear_policy_loss_vectors("linear_policy_loss_nothing", nothing, {"entropy_coef": half}, mpf(1))
