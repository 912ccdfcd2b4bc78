# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own logp and rms_norm as a candidate, gradients by autograd:

    check_operator --op logp,rms_norm --dtype fp32,bf16 --check-grad --device cuda \\
        --exec 'python3 docs/exec/torch_operators.py' --candidate exec

With --device cpu the same functions run on the CPU.
"""
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import serve


def logp(logits, token_ids, ignore_index):
    """In fp32, whatever the dtype of the logits. A row that is left out may hold anything."""
    left_out = token_ids == ignore_index
    rows = logits.masked_fill(left_out[..., None], 0).float().flatten(0, -2)
    ids = token_ids.masked_fill(left_out, 0).flatten()
    found = -F.cross_entropy(rows, ids, reduction="none").view(token_ids.shape)
    return found.masked_fill(left_out, 0)


def rms_norm(x, weight, eps):
    return F.rms_norm(x, weight.shape, weight, eps)


serve({"logp": logp, "rms_norm": rms_norm})
