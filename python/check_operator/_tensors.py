# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, NumPy or JAX as entries of safetensors files."""
from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

from .errors import InputError
from .serving import NARROW, described

Entry = Tuple[str, Tuple[int, ...], bytes]  # as in safetensors: dtype, shape, bytes
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
         "uint8": "U8", "bool": "BOOL", **{name: code for code, name in NARROW.items()}}
DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
          "float8_e5m2": "e5m2", "float8_e8m0fnu": "e8m0", "float4_e2m1fn_x2": "e2m1x2"}


def dtype_name(dtype: Any) -> str:
    """ "bf16" for "bf16", torch.bfloat16, numpy.float32 and their kin."""
    word = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    return DTYPES.get(word, word)


CODE_NAMES = {code: dtype_name(name) for name, code in CODES.items()}


def named_tensors(argument: str, value: Any) -> Dict[str, Entry]:
    found: Dict[str, Entry] = {}
    for name, entry in tensors_of(argument, value):
        if name in found:
            raise InputError(f"{argument}: two tensors are called '{name}'; give them different keys")
        if name.startswith(("magnitude/", "rounding/", "reference/")):
            raise InputError(f"{argument}: '{name}' is a name of the tool's own; give the tensor another key")
        found[name] = entry
    return found


def tensors_of(argument: str, value: Any, name: str = "") -> Iterator[Tuple[str, Entry]]:
    """Every tensor in `value` by the path that leads to it; a tensor alone is called "value"."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from tensors_of(argument, each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from tensors_of(argument, each, f"{name}.{index}" if name else str(index))
    else:
        yield name or "value", entry_of(argument, name, value)


def entry_of(argument: str, name: str, value: Any) -> Entry:
    where = f"{argument}: '{name}'" if name else argument
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a torch tensor; numpy knows no bfloat16
        word = str(value.dtype).rpartition(".")[2]
        if word not in CODES:
            raise InputError(f"{where} is {word}; known: {', '.join(CODES)}")
        try:
            value = value.detach().cpu().contiguous()
            if word == "bfloat16" or CODES[word] in NARROW:
                import torch

                value = value.view(torch.int16 if word == "bfloat16" else torch.uint8)
            array = value.numpy()
        except (RuntimeError, TypeError) as error:  # it is sparse or nested, or has no data
            raise InputError(f"{where} can't be read: {described(error)}; give a dense tensor") from None
    else:
        import numpy

        if not isinstance(value, (numpy.ndarray, numpy.generic)) and not hasattr(value, "__array__"):
            raise InputError(f"{where} is a {type(value).__name__}, expected a tensor of torch, NumPy or JAX")
        array = numpy.asarray(value)
        word = array.dtype.name
    if word not in CODES:
        raise InputError(f"{where} is {word}; known: {', '.join(CODES)}")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return CODES[word], tuple(array.shape), little.tobytes()
