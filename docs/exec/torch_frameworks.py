# SPDX-License-Identifier: Apache-2.0
"""Operators as PyTorch and Hugging Face models compute them, gradients by autograd. One candidate a process:

  check_operator --op attention --device cuda --exec 'python3 docs/exec/torch_frameworks.py sdpa-flash' --candidate exec

  hf           formulas of Hugging Face models: rms_norm, swiglu, rope, eager attention, log_softmax, a 16-bit lm_head
  sdpa-flash   scaled_dot_product_attention with FlashAttention; sdpa-cudnn, sdpa-math: with those
  torch        torch.nn.functional.rms_norm, matmul
  tf32         matmul with TF32 allowed
  compile      rms_norm, swiglu and logp of hf, through torch.compile
"""
import os
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import Unsupported, serve


def hf_rms_norm(x, weight, eps):
    """LlamaRMSNorm: the row is normalised in fp32, cast back, then weighted."""
    row = x.to(torch.float32)
    row = row * torch.rsqrt(row.pow(2).mean(-1, keepdim=True) + eps)
    return weight * row.to(x.dtype)


def hf_swiglu(gate, up):
    """LlamaMLP without its products."""
    return F.silu(gate) * up


def hf_rope(x, positions, theta):
    """LlamaRotaryEmbedding and apply_rotary_pos_emb: a table in the dtype of x, both products stored."""
    half = x.shape[-1] // 2
    frequencies = 1.0 / (theta ** (torch.arange(0, 2 * half, 2, device=x.device, dtype=torch.float32) / (2 * half)))
    angles = positions.to(torch.float32)[:, None] * frequencies
    table = torch.cat((angles, angles), dim=-1)
    cos, sin = table.cos().to(x.dtype), table.sin().to(x.dtype)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def hf_logp(logits, token_ids, ignore_index):
    """F.log_softmax in the dtype of the logits. A row that is left out may hold anything."""
    left_out = token_ids == ignore_index
    rows, ids = logits.masked_fill(left_out[..., None], 0), token_ids.masked_fill(left_out, 0)
    return F.log_softmax(rows, dim=-1).gather(-1, ids[..., None])[..., 0].to(torch.float32).masked_fill(left_out, 0)


def hf_linear_logp(hidden, lm_head_weight, target_ids, ignore_index, bias=None):
    """A 16-bit lm_head, then log_softmax in fp32."""
    left_out = target_ids == ignore_index
    rows, ids = hidden.masked_fill(left_out[..., None], 0), target_ids.masked_fill(left_out, 0)
    logits = F.linear(rows, lm_head_weight, bias).to(torch.float32)
    return F.log_softmax(logits, dim=-1).gather(-1, ids[..., None])[..., 0].masked_fill(left_out, 0)


def unpadded(q, k, causal, key_padding_mask):
    """What models ask of eager attention: every query sees a key. There the average of v is the answer to a row that sees
    none."""
    if key_padding_mask is not None or (causal and q.shape[2] > k.shape[2]) or q.shape[0] == 0:
        raise Unsupported("key_padding_mask, an empty batch, or a causal mask that hides all keys from a query")


def hf_attention(q, k, v, causal, scale, key_padding_mask=None):
    """eager_attention_forward: 16-bit scores, softmax in fp32, 16-bit probabilities."""
    unpadded(q, k, causal, key_padding_mask)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scale < 0 else scale)
    if causal:
        unseen = torch.ones(q.shape[2], k.shape[2], device=q.device).triu(1 + k.shape[2] - q.shape[2]).bool()
        scores = scores.masked_fill(unseen, torch.finfo(q.dtype).min)
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def sdpa(backend):
    def attention(q, k, v, causal, scale, key_padding_mask=None):
        unpadded(q, k, causal, key_padding_mask)
        if causal and q.shape[2] != k.shape[2]:
            raise Unsupported("is_causal aligns the first query with the first key, not the last with the last")
        try:
            with sdpa_kernel(backend):
                # FlashAttention and cuDNN lay their output out as [batch, seq, heads, head_dim].
                return F.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), scale=None if scale < 0 else scale,
                                                      enable_gqa=q.shape[1] != k.shape[1]).contiguous()
        except RuntimeError as error:
            raise Unsupported(f"{backend.name} declines: {str(error).splitlines()[0]}") from error
    return {"attention": attention}


def matmul(a, b):
    return torch.matmul(a, b)


def tf32():
    torch.backends.cuda.matmul.allow_tf32 = True
    return {"matmul": matmul}


def compiled(functions):
    """The functions through torch.compile, which fuses them and keeps what was a 16-bit tensor in fp32 where it can. The
    cases have so many sizes that it must not give up recompiling."""
    for limit in ("recompile_limit", "cache_size_limit"):  # the name since PyTorch 2.7, and the one before
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 1000)
    return {name: torch.compile(function, dynamic=True) for name, function in functions.items()}


CANDIDATES = {
    "hf": lambda: {"rms_norm": hf_rms_norm, "swiglu": hf_swiglu, "rope": hf_rope, "logp": hf_logp,
                   "linear_logp": hf_linear_logp, "attention": hf_attention},
    "torch": lambda: {"rms_norm": lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps), "matmul": matmul},
    "tf32": tf32,
    "sdpa-flash": lambda: sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa-cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
    "sdpa-math": lambda: sdpa(SDPBackend.MATH),
    "compile": lambda: compiled({"rms_norm": hf_rms_norm, "swiglu": hf_swiglu, "logp": hf_logp}),
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CANDIDATES:
        sys.exit(f"usage: torch_frameworks.py {'|'.join(CANDIDATES)}")
    serve(CANDIDATES[sys.argv[1]]())
