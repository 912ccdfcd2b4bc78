# SPDX-License-Identifier: Apache-2.0
"""@candidate: functions of a module that `check_operator run --py MODULE` checks."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

from . import serving
from ._names import Op
from .errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Registered:
    """A function, and what its decorator says of it."""

    function: Callable[..., Any]
    op: str
    backward: Union[bool, Callable[..., Any]]
    adapt: Dict[str, str]
    recipes: List[str]

    @property
    def name(self) -> str:
        return getattr(serving.innermost(self.function), "__qualname__", type(self.function).__name__)


REGISTERED: List[Registered] = []


def candidate(*, op: Op, backward: Union[bool, Callable[..., Any]] = False, adapt: Optional[Mapping[str, str]] = None,
              recipes: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Registers a function as a candidate for the operator `op`, and returns it unchanged.

        @check_operator.candidate(op="rms_norm", backward=True)
        def my_rms_norm(x, weight, eps): ...

        check_operator run --py my_kernels

    backward   True: its gradients, by torch or JAX; or the function that computes them
    adapt      the operator's names -> the parameters of the function
    recipes    rounding points that it has by design, by the names that `check_operator show OP` prints
    """
    if not isinstance(op, str):
        raise InputError(f"candidate: op: expected the name of an operator, got {op!r}; write @candidate(op='rms_norm')")

    def register(function: Function) -> Function:
        REGISTERED.append(Registered(function, op, backward, dict(adapt or {}), list(recipes)))
        return function

    return register


def served_by(module: str, name: str) -> "tuple[Dict[str, Any], Dict[str, List[str]], bool]":
    """What serving.serve() takes of a module that has been imported: functions and recipes by key, and whether any of them
    is to be differentiated. `name`: of the only function that counts; "": all. Throws BadCandidate."""
    inside = [each for each in REGISTERED
              if (each.function.__module__ + ".").startswith(module + ".") and name in ("", each.name)]
    if not inside:
        known = [each.name for each in REGISTERED if (each.function.__module__ + ".").startswith(module + ".")]
        raise serving.BadCandidate(f"'{module}' registers no candidate{f' {name!r}' if name else ''}; " + (
            f"known: {', '.join(known)}" if known else "decorate a function with @check_operator.candidate(op=...)"))
    functions: Dict[str, Any] = {}
    recipes: Dict[str, List[str]] = {}
    owners: Dict[str, str] = {}
    for each in inside:
        if each.op in owners:
            raise serving.BadCandidate(f"'{module}' has two candidates for {each.op}: '{owners[each.op]}' and '{each.name}'; "
                                       f"choose one, such as {module}:{each.name}")
        owners[each.op] = each.name
        functions.update(serving.functions_for(each.op, each.function, each.backward, each.adapt))
        if each.recipes:
            recipes[each.op] = each.recipes
    return functions, recipes, any(each.backward is True for each in inside)
