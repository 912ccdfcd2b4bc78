# SPDX-License-Identifier: Apache-2.0
"""A registered PyTorch operator as a function with named parameters: what --torch-op serves."""
from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, List, Sequence

from . import serving


def find(name: str, modules: Sequence[str]) -> Callable[..., Any]:
    """The operator "NAMESPACE::NAME[.OVERLOAD]", after `modules` were imported. Throws BadCandidate."""
    try:
        import torch
    except ImportError as error:
        raise serving.BadCandidate(f"torch can't be imported: {error}; --torch-op needs it") from error

    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever importing a module may raise
            serving.print_traceback(error)
            raise serving.BadCandidate(f"--import: '{module}' can't be imported: {type(error).__name__}: {error}") from error
    space, colons, rest = name.partition("::")
    op_name, _, overload = rest.partition(".")
    if not colons or not op_name:
        raise serving.BadCandidate(f"'{name}' is no operator's name; write NAMESPACE::NAME or "
                                   "NAMESPACE::NAME.OVERLOAD")
    try:
        packet = getattr(getattr(torch.ops, space), op_name, None)
    except RuntimeError:  # as torch 1.13 says that there is none
        packet = None
    if packet is None:
        raise serving.BadCandidate(f"torch has no operator '{space}::{op_name}'; name the module that "
                                   "registers it with --import")
    known = packet.overloads()
    if overload and overload not in known:
        raise serving.BadCandidate(f"'{space}::{op_name}' has no overload '{overload}'; known: "
                                   f"{', '.join(known)}")
    return function_of(getattr(packet, overload) if overload else overload_of(packet))


def is_operator(value: Any) -> bool:
    return any(hasattr(value, each) for each in ("_schema", "overloads", "_opoverload"))


def overload_of(packet: Any) -> Any:
    """The default one of an operator that was named without its overload, or that torch's custom_op made."""
    packet = getattr(packet, "_opoverload", packet)
    if hasattr(packet, "_schema"):
        return packet
    known = packet.overloads()
    if "default" not in known and len(known) > 1:
        raise serving.BadCandidate(f"{packet} has the overloads {', '.join(known)}; name one")
    return getattr(packet, "default" if "default" in known else known[0])


def function_of(operator: Any) -> Callable[..., Any]:
    """The operator (torch.ops.NAMESPACE.NAME.OVERLOAD) with the parameters of its schema. Arguments that it writes to are
    copied first, and are outputs after those that it returns. Without a formula for its gradients, a pass that needs them is
    unsupported."""
    import torch

    schema = operator._schema
    written = [each.name for each in schema.arguments if each.alias_info is not None and each.alias_info.is_write]

    def call(**given: Any) -> Any:
        copies = {name: given[name].clone() for name in written if name in given}
        result = operator(**{**given, **copies})
        returned: List[Any] = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
        # What is returned may be the argument itself, as add_() does.
        outputs = [each for each in returned if not any(each is copy for copy in copies.values())] + list(copies.values())
        needs = torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) for each in given.values())
        if needs and not any(getattr(each, "requires_grad", False) for each in outputs):
            raise serving.Unsupported(f"{schema.name} has no autograd; register one with torch.library.register_autograd")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    call.__name__ = call.__qualname__ = schema.name.partition("::")[2]
    call.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY,
                          default=each.default_value if each.has_default_value() else inspect.Parameter.empty)
        for each in schema.arguments])
    call.torch_op = operator  # type: ignore[attr-defined]
    return call
