# SPDX-License-Identifier: Apache-2.0
"""Sums of the absolute values of the terms behind each element: what rounding errors grow with. Arrays of float64."""
from __future__ import annotations

from typing import Any, Optional, Tuple, Union


def _absolute(x: Any) -> Any:
    if hasattr(x, "detach"):  # a torch tensor
        return x.detach().double().abs()
    import numpy

    return numpy.abs(numpy.asarray(x, dtype=numpy.float64))


def matmul(a: Any, b: Any) -> Any:
    """Of a @ b: |a| @ |b|.  a[..., m, k], b[..., k, n] -> [..., m, n]"""
    return _absolute(a) @ _absolute(b)


def sum(x: Any, dim: Optional[Union[int, Tuple[int, ...]]] = None) -> Any:
    """Of x.sum(dim): |x|.sum(dim); all elements without `dim`."""
    return _absolute(x).sum() if dim is None else _absolute(x).sum(dim)
