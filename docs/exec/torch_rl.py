# SPDX-License-Identifier: Apache-2.0
"""What trainers compute of logits, from 16-bit logits in 16 bits, as TRL and verl do. Gradients by autograd:

  check_operator --op ratio_kl --dtype bf16 --check-grad --device cuda --contract contracts/framework.json \\
      --exec 'python3 docs/exec/torch_rl.py trl' --candidate exec

  trl    log-probabilities by log_softmax in the dtype of the logits, and everything after them in that dtype
  fp32   the same of logits that are cast to fp32 first, as verl's chunked entropy and flash-attention's loss do
"""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import serve


class LogSoftmax(torch.autograd.Function):
    """F.log_softmax as on a GPU: fp32 inside, the result in the dtype of the logits, and gradients from that result. Older
    kernels of the CPU also keep the sum in that dtype."""

    @staticmethod
    def forward(ctx, logits):
        logps = torch.log_softmax(logits.to(torch.float32), dim=-1).to(logits.dtype)
        ctx.save_for_backward(logps)
        return logps

    @staticmethod
    def backward(ctx, gradient):
        logps, = ctx.saved_tensors
        wide = gradient.to(torch.float32)
        return (wide - torch.exp(logps.to(torch.float32)) * wide.sum(-1, keepdim=True)).to(gradient.dtype)


def selected(logits, ids):
    return LogSoftmax.apply(logits).gather(-1, ids[..., None])[..., 0]


def entropy(logits, mask=None):
    kept = torch.ones_like(logits[..., 0], dtype=torch.bool) if mask is None else mask != 0
    logps = LogSoftmax.apply(logits.masked_fill(~kept[..., None], 0))
    return -(torch.exp(logps) * logps).sum(-1).to(torch.float32).masked_fill(~kept, 0)


def tokens(policy_logits, ref_logits, ids, kept, old_logps):
    """The ratio and the KL estimate of every token that is kept."""
    ids = ids.masked_fill(~kept, 0)
    logps, ref_logps = (selected(x.masked_fill(~kept[..., None], 0), ids) for x in (policy_logits, ref_logits))
    away = ref_logps - logps
    return torch.exp(logps - old_logps.masked_fill(~kept, 0)), torch.exp(away) - away - 1


def ratio_kl(policy_logits, ref_logits, action_ids, attention_mask, old_logps):
    kept = attention_mask != 0
    ratio, kl = tokens(policy_logits, ref_logits, action_ids, kept, old_logps)
    return ratio.to(torch.float32).masked_fill(~kept, 1), kl.to(torch.float32).masked_fill(~kept, 0)


def advantages(rewards, boundaries, samples, eps):
    if boundaries is None:
        boundaries = range(0, len(rewards) + 1, int(samples))
    groups = [rewards[int(first):int(end)] for first, end in zip(boundaries[:-1], boundaries[1:])]
    away = [group - group.mean() for group in groups]
    return torch.cat([torch.zeros_like(a) if g.max() == g.min() else a / a.pow(2).mean().sqrt().clamp_min(eps)
                      for g, a in zip(groups, away)])


def grpo_loss(policy_logits, ref_logits, action_ids, attention_mask, old_logps, rewards, completion_mask, samples_per_prompt,
              clip_eps, beta, eps, group_boundaries=None):
    kept = (attention_mask != 0) & (completion_mask != 0)
    ratio, kl = tokens(policy_logits, ref_logits, action_ids, kept, old_logps)
    a = advantages(rewards, group_boundaries, samples_per_prompt, eps)[:, None]
    loss = -torch.min(ratio * a, ratio.clamp(1 - clip_eps, 1 + clip_eps) * a)
    means = [x.to(torch.float32).masked_fill(~kept, 0).sum() / kept.sum().clamp_min(1) for x in (loss, kl)]
    return means[0] + beta * means[1], *means


def entropy32(logits, mask=None):
    return entropy(logits.to(torch.float32), mask)


def ratio_kl32(policy_logits, ref_logits, action_ids, attention_mask, old_logps):
    return ratio_kl(policy_logits.to(torch.float32), ref_logits.to(torch.float32), action_ids, attention_mask, old_logps)


def grpo_loss32(policy_logits, ref_logits, action_ids, attention_mask, old_logps, rewards, completion_mask,
                samples_per_prompt, clip_eps, beta, eps, group_boundaries=None):
    return grpo_loss(policy_logits.to(torch.float32), ref_logits.to(torch.float32), action_ids, attention_mask, old_logps,
                     rewards, completion_mask, samples_per_prompt, clip_eps, beta, eps, group_boundaries)


CANDIDATES = {
    "trl": {"entropy": entropy, "ratio_kl": ratio_kl, "grpo_loss": grpo_loss},
    "fp32": {"entropy": entropy32, "ratio_kl": ratio_kl32, "grpo_loss": grpo_loss32},
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CANDIDATES:
        sys.exit(f"usage: torch_rl.py {'|'.join(CANDIDATES)}")
    serve(CANDIDATES[sys.argv[1]])
