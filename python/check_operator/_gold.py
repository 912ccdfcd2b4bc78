# SPDX-License-Identifier: Apache-2.0
"""A reference in PyTorch, run in float64: the gold of a definition."""
from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode

from . import serving
from .errors import InputError, MachineError

# 16- and 32-bit types are widened. Casts to fp8 and fp4 stay: they quantise on purpose.
WIDER = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
         torch.complex64: torch.complex128}
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def require_device(where: str, device: str) -> None:
    """Throws InputError for a word that names no device of check_operator, MachineError for a device that is not there."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"{where}: unknown device '{device}'; use auto, cpu, cuda or cuda:N")
    try:
        serving.Torch(device)
    except serving.NoDevice as error:
        raise MachineError(f"{where}: {error}") from None
    except serving.BadCandidate as error:
        raise InputError(f"{where}: {error}") from None


class InFloat64(TorchFunctionMode):  # type: ignore[misc]
    """Turns 16- and 32-bit floating-point types in the arguments of torch's functions into float64."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0

    def __torch_function__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.view and any(isinstance(each, torch.dtype) for each in (*args[1:], *kwargs.values())):
            wanted = next(each for each in (*args[1:], *kwargs.values()) if isinstance(each, torch.dtype))
            if args[0].dtype == torch.float64 or wanted in WIDER:
                raise InputError(f"reinterprets the bits of {args[0].dtype} as {wanted}, which has no form in float64")
        if func in CASTS:
            self.casts += 1
            return args[0].double()
        return func(*[self.widened(each) for each in args], **{name: self.widened(each) for name, each in kwargs.items()})

    def widened(self, value: Any) -> Any:
        if not isinstance(value, torch.dtype) or value not in WIDER:
            return value
        self.casts += 1
        return WIDER[value]


def each_tensor(change: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in its tuples, lists and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each_tensor(change, each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        found = [each_tensor(change, each) for each in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value


def run(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The reference as it is, on copies of its arguments."""
    with torch.no_grad():
        return function(*each_tensor(torch.Tensor.clone, list(arguments)))


def run_in_float64(function: Callable[..., Any], arguments: Sequence[Any]) -> "Tuple[Any, int]":
    """What the reference computes from float64 copies of its arguments, and how many casts were widened. Throws InputError
    where that is no gold."""
    wide: List[Any] = each_tensor(lambda each: each.to(WIDER.get(each.dtype, each.dtype)), list(arguments))
    before, default = torch.get_rng_state(), torch.get_default_dtype()
    mode = InFloat64()
    torch.set_default_dtype(torch.float64)
    try:
        with mode:
            result = run(function, wide)
    finally:
        torch.set_default_dtype(default)
    if not torch.equal(before, torch.get_rng_state()):
        raise InputError("draws random numbers, so that its result is no gold; make them inputs")
    return result, mode.casts
