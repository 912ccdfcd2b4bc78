# SPDX-License-Identifier: Apache-2.0
"""`check_operator import`: solutions of a FlashInfer-Bench or SOL-ExecBench definition as candidates.

The gold is the definition's reference in float64 (_gold.py), its op_type gives the class of errors, and the program judges.
In this order: how errors of an op_type grow; inputs; the gold; the command.
"""
from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shlex
import struct
import sys
import tempfile
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from . import serving
from ._check import name_in_reports, run_judge
from ._definition import DTYPES, Definition, Solution, TensorSpec, Workload, result_by_name
from ._own import OwnData
from ._program import HERE, ask, contract_path
from ._report import merged, require_writable
from ._tensors import dtype_name, entry_of
from .errors import InputError, MachineError


@dataclasses.dataclass(frozen=True)
class Growth:
    """How errors of an operator's outputs grow. `magnitude`: what is known of the sums' magnitude."""

    cls: str
    magnitude: str = ""  #: "products": the reference of absolute inputs; "gold": its absolute value; "": unknown


# The first that an op_type begins with. Of products the reference itself, applied to absolute values, gives |A||B|. A
# normalised row has no sum that cancels, but for that of its squares, so that its absolute value is its magnitude.
GROWTH = {"gemm": Growth("contraction", "products"), "matmul": Growth("contraction", "products"),
          "rmsnorm": Growth("reduction", "gold"), "fused_add_rmsnorm": Growth("reduction", "gold"),
          "rope": Growth("pointwise")}


def growth_of(definition: Definition) -> Growth:
    if definition.op_type.startswith("sampling"):
        raise InputError(f"{definition.path}: op_type: the result of '{definition.op_type}' is random, and a random result "
                         "has no gold; check the probabilities that it draws from")
    return next((growth for name, growth in GROWTH.items() if definition.op_type.startswith(name)), Growth("composite"))


def terms_of(definition: Definition, axes: Dict[str, int], growth: Growth) -> int:
    """The longest sum behind an element: over the axes that only inputs have, or over a row."""
    if growth.magnitude == "gold":
        return max([definition.shape_of(spec, axes)[-1] for spec in definition.outputs if spec.shape] or [1])
    if growth.magnitude != "products":
        return 1
    kept = {axis for spec in definition.outputs for axis in spec.shape or ()}
    terms = 1
    for axis in {axis for spec in definition.inputs for axis in spec.shape or ()} - kept:
        terms *= int(axis) if axis.isdigit() else axes[axis]
    return terms


# --- Inputs ---

def generated(spec: TensorSpec, shape: Sequence[int], seed: int) -> Any:
    """Numbers of the program's own generator. silu is asked for since its input is any number, and never computed."""
    import torch

    count = 1
    for extent in shape:
        count *= extent
    kept: List[Any] = []

    def keep(x: "torch.Tensor") -> Any:
        kept.append(x.clone())
        raise serving.Unsupported("its input is all that is wanted")

    if count:
        run_judge(["--op=silu", "--pass=forward", "--dim=batch=1", "--dim=seq=1", f"--dim=hidden={count}", f"--seed={seed}",
                   f"--dtype={dtype_name(spec.dtype)}", "--device=cpu", "--candidate=inputs", "--exec-name=inputs"],
                  {"silu/forward": keep})
    return kept[0].reshape(tuple(shape)) if kept else torch.empty(tuple(shape), dtype=getattr(torch, spec.dtype))


def stored(where: str, source: Dict[str, Any], roots: Sequence[str]) -> Any:
    import torch

    places = [os.path.join(root, str(source.get("path"))) for root in roots]
    path = next((each for each in places if os.path.isfile(each)), "")
    if not path:
        raise InputError(f"{where}: there is no '{source.get('path')}' below {' or '.join(roots)}; give the folder that "
                         "holds it with --root")
    with open(path, "rb") as file:
        if file.read(23) == b"version https://git-lfs":
            raise InputError(f"{where}: {path} is a pointer of Git LFS, not the file; fetch it with 'git lfs pull'")
    try:
        tensors = serving.read_safetensors(path)
    except (OSError, ValueError, KeyError, AttributeError, MemoryError, OverflowError, struct.error) as error:
        raise InputError(f"{where}: {path} is no safetensors file: {error}") from None
    key = source.get("tensor_key")
    if key not in tensors:
        raise InputError(f"{where}: {path} holds no tensor '{key}'; known: {', '.join(tensors)}")
    code, shape, data = tensors[key]
    name = next((name for name, each in DTYPES.items() if each == code), None)
    if name is None:
        raise InputError(f"{where}: '{key}' of {path} is {code}, which check_operator does not have; known: "
                         f"{', '.join(DTYPES)}")
    dtype = getattr(torch, name)
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def inputs_of(definition: Definition, workload: Workload, roots: Sequence[str], seed: int,
              functions: Dict[str, Any]) -> Dict[str, Any]:
    """Tensors on the CPU and scalars, by name, in the order of the definition."""
    import torch

    axes = definition.axis_values(workload.axes)
    found: Dict[str, Any] = {}
    scalars = {name: source.get("value") for name, source in workload.inputs.items() if source.get("type") == "scalar"}
    custom: Dict[str, Any] = {}
    if any(source.get("type") == "custom" for source in workload.inputs.values()):
        if not definition.custom_inputs:
            raise InputError(f"{definition.path}: custom_inputs_entrypoint: is missing, and workload {workload.uuid} has "
                             "custom inputs; name the function of the reference that makes them")
        torch.manual_seed(seed)
        custom = functions[definition.custom_inputs]({**axes, **scalars}, torch.device("cpu"))
        if not isinstance(custom, dict):
            raise InputError(f"{definition.path}: {definition.custom_inputs}() returned a {type(custom).__name__}; return a "
                             "dict of tensors")
    for spec in definition.inputs:
        where = f"{workload.path or definition.path}: workload {workload.uuid}: input '{spec.name}'"
        source = workload.inputs.get(spec.name, {"type": "random"} if not workload.path else {})
        kind, shape = source.get("type"), definition.shape_of(spec, axes)
        if spec.shape is None and kind != "scalar":
            raise InputError(f"{where}: is a scalar without a value; give it {{\"type\": \"scalar\", \"value\": ...}}")
        if kind == "scalar":
            value = source.get("value")
            if not isinstance(value, (int, float)) or spec.shape not in (None, ()):
                raise InputError(f"{where}: the value {value!r} does not fit its shape {list(shape)}; give a number for a "
                                 "scalar")
            found[spec.name] = value if spec.shape is None else torch.tensor(value, dtype=getattr(torch, spec.dtype))
            continue
        if kind == "random":
            if not getattr(torch, spec.dtype).is_floating_point:
                raise InputError(f"{where}: is random {spec.dtype}, and the definition does not say what its integers mean; "
                                 "give the tensor as safetensors")
            text = f"{definition.name} {workload.uuid} {spec.name} {seed}"
            found[spec.name] = generated(spec, shape, int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))
        elif kind == "safetensors":
            found[spec.name] = stored(where, source, roots)
        elif kind == "custom":
            if not isinstance(custom.get(spec.name), (torch.Tensor, int, float)):
                raise InputError(f"{where}: {definition.custom_inputs}() returned no tensor of that name")
            found[spec.name] = custom[spec.name]
        else:
            raise InputError(f"{where}: unknown type '{kind}'; known: random, scalar, safetensors, custom")
        tensor = found[spec.name]
        if isinstance(tensor, torch.Tensor) and (tuple(tensor.shape) != shape or tensor.dtype != getattr(torch, spec.dtype)):
            raise InputError(f"{where}: is {tensor.dtype} {list(tensor.shape)}, expected {spec.dtype} {list(shape)}")
        if isinstance(tensor, torch.Tensor) and not tensor.numel():
            raise InputError(f"{where}: has no elements, {list(shape)}, and such a workload proves nothing; leave it out")
    for constraint in definition.constraints:
        try:
            holds = bool(eval(constraint, {"__builtins__": {}}, {**axes, **found}))
        except Exception as error:  # whatever an expression may raise
            raise InputError(f"{definition.path}: constraint '{constraint}': {type(error).__name__}: {error}") from None
        if not holds:
            raise InputError(f"{workload.path}: workload {workload.uuid}: constraint '{constraint}' does not hold; mend the "
                             "axes or the inputs")
    return found


# --- The gold ---

def judged_by(definition: Definition, inputs: Dict[str, Any], axes: Dict[str, int], run: Any,
              device: str) -> Tuple[OwnData, str]:
    """Inputs and gold for the program, and a line about them."""
    import torch

    from . import _gold

    growth = growth_of(definition)
    arguments = [each.to(device) if isinstance(each, torch.Tensor) else each for each in inputs.values()]

    def refused(error: Exception, doing: str) -> InputError:
        why = str(error) if isinstance(error, InputError) else f"fails: {type(error).__name__}: {error}"
        return InputError(f"{definition.path}: reference: {doing}: {why}")

    try:
        result, casts = _gold.run_in_float64(run, arguments)
        gold = result_by_name(definition.outputs, result)
    except Exception as error:  # of somebody's function
        raise refused(error, "in float64") from error
    entries: Dict[str, Any] = {}
    for spec in definition.outputs:
        shape, value = definition.shape_of(spec, axes), gold[spec.name]
        is_float = getattr(torch, spec.dtype).is_floating_point
        expected = torch.float64 if is_float else getattr(torch, spec.dtype)
        if not isinstance(value, torch.Tensor) or value.dtype != expected or tuple(value.shape) != shape:
            is_what = f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise refused(InputError(f"output '{spec.name}' is {is_what}, expected {expected} {list(shape)}"), "in float64")
        if value.isnan().any():
            raise refused(InputError(f"output '{spec.name}' has NaN, which is no gold"), "in float64")
        entries[spec.name] = entry_of("gold", spec.name, value)
    try:
        reference = result_by_name(definition.outputs, _gold.run(run, arguments))
    except Exception as error:  # of somebody's function
        raise refused(error, "in its own dtypes") from error
    for spec in definition.outputs:
        value = reference[spec.name]
        if str(getattr(value, "dtype", "")) != f"torch.{spec.dtype}":
            raise refused(InputError(f"output '{spec.name}' is {getattr(value, 'dtype', type(value).__name__)}, expected "
                                     f"{spec.dtype}"), "in its own dtypes")
        entries["reference/" + spec.name] = entry_of("reference", spec.name, value)
    floats = [spec for spec in definition.outputs if getattr(torch, spec.dtype).is_floating_point]
    if growth.magnitude == "gold":
        magnitudes = {spec.name: gold[spec.name].abs() for spec in floats}
    elif growth.magnitude == "products":
        absolute = [each.abs() if isinstance(each, torch.Tensor) and each.dtype.is_floating_point else each
                    for each in arguments]
        magnitudes = result_by_name(definition.outputs, _gold.run_in_float64(run, absolute)[0])
    else:
        magnitudes = {}
    for name, value in magnitudes.items():
        entries["magnitude/" + name] = entry_of("magnitude", name, value)
    tensors = {name: entry_of("inputs", name, value) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    how = "within twice the error of the reference" if not magnitudes else f"as a {growth.cls}"
    own = OwnData(tensors, entries, growth.cls, terms_of(definition, axes, growth))
    return own, f"gold: the reference in float64, {casts} casts widened; judged {how}"


# --- The command ---

def command_of(name: str, definition: Definition, workload: Workload, solution: Optional[Solution], folder: str) -> str:
    """That starts the process of a solution, whose sources are written to `folder`."""
    words = [sys.executable, os.path.join(HERE, "_solution.py"), name, "--definition", os.path.abspath(definition.path)]
    if workload.path:
        words += ["--workload", os.path.abspath(workload.path), "--uuid", workload.uuid]
    if solution:
        for path, content in solution.sources.items():
            path = os.path.join(folder, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        words += ["--solution", os.path.abspath(solution.path), "--sources", folder]
    return shlex.join(words)


def tell(error: Exception) -> None:
    print(f"check_operator: {error}", file=sys.stderr, flush=True)


def check(definition: Definition, workload: Workload, solutions: Sequence[Solution],
          given: argparse.Namespace) -> List[Dict[str, Any]]:
    """The reports of the solutions on one workload. One that can't be asked about is told of and left out."""
    functions = definition.functions()
    axes = definition.axis_values(workload.axes)
    inputs = inputs_of(definition, workload, given.roots, given.seed, functions)
    device = "cpu" if given.device == "auto" else given.device
    own, line = judged_by(definition, inputs, axes, functions["run"], device)
    sizes = " ".join(f"{name}={value}" for name, value in axes.items())
    print(f"{definition.name}: workload {workload.uuid or 'without a file'}: {sizes}\n{line}", flush=True)
    known = {op["name"] for op in json.loads(ask(["show", "--json"]))["operators"]}
    op = name_in_reports(definition.name)
    op = op + "-definition" if op in known else op
    has_magnitude = any(name.startswith("magnitude/") for name in own.gold)
    contract = given.contract or ("" if has_magnitude else "vs_reference")
    reports = []
    for solution in solutions or [None]:  # type: ignore[list-item]
        with tempfile.TemporaryDirectory(prefix="check_operator.") as folder:
            name = name_in_reports(solution.name) if solution else "reference"
            flags = [f"--op={op}", "--pass=forward", f"--device={device}", f"--candidate={name}", f"--exec-name={name}",
                     "--exec=" + command_of(op, definition, workload, solution, folder),
                     *([f"--contract={contract_path(contract)}"] if contract else [])]
            try:
                report = run_judge(flags, own=own)
            except InputError as error:
                tell(error)
                continue
        print(report, flush=True)
        if report.exit_code:
            print("repeat: " + repeat_line(workload, solution, given), flush=True)
        data = report.as_dict()
        for each in data["candidates"]:
            each["plugin"]["path"] = solution.path if solution else definition.path  # not the command of this workload
        reports.append(data)
    return reports


def repeat_line(workload: Workload, solution: Optional[Solution], given: argparse.Namespace) -> str:
    words = ["check_operator", "import", given.definition]
    if given.workload:
        words += ["--workload", given.workload, "--uuid", workload.uuid]
    if solution:
        words += ["--solution", solution.path]
    for flag, value, default in (("root", given.root, None), ("device", given.device, "cpu"), ("seed", given.seed, 123),
                                 ("contract", given.contract, None)):
        if value != default:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    parser = argparse.ArgumentParser(prog="check_operator import", description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definition", metavar="DEFINITION.json")
    parser.add_argument("--workload", metavar="FILE.jsonl",
                        help="workloads; default: one of random inputs, where no axis is var")
    parser.add_argument("--uuid", action="append", help="check these workloads alone")
    parser.add_argument("--solution", action="append", default=[], metavar="FILE.json",
                        help="candidates; default: the reference in its own dtypes")
    parser.add_argument("--root", metavar="DIR", help="folder that paths of stored inputs begin in")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N, of gold and candidates; default: cpu")
    parser.add_argument("--contract", help="a file, or a shipped policy such as abs_or_rel; default: the default contract "
                        "where op_type tells the magnitude of sums, else vs_reference")
    parser.add_argument("--seed", type=int, default=123, help="of random inputs; default: 123")
    parser.add_argument("--report", metavar="FILE", help="write one report: .json, .html, .md or .xml")
    given = parser.parse_args(arguments)
    try:
        from . import _gold  # with torch, what references are written in
    except ImportError as error:
        tell(MachineError(f"import: torch can't be imported: {error}; references of definitions need it"))
        sys.exit(5)
    try:
        if given.report:
            require_writable("--report", given.report)
        _gold.require_device("--device", given.device)
        definition = Definition.load(given.definition)
        given.roots = [given.root] if given.root else ancestors(given.workload or given.definition)
        workloads = Workload.load(given.workload, definition) if given.workload else [Workload("", "", {}, {})]
        if given.uuid:
            lacking = set(given.uuid) - {each.uuid for each in workloads}
            if lacking:
                raise InputError(f"--uuid: {given.workload} has no workload '{min(lacking)}'; known: "
                                 f"{', '.join(each.uuid for each in workloads)}")
            workloads = [each for each in workloads if each.uuid in given.uuid]
        solutions = [Solution.load(path, definition) for path in given.solution]
        reports: List[Dict[str, Any]] = []
        for workload in workloads:
            try:
                reports += check(definition, workload, solutions, given)
            except InputError as error:  # the other workloads can be asked about
                tell(error)
        whole = merged(reports, "check_operator import") if reports else None
        if whole is not None and given.report:
            whole.save(given.report)
        was_all_asked = len(reports) == len(workloads) * max(1, len(solutions))
        sys.exit(whole.exit_code if whole is not None and was_all_asked else 2)
    except (InputError, MachineError) as error:
        tell(error)
        sys.exit(2 if isinstance(error, InputError) else 5)


def ancestors(path: str) -> List[str]:
    """The folder of a file and those above it, where a data set has its root."""
    found = [os.path.dirname(os.path.abspath(path))]
    for _ in range(3):
        found.append(os.path.dirname(found[-1]))
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
