#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes cases/captured.safetensors: tensors of one training step and one RL step of a small language model.

Usage: scripts/captured.py [--steps N] [--out FILE]

A decoder of two layers (RMSNorm, grouped-query attention with rotary embeddings, SwiGLU, tied embedding) learns to
predict this project's documents in byte pairs, in FP32, in about four minutes on two cores. Needs PyTorch. Floating-point
tensors are stored in BF16, what operators take in FP32 is stored in FP32. The file's metadata say which tensor is which
input of which operator.
"""
import argparse
import collections
import math
import pathlib
import re
import sys

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from check_operator.serving import write_safetensors

VOCAB, HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, BATCH, SEQ = 1024, 256, 640, 4, 2, 64, 2, 2, 128
THETA, EPS = 1e4, 1e-6


def byte_pairs(text, size):
    """Ids of `text` after merging the most frequent pair of neighbours until there are `size` kinds of tokens."""
    words = collections.Counter(re.findall(r"\s?\S+|\s+", text))
    parts = {word: list(word.encode()) for word in words}
    merges = {}
    for new in range(256, size):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges[best] = new
        for word, ids in parts.items():
            if best[0] not in ids:
                continue
            merged, i = [], 0
            while i < len(ids):
                is_pair = tuple(ids[i:i + 2]) == best
                merged.append(new if is_pair else ids[i])
                i += 2 if is_pair else 1
            parts[word] = merged
    return torch.tensor([i for word in re.findall(r"\s?\S+|\s+", text) for i in parts[word]])


class Model(torch.nn.Module):
    """Keeps what its operators read in `seen`, by name; tensors there have gradients after a backward pass."""

    def __init__(self):
        super().__init__()
        shapes = {"embedding": (VOCAB, HIDDEN), "final_norm": (HIDDEN,)}
        for i in range(LAYERS):
            shapes |= {f"{i}.attention_norm": (HIDDEN,), f"{i}.mlp_norm": (HIDDEN,),
                       f"{i}.q": (HIDDEN, HEADS * HEAD_DIM), f"{i}.k": (HIDDEN, KV_HEADS * HEAD_DIM),
                       f"{i}.v": (HIDDEN, KV_HEADS * HEAD_DIM), f"{i}.o": (HEADS * HEAD_DIM, HIDDEN),
                       f"{i}.gate": (HIDDEN, INTER), f"{i}.up": (HIDDEN, INTER), f"{i}.down": (INTER, HIDDEN)}
        self.w = {}
        for name, shape in shapes.items():
            start = torch.ones(shape) if "norm" in name else torch.randn(shape) * (0.02 if name == "embedding" else
                                                                                   shape[0]**-0.5)
            self.w[name] = torch.nn.Parameter(start)
            self.register_parameter(name.replace(".", "_"), self.w[name])
        self.seen = {}

    def see(self, name, x):
        if x.requires_grad:
            x.retain_grad()
        self.seen[name] = x
        return x

    def norm(self, name, x):
        x = self.see(f"{name}.x", x)
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.w[name]
        return self.see(f"{name}.y", y)

    def rope(self, name, x):
        x = self.see(f"{name}.x", x)
        half = HEAD_DIM // 2
        angle = torch.arange(x.shape[2])[:, None] * THETA**(-torch.arange(half) * 2 / HEAD_DIM)
        low, high = x[..., :half], x[..., half:]
        return self.see(f"{name}.y", torch.cat([low * angle.cos() - high * angle.sin(),
                                                high * angle.cos() + low * angle.sin()], -1))

    def attention(self, i, x):
        batch, seq = x.shape[:2]
        heads = {n: (x @ self.w[f"{i}.{n}"]).view(batch, seq, -1, HEAD_DIM).transpose(1, 2) for n in "qkv"}
        q, k = self.rope(f"{i}.rope_q", heads["q"]), self.rope(f"{i}.rope_k", heads["k"])
        v = self.see(f"{i}.v", heads["v"])
        each = HEADS // KV_HEADS
        scores = q @ k.repeat_interleave(each, 1).transpose(-1, -2) / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -math.inf)
        o = self.see(f"{i}.o", scores.softmax(-1) @ v.repeat_interleave(each, 1))
        return o.transpose(1, 2).reshape(batch, seq, -1) @ self.w[f"{i}.o"]

    def forward(self, ids):
        x = self.see("embedding.y", self.w["embedding"][ids])
        for i in range(LAYERS):
            out = self.see(f"{i}.attention_out", self.attention(i, self.norm(f"{i}.attention_norm", x)))
            self.seen[f"{i}.residual"] = x
            x = x + out
            y = self.norm(f"{i}.mlp_norm", x)
            gate, up = self.see(f"{i}.gate", y @ self.w[f"{i}.gate"]), self.see(f"{i}.up", y @ self.w[f"{i}.up"])
            x = x + self.see(f"{i}.swiglu", F.silu(gate) * up) @ self.w[f"{i}.down"]
        return self.see("logits", self.norm("final_norm", x) @ self.w["embedding"].T)


def logps_of(logits, targets):
    return logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def train(ids, steps):
    """A model, and what it was when four fifths of the steps were done."""
    model, earlier = Model(), Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 50) * (0.1 + 0.9 * (1 - step / steps))
        at = torch.randint(len(ids) - SEQ - 1, (8,))
        batch = torch.stack([ids[i:i + SEQ + 1] for i in at])
        loss = -logps_of(model(batch[:, :-1]), batch[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == steps * 4 // 5:
            earlier.load_state_dict(model.state_dict())
        if step % 100 == 0 or step + 1 == steps:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model, earlier


def capture(model, earlier, ids):
    """Tensors by name. The gradients of a tensor NAME are those of the loss, NAME.grad."""
    at = [len(ids) // 7, len(ids) // 3]
    batch = torch.stack([ids[i:i + SEQ + 1] for i in at])
    tokens, targets = batch[:, :-1], batch[:, 1:]
    model.zero_grad()
    logps = model.see("logps", logps_of(model(tokens), targets))
    (-logps.mean()).backward()
    with torch.no_grad():
        reference_logits = earlier(tokens)
        old = Model()  # the policy as a rollout in BF16 has it
        for name, value in model.w.items():
            old.w[name].copy_(value.bfloat16().float())
        old_logps = logps_of(old(tokens), targets)
    last = f"{LAYERS - 1}."
    found = {"token_ids": tokens, "target_ids": targets, f"{last}mlp_norm.weight": model.w[f"{last}mlp_norm"]}
    for name in ["mlp_norm.x", "rope_q.x", "rope_q.y", "rope_k.y", "v", "gate", "up"]:
        found[last + name] = model.seen[last + name]
    for name in ["mlp_norm.y", "rope_q.y", "o", "swiglu"]:
        found[f"{last}{name}.grad"] = model.seen[last + name].grad
    found |= {f"{last}attention_out": model.seen[f"{last}attention_out"], f"{last}residual": model.seen[f"{last}residual"],
              "embedding.weight": model.w["embedding"], "embedding.y.grad": model.seen["embedding.y"].grad,
              "hidden": model.seen["final_norm.y"], "logits": model.seen["logits"],
              "reference_logits": reference_logits, f"{last}mlp_norm.y": model.seen[f"{last}mlp_norm.y"],
              f"{last}gate.weight": model.w[f"{last}gate"], f"{last}gate.grad": model.seen[f"{last}gate"].grad}
    # An RL step: completions are the second half of each sequence, their rewards how well the tokens were predicted.
    completion = (torch.arange(SEQ) >= SEQ // 2).expand(BATCH, SEQ)
    rewards = (logps * completion).sum(-1) / completion.sum(-1)
    advantages = ((rewards - rewards.mean()) / (rewards.std() + EPS))[:, None].expand(BATCH, SEQ)
    in_fp32 = {"logps": logps, "old_logps": old_logps, "reference_logps": logps_of(reference_logits, targets),
               "rewards": rewards, "advantages": advantages, "logps.grad": model.seen["logps"].grad}
    masks = {"completion_mask": completion}
    tensors = {}
    for name, value in found.items():
        value = value.detach().contiguous()
        kind, value = ("I64", value) if value.dtype == torch.int64 else ("BF16", value.bfloat16().view(torch.int16))
        tensors[name] = (kind, tuple(value.shape), value.numpy().tobytes())
    for name, value in in_fp32.items():
        value = value.detach().contiguous()
        tensors[name] = ("F32", tuple(value.shape), value.numpy().tobytes())
    for name, value in masks.items():
        tensors[name] = ("U8", tuple(value.shape), value.to(torch.uint8).contiguous().numpy().tobytes())
    return tensors


def inputs():
    """Which tensor is which input: {"rms_norm/x": "1.mlp_norm.x"}"""
    last = f"{LAYERS - 1}."
    hidden, targets = {"hidden": "hidden", "lm_head_weight": "embedding.weight"}, {"target_ids": "target_ids"}
    policy = {"old_logps": "old_logps", "ref_logps": "reference_logps", "mask": "completion_mask",
              "advantages": "advantages"}
    of_logits = {"policy_logits": "logits", "ref_logits": "reference_logits", "action_ids": "target_ids",
                 "old_logps": "old_logps"}
    norm = {"weight": f"{last}mlp_norm.weight", "grad_y": f"{last}mlp_norm.y.grad"}
    product = {"a": f"{last}mlp_norm.y", "b": f"{last}gate.weight", "grad_c": f"{last}gate.grad"}
    heads = {"q": f"{last}rope_q.y", "k": f"{last}rope_k.y", "v": f"{last}v", "grad_o": f"{last}o.grad"}
    operators = {
        "embedding": {"token_ids": "token_ids", "weight": "embedding.weight", "grad_y": "embedding.y.grad"},
        "rms_norm": {"x": f"{last}mlp_norm.x", **norm},
        "add_rms_norm": {"x": f"{last}attention_out", "residual": f"{last}residual", **norm},
        "rope": {"x": f"{last}rope_q.x", "grad_y": f"{last}rope_q.y.grad"},
        "attention": heads,
        "matmul": product,
        "det_gemm": product,
        "silu": {"x": f"{last}gate", "grad_y": f"{last}swiglu.grad"},
        "swiglu": {"gate": f"{last}gate", "up": f"{last}up", "grad_y": f"{last}swiglu.grad"},
        "lm_head": {"hidden": "hidden", "weight": "embedding.weight"},
        "logp": {"logits": "logits", "token_ids": "target_ids", "grad_logp": "logps.grad"},
        "linear_logp": {**hidden, **targets, "grad_logp": "logps.grad"},
        "entropy": {"logits": "logits", "grad_entropy": "logps.grad"},
        "linear_entropy": {**hidden, "grad_entropy": "logps.grad"},
        "kl_full": {"student": "logits", "teacher": "reference_logits", "grad_loss": "logps.grad"},
        "ratio_kl": {**of_logits, "grad_ratio": "logps.grad", "grad_kl": "logps.grad"},
        "grpo_loss": {**of_logits, "completion_mask": "completion_mask", "rewards": "rewards"},
        "policy_loss": {"logps": "logps", **policy},
        "linear_policy_loss": {**hidden, **targets, **policy},
    }
    return {f"{op}/{name}": tensor for op, tensors in operators.items() for name, tensor in tensors.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", default=str(ROOT / "cases" / "captured.safetensors"))
    args = parser.parse_args()
    torch.manual_seed(1)
    text = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))])
    ids = byte_pairs(text, VOCAB)
    print(f"{len(text)} characters, {len(ids)} tokens")
    write_safetensors(args.out, capture(*train(ids, args.steps), ids), inputs())


if __name__ == "__main__":
    main()
