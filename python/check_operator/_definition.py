# SPDX-License-Identifier: Apache-2.0
"""Definitions, workloads and solutions of FlashInfer-Bench and of SOL-ExecBench, which share a format, as data.

Formats: flashinfer_bench/data/ of flashinfer-ai/flashinfer-bench; src/sol_execbench/core/data/ of NVIDIA/SOL-ExecBench.
"""
from __future__ import annotations

import ast
import dataclasses
import json
import operator
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .errors import InputError

# What the tool has: safetensors' code of each.
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
          "uint8": "U8", "bool": "BOOL"}
IN_PYTHON = ("python", "triton", "pytorch", "tilelang", "cute_dsl", "cutile", "cudnn_frontend")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """An input or an output. `shape` holds names of axes and integers; None: a Python scalar."""

    name: str
    shape: Optional[Tuple[str, ...]]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Definition:
    path: str
    name: str
    op_type: str  #: "" where it has none
    axes: Dict[str, Dict[str, Any]]
    inputs: List[TensorSpec]
    outputs: List[TensorSpec]
    reference: str
    constraints: List[str]
    custom_inputs: str  #: the function of the reference that makes all inputs; ""

    @staticmethod
    def load(path: str) -> "Definition":
        data = object_of(path, read(path))
        for key in ("name", "axes", "inputs", "outputs", "reference"):
            if not data.get(key):
                raise InputError(f"{path}: has no '{key}'; give a definition of FlashInfer-Bench or SOL-ExecBench")
        specs: Dict[str, List[TensorSpec]] = {}
        for group in ("inputs", "outputs"):
            specs[group] = []
            for name, spec in mapping(path, group, data[group]).items():
                where = f"{path}: {group}.{name}"
                spec = mapping(path, f"{group}.{name}", spec)
                if spec.get("dtype") not in DTYPES:
                    raise InputError(f"{where}: dtype '{spec.get('dtype')}' is not among those that check_operator has: "
                                     f"{', '.join(DTYPES)}")
                shape = spec.get("shape")
                for axis in shape or ():
                    if str(axis) not in data["axes"] and not str(axis).isdigit():
                        raise InputError(f"{where}: shape names '{axis}', which is no axis; known: {', '.join(data['axes'])}")
                if group == "outputs" and shape is None:
                    raise InputError(f"{where}: is a Python scalar, and only tensors are judged; give it the shape []")
                specs[group].append(TensorSpec(name, None if shape is None else tuple(map(str, shape)), spec["dtype"]))
        return Definition(path, str(data["name"]), str(data.get("op_type") or ""), mapping(path, "axes", data["axes"]),
                          specs["inputs"], specs["outputs"], str(data["reference"]), list(data.get("constraints") or []),
                          str(data.get("custom_inputs_entrypoint") or ""))

    def axis_values(self, given: Mapping[str, Any]) -> Dict[str, int]:
        """Of all axes; `given`: those of a workload."""
        found: Dict[str, int] = {}
        for name, axis in self.axes.items():
            kind = axis.get("type")
            if kind == "const":
                found[name] = int(axis["value"])
            elif kind == "var":
                if name not in given:
                    raise InputError(f"{self.path}: axes.{name}: has no value; give it with --workload")
                found[name] = int(given[name])
            elif kind != "expr":
                raise InputError(f"{self.path}: axes.{name}: unknown type '{kind}'; known: const, var, expr")
        for name, axis in self.axes.items():
            if axis.get("type") == "expr":
                found[name] = evaluate(f"{self.path}: axes.{name}", str(axis.get("expression")), found)
        return found

    def shape_of(self, spec: TensorSpec, axes: Mapping[str, int]) -> Tuple[int, ...]:
        return tuple(int(axis) if axis.isdigit() else axes[axis] for axis in spec.shape or ())

    def functions(self) -> Dict[str, Any]:
        """What the reference defines. Throws InputError where it can't be run or has no `run`."""
        scope: Dict[str, Any] = {"__name__": "reference"}
        try:
            exec(compile(self.reference, f"<reference of {self.name}>", "exec"), scope)  # it is the user's own file
        except Exception as error:  # whatever it may raise
            raise InputError(f"{self.path}: reference: can't be run: {type(error).__name__}: {error}") from error
        for name in ("run", self.custom_inputs):
            if name and not callable(scope.get(name)):
                raise InputError(f"{self.path}: reference: defines no function '{name}'; add it")
        return scope


@dataclasses.dataclass(frozen=True)
class Workload:
    path: str
    uuid: str
    axes: Dict[str, int]
    inputs: Dict[str, Dict[str, Any]]

    @staticmethod
    def load(path: str, definition: Definition) -> "List[Workload]":
        """Those of the definition, from a file with one JSON object a line."""
        found = []
        for number, line in enumerate(read(path).splitlines(), 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            data = object_of(where, line)
            if data.get("definition", definition.name) != definition.name:
                continue
            data = mapping(where, "workload", data["workload"]) if "workload" in data else data
            for key in ("axes", "inputs", "uuid"):
                if key not in data:
                    raise InputError(f"{where}: has no '{key}'; give workloads as JSON lines")
            found.append(Workload(path, str(data["uuid"]), dict(data["axes"]), mapping(where, "inputs", data["inputs"])))
        if not found:
            raise InputError(f"{path}: holds no workload of '{definition.name}'; give the file of this definition")
        return found


@dataclasses.dataclass(frozen=True)
class Solution:
    path: str
    name: str
    entry_file: str
    entry_function: str
    returns: bool  #: its outputs; else it writes them to its last arguments
    sources: Dict[str, str]

    @staticmethod
    def load(path: str, definition: Definition) -> "Solution":
        data = object_of(path, read(path))
        spec = mapping(path, "spec", data.get("spec"))
        if data.get("definition") != definition.name:
            raise InputError(f"{path}: solves '{data.get('definition')}', and the definition is '{definition.name}'; "
                             "give another one of the two")
        for language in spec.get("languages") or [spec.get("language")]:
            if language not in IN_PYTHON:
                raise InputError(f"{path}: spec.language: '{language}' has to be built first, which import does not do; "
                                 "build it as a module of Python and solve the definition in Python")
        entry_file, _, entry_function = str(spec.get("entry_point")).partition("::")
        sources = {}
        for source in data.get("sources") or []:
            name = str(source.get("path"))
            if os.path.isabs(name) or ".." in name.split("/"):
                raise InputError(f"{path}: sources: '{name}' leads out of the solution's folder; give a path in it")
            sources[name] = str(source.get("content"))
        if entry_file not in sources or not entry_function:
            raise InputError(f"{path}: spec.entry_point: '{spec.get('entry_point')}' is not FILE::FUNCTION with a file of "
                             f"sources; known: {', '.join(sources) or 'none'}")
        return Solution(path, str(data.get("name")), entry_file, entry_function,
                        spec.get("destination_passing_style", True) is False, sources)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"{path}: can't be read: {why}; give a file of JSON") from None


def object_of(where: str, text: str) -> Dict[str, Any]:
    if text.startswith("version https://git-lfs"):
        raise InputError(f"{where}: is a pointer of Git LFS, not the file; fetch it with 'git lfs pull'")
    try:
        return mapping(where, "", json.loads(text))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: is no JSON: {error}") from None


def mapping(where: str, key: str, value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}{': ' if key else ''}{key}: expected an object, got {value!r:.60}")
    return value


BINARY: Dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow}


def evaluate(where: str, expression: str, names: Mapping[str, int]) -> int:
    """An arithmetic expression over axes."""
    def value_of(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            return BINARY[type(node.op)](value_of(node.left), value_of(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
            return -value_of(node.operand) if isinstance(node.op, ast.USub) else value_of(node.operand)
        raise ValueError("only numbers, axes and arithmetic may stand there")

    try:
        found = value_of(ast.parse(expression, mode="eval").body)
        if found != int(found):
            raise ValueError(f"it is {found}, and no integer")
        return int(found)
    except (SyntaxError, ValueError, ArithmeticError, TypeError) as error:
        raise InputError(f"{where}: expression '{expression}': {error}") from None


def result_by_name(specs: Sequence[TensorSpec], result: Any) -> Dict[str, Any]:
    """What `run` returned, by the names of the outputs."""
    from .serving import BadResult, by_name, chosen

    names = [spec.name for spec in specs]
    try:
        return chosen(by_name(result, names), names)
    except BadResult as error:
        raise InputError(str(error)) from None
