# SPDX-License-Identifier: Apache-2.0
"""A candidate for attention forward in NumPy, for fp32 and the usual attributes. OUTPUTS names those that it returns in a
dict, as in "o lse"; with "o as it is" it returns o without one.

Usage: attention.py OUTPUTS
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
from check_operator.serving import serve


def attention(q, k, v):
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(np.float32(q.shape[-1]))
    seen = np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
    scores = np.where(seen, scores, np.float32("-inf"))
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(-1, keepdims=True)
    outputs = {"o": p / total @ v, "lse": (top + np.log(total))[..., 0]}
    if sys.argv[1] == "o as it is":
        return outputs["o"]
    return {name: outputs[name] for name in sys.argv[1].split()}


serve({"attention": attention})
