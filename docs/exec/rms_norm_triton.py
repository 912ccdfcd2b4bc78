# SPDX-License-Identifier: Apache-2.0
"""rms_norm in Triton, forward and backward, as a candidate:

    check_operator --op rms_norm --dtype fp32,bf16,fp16 --check-grad --device cuda \\
        --exec 'python3 docs/exec/rms_norm_triton.py' --candidate exec

Sums are taken in fp32 and in an order that no other row has a say in: block sizes are constants, nothing is tuned, and
the gradient of the weight adds rows in their order.
"""
import os
import sys

import torch
import triton
import triton.language as tl

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import Unsupported, serve

BLOCK = 1024  # elements of a row at a time
ROWS, COLUMNS = 32, 64  # of a tile of the weight's gradient


@triton.jit
def forward_kernel(x, weight, y, hidden, eps, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * hidden
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + start + at, mask=at < hidden, other=0.0).to(tl.float32)
        squares += value * value
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / hidden + eps)
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < hidden
        value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + start + at, (value * scale * factor).to(y.dtype.element_ty), mask=inside)


@triton.jit
def dx_kernel(x, weight, grad, dx, scales, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = row * hidden
    squares = tl.zeros([BLOCK], tl.float32)
    products = tl.zeros([BLOCK], tl.float32)
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < hidden
        value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        upstream = tl.load(grad + start + at, mask=inside, other=0.0).to(tl.float32)
        squares += value * value
        products += upstream * factor * value
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / hidden + eps)
    mean = tl.sum(products, axis=0) / hidden
    tl.store(scales + row, scale)
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < hidden
        value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        upstream = tl.load(grad + start + at, mask=inside, other=0.0).to(tl.float32)
        result = scale * (upstream * factor - value * (scale * scale * mean))
        tl.store(dx + start + at, result.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def dweight_kernel(x, grad, scales, kept, dweight, rows, hidden, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (at < hidden)[None, :]
        place = row.to(tl.int64)[:, None] * hidden + at[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        upstream = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        keep = tl.load(kept + row, mask=row < rows, other=0)
        total += tl.where((keep != 0)[:, None], upstream * value * scale[:, None], 0.0)
    tl.store(dweight + at, tl.sum(total, axis=0).to(dweight.dtype.element_ty), mask=at < hidden)


def check(x):
    if x.dtype == torch.float64:
        raise Unsupported("sums are in fp32: fp64 is not done")


def forward(x, weight, eps):
    check(x)
    hidden, y = x.shape[-1], torch.empty_like(x)
    if x.numel() > 0:
        forward_kernel[(x.numel() // hidden,)](x, weight, y, hidden, float(eps), BLOCK=BLOCK)
    return y


def backward(x, weight, grad_y, eps, mask=None):
    check(x)
    hidden = x.shape[-1]
    rows = x.numel() // hidden
    dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
    if rows > 0:
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        kept = torch.ones(rows, dtype=torch.uint8, device=x.device) if mask is None else mask
        dx_kernel[(rows,)](x, weight, grad_y, dx, scales, hidden, float(eps), BLOCK=BLOCK)
        dweight_kernel[(triton.cdiv(hidden, COLUMNS),)](x, grad_y, scales, kept, dweight, rows, hidden, ROWS=ROWS,
                                                        COLUMNS=COLUMNS)
    return {"dx": dx, "dweight": dweight}


serve({"rms_norm/forward": forward, "rms_norm/backward": backward}, device="cuda")
