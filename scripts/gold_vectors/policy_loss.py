# SPDX-License-Identifier: Apache-2.0
"""Vectors of policy_loss."""
from mpmath import mp, mpf

from common import Stream, check_gradient, vector

DEFAULTS = {"ratio_level": 0, "objective": 0, "clip_low": mpf("0.25"), "clip_high": mpf("0.25"), "dual_clip": 0, "delta": 0,
            "is_mode": 0, "is_low": 0, "is_high": 2, "kl_estimator": 3, "kl_coef": 0, "kl_gradient": 0, "ratio_clamp": 0,
            "kl_clamp_in": 0, "kl_clamp_out": 0, "entropy_coef": 0, "aggregation": 0}


def within(x, low, high):
    return min(max(x, low), high)


def held(x, limit):
    return within(x, -limit, limit) if limit else x


class Batch:
    """Sequences of tokens; each tensor is a list of rows."""

    def __init__(self, tensors, attrs):
        self.tensors, self.attrs = tensors, attrs
        self.active = [[j for j, m in enumerate(row) if m] for row in tensors["mask"]]

    def mean_of(self, first, second, i):
        a, b = self.tensors[first][i], self.tensors[second][i]
        return mp.fsum(a[j] - b[j] for j in self.active[i]) / len(self.active[i])

    def weight(self, i, j):
        """What the rollout's mismatch multiplies the loss by."""
        mode, low, high = self.attrs["is_mode"], self.attrs["is_low"], self.attrs["is_high"]
        if mode == 0 or "rollout_logps" not in self.tensors:
            return mpf(1)
        own = mp.exp(self.tensors["old_logps"][i][j] - self.tensors["rollout_logps"][i][j])
        mean = self.mean_of("old_logps", "rollout_logps", i)
        if mode == 1:
            return within(own, low, high)
        if mode == 2:
            return within(mp.exp(mean * len(self.active[i])), low, high)
        return own if low <= (own if mode == 3 else mp.exp(mean)) <= high else mpf(0)

    def objective(self, i, j, lp, frozen):
        """L without its weight, where the logarithm of the ratio is that of `lp`; `frozen` is lp itself where no
        gradient is taken."""
        a, t = self.tensors["advantages"][i][j], self.attrs
        d = lp - self.tensors["old_logps"][i][j]
        if t["ratio_level"] == 1:
            d = self.mean_of("logps", "old_logps", i) + lp - frozen
        r = mp.exp(held(d, t["ratio_clamp"]))
        low, high = 1 - t["clip_low"], 1 + t["clip_high"]
        if t["objective"] == 1:
            fixed = mp.exp(held(self.mean_of("logps", "old_logps", i) if t["ratio_level"] == 1
                                else frozen - self.tensors["old_logps"][i][j], t["ratio_clamp"]))
            return -within(fixed, low, high) * a * lp
        loss = max(-a * (min(r, t["delta"]) if t["delta"] else r), -a * within(r, low, high))
        return min(loss, -a * t["dual_clip"]) if a < 0 and t["dual_clip"] else loss

    def ratio(self, i, j, lp):
        d = self.mean_of("logps", "old_logps", i) if self.attrs["ratio_level"] else lp - self.tensors["old_logps"][i][j]
        return mp.exp(held(d, self.attrs["ratio_clamp"]))

    def estimate(self, i, j, lp, kind):
        x = held(lp - self.tensors["ref_logps"][i][j], self.attrs["kl_clamp_in"])
        return held({1: x, 2: x * x / 2, 3: mp.expm1(-x) + x}[kind], self.attrs["kl_clamp_out"])

    def kl(self, i, j, lp):
        """The KL estimate as it is reported."""
        if "ref_logps" not in self.tensors:
            return mpf(0)
        value = self.estimate(i, j, lp, self.attrs["kl_estimator"])
        return self.ratio(i, j, lp) * value if self.attrs["kl_gradient"] == 2 else value

    def kl_to_differentiate(self, i, j, lp):
        if "ref_logps" not in self.tensors:
            return mpf(0)
        return self.estimate(i, j, lp, 2) if self.attrs["kl_gradient"] == 1 else self.kl(i, j, lp)

    def share(self, i):
        """a of the tokens of sequence i."""
        kind, sizes = self.attrs["aggregation"], [len(row) for row in self.active]
        denom = {0: sum(sizes), 1: sum(n > 0 for n in sizes), 2: sum(n > 0 for n in sizes),
                 3: sum(len(row) for row in self.tensors["mask"])}[kind]
        denom = self.tensors["denom"] if "denom" in self.tensors else max(denom, 1)
        return mpf(1) / (denom * sizes[i]) if kind == 2 else mpf(1) / denom

    def tokens(self):
        return [(i, j) for i, row in enumerate(self.active) for j in row]


def policy_loss_vectors(name, tensors, attrs, upstream):
    attrs = {**DEFAULTS, **attrs}
    batch = Batch(tensors, attrs)
    shape = tensors["mask"]
    dims = {"batch": len(shape), "seq": len(shape[0])}
    logps = tensors["logps"]
    parts = {"policy_loss": [], "kl": [], "entropy": [], "clipped": []}
    for i, j in batch.tokens():
        lp, share = logps[i][j], batch.share(i)
        parts["policy_loss"].append(share * batch.weight(i, j) * batch.objective(i, j, lp, lp))
        parts["kl"].append(share * batch.kl(i, j, lp))
        parts["entropy"].append(share * tensors["entropy"][i][j] if "entropy" in tensors else mpf(0))
        r, a = batch.ratio(i, j, lp), tensors["advantages"][i][j]
        inside = within(r, 1 - attrs["clip_low"], 1 + attrs["clip_high"])
        plain = min(r, attrs["delta"]) if attrs["delta"] else r
        parts["clipped"].append(mpf(int(inside != r if attrs["objective"] else -a * inside > -a * plain)))
    sums = {key: mp.fsum(values) for key, values in parts.items()}
    sizes = {key: mp.fsum(abs(v) for v in values) for key, values in parts.items()}
    n = max(len(batch.tokens()), 1)
    total = sums["policy_loss"] + attrs["kl_coef"] * sums["kl"] - attrs["entropy_coef"] * sums["entropy"]
    scale = sizes["policy_loss"] + attrs["kl_coef"] * sizes["kl"] + attrs["entropy_coef"] * sizes["entropy"]
    outputs = {"loss": ([total], [scale]), "policy_loss": ([sums["policy_loss"]], [sizes["policy_loss"]]),
               "kl": ([sums["kl"]], [sizes["kl"]]), "clip_fraction": ([sums["clipped"] / n], [sums["clipped"] / n])}
    if "ref_logps" not in tensors:
        del outputs["kl"]
    order = ("logps", "old_logps", "advantages", "mask", "ref_logps", "rollout_logps", "entropy")
    inputs = {key: [x for row in tensors[key] for x in row] for key in order if key in tensors}
    if "denom" in tensors:
        inputs["denom"] = [tensors["denom"]]
    optionals = [key for key in ("ref_logps", "rollout_logps", "entropy", "denom") if key in tensors]
    numbers = {key: float(value) for key, value in attrs.items()}
    yield vector(f"{name}/forward", "policy_loss", "forward", dims, inputs, outputs, optionals, numbers)

    def term(i, j, lp):
        frozen = logps[i][j]
        return upstream * batch.share(i) * (batch.weight(i, j) * batch.objective(i, j, lp, frozen)
                                            + attrs["kl_coef"] * batch.kl_to_differentiate(i, j, lp))

    gradient = [mpf(0)] * (dims["batch"] * dims["seq"])
    for i, j in batch.tokens():
        # Differentiated by definition: the formulas of the gold are another derivation.
        gradient[i * dims["seq"] + j] = mp.diff(lambda x: term(i, j, x), logps[i][j])
    for i, j in batch.tokens():
        check_gradient(name, lambda x: term(i, j, x[0]), [logps[i][j]], [gradient[i * dims["seq"] + j]])
    found = {"dlogps": (gradient, [abs(x) + abs(upstream) for x in gradient])}
    if "entropy" in tensors:
        values = [mpf(0)] * len(gradient)
        for i, j in batch.tokens():
            values[i * dims["seq"] + j] = -upstream * batch.share(i) * attrs["entropy_coef"]
        found["dentropy"] = (values, [abs(x) for x in values])
    yield vector(f"{name}/backward", "policy_loss", "backward", dims, {**inputs, "grad_loss": [upstream]}, found, optionals,
                 numbers)


def made(random, rows, seq, *optionals):
    """Log-probabilities with ratios on both sides of every limit, none of them at one."""
    def near(base, step):
        return [[x + random.value(24, step) + step / 2 for x in row] for row in base]

    logps = [[-abs(random.value(60)) for _ in range(seq)] for _ in range(rows)]
    tensors = {"logps": logps, "old_logps": near(logps, mpf(1) / 32),
               "advantages": [[random.value(40) + mpf(1) / 64 for _ in range(seq)] for _ in range(rows)],
               "mask": [[0 if random.below(4) == 0 else 1 for _ in range(seq)] for _ in range(rows)]}
    if "ref_logps" in optionals:
        tensors["ref_logps"] = near(logps, mpf(1) / 32)
    if "rollout_logps" in optionals:
        tensors["rollout_logps"] = near(tensors["old_logps"], mpf(1) / 32)
    if "entropy" in optionals:
        tensors["entropy"] = [[abs(random.value(60)) for _ in range(seq)] for _ in range(rows)]
    if "denom" in optionals:
        tensors["denom"] = mpf(24)
    return tensors


def vectors():
    random = Stream(31)
    half, eighth = mpf("0.5"), mpf("0.125")
    everything = ("ref_logps", "rollout_logps", "entropy", "denom")
    yield from policy_loss_vectors("policy_loss_plain", made(random, 2, 5), {}, mpf(1))
    yield from policy_loss_vectors("policy_loss_limits", made(random, 3, 6), {"clip_high": half, "dual_clip": mpf("1.5"),
                                                                              "ratio_clamp": half}, mpf("1.5"))
    yield from policy_loss_vectors("policy_loss_delta", made(random, 3, 6), {"delta": mpf("1.375")}, mpf("-0.5"))
    yield from policy_loss_vectors("policy_loss_everything", made(random, 3, 6, *everything),
                                   {"is_mode": 1, "is_low": mpf("0.75"), "is_high": mpf("1.25"), "kl_coef": half,
                                    "entropy_coef": eighth}, mpf(2))
    for mode in (2, 3, 4):
        yield from policy_loss_vectors(f"policy_loss_is{mode}", made(random, 3, 6, "rollout_logps"),
                                       {"is_mode": mode, "is_low": mpf("0.75"), "is_high": mpf("1.25"), "aggregation": mode - 1},
                                       mpf(1))
    for estimator in (1, 2, 3):
        for gradient in (0, 1, 2):
            yield from policy_loss_vectors(f"policy_loss_k{estimator}_{gradient}", made(random, 2, 4, "ref_logps"),
                                           {"kl_estimator": estimator, "kl_gradient": gradient, "kl_coef": half}, mpf(1))
    yield from policy_loss_vectors("policy_loss_clamped_kl", made(random, 3, 6, "ref_logps"),
                                   {"kl_coef": mpf(1), "kl_clamp_in": half, "kl_clamp_out": eighth}, mpf(1))
    for objective in (0, 1):
        yield from policy_loss_vectors(f"policy_loss_sequence_{objective}", made(random, 3, 6),
                                       {"ratio_level": 1, "objective": objective, "aggregation": 2, "clip_low": eighth,
                                        "clip_high": eighth}, mpf(1))
    yield from policy_loss_vectors("policy_loss_cispo", made(random, 3, 6), {"objective": 1}, mpf(1))
    nothing = made(random, 2, 3)
    nothing["mask"] = [[0] * 3] * 2
    yield from policy_loss_vectors("policy_loss_nothing", nothing, {}, mpf(1))
