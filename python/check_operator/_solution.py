# SPDX-License-Identifier: Apache-2.0
"""The process of a solution: serves it, or the reference, as a candidate for one workload.

Usage: _solution.py NAME --definition FILE [--workload FILE --uuid UUID] [--solution FILE --sources FOLDER]
"""
from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import Any, Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.path.dirname(HERE), *(path for path in sys.path if os.path.abspath(path) != HERE)]

from check_operator import serving
from check_operator._definition import Definition, Solution, Workload
from check_operator.errors import InputError


def load(solution: Solution, folder: str) -> Callable[..., Any]:
    """The function of a solution whose sources lie in `folder`."""
    sys.path.insert(0, os.path.dirname(os.path.join(folder, solution.entry_file)))
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("solution", os.path.join(folder, solution.entry_file))
    if spec is None or spec.loader is None:
        raise InputError(f"{solution.path}: spec.entry_point: '{solution.entry_file}' is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever importing a module may raise
        serving.print_traceback(error)
        raise InputError(f"{solution.path}: '{solution.entry_file}' can't be imported: {type(error).__name__}: "
                         f"{error}") from error
    function = getattr(module, solution.entry_function, None)
    if not callable(function):
        raise InputError(f"{solution.path}: spec.entry_point: '{solution.entry_file}' defines no function "
                         f"'{solution.entry_function}'")
    return function


def candidate(definition: Definition, workload: Workload, function: Callable[..., Any],
              returns: bool) -> Callable[..., Any]:
    """The function with tensors by name, which gets its arguments in the order of the definition."""
    axes = definition.axis_values(workload.axes)
    scalars = {name: source["value"] for name, source in workload.inputs.items() if source.get("type") == "scalar"}

    def call(**tensors: Any) -> Any:
        import torch

        arguments = [tensors[spec.name] if spec.name in tensors else scalars[spec.name] for spec in definition.inputs]
        names = [spec.name for spec in definition.outputs]
        if returns:
            return serving.by_name(function(*arguments), names)
        outputs = []
        device = next(iter(tensors.values())).device if tensors else "cpu"
        for spec in definition.outputs:
            dtype = getattr(torch, spec.dtype)
            # What the function does not write is seen: NaN, or the largest integer.
            poison = float("nan") if dtype.is_floating_point else True if dtype == torch.bool else torch.iinfo(dtype).max
            outputs.append(torch.full(definition.shape_of(spec, axes), poison, dtype=dtype, device=device))
        function(*arguments, *outputs)
        return dict(zip(names, outputs))

    call.fn = function  # type: ignore[attr-defined]  # whose file makes the digest
    return call


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--definition", required=True)
    parser.add_argument("--workload")
    parser.add_argument("--uuid")
    parser.add_argument("--solution")
    parser.add_argument("--sources")
    given = parser.parse_args()
    try:
        definition = Definition.load(given.definition)
        workload = Workload("", "", {}, {})
        if given.workload:
            workload = next(each for each in Workload.load(given.workload, definition) if each.uuid == given.uuid)
        if given.solution:
            solution = Solution.load(given.solution, definition)
            function, returns = load(solution, given.sources), solution.returns
        else:
            function, returns = definition.functions()["run"], True
        functions = {given.name + "/forward": candidate(definition, workload, function, returns)}
    except InputError as error:
        serving.refuse(str(error))
        return
    serving.serve(functions, framework="torch")


if __name__ == "__main__":
    main()
