# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton as people write them: attention forward with an online softmax, swiglu and logp with gradients.

    check_operator --suite smoke --op attention,swiglu,logp --pass all --dtype bf16 --device cuda \\
        --contract contracts/framework.json --exec 'python3 docs/exec/triton_kernels.py' --candidate exec

attention rounds the probabilities to the dtype of v before it multiplies them: recipe p_in_16_bit. swiglu and logp round
their outputs alone.
"""
import os
import sys

import torch
import triton
import triton.language as tl

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import Unsupported, serve

BLOCK = 1024  # elements of a row at a time
QUERIES, KEYS = 64, 64  # of a tile


@triton.jit
def attention_kernel(q, k, v, o, q_seq, kv_seq, group, shift, scale, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
                     QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """One tile of queries of one head. Query i sees the keys j <= i + shift."""
    first, head = tl.program_id(0) * QUERIES, tl.program_id(1).to(tl.int64)
    query, column = first + tl.arange(0, QUERIES), tl.arange(0, PADDED)
    inside, present = query < q_seq, column < HEAD_DIM
    place = (head * q_seq + query)[:, None] * HEAD_DIM + column[None, :]
    queries = tl.load(q + place, mask=inside[:, None] & present[None, :], other=0.0)
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    result = tl.zeros([QUERIES, PADDED], tl.float32)
    for begin in range(0, kv_seq, KEYS):
        key = begin + tl.arange(0, KEYS)
        at = (head // group * kv_seq + key)[:, None] * HEAD_DIM + column[None, :]
        read = (key < kv_seq)[:, None] & present[None, :]
        keys = tl.load(k + at, mask=read, other=0.0)
        values = tl.load(v + at, mask=read, other=0.0)
        seen = (key < kv_seq)[None, :] & (key[None, :] <= query[:, None] + shift)
        scores = tl.where(seen, tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))
        top = tl.maximum(largest, tl.max(scores, axis=1))
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp(scores - base[:, None])
        rescale = tl.exp(largest - base)
        total = total * rescale + tl.sum(p, axis=1)
        result = result * rescale[:, None] + tl.dot(p.to(values.dtype), values)
        largest = top
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(o + place, result.to(o.dtype.element_ty), mask=inside[:, None] & present[None, :])


@triton.jit
def swiglu_kernel(gate, up, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < count, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(y + at, (g / (1.0 + tl.exp(-g)) * u).to(y.dtype.element_ty), mask=at < count)


@triton.jit
def swiglu_gradient_kernel(gate, up, grad, dgate, dup, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    upstream = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-g))
    tl.store(dgate + at, (upstream * u * s * (1.0 + g * (1.0 - s))).to(dgate.dtype.element_ty), mask=inside)
    tl.store(dup + at, (upstream * g * s).to(dup.dtype.element_ty), mask=inside)


@triton.jit
def row_statistics(start, vocab, BLOCK: tl.constexpr):
    """The largest logit of a row, and the sum of exp(logit - largest)."""
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(start + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        top = tl.maximum(largest, value)
        base = tl.where(top == float("-inf"), 0.0, top)
        total = total * tl.exp(largest - base) + tl.exp(value - base)
        largest = top
    top = tl.max(largest, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(total * tl.exp(largest - base), axis=0)


@triton.jit
def logp_kernel(logits, ids, logp, vocab, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(ids + row)
    result = 0.0
    if target != ignored:
        start = logits + row * vocab
        top, total = row_statistics(start, vocab, BLOCK)
        result = tl.load(start + target).to(tl.float32) - top - tl.log(total)
    tl.store(logp + row, result)


@triton.jit
def logp_gradient_kernel(logits, ids, grad, dlogits, vocab, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target, upstream = tl.load(ids + row), tl.load(grad + row)
    start, to = logits + row * vocab, dlogits + row * vocab
    if target == ignored:
        for first in range(0, vocab, BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(to + at, tl.zeros([BLOCK], tl.float32).to(dlogits.dtype.element_ty), mask=at < vocab)
    else:
        top, total = row_statistics(start, vocab, BLOCK)
        for first in range(0, vocab, BLOCK):
            at = first + tl.arange(0, BLOCK)
            value = tl.load(start + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            p = tl.exp(value - top) / total
            result = upstream * (tl.where(at == target, 1.0, 0.0) - p)
            tl.store(to + at, result.to(dlogits.dtype.element_ty), mask=at < vocab)


def check(x):
    if x.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise Unsupported(f"sums are in fp32: {x.dtype} is not done")


def attention(q, k, v, causal, scale, key_padding_mask=None):
    check(q)
    if q.dtype == torch.float32 or key_padding_mask is not None:
        raise Unsupported("fp32, whose products would be TF32, and key_padding_mask are not done")
    batch, heads, q_seq, head_dim = q.shape
    if v.shape[-1] != head_dim:
        raise Unsupported("values in another number of columns than keys are not done")
    kv_heads, kv_seq = k.shape[1:3]
    o = torch.empty_like(q)
    if batch * heads > 65535:
        raise Unsupported("more heads than the second dimension of a grid has")
    if o.numel() > 0:
        attention_kernel[(triton.cdiv(q_seq, QUERIES), batch * heads)](
            q, k, v, o, q_seq, kv_seq, heads // kv_heads, kv_seq - q_seq if causal else kv_seq,
            float(scale) if scale >= 0 else head_dim**-0.5, HEAD_DIM=head_dim,
            PADDED=max(triton.next_power_of_2(head_dim), 16), QUERIES=QUERIES, KEYS=KEYS)
    return o


def swiglu(gate, up):
    check(gate)
    y = torch.empty_like(gate)
    if y.numel() > 0:
        swiglu_kernel[(triton.cdiv(y.numel(), BLOCK),)](gate, up, y, y.numel(), BLOCK=BLOCK)
    return y


def swiglu_gradient(gate, up, grad_y):
    check(gate)
    dgate, dup = torch.empty_like(gate), torch.empty_like(up)
    if dup.numel() > 0:
        swiglu_gradient_kernel[(triton.cdiv(dup.numel(), BLOCK),)](gate, up, grad_y, dgate, dup, dup.numel(), BLOCK=BLOCK)
    return {"dgate": dgate, "dup": dup}


def logp(logits, token_ids, ignore_index):
    check(logits)
    result = torch.empty(token_ids.shape, dtype=torch.float32, device=logits.device)
    if result.numel() > 0:
        logp_kernel[(result.numel(),)](logits, token_ids, result, logits.shape[-1], int(ignore_index), BLOCK=BLOCK)
    return result


def logp_gradient(logits, token_ids, grad_logp, ignore_index):
    check(logits)
    dlogits = torch.empty_like(logits)
    if token_ids.numel() > 0:
        logp_gradient_kernel[(token_ids.numel(),)](logits, token_ids, grad_logp, dlogits, logits.shape[-1],
                                                   int(ignore_index), BLOCK=BLOCK)
    return dlogits


serve({"attention/forward": attention, "swiglu/forward": swiglu, "swiglu/backward": swiglu_gradient, "logp/forward": logp,
       "logp/backward": logp_gradient}, device="cuda",
      recipes={"attention/forward": ["p_in_16_bit"]})
