# SPDX-License-Identifier: Apache-2.0
"""Candidates that @check_operator.candidate registers, for the tests of --py."""
import numpy as np

import check_operator


def silu_gradient(x, grad_y):
    wide = x.astype(np.float32)
    s = 1 / (1 + np.exp(-wide))
    return (grad_y * s * (1 + wide * (1 - s))).astype(x.dtype)


@check_operator.candidate(op="silu", backward=silu_gradient)
def silu(x):
    wide = x.astype(np.float32)
    return (wide / (1 + np.exp(-wide))).astype(x.dtype)


@check_operator.candidate(op="rms_norm", adapt={"weight": "gamma"}, recipes=["normalised_row_in_16_bit"])
def rms_norm(x, gamma, eps):
    wide = x.astype(np.float32)
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(eps))
    return (wide * scale * gamma.astype(np.float32)).astype(x.dtype)
