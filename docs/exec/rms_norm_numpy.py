# SPDX-License-Identifier: Apache-2.0
"""rms_norm in NumPy, forward and backward, as a candidate:

    check_operator --op rms_norm --dtype fp32,bf16 --check-grad --device cpu \\
        --exec 'python3 docs/exec/rms_norm_numpy.py' --candidate exec
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.serving import serve


def wide(array):
    """fp16 is computed in fp32, like bf16, which comes as float32 already."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def inverse_rms(x, eps):
    return 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))


def forward(x, weight, eps):
    wide_x = wide(x)
    return (wide_x * inverse_rms(wide_x, eps) * wide(weight)).astype(x.dtype)


def backward(x, weight, grad_y, eps, mask=None):
    wide_x, wide_weight, wide_grad = wide(x), wide(weight), wide(grad_y)
    scale = inverse_rms(wide_x, eps)
    normal, weighed = wide_x * scale, wide_grad * wide_weight
    dx = scale * (weighed - normal * np.mean(weighed * normal, axis=-1, keepdims=True))
    terms = wide_grad * normal
    if mask is not None:  # rows that it takes out of the weight's gradient
        terms = np.where(mask[..., None] != 0, terms, 0)
    dweight = np.sum(terms.reshape(-1, x.shape[-1]), axis=0, dtype=terms.dtype)
    return {"dx": dx.astype(x.dtype), "dweight": dweight.astype(weight.dtype)}


serve({"rms_norm/forward": forward, "rms_norm/backward": backward})
