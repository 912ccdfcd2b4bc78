# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes as a trainer calls it, timed beside candidates:

    check_operator bench --op attention --candidate cuda-sm90 --device cuda --dtype bf16 ... \\
        --peer 'python3 docs/exec/torch_peers.py' --baseline cudnn

  torch        functions of torch.nn.functional, one after the other
  compile      the same through torch.compile
  cudnn        scaled_dot_product_attention with cuDNN; flash: with FlashAttention
  cublaslt     torch._scaled_mm of FP8 codes with scales of 1 x 128 and 128 x 128 blocks, by cuBLASLt

A backward pass is that of autograd, after one forward pass that is not timed.
"""
import os
import sys

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from check_operator.peers import Unsupported, serve

torch._functorch.config.donated_buffer = False  # a backward pass is timed many times after one forward pass


def require(case, inputs, **attrs):
    """Raises Unsupported for a case with other optional inputs, or with attributes that are not the usual ones."""
    if more := [name for name in case.inputs if name not in inputs]:
        raise Unsupported(f"input {', '.join(more)}")
    for name, value in case.attrs.items():
        if attrs.get(name, value) != value:
            raise Unsupported(f"{name} {value:g}")


def rms_norm(case):
    require(case, ("x", "weight", "grad_y"))
    x, weight = case.tensor("batch", "seq", "hidden"), case.tensor("hidden")
    return (x, weight), lambda x, weight: F.rms_norm(x, weight.shape, weight, case.attrs["eps"])


def silu(case):
    return (case.tensor("batch", "seq", "hidden"),), F.silu


def swiglu(case):
    return (case.tensor("batch", "seq", "hidden"), case.tensor("batch", "seq", "hidden")), lambda gate, up: F.silu(gate) * up


def logp(case):
    require(case, ("logits", "token_ids", "grad_logp"), temperature=1, softcap=0)
    logits, ids = case.tensor("batch", "seq", "vocab"), case.ids("batch", "seq", below="vocab")
    return (logits,), lambda logits: -F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(), reduction="none")


def linear_logp(case):
    require(case, ("hidden", "lm_head_weight", "target_ids", "grad_logp"), temperature=1, softcap=0)
    hidden, weight = case.tensor("batch", "seq", "hidden"), case.tensor("vocab", "hidden")
    ids = case.ids("batch", "seq", below="vocab").flatten()
    return (hidden, weight), lambda hidden, weight: -F.cross_entropy(
        F.linear(hidden.flatten(0, 1), weight).float(), ids, reduction="none")


def matmul(case):
    return (case.tensor("batch", "seq", "k_dim"), case.tensor("k_dim", "n_dim")), torch.matmul


def attention(case):
    require(case, ("q", "k", "v", "grad_o", "o", "lse"), softcap=0, window_left=-1, window_right=-1)
    if case.attrs["causal"] and case.dims["q_seq"] != case.dims["kv_seq"]:
        raise Unsupported("causal attention of other lengths than the keys': its mask begins at the first key")
    q = case.tensor("batch", "q_heads", "q_seq", "head_dim")
    k, v = (case.tensor("batch", "kv_heads", "kv_seq", width) for width in ("head_dim", "v_dim"))
    scale = case.attrs["scale"] if case.attrs["scale"] >= 0 else None
    return (q, k, v), lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, is_causal=bool(case.attrs["causal"]), scale=scale, enable_gqa=True)


def passes(op, function, change=lambda function: function):
    """Both passes of an operator; `change` may compile what computes it."""

    def forward(case):
        inputs, compute = function(case)
        compute = change(compute)

        def launch():
            with torch.no_grad():
                return compute(*inputs)

        return launch

    def backward(case):
        inputs, compute = function(case)
        inputs = [each.requires_grad_() for each in inputs]
        result = change(compute)(*inputs)
        upstream = torch.randn_like(result)
        return lambda: torch.autograd.grad(result, inputs, upstream, retain_graph=True)

    return {f"{op}/forward": forward, f"{op}/backward": backward}


def with_backend(backend):
    def change(compute):
        def computed(*inputs):
            with sdpa_kernel([backend]):
                return compute(*inputs)

        return computed

    return passes("attention", attention, change)


def scaled_mm(case):
    """d of fp8_block_gemm, without a backward pass."""
    rows, k, n = case.dims["batch"] * case.dims["seq"], case.dims["k_dim"], case.dims["n_dim"]
    blocks = -(-k // 128)
    a, b = (case.tensor(count, k, dtype=torch.float32).to(torch.float8_e4m3fn) for count in (rows, n))
    scale_a = torch.rand(blocks, rows, device=case.device).t()  # rows are contiguous, as cuBLASLt asks
    scale_b = torch.rand(-(-n // 128), blocks, device=case.device)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b.t(), out_dtype=case.dtype)


OPERATORS = {"rms_norm": rms_norm, "silu": silu, "swiglu": swiglu, "logp": logp, "linear_logp": linear_logp, "matmul": matmul,
             "det_gemm": matmul}

if __name__ == "__main__":
    serve({
        "torch": {key: each for op, function in OPERATORS.items() for key, each in passes(op, function).items()},
        "compile": {key: each for op, function in OPERATORS.items()
                    for key, each in passes(op, function, torch.compile).items()},
        "cudnn": with_backend(SDPBackend.CUDNN_ATTENTION),
        "flash": with_backend(SDPBackend.FLASH_ATTENTION),
        "cublaslt": {"fp8_block_gemm/forward": scaled_mm},
    })
