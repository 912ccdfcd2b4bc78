# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: one test item for each case, with the program's own words as the failure.

    @pytest.mark.check_operator(op="rms_norm", suite="smoke", dtype=["bf16"], backward=True)
    def test_mine(candidate):
        candidate.check(my_rms_norm)
"""
from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import pytest

from ._check import Question, ask_about, in_arguments
from ._program import ask
from ._report import Report, merged, require_writable
from .errors import InputError, MachineError

MARKER = "check_operator"
FOLDER = "check_operator_reports"  # what the controller tells xdist's workers
RUNS_OF_ALL = "check_operator_runs_of_all"
# What a marker takes; check() has the rest from the test.
SELECTS = {field.name for field in dataclasses.fields(Question)}


@dataclasses.dataclass(frozen=True)
class Item:
    """One case of the program's --list."""

    op: str
    pass_name: str
    case_name: str

    @property
    def id(self) -> str:
        return f"{self.op}-{self.pass_name}-{self.case_name[len(self.op) + 1:]}"

    @property
    def glob(self) -> str:
        literal = "".join("\\" + each if each in "*?[]\\" else each for each in self.case_name)
        return f"{self.op}/{self.pass_name}/*/{literal}"


@functools.lru_cache(maxsize=None)
def items_of(flags: Tuple[str, ...]) -> List[Item]:
    """The cases that the program selects, in its order: xdist asks every worker for the same list."""
    # Cases are listed of a candidate, and every operator has this one. Which device a test runs on is its own affair.
    flags = tuple(flag for flag in flags if not flag.startswith("--device="))
    text = ask(["run", *flags, "--candidate=native", "--device=cpu", "--list", "--json"])
    items = [Item(each["op"], each["pass"], each["case_name"]) for each in json.loads(text)]
    return list(dict.fromkeys(items))  # cases that differ in their seeds alone have one name, and run as one item


def question_of(mark: Any) -> Question:
    unknown = sorted(set(mark.kwargs) - SELECTS)
    if mark.args or unknown:
        raise InputError(f"pytest.mark.{MARKER}: takes {', '.join(sorted(SELECTS))} by name, got "
                         f"{', '.join(unknown) or repr(mark.args[0])}")
    if "op" not in mark.kwargs:
        raise InputError(f"pytest.mark.{MARKER}: names no operator; add op=, such as op='rms_norm'")
    return Question(**mark.kwargs)


class Candidate:
    """The fixture: asks whether a function computes this item's case."""

    def __init__(self, request: Any, question: Question, item: Item) -> None:
        self._request, self._question, self._item = request, question, item
        self.was_asked = False

    def check(self, fn: Callable[..., Any], *, backward: Union[None, bool, Callable[..., Any]] = None,
              isolate: Optional[str] = None, adapt: Optional[Mapping[str, str]] = None,
              name: Optional[str] = None) -> Report:
        """Ends the test as the verdict says: fail, skip, xfail, or returns the report. `backward` is the function that
        computes the gradients; without one, or with True, the framework differentiates fn. The rest is as in check_operator.check()."""
        __tracebackhide__ = True
        gradients: Union[bool, Callable[..., Any]] = False
        if self._question.backward:
            gradients = backward or True
            if self._item.pass_name == "forward" and gradients is True:
                gradients = False  # not needed for this item, and NumPy has none
        question = dataclasses.replace(self._question, backward=self._item.pass_name == "backward")
        ask_it = functools.partial(ask_about, fn, question, backward=gradients, isolate=isolate, adapt=adapt, name=name)
        self.was_asked = True
        report, refusal = None, ""
        try:
            if backward is not None and backward is not True and not callable(backward):
                raise InputError(f"backward: expected True or a function that computes the gradients, got {backward!r}")
            if backward is not None and not self._question.backward:
                raise InputError("backward: has no effect, since the marker asks for no backward pass; put backward=True into "
                                 f"pytest.mark.{MARKER}, too")
            report = ask_it(only=self._item.glob)
            if report.verdict == "vacuous":
                same = (fn, backward, repr(question), repr(adapt), isolate, name)
                report = self._among_all(report, same, ask_it)
        except (InputError, MachineError) as error:
            refusal = f"check_operator: {error}"
        if report is None or refusal:
            pytest.fail(refusal, pytrace=False)  # outside of the handler: pytest would show both exceptions
        self._keep(report)
        self._end(report)
        return report

    def _among_all(self, alone: Report, same: Tuple[Any, ...], ask_it: Callable[..., Report]) -> Report:
        """Zeros, or rows that are all the same, prove nothing alone and something among cases that have others: what a run
        of all the marker's cases says of this one, if it passes there beside a case in which the function computed
        something right. That run is made once for the `same` functions and questions."""
        # The functions are compared as objects and kept alive: a callable need not be hashable.
        runs: List[Tuple[Tuple[Any, ...], Report]] = self._request.config.__dict__.setdefault(RUNS_OF_ALL, [])
        run = next((report for key, report in runs
                    if key[0] is same[0] and key[1] is same[1] and key[2:] == same[2:]), None)
        if run is None:
            run = ask_it(only=f"{self._item.op}/{self._item.pass_name}/*")
            runs.append((same, run))
        among = run.narrowed(lambda check: check.case_name == self._item.case_name)
        # A function that returns zeros passes the cases of zeros, whose headroom is infinite, and no other.
        vouched = run.exit_code == 0 or any(
            check.verdict == "pass" and math.isfinite(check.headroom or math.inf) for check in run.checks)
        return among if among.verdict == "pass" and vouched else alone

    def _keep(self, report: Report) -> None:
        node = self._request.node
        for check in report.checks:
            node.user_properties += [("check_operator.verdict", check.verdict), ("check_operator.repeat", check.repeat)]
            if check.headroom is not None:
                node.user_properties += [("check_operator.headroom", check.headroom),
                                         ("check_operator.worst_gate", check.worst_gate)]
        folder = getattr(node.config, FOLDER, None)
        if folder:
            descriptor, path = tempfile.mkstemp(suffix=".json", dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"item": node.nodeid, "report": report.as_dict()}, file)

    def _end(self, report: Report) -> None:
        __tracebackhide__ = True
        verdict, text = report.verdict, report.failures()
        if verdict == "unsupported" and self._request.config.getoption("--check-operator-strict"):
            pytest.fail(text, pytrace=False)
        if verdict in ("unsupported", "skipped"):
            pytest.skip("; ".join(check.reason for check in report.checks))
        if verdict == "xfail":
            pytest.xfail("; ".join(check.reason for check in report.checks))
        if verdict != "pass":
            pytest.fail(text, pytrace=False)


@pytest.fixture
def candidate(request: Any) -> Candidate:
    """Checks a function on one case of the marker check_operator."""
    return Candidate(request, *request.param)


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("check_operator")
    group.addoption("--check-operator-report", metavar="FILE",
                    help="write one report of all checks: .json, .html, .md or .xml")
    group.addoption("--check-operator-strict", action="store_true", help="fail where a candidate does not support a case")


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", f"{MARKER}(op, dtype, dims, attrs, backward, suite, cases, contract, device, seed, "
                            "checks, timeout_s): makes an item of every case for the fixture 'candidate'")
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        setattr(config, FOLDER, worker.get(FOLDER))
    elif config.getoption("--check-operator-report"):
        try:
            require_writable("--check-operator-report", config.getoption("--check-operator-report"))
        except InputError as error:
            raise pytest.UsageError(str(error)) from None
        folder = tempfile.mkdtemp(prefix="check_operator.")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        setattr(config, FOLDER, folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of xdist: a worker writes its reports where the controller looks for them, so that a crash loses none."""
    node.workerinput[FOLDER] = getattr(node.config, FOLDER, None)


def pytest_generate_tests(metafunc: Any) -> None:
    if "candidate" not in metafunc.fixturenames:
        return
    fixture = metafunc._arg2fixturedefs.get("candidate") if hasattr(metafunc, "_arg2fixturedefs") else None
    if not fixture or getattr(fixture[-1].func, "__module__", None) != __name__:
        return  # somebody's own fixture or parameter of that name
    mark = metafunc.definition.get_closest_marker(MARKER)
    where = metafunc.definition.nodeid
    try:
        if mark is None:
            raise InputError(f"the fixture 'candidate' needs @pytest.mark.{MARKER}(op=...)")
        question = question_of(mark)
        try:
            items = items_of(tuple(question.flags()))
        except InputError as error:
            raise in_arguments(error, question.dims, question.attrs) from None
    except (InputError, MachineError) as error:
        raise pytest.Collector.CollectError(f"{where}: {error}") from None
    if not items:
        raise pytest.Collector.CollectError(f"{where}: pytest.mark.{MARKER} selects no case")
    metafunc.parametrize("candidate", [(question, item) for item in items], ids=[item.id for item in items], indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: Any) -> None:
    """After a test that has passed: one that forgot its check would pass whatever the function computes."""
    given = getattr(item, "funcargs", {}).get("candidate")
    if isinstance(given, Candidate):
        if not given.was_asked:
            pytest.fail("check_operator: the test checked nothing; call candidate.check(function)", pytrace=False)
    elif item.get_closest_marker(MARKER):
        pytest.fail(f"check_operator: the test has pytest.mark.{MARKER} and not the plugin's fixture 'candidate', so that it "
                    "checked nothing; add the parameter candidate and call candidate.check(function), or take the marker away",
                    pytrace=False)


def pytest_sessionfinish(session: Any) -> None:
    config = session.config
    path = config.getoption("--check-operator-report")
    if not path or hasattr(config, "workerinput"):
        return
    folder = getattr(config, FOLDER)
    written = f"no report at {path}: no check was made"
    try:
        found = []
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.append(json.load(file))
        if found:
            merged([each["report"] for each in sorted(found, key=lambda each: each["item"])], "pytest").save(path)
            written = f"report of {len(found)} checks: {path}"
    except (InputError, MachineError) as error:
        written = f"no report at {path}: {error}"
    except ValueError as error:  # a worker of xdist was killed while it wrote
        written = f"no report at {path}: a part of it is broken: {error}"
    setattr(config, "check_operator_written", written)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    written = getattr(terminalreporter.config, "check_operator_written", "")
    if written:
        terminalreporter.write_line(f"check_operator: {written}")
