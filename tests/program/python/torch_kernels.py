# SPDX-License-Identifier: Apache-2.0
"""Candidates over torch of the tests of the Python package."""
import torch

PARAMETER = torch.ones(32, requires_grad=True)


def rms_norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def without_gradient_of_weight(x, weight, eps):
    return rms_norm(x, weight.detach(), eps)


def half_gradient(x, weight, eps):
    return rms_norm(x.detach(), weight, eps) + 0.5 * (rms_norm(x, weight, eps) - rms_norm(x, weight, eps).detach())
