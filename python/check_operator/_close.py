# SPDX-License-Identifier: Apache-2.0
"""assert_close(): two tensors, judged by `check_operator compare`."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any, Callable, Dict, List, Optional, Union

from ._check import Path, in_arguments
from ._names import Class, Policy
from ._own import NEEDS_MAGNITUDE, NEEDS_REFERENCE, beside_gold, held, magnitude_is_missing
from ._program import contract_path, error_of, is_report, run
from ._report import Report
from ._tensors import CODE_NAMES, Entry, dtype_name, named_tensors
from .errors import CheckFailed, CheckVacuous, InputError
from .serving import write_safetensors


def assert_close(actual: Any, gold: Any, *, cls: Class, terms: Optional[int] = None, dtype: Any = None,
                 magnitude: Any = None, rounding: Any = None, contract: Union[None, Policy, Path] = None,
                 msg: Union[None, str, Callable[[str], str]] = None, **unknown: Any) -> None:
    """Throws CheckFailed unless every element of `actual` lies within the contract's bound around `gold`.

    actual, gold   tensors of torch, NumPy or JAX of one shape, or dicts, tuples and lists of them. gold is float64, or has
                   the dtype of actual where that is an integer
    cls            exact, pointwise, reduction, contraction, logprob or composite: whose rules of the contract apply
    terms          how many numbers are added for an element, in the longest of its sums. Default: 1, the bound of a single
                   addition, which a right sum of many terms may exceed. x.sum(1) has x.shape[1]
    dtype          that actual must have, such as "bf16"
    magnitude      sum of the absolute values of those terms, for each element of gold, such as check_operator.magnitude.matmul(a, b); what the
                   default contract holds sums against. rounding: what is rounded once more, where that is not |gold|
    contract       a file, or the name of a shipped policy, such as "assert_close", which has torch's tolerances
    msg            is put before the text of the exception; a function makes it of that text

    Throws CheckVacuous where nothing is compared, InputError where the question can't be asked.
    """
    __tracebackhide__ = True
    for name in unknown:
        hint = "; the contract sets the bounds, and contract='assert_close' gives torch's tolerances" \
            if name in ("rtol", "atol") else ""
        raise TypeError(f"assert_close() takes no {name}={hint}")
    if dtype is not None and dtype_name(dtype) not in CODE_NAMES.values():
        raise InputError(f"dtype: unknown dtype '{dtype_name(dtype)}'; known: {', '.join(CODE_NAMES.values())}")
    got = named_tensors("actual", actual)
    want = named_tensors("gold", gold)
    if not got and not want:
        raise CheckVacuous(prefixed(msg, "nothing was compared: actual and gold hold no tensors"))
    for here, there, word in ((got, want, "gold"), (want, got, "actual")):
        for name in here:
            if name not in there:
                raise CheckFailed(prefixed(msg, f"{word} has no '{name}': actual {held(actual, got)}, and gold "
                                                f"{held(gold, want)}; give both the same structure"))
    for name, (code, _, _) in got.items():
        if dtype is not None and CODE_NAMES[code] != dtype_name(dtype):
            raise CheckFailed(prefixed(msg, f"actual: '{name}' is {CODE_NAMES[code]}, and dtype says {dtype_name(dtype)}"))
        if want[name][0] != "F64" and (code[0] in "FB" and code != "BOOL" or want[name][0] != code):
            raise InputError(f"gold: '{name}' is {CODE_NAMES[want[name][0]]}; compute the gold in float64"
                             if code[0] in "FB" and code != "BOOL" else
                             f"gold: '{name}' is {CODE_NAMES[want[name][0]]}, and actual is {CODE_NAMES[code]}")
    outputs = dict(want)
    for group, tensors in (("magnitude", magnitude), ("rounding", rounding)):
        if tensors is not None:
            want.update(beside_gold(group, tensors, gold, outputs))
    report = compare(got, want, cls, terms, contract, magnitude is not None)
    if report.exit_code:
        error = report.error()
        raise type(error)(prefixed(msg, str(error)))


def prefixed(msg: Union[None, str, Callable[[str], str]], text: str) -> str:
    return str(msg(text)) if callable(msg) else f"{msg}\n{text}" if msg else text


def compare(got: Dict[str, Entry], gold: Dict[str, Entry], cls: str, terms: Optional[int], contract: Optional[Path],
            has_magnitude: bool) -> Report:
    with tempfile.TemporaryDirectory(prefix="check_operator.") as folder:
        files = [os.path.join(folder, each) for each in ("actual", "gold")]
        for path, tensors in zip(files, (got, gold)):
            write_safetensors(path, tensors)
        report = os.path.join(folder, "report.json")
        command: List[str] = ["compare", *files, f"--class={cls}", "--json=" + report, "--color=never",
                              "--no-github"]
        if terms is not None:
            command.append(f"--terms={terms}")
        if contract is not None:
            command.append(f"--contract={contract_path(contract)}")
        judge = run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        said, errors = (each.decode(errors="replace") for each in judge.communicate())

        def told(text: str) -> str:
            """Without the line that repeats a check of files that are gone, and without their folder."""
            lines = [line for line in text.splitlines() if not line.lstrip().startswith("repeat: ")]
            return "\n".join(lines).replace(folder + os.sep, "")

        if not is_report(report, judge.returncode):
            error = error_of(judge.returncode, told(errors))
            if NEEDS_MAGNITUDE in str(error) and not has_magnitude:
                raise magnitude_is_missing()
            if NEEDS_REFERENCE in str(error):
                raise InputError("contract: compares with the errors of a trusted implementation, which assert_close() does "
                                 "not know; give another contract, or use check() with reference=")
            raise in_arguments(error) if isinstance(error, InputError) else error
        with open(report, encoding="utf-8") as file:
            return Report(json.load(file), told(said))
