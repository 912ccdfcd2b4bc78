# SPDX-License-Identifier: Apache-2.0
"""rms_norm in Triton, for the tests of the Python package on a GPU: right, and with a fault planted."""
import os
import socket

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, hidden, eps, beyond, BLOCK: tl.constexpr):
    """A row each; the last one writes `beyond` elements behind the tensor, too."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    value = tl.load(x + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / hidden + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    written = hidden + tl.where(row == tl.num_programs(0) - 1, beyond, 0)
    tl.store(y + row * hidden + at, (value * scale * factor).to(y.dtype.element_ty), mask=at < written)


def launch(x, weight, eps, y, rows=None, beyond=0):
    hidden = x.shape[-1]
    kernel[(rows or x.numel() // hidden,)](x, weight, y, hidden, eps, beyond, BLOCK=triton.next_power_of_2(hidden + beyond))


def right(x, weight, eps, out):
    launch(x, weight, eps, out)


def returns(x, weight, eps):
    y = torch.empty_like(x)
    launch(x, weight, eps, y)
    return y


def writes_past_its_output(x, weight, eps, out):
    launch(x, weight, eps, out, beyond=1)


def leaves_out_the_last_row(x, weight, eps, out):
    launch(x, weight, eps, out, rows=x.numel() // x.shape[-1] - 1)


def writes_to_its_input(x, weight, eps, out):
    launch(x, weight, eps, out)
    x.view(-1)[3] = 2


def computes_on_the_cpu(x, weight, eps):
    return returns(x, weight, eps).cpu()


def try_to_reach_out():
    """What the sandbox of a command refuses, by name; the judge is this process's parent."""
    def read(path):
        with open(path, "rb") as file:
            file.read(1)

    def write(path):
        with open(path, "wb"):
            os.remove(path)

    def connect():
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()

    return {"environment of the judge": lambda: read(f"/proc/{os.getppid()}/environ"), "network": connect,
            "file elsewhere": lambda: write(os.path.expanduser("~/written_by_a_candidate")),
            "signal": lambda: os.kill(os.getppid(), 0)}


def reaches_out(x, weight, eps):
    for what, attempt in try_to_reach_out().items():
        try:
            attempt()
        except OSError:
            continue
        raise RuntimeError(f"not refused: {what}")
    return returns(x, weight, eps)
