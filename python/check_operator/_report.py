# SPDX-License-Identifier: Apache-2.0
"""What the program said of a run."""
from __future__ import annotations

import dataclasses
import html
import json
import os
import tempfile
from typing import Any, Callable, Dict, List, Optional

from ._program import ask
from .errors import (CandidateError, CandidateTimeout, CheckFailed, CheckVacuous, InputError, MachineError,
                     NothingChecked)

# The first of them that a run has is the run's.
GRAVEST_FIRST = ("error", "timeout", "fail", "vacuous", "xpass", "unsupported", "pass", "xfail", "skipped")
FORMS = {".html": "--html", ".md": "--markdown", ".xml": "--junit"}


def require_writable(where: str, path: "str | os.PathLike[str]") -> None:
    """Throws InputError unless a report can be written there."""
    name, folder = os.fspath(path), os.path.dirname(os.path.abspath(path))
    if os.path.splitext(name)[1] not in (".json", *FORMS):
        raise InputError(f"{where}: '{name}' has none of the suffixes .json, {', '.join(FORMS)}; choose one")
    if not os.path.isdir(folder):
        raise InputError(f"{where}: '{name}' can't be written: there is no folder '{folder}'; create it")
    if os.path.isdir(name) or not os.access(name if os.path.exists(name) else folder, os.W_OK):
        raise InputError(f"{where}: '{name}' can't be written; give a path that can be")


@dataclasses.dataclass(frozen=True)
class Check:
    """One candidate on one case."""

    op: str
    pass_name: str  #: "forward" or "backward"
    case_name: str
    dtype: str
    dims: Dict[str, int]
    verdict: str  #: pass, xfail, fail, vacuous, xpass, skipped, unsupported, error or timeout
    reason: str  #: "" for a pass
    repeat: str  #: the command that makes this check again
    headroom: Optional[float]  #: of the gate that came nearest to its limit; None where none was held against one
    worst_gate: str  #: "y: bound_ratio"; "" where there is none

    @staticmethod
    def of(record: Dict[str, Any]) -> "Check":
        gates = [(float(gate["headroom"]), f"{output['name']}: {gate['metric']}") for output in record["outputs"]
                 for gate in output["gates"]]
        headroom, gate = min(gates, default=(None, ""))
        return Check(record["op"], record["pass"], record["case_name"], record["dtype"], record["dims"],
                     record["verdict"], record["reason"], record["repeat"], headroom, gate)


class Report:
    """The report of a run. It is true if its exit code is 0: a run that checked nothing is false."""

    def __init__(self, data: Dict[str, Any], text: str, advice: str = "") -> None:
        self._data, self._text = data, text
        self._advice = advice if "--exec COMMAND" in text else ""  # what to do about a command that can't be copied

    @property
    def exit_code(self) -> int:
        """0 passed, 1 a check failed, 3 nothing checked or unsupported, 4 the candidate crashed or hung."""
        return self._data["exit_code"]

    @property
    def checks(self) -> List[Check]:
        return [Check.of(record) for candidate in self._data["candidates"] for record in candidate["cases"]]

    @property
    def verdict(self) -> str:
        """The gravest one of the checks; "nothing checked" without any."""
        found = {check.verdict for check in self.checks}
        return next((each for each in GRAVEST_FIRST if each in found), "nothing checked")

    @property
    def repeat(self) -> str:
        """The command that repeats the first check with that verdict; "" without checks."""
        return next((check.repeat for check in self.checks if check.verdict == self.verdict), "")

    def as_dict(self) -> Dict[str, Any]:
        """The JSON report, as contracts/report.schema.json describes it."""
        return json.loads(json.dumps(self._data))

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the report: .json, .html (a page), .md (Markdown) or .xml (JUnit). Throws InputError for others."""
        require_writable("save", path)
        name, suffix = os.fspath(path), os.path.splitext(os.fspath(path))[1]
        if suffix == ".json":
            try:
                with open(name, "w", encoding="utf-8") as file:
                    json.dump(self._data, file, indent=1)
            except OSError as error:
                raise InputError(f"save: '{name}' cannot be written: {error.strerror}; give a path that can be") from None
            return
        with tempfile.TemporaryDirectory(prefix="check_operator.") as folder:
            source = os.path.join(folder, "report.json")
            with open(source, "w", encoding="utf-8") as file:
                json.dump(self._data, file)
            ask(["report", source, FORMS[suffix], os.path.abspath(name)])

    def failures(self) -> str:
        """What the text says of the checks that did not pass."""
        blocks: List[List[str]] = []
        for line in self._text.splitlines():
            if line.startswith("[==========]") and blocks:
                break  # a summary that names them again
            if line.startswith("["):
                blocks.append([])
            if blocks:
                blocks[-1].append(line)
        told = [block for block in blocks if not block[0].startswith(("[==========]", "[       OK ]"))]
        lines = [line for block in told for line in block] or self._text.splitlines()
        return "\n".join(lines + ([self._advice] if self._advice else []))

    def narrowed(self, chosen: Callable[[Check], bool]) -> "Report":
        """The report without the checks that are not chosen. Its text and exit code stay those of the run, but for the
        exit code 0 of checks that passed."""
        data = self.as_dict()
        for candidate in data["candidates"]:
            candidate["cases"] = [each for each in candidate["cases"] if chosen(Check.of(each))]
        data["candidates"] = [each for each in data["candidates"] if each["cases"]]
        report = Report(data, self._text, self._advice)
        names = {(check.case_name, check.pass_name) for check in report.checks}
        data["volatile"]["timings"] = [each for each in data["volatile"]["timings"]
                                       if (each["case_name"], each["pass"]) in names]
        data["planned"] = len(report.checks)
        if report.verdict == "pass":
            data["exit_code"] = 0
        return report

    def require(self) -> "Report":
        """Returns the report of a run whose exit code is 0. Throws CheckFailed, CheckVacuous, NothingChecked,
        CandidateError or CandidateTimeout for others."""
        __tracebackhide__ = True
        if self.exit_code == 0:
            return self
        raise self.error()

    def error(self) -> Exception:
        found = {check.verdict for check in self.checks}
        kinds = {1: CheckVacuous if "vacuous" in found and not found & {"fail", "xpass"} else CheckFailed,
                 3: NothingChecked,
                 4: CandidateTimeout if "timeout" in found and "error" not in found else CandidateError}
        return kinds.get(self.exit_code, MachineError)(self.failures())

    def __bool__(self) -> bool:
        return self.exit_code == 0

    def __repr__(self) -> str:
        return self._text.rstrip() + ("\n" + self._advice if self._advice else "")

    def _repr_html_(self) -> str:
        """The page of --html in a frame, where its styles and its script touch nothing else."""
        with tempfile.TemporaryDirectory(prefix="check_operator.") as folder:
            page = os.path.join(folder, "report.html")
            self.save(page)
            with open(page, encoding="utf-8") as file:
                text = file.read()
        return (f'<iframe sandbox="allow-scripts" style="width:100%;height:32em;border:0" '
                f'srcdoc="{html.escape(text, quote=True)}"></iframe>')


def merged(reports: List[Dict[str, Any]], command: str) -> Report:
    """One report of several that the program wrote; its exit code is that of the gravest."""
    whole = json.loads(json.dumps(reports[0]))
    candidates: Dict[str, Dict[str, Any]] = {}
    for report in reports:
        for each in report["candidates"]:
            key = json.dumps([each["backend"], each["op"], each["device"], each["plugin"]])
            if key not in candidates:
                candidates[key] = {**each, "cases": [], "total_outputs": 0, "passed_outputs": 0}
            into = candidates[key]
            into["cases"] += each["cases"]
            into["total_outputs"] += each["total_outputs"]
            into["passed_outputs"] += each["passed_outputs"]
    for each in candidates.values():
        each["passed"] = all(case["passed"] for case in each["cases"])
        each["pass_rate"] = each["passed_outputs"] / each["total_outputs"] if each["total_outputs"] else 0
    whole["candidates"] = list(candidates.values())
    whole["total_candidates"] = len(candidates)
    whole["passed_candidates"] = sum(each["passed"] for each in candidates.values())
    whole["pass_rate"] = whole["passed_candidates"] / len(candidates) if candidates else 0
    whole["planned"] = sum(report["planned"] for report in reports)
    whole["exit_code"] = next(code for code in (5, 4, 1, 3, 0) if any(each["exit_code"] == code for each in reports))
    whole["passed"] = whole["exit_code"] == 0
    whole["complete"] = all(report["complete"] for report in reports)
    whole["command"] = command
    whole["warnings"] = sorted({line for report in reports for line in report["warnings"]})
    whole["volatile"]["timings"] = [each for report in reports for each in report["volatile"]["timings"]]
    whole["volatile"]["wall_ms"] = sum(report["volatile"]["wall_ms"] for report in reports)
    return Report(whole, "")
