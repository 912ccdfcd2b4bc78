# SPDX-License-Identifier: Apache-2.0
"""check(): a Python function becomes a candidate of one run of the program."""
from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import os
import re
import shlex
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Callable, Collection, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

from . import _torch_op, serving
from ._names import CheckName, Class, DType, Op, Policy, Suite
from ._own import NEEDS_MAGNITUDE, NEEDS_REFERENCE, OwnData, magnitude_is_missing
from ._program import HERE, ask, contract_path, error_of, is_report, others_words, run
from ._report import Report
from ._tensors import dtype_name
from .errors import InputError

Values = Union[int, str, Sequence[int]]
Path = Union[str, "os.PathLike[str]"]


def check(fn: Callable[..., Any], *, op: Union[Op, str], dtype: Union[None, DType, Sequence[DType], Any] = None,
          dims: Optional[Mapping[str, Values]] = None, attrs: Optional[Mapping[str, float]] = None,
          backward: Union[bool, Callable[..., Any]] = False, suite: Union[None, Suite, str] = None,
          cases: Union[None, Path, Sequence[Path]] = None, contract: Union[None, Policy, Path] = None,
          device: Optional[str] = None, seed: Optional[int] = None,
          checks: Union[None, CheckName, Sequence[CheckName]] = None, isolate: Optional[Literal["spawn", "here"]] = None,
          adapt: Optional[Mapping[str, str]] = None, name: Optional[str] = None, timeout_s: Optional[int] = None,
          inputs: Optional[Mapping[str, Any]] = None, gold: Any = None, cls: Optional[Class] = None,
          terms: Optional[int] = None, magnitude: Any = None, reference: Any = None) -> Report:
    """Checks a function over tensors of torch, NumPy or JAX against the FP64 gold of the operator `op`.

    fn         gets inputs and attributes by the names that `check_operator show OP` prints, and returns the outputs
    dtype      "bf16", torch.bfloat16, or a list; default: fp32, or all that the cases of `suite` or `cases` have
    dims       sizes, such as dict(batch=4, hidden="64,4096"); attrs: attributes, such as dict(eps=1e-6)
    backward   True: the gradients of fn, by torch or JAX; or the function that computes them
    suite      of the shipped cases, such as "smoke"; cases: files of cases
    contract   a file, or the name of a shipped policy, such as "assert_close"
    device     "cpu", "cuda" or "cuda:N"; seed: of the inputs
    checks     of "accuracy", "invariance", "determinism" and "memory"; default: what the contract demands
    isolate    "spawn": fn is imported in a fresh interpreter; "here": it runs in this thread. Default: "spawn" where fn
               can be imported by its name
    adapt      the operator's names -> the parameters of fn, such as {"weight": "gamma"}
    name       of the candidate, in reports; timeout_s: of a check
    inputs     tensors by the names of the function's parameters, in place of generated ones
    gold       the right output for them in float64, or a dict of outputs; with it, op may be any name
    cls, terms, magnitude   as in assert_close(): how errors of such an operator grow. terms is 1 by default
    reference  what a trusted implementation returns, in the dtypes of the outputs, for contract="vs_reference"

    Throws InputError or MachineError if the question can't be asked; a failed check is no exception.
    """
    question = Question(op, dtype, {} if dims is None else dims, {} if attrs is None else attrs, bool(backward), suite,
                        cases, contract, device, seed, checks, timeout_s)
    own = OwnData.of(inputs, gold, cls, terms, magnitude, reference)
    if own and backward:
        raise InputError("backward: inputs= are those of one pass; leave it out, or check the gradients as an operator of "
                         "their own")
    if own and own.gold and attrs:
        raise InputError("attrs: an operator with a gold of its own has none; bind them, as with functools.partial")
    return ask_about(fn, question, backward=backward, isolate=isolate, adapt=adapt, name=name, own=own)


@dataclasses.dataclass(frozen=True)
class Question:
    """Which cases of which operator, and how they are judged."""

    op: str
    dtype: Any = None
    dims: Mapping[str, Values] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    backward: bool = False
    suite: Optional[str] = None
    cases: Union[None, Path, Sequence[Path]] = None
    contract: Optional[Path] = None
    device: Optional[str] = None
    seed: Optional[int] = None
    checks: Union[None, str, Sequence[str]] = None
    timeout_s: Optional[int] = None

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or not re.fullmatch(r"[\w.+-]+", self.op) or self.op == "all":
            raise InputError(f"op: expected the name of an operator, got {self.op!r}; see 'check_operator list'")
        for argument, value in (("dims", self.dims), ("attrs", self.attrs)):
            require_mapping(argument, value)
        if not isinstance(self.backward, bool):
            raise InputError(f"backward: expected True or False, got {self.backward!r}")
        for argument in ("dtype", "suite", "cases", "contract", "device", "checks"):
            value = getattr(self, argument)
            if isinstance(value, (str, list, tuple)) and not value:
                raise InputError(f"{argument}: is empty; leave it out, or say which")

    def flags(self) -> List[str]:
        found = [f"--op={self.op}", "--check-grad" if self.backward else "--pass=forward"]
        if self.dtype is not None:
            found.append("--dtype=" + ",".join(dtype_name(each) for each in listed(self.dtype)))
        for size, values in self.dims.items():
            if not re.fullmatch(r"[a-z][a-z0-9_]*", str(size)):
                raise InputError(f"dims: '{size}' is no size; see 'check_operator show {self.op}'")
            found.append(f"--dim={size}={','.join(str(each) for each in listed(values))}")
        known = attributes_of(self.op) if self.attrs else []
        for attr, value in self.attrs.items():
            if attr not in known:
                raise InputError(f"attrs: {self.op} has no '{attr}'; known: {', '.join(known) or 'none'}")
            try:
                found.append(f"--{attr.replace('_', '-')}={float(value)!r}")
            except (TypeError, ValueError):
                raise InputError(f"attrs: '{attr}' is {value!r}; give a number") from None
        if self.suite is not None:
            found.append(f"--suite={self.suite}")
        found += [f"--cases={path}" for path in listed(self.cases)]
        if self.contract is not None:
            found.append(f"--contract={contract_path(self.contract)}")
        if self.checks is not None:
            found.append(f"--check={','.join(map(str, listed(self.checks)))}")
        for flag, given in (("device", self.device), ("seed", self.seed), ("timeout-s", self.timeout_s)):
            if given is not None:
                found.append(f"--{flag}={given}")
        return found


# Flags that are called otherwise than the arguments that they are made of.
ARGUMENTS = {"exec-name": "name", "class": "cls", "check": "checks", "timeout-s": "timeout_s", "dim": "dims"}


def in_arguments(error: InputError, dims: Collection[str] = (), attrs: Collection[str] = ()) -> InputError:
    """What the program said of a flag or of a file of tensors, said of the argument that it was made of."""
    found = re.match(r"(?:command line: )?--([a-z-]+): "
                     r"|(inputs|gold)(?:\.safetensors)?: (?:tensor '(magnitude|reference|rounding)/([^']*)': )?"
                     r"|(?=size ')", str(error))
    if not found:
        return error
    flag = found[3] or found[1] or found[2] or "dim"
    name = flag.replace("-", "_")
    argument = (f"{flag}: '{found[4]}'" if found[3] else
                ARGUMENTS.get(flag) or (f"dims: '{name}'" if name in dims else
                                        f"attrs: '{name}'" if name in attrs else name))
    rest = re.sub(r"--(cases|suite|inputs|gold|class|check)\b(?: (?=\S+,))?",
                  lambda flag: ARGUMENTS.get(flag[1], flag[1]) + "=", str(error)[found.end():])
    return InputError(f"{argument}: {rest}")


def require_mapping(argument: str, value: Any) -> None:
    if value is not None and not isinstance(value, collections.abc.Mapping):
        raise InputError(f"{argument}: expected a dict, got {value!r}")


def listed(value: Any) -> List[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple, range)) else [value]


def attributes_of(op: str) -> List[str]:
    return re.findall(r"^  attribute (\w+) ", shown(op), flags=re.M)


@functools.lru_cache(maxsize=None)
def shown(op: str) -> str:
    return ask(["show", op])


def parameters_of(op: str) -> List[str]:
    """What functions of an operator get, forward and backward."""
    return list(dict.fromkeys(re.findall(r"^ +(?:attribute|input) +(\w+) ", shown(op), flags=re.M)))


def required_inputs(op: str, direction: str) -> List[str]:
    """Those that every case of a pass has."""
    after = re.split(r"^  \b", shown(op).partition(f"\n  {direction}\n")[2], maxsplit=1, flags=re.M)[0]
    return [line.split()[1] for line in after.splitlines() if line.startswith("    input ") and "optional" not in line.split()]


def require_parameters(functions: Mapping[str, Any], op: str, own: Optional[OwnData]) -> None:
    """Throws InputError for a function that lacks a parameter which every case needs: it would decline all of them."""
    for key, function in functions.items():
        direction = key.partition("/")[2] or "forward"
        try:
            required = list(own.inputs) if own and own.gold else required_inputs(op, direction)
            given = required if own and own.gold else parameters_of(op)
            if own:
                required = [name for name in required if name in own.inputs]  # the run says which ones those lack
        except InputError:
            return  # there is no such operator, which the run says
        parameters = serving.parameters_of(function)
        if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            continue
        for name in required:
            if name not in parameters:
                takes, hint = serving.takes_no(function, name, given)
                raise InputError(f"{'fn' if direction == 'forward' else direction}: {takes}; "
                                 f"{hint or 'add that parameter, or say with adapt which one it is'}")


def name_in_reports(text: str) -> str:
    """In characters that the program takes for a candidate or an operator."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
    return "function" if name in ("", "all", "none") else name


def candidate_name(fn: Callable[..., Any]) -> str:
    return name_in_reports(getattr(serving.innermost(fn), "__name__", type(fn).__name__))


def ask_about(fn: Callable[..., Any], question: Question, *, backward: Union[bool, Callable[..., Any]] = False,
              isolate: Optional[str] = None, adapt: Optional[Mapping[str, str]] = None, name: Optional[str] = None,
              only: Optional[str] = None, own: Optional[OwnData] = None) -> Report:
    """check() with the question in one piece. `only`: the glob of --filter."""
    try:
        return asked_about(fn, question, backward, isolate, adapt, name, only, own)
    except InputError as error:
        if own and NEEDS_MAGNITUDE in str(error) and not own.has("magnitude"):
            raise magnitude_is_missing() from None
        if own and NEEDS_REFERENCE in str(error) and not own.has("reference"):
            raise InputError("reference: the contract compares with the errors of a trusted implementation; give what that "
                             "returns as reference=, or another contract") from None
        raise in_arguments(error, question.dims, question.attrs) from None


def asked_about(fn: Callable[..., Any], question: Question, backward: Union[bool, Callable[..., Any]],
                isolate: Optional[str], adapt: Optional[Mapping[str, str]], name: Optional[str], only: Optional[str],
                own: Optional[OwnData]) -> Report:
    """ask_about(), whose errors are those of the program's flags."""
    if serving.SERVES in os.environ:
        raise InputError(f"check() is called by what '{os.environ[serving.SERVES]}' imports, and would call itself without "
                         "end; call it in a test, or under if __name__ == '__main__'")
    if not callable(fn):
        raise InputError(f"fn: expected a function, got {type(fn).__name__}")
    if _torch_op.is_operator(fn):
        try:
            fn = _torch_op.function_of(_torch_op.overload_of(fn))
        except serving.BadCandidate as error:
            raise InputError(str(error)) from None
    if not isinstance(backward, bool) and not callable(backward):
        raise InputError(f"backward: expected True, False or a function, got {backward!r}")
    require_mapping("adapt", adapt)
    known = parameters_of(question.op) if adapt and not own else []
    for each in adapt or ():
        if known and each not in known:
            raise InputError(f"adapt: {question.op} has no '{each}'; known: {', '.join(known)}")
    if isolate not in (None, "spawn", "here"):
        raise InputError(f"isolate: unknown value '{isolate}'; use 'spawn' or 'here'")
    places = [place_of(each) for each in (fn, backward) if callable(each)]
    unreachable = next((why for place, why in places if not place), "")
    if isolate == "spawn" and unreachable:
        raise InputError(f"isolate: {unreachable}; put the function in a module, or use isolate='here'")
    name = name or candidate_name(fn)
    try:
        functions = serving.functions_for(question.op, fn, backward, dict(adapt or {}))
    except serving.BadCandidate as error:
        raise InputError(str(error)) from None
    require_parameters(functions, question.op, own)
    flags = question.flags() + [f"--candidate={name}", f"--exec-name={name}"] + ([f"--filter={only}"] if only else [])
    command = "" if unreachable else shlex.join(spawn_command(
        question.op, places[0][0], True if backward is True else places[1][0] if backward else False, dict(adapt or {})))
    if (isolate or ("spawn" if command else "here")) == "spawn":
        return run_judge(flags + ["--exec=" + command], own=own)
    return run_judge(flags, functions, differentiate=backward is True, command_elsewhere=command, own=own)


def place_of(fn: Callable[..., Any]) -> Tuple[str, str]:
    """ "module:name" under which a fresh interpreter finds the function, or "" and why there is none."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if hasattr(fn, "torch_op"):
        return "", "a registered operator of torch has no name to import it by"
    if not module or not name:
        return "", f"a {type(fn).__name__} has no name to import it by"
    if module == "__main__":
        return "", f"'{name}' is of the script that runs, and importing that would run it again"
    if "<" in name:
        return "", f"'{name}' is made while other code runs, and can't be imported"
    try:
        found = functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    if found is not fn or getattr(sys.modules[module], "__file__", None) is None:
        return "", f"'{module}:{name}' is not this function"
    return f"{module}:{name}", ""


def own_paths() -> List[str]:
    """The folders of sys.path that a fresh interpreter lacks."""
    shared = {os.path.realpath(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    shared |= {os.path.realpath(path) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    folders = [os.path.abspath(path) for path in sys.path if not path.endswith(".zip")]
    return [path for path in folders
            if os.path.realpath(path) not in shared and os.path.basename(path) not in ("lib-dynload", "dist-packages")]


def spawn_command(op: str, place: str, backward: Union[bool, str], adapt: Dict[str, str]) -> List[str]:
    command = [sys.executable, os.path.join(HERE, "serving.py"), place, "--op", op]
    if backward:
        command += ["--backward", "auto" if backward is True else str(backward)]
    for own, theirs in adapt.items():
        command += ["--adapt", f"{own}={theirs}"]
    for path in own_paths():
        command += ["--path", path]
    return command


def stop(judge: "subprocess.Popen[bytes]") -> None:
    """With time to end its own processes and to remove their files."""
    judge.terminate()
    try:
        judge.wait(timeout=10)
    except subprocess.TimeoutExpired:
        judge.kill()
        judge.wait()


# What the program writes for functions that it reached over a socket, and what is to be done about it.
NAMELESS, NEEDS_MODULE = "--exec COMMAND", "the function lives in this process alone: put it in a module, and COMMAND can start it"


def run_judge(flags: List[str], functions: Optional[Dict[str, Any]] = None, *, differentiate: bool = False,
              command_elsewhere: str = "", own: Optional[OwnData] = None) -> Report:
    """Runs the program. With `functions`, it asks for them over a socket, and they run here; `command_elsewhere` starts them in
    a process of their own, if that can be. The files of `own` are gone afterwards, so that no command repeats the check."""
    with tempfile.TemporaryDirectory(prefix="check_operator.") as folder:
        report, said, errors = (os.path.join(folder, each) for each in ("report.json", "said", "errors"))
        command = ["run", *flags, *(own.flags(folder) if own else []), "--json=" + report, "--color=never", "--no-github"]

        def repeatable(text: str) -> str:
            return text.replace(NAMELESS, "--exec " + shlex.quote(command_elsewhere)) if command_elsewhere else text

        def told(text: str) -> str:
            if not own:
                return repeatable(text)
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("repeat: ")]
            files = re.escape(folder + os.sep)
            return re.sub(rf" \S+={files}\S+", "", "\n".join(lines)).replace(folder + os.sep, "") + "\n"

        ours = theirs = None
        if functions is not None:
            ours, theirs = socket.socketpair()
            command.append(f"--exec-fd={theirs.fileno()}")
        try:
            with open(said, "wb") as out, open(errors, "wb") as err:
                judge = run(command, stdout=out, stderr=err, pass_fds=[theirs.fileno()] if theirs else [])
        except BaseException:
            for end in (ours, theirs):
                if end:
                    end.close()
            raise
        try:
            if ours and theirs:
                theirs.close()  # then the program's end closes the socket
                with ours:
                    serving.serve_socket(ours, functions or {}, differentiate)
            judge.wait()
        except BaseException:  # Ctrl-C, most of all
            stop(judge)
            raise
        with open(said, encoding="utf-8", errors="replace") as file:
            text = told(file.read())
        with open(errors, encoding="utf-8", errors="replace") as file:
            error = told(file.read())
        has_report = is_report(report, judge.returncode)
        shown = error.strip() if has_report else others_words(error)
        if shown:
            print(shown, file=sys.stderr)  # warnings, and what the function printed in its process
        if not has_report:
            # Which flag handed the function over is not what the caller wrote.
            raise error_of(judge.returncode, re.sub(r"^(check_operator: )--exec(-fd \d+| '.*?(serving|_solution)\.py .*?'): ", r"\1",
                                                    error, flags=re.M))
        with open(report, encoding="utf-8") as file:
            data = json.load(file)
        for each in data["candidates"]:
            for case in each["cases"]:
                case["repeat"] = "" if own else repeatable(case["repeat"])
        return Report(data, text, "" if own or not functions else NEEDS_MODULE)
