# SPDX-License-Identifier: Apache-2.0
"""What other benchmarks of kernels call to have a candidate judged here: KernelBench, BackendBench, GPU MODE.

Each runs the benchmark's reference in float64 for the gold (_gold.py), on the benchmark's own inputs, and its candidate in
this thread. The candidate may err twice as much as the reference does in its own dtypes; contract= gives other tolerances,
such as the benchmark's own. In this order: what they share; a function for each.
"""
from __future__ import annotations

import copy
import functools
import importlib.util
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ._check import Path, check, name_in_reports
from ._names import CheckName
from ._report import Report
from .errors import InputError
from .serving import BadResult, described


def torch_tensors(value: Any, name: str) -> "Dict[str, Any]":
    """Every tensor in tuples, lists and dicts, by the path that leads to it."""
    import torch

    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (tuple, list)) else ()
    found: Dict[str, Any] = {}
    for key, each in items:
        found.update(torch_tensors(each, f"{name}.{key}"))
    return found


def with_tensors(value: Any, name: str, tensors: Dict[str, Any]) -> Any:
    """`value` with other tensors, by the names of torch_tensors()."""
    import torch

    if isinstance(value, torch.Tensor):
        return tensors[name]
    if isinstance(value, dict):
        return {key: with_tensors(each, f"{name}.{key}", tensors) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        found = [with_tensors(each, f"{name}.{index}", tensors) for index, each in enumerate(value)]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value


def judge(op: str, arguments: Sequence[Any], reference: Callable[..., Any], candidate: Callable[..., Any], *,
          wide_reference: Optional[Callable[..., Any]] = None, contract: Optional[Path] = None, name: Optional[str] = None,
          checks: Union[None, CheckName, Sequence[CheckName]] = None, timeout_s: Optional[int] = None) -> Report:
    """Checks candidate(*arguments) against reference(*arguments). `wide_reference`: the one that runs in float64."""
    import torch

    from . import _gold

    inputs = torch_tensors(list(arguments), "argument")
    if not inputs:
        raise InputError(f"{op}: there is no tensor among the arguments; give what the function computes with")

    def outputs_of(function: Callable[[], Any], doing: str) -> "Dict[str, Any]":
        try:
            found = torch_tensors(function(), "output")
        except InputError as error:
            raise InputError(f"{op}: reference: {doing}: {error}") from None
        except Exception as error:  # of somebody's function
            raise InputError(f"{op}: reference: {doing}: fails: {type(error).__name__}: {error}") from error
        if not found:
            raise InputError(f"{op}: reference: {doing}: returned no tensor")
        return found

    gold = outputs_of(lambda: _gold.run_in_float64(wide_reference or reference, arguments)[0], "in float64")
    plain = outputs_of(lambda: _gold.run(reference, arguments), "in its own dtypes")
    if list(gold) != list(plain):
        raise InputError(f"{op}: reference: returned {', '.join(gold)} in float64, and {', '.join(plain)} in its own dtypes")
    for each, value in gold.items():
        if plain[each].dtype in _gold.WIDER and value.dtype != torch.float64:
            raise InputError(f"{op}: reference: in float64: '{each}' is {value.dtype}; write it without that cast")
        if value.isnan().any():
            raise InputError(f"{op}: reference: in float64: '{each}' has NaN, which is no gold; give other arguments")

    def call(**tensors: Any) -> Dict[str, Any]:
        given = set(map(id, tensors.values()))
        found = torch_tensors(candidate(*with_tensors(list(arguments), "argument", tensors)), "output")
        if list(found) != list(plain):
            raise BadResult(f"the function returned {', '.join(found) or 'no tensor'}, expected {', '.join(plain)}")
        # These benchmarks have arguments that are written to and returned.
        return {each: value.detach().clone() if id(value) in given else value.detach() for each, value in found.items()}

    call.fn, call.framework = candidate, "torch"  # type: ignore[attr-defined]  # the file of fn makes the digest
    device = next(iter(inputs.values())).device
    return check(call, op=name_in_reports(op), inputs=inputs, gold=gold, cls="composite", reference=plain,
                 contract=contract or "vs_reference", isolate="here", name=name or "candidate", checks=checks,
                 device=f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu", timeout_s=timeout_s)


def require_path(argument: str, path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{argument}: expected a path, got {path!r:.80}")
    return str(os.fspath(path))


def module_of(path: Path, folders: Sequence[str] = ()) -> Any:
    """A module from a file, which may import its neighbours and those in `folders`."""
    path = require_path("file", path)
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is no module of Python; give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.path[:0] = [os.path.dirname(os.path.abspath(path)), *folders]
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever importing a module may raise
        raise InputError(f"{path}: can't be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before
    return module


def member(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        raise InputError(f"{module.__file__}: defines no '{name}'; add it")
    return found


def called(module: Any, name: str, *arguments: Any, **named: Any) -> Any:
    """What a function of a benchmark's file returns."""
    function = member(module, name)
    try:
        return function(*arguments, **named)
    except Exception as error:  # of somebody's function
        raise InputError(f"{module.__file__}: {name}() fails: {described(error)}") from error


def kernelbench(problem: Path, solution: Path, *, device: str = "cpu", seed: int = 42, **more: Any) -> Report:
    """A problem of KernelBench, a file with Model, get_inputs() and get_init_inputs(), and a file with ModelNew.

    Both models are made with the same seed; ModelNew gets the weights of Model where it has the same ones. Model.double()
    is the gold's. contract="kernelbench" has the benchmark's tolerance. More: contract, name, checks, timeout_s.
    """
    import torch

    from . import _gold

    _gold.require_device("device", device)
    theirs = module_of(problem)
    models: List[Any] = []
    for module, name in ((theirs, "Model"), (module_of(solution), "ModelNew")):
        torch.manual_seed(seed)
        init = called(theirs, "get_init_inputs")
        torch.manual_seed(seed)
        models.append(called(module, name, *init).to(device))
    model, new = models
    known, wanted = model.state_dict(), new.state_dict()
    if known.keys() == wanted.keys() and all(known[key].shape == wanted[key].shape for key in known):
        new.load_state_dict(known)
    elif known:
        raise InputError(f"{solution}: ModelNew has the weights {', '.join(wanted) or 'none'}, and Model "
                         f"{', '.join(known)}; give them the same names and shapes")
    torch.manual_seed(seed)
    arguments = [each.to(device) if isinstance(each, torch.Tensor) else each for each in called(theirs, "get_inputs")]
    return judge(os.path.splitext(os.path.basename(os.fspath(problem)))[0], arguments, model, new,
                 wide_reference=copy.deepcopy(model).double(), **{"name": "ModelNew", **more})


def backendbench(op: Any, implementation: Union[Path, Callable[..., Any]], *args: Any,
                 kwargs: Optional[Dict[str, Any]] = None, **more: Any) -> Report:
    """An operator of PyTorch (torch.ops.aten.add.Tensor, or "add.Tensor") and a kernel for it, on arguments of BackendBench:
    a function, or a folder such as generated_kernels/add__Tensor, whose file *_implementation*.py has *_kernel_impl().

    contract="abs_or_rel" is near the benchmark's tolerance of 1e-2. More: contract, name, checks, timeout_s.
    """
    import torch

    if isinstance(op, str):
        packet, _, overload = op.partition(".")
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except (AttributeError, RuntimeError):
            raise InputError(f"op: torch has no operator 'aten::{op}'; write NAME.OVERLOAD, such as add.Tensor") from None
    if callable(implementation):
        kernel: Callable[..., Any] = implementation
    else:
        folder = require_path("implementation", implementation)
        title = os.path.basename(os.path.normpath(folder))
        files = sorted(each for each in (os.listdir(folder) if os.path.isdir(folder) else ())
                       if each.startswith(title + "_implementation") and each.endswith(".py"))
        if not files:
            raise InputError(f"{folder}: holds no file {title}_implementation*.py; name the folder of one operator")
        kernel = member(module_of(os.path.join(folder, files[0])), title + "_kernel_impl")

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda positional, named: function(*positional, **named)

    return judge(str(op).replace("aten.", ""), [list(args), dict(kwargs or {})], of(op), of(kernel), **more)


def gpu_mode(folder: Path, submission: Path, *, seed: int, contract: Optional[Path] = None, **arguments: Any
             ) -> "Tuple[Report, str]":
    """A problem of GPU MODE, a folder with reference.py, and a submission with custom_kernel(data): the report, and what the
    problem's own check_implementation() says of one launch, "" if nothing is wrong, or the exception that it ended in.

    seed and arguments are those of generate_input(), as in the tests of task.yml. Every launch gets data of its own.
    """
    from . import _gold

    folder = os.path.abspath(require_path("folder", folder))
    folders = [folder, os.path.dirname(folder)]  # utils.py lies beside the problems
    theirs = module_of(os.path.join(folder, "reference.py"), folders)
    kernel = member(module_of(submission, folders), "custom_kernel")
    try:
        data = member(theirs, "generate_input")(seed=seed, **arguments)
    except TypeError as error:
        raise InputError(f"{folder}: generate_input(): {error}; give its arguments by name") from None
    def on_own_data(data: Any) -> Any:  # a submission may write to it
        return kernel(_gold.each_tensor(lambda each: each.clone(), data))

    report = judge(os.path.basename(folder), [data], member(theirs, "ref_kernel"), functools.wraps(kernel)(on_own_data),
                   contract=contract, name="custom_kernel")
    checks = member(theirs, "check_implementation")
    try:
        word: Any = checks(_gold.each_tensor(lambda each: each.clone(), data), _gold.run(kernel, [data]))
    except Exception as error:  # of the submission, or of a checker that can't take what it returned
        return report, described(error)
    passed, message = word if isinstance(word, tuple) else (not word, word)
    return report, "" if passed else str(message)
