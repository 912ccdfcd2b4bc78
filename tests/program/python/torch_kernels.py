# SPDX-License-Identifier: Apache-2.0
"""Candidates over torch of the tests of the Python package."""
import ctypes

import torch

PARAMETER = torch.ones(32, requires_grad=True)


def rms_norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


class WithoutDevice:
    """Half of DLPack's interface."""

    __dlpack_device__ = None

    def __init__(self, tensor):
        self.__dlpack__ = tensor.__dlpack__


class MadeByCustomOp:
    """As torch's custom_op leaves it, which version 1.13 lacks."""

    _schema = "(Tensor x, Tensor weight, float eps=1e-6) -> Tensor"

    @property
    def _opoverload(self):
        return torch.ops.of_tests.rms_norm.default

    def __call__(self, *arguments):
        return self._opoverload(*arguments)


def attention_and_lse(q, k, v, causal, scale):
    unseen = torch.ones(q.shape[2], k.shape[2]).triu(1 + k.shape[2] - q.shape[2]).bool()
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(unseen, float("-inf"))
    return {"o": torch.softmax(scores, -1) @ v, "lse": torch.logsumexp(scores, -1)}


def attention(q, k, v, causal, scale):
    return attention_and_lse(q, k, v, causal, scale)["o"]


def lse_alone(q, k, v, causal, scale):
    return {"lse": attention_and_lse(q, k, v, causal, scale)["lse"]}


def without_gradient_of_weight(x, weight, eps):
    return rms_norm(x, weight.detach(), eps)


def half_gradient(x, weight, eps):
    return rms_norm(x.detach(), weight, eps) + 0.5 * (rms_norm(x, weight, eps) - rms_norm(x, weight, eps).detach())


def writes_to_out(x, weight, eps, out):
    out.copy_(rms_norm(x, weight, eps))


def writes_to_its_input(x, weight, eps):
    x.view(-1)[3] = 2
    return rms_norm(x, weight, eps)


def leaves_out_an_element(x, weight, eps, out):
    out.view(-1)[:-1] = rms_norm(x, weight, eps).view(-1)[:-1]


def writes_past_out(x, weight, eps, out):
    out.copy_(rms_norm(x, weight, eps))
    ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 2)
