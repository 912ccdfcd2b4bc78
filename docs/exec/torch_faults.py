# SPDX-License-Identifier: Apache-2.0
"""The operators of torch_frameworks.py, each with one fault planted, to see that no granted recipe hides it:

  check_operator --suite smoke --op attention --dtype bf16 --device cuda --contract contracts/framework.json \\
      --exec 'python3 docs/exec/torch_faults.py hf tail' --candidate exec

The first argument is hf, sdpa-flash or sdpa-cudnn; the second one of

  tail      the last 16 keys, columns or positions are left out, or the last position is taken for the one before it
  factor    a factor is missing: of the scale, the weight, the activation, the rotation
  head      a query head reads another key head of its batch (attention)
  rounding  one rounding to 16 bits more than the recipes name: of partial sums, of exponentials, of positions (hf)
"""
import sys

import torch
import torch.nn.functional as F

from torch_frameworks import (SDPBackend, hf_attention, hf_linear_logp, hf_logp, hf_rms_norm, hf_rope, hf_swiglu, sdpa,
                              serve, unpadded)

TILE = 16


def parts(size):
    """Where a dimension of this size is cut into two, at a multiple of 16 if it is that large."""
    return max(size // 2 // TILE * TILE, min(size, 1))


# --- tail -------------------------------------------------------------------------------------------------------------
def rms_norm_tail(x, weight, eps):
    row = x.to(torch.float32)
    mean = row[..., : max(row.shape[-1] - TILE, 1)].pow(2).mean(-1, keepdim=True)
    return weight * (row * torch.rsqrt(mean + eps)).to(x.dtype)


def swiglu_tail(gate, up):
    kept = torch.arange(gate.shape[-1], device=gate.device) < max(gate.shape[-1] - TILE, 1)
    return hf_swiglu(gate, up) * kept


def rope_tail(x, positions, theta):
    return hf_rope(x, torch.cat((positions[:-1], positions[-2:-1] if len(positions) > 1 else positions)), theta)


def logp_tail(logits, token_ids, ignore_index):
    left_out = token_ids == ignore_index
    rows, ids = logits.masked_fill(left_out[..., None], 0), token_ids.masked_fill(left_out, 0)
    lse = torch.logsumexp(rows[..., : max(rows.shape[-1] - TILE, 1)].to(torch.float32), dim=-1)
    return (rows.gather(-1, ids[..., None])[..., 0].to(torch.float32) - lse).masked_fill(left_out, 0)


def linear_logp_tail(hidden, lm_head_weight, target_ids, ignore_index, bias=None):
    kept = max(hidden.shape[-1] - TILE, 1)
    return hf_linear_logp(hidden[..., :kept], lm_head_weight[:, :kept], target_ids, ignore_index, bias)


def attention_tail(attention):
    def faulty(q, k, v, causal, scale, key_padding_mask=None):
        unpadded(q, k, causal, key_padding_mask)
        kept = max(k.shape[2] - TILE, 1)
        if causal:  # a mask of fewer keys than queries is another mask, so the keys stay and count for nothing
            unseen = (torch.arange(k.shape[2], device=k.device) >= kept)[:, None]
            return attention(q, k, v.masked_fill(unseen, 0), causal, scale)
        return attention(q, k[:, :, :kept], v[:, :, :kept], causal, scale)
    return faulty


# --- factor -----------------------------------------------------------------------------------------------------------
def rms_norm_factor(x, weight, eps):
    return hf_rms_norm(x, weight.detach() / 2 + weight / 2, eps)  # half of the weight's gradient


def swiglu_factor(gate, up):
    return torch.sigmoid(gate) * up


def rope_factor(x, positions, theta):
    return hf_rope(x, -positions, theta)


def logp_factor(logits, token_ids, ignore_index):
    return hf_logp(logits, token_ids, ignore_index) * 1.4426950408889634  # base 2 for base e


def linear_logp_factor(hidden, lm_head_weight, target_ids, ignore_index, bias=None):
    return hf_linear_logp(hidden, lm_head_weight, target_ids, ignore_index, bias) * 1.4426950408889634


def attention_factor(attention):
    def faulty(q, k, v, causal, scale, key_padding_mask=None):
        return attention(q, k, v, causal, (q.shape[-1] ** -0.5 if scale < 0 else scale) * 0.6931471805599453)
    return faulty


# --- head -------------------------------------------------------------------------------------------------------------
def attention_head(attention):
    def faulty(q, k, v, causal, scale, key_padding_mask=None):
        unpadded(q, k, causal, key_padding_mask)
        times = q.shape[1] // k.shape[1]
        return attention(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), causal, scale)
    return faulty


# --- rounding ---------------------------------------------------------------------------------------------------------
def rms_norm_rounding(x, weight, eps):
    row, total = x.to(torch.float32), torch.zeros_like(x[..., :1])
    for part in row.pow(2).split(TILE, dim=-1):
        total = (total + part.sum(-1, keepdim=True)).to(x.dtype)
    return weight * (row * torch.rsqrt(total.to(torch.float32) / x.shape[-1] + eps)).to(x.dtype)


def swiglu_rounding(gate, up):
    return gate / (1 + torch.exp(-gate)) * up  # each step a 16-bit tensor


def rope_rounding(x, positions, theta):
    return hf_rope(x, positions.to(x.dtype), theta)


def logp_rounding(logits, token_ids, ignore_index):
    left_out = token_ids == ignore_index
    rows, ids = logits.masked_fill(left_out[..., None], 0), token_ids.masked_fill(left_out, 0)
    rows = rows - rows.amax(-1, keepdim=True)
    total = torch.exp(rows.to(torch.float32)).to(rows.dtype).sum(-1)
    return (rows.gather(-1, ids[..., None])[..., 0] - torch.log(total)).to(torch.float32).masked_fill(left_out, 0)


def linear_logp_rounding(hidden, lm_head_weight, target_ids, ignore_index, bias=None):
    left_out = target_ids == ignore_index
    rows, ids = hidden.masked_fill(left_out[..., None], 0), target_ids.masked_fill(left_out, 0)
    cut = parts(rows.shape[-1])
    logits = F.linear(rows[..., :cut], lm_head_weight[:, :cut]) + F.linear(rows[..., cut:], lm_head_weight[:, cut:], bias)
    return F.log_softmax(logits.to(torch.float32), dim=-1).gather(-1, ids[..., None])[..., 0].masked_fill(left_out, 0)


def attention_rounding(q, k, v, causal, scale, key_padding_mask=None):
    unpadded(q, k, causal, key_padding_mask)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(q, k.transpose(2, 3)).to(torch.float32) * (q.shape[-1] ** -0.5 if scale < 0 else scale)
    if causal:
        unseen = torch.ones(q.shape[2], k.shape[2], device=q.device).triu(1 + k.shape[2] - q.shape[2]).bool()
        scores = scores.masked_fill(unseen, float("-inf"))
    p, o = F.softmax(scores, dim=-1).to(q.dtype), torch.zeros_like(q)
    for first in range(0, k.shape[2], TILE):
        o = o + torch.matmul(p[..., first : first + TILE], v[:, :, first : first + TILE])  # sums in 16 bits
    return o


def of_attention(attention):
    return {"tail": attention_tail(attention), "factor": attention_factor(attention), "head": attention_head(attention)}


def faults_of(name):
    """{operator: {fault: function}}"""
    if name == "hf":
        return {
            "rms_norm": {"tail": rms_norm_tail, "factor": rms_norm_factor, "rounding": rms_norm_rounding},
            "swiglu": {"tail": swiglu_tail, "factor": swiglu_factor, "rounding": swiglu_rounding},
            "rope": {"tail": rope_tail, "factor": rope_factor, "rounding": rope_rounding},
            "logp": {"tail": logp_tail, "factor": logp_factor, "rounding": logp_rounding},
            "linear_logp": {"tail": linear_logp_tail, "factor": linear_logp_factor, "rounding": linear_logp_rounding},
            "attention": {**of_attention(hf_attention), "rounding": attention_rounding},
        }
    backends = {"sdpa-flash": SDPBackend.FLASH_ATTENTION, "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION}
    return {"attention": of_attention(sdpa(backends[name])["attention"])}


if __name__ == "__main__":
    name, fault = sys.argv[1:] if len(sys.argv) == 3 else ("", "")
    if name not in ("hf", "sdpa-flash", "sdpa-cudnn") or fault not in ("tail", "factor", "head", "rounding"):
        sys.exit("usage: torch_faults.py hf|sdpa-flash|sdpa-cudnn tail|factor|head|rounding")
    serve({op: faults[fault] for op, faults in faults_of(name).items() if fault in faults})
