# SPDX-License-Identifier: Apache-2.0
"""Finds the program and starts it."""
from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, List, NoReturn, Sequence

from .errors import InputError, MachineError
from .serving import PROTOCOLS

HERE = os.path.dirname(os.path.abspath(__file__))
BUNDLED = os.path.join(HERE, "_tool", "bin", "check_operator")
VARIABLE = "CHECK_OPERATOR_PROGRAM"


@functools.lru_cache(maxsize=None)
def version() -> str:
    """Of this package: what pip installed, or what the source tree around it says."""
    source = os.path.join(HERE, "..", "..", "CMakeLists.txt")
    if os.path.exists(source):
        with open(source, encoding="utf-8") as file:
            found = re.search(r"project\(check_operator VERSION (\S+)", file.read())
        if found:
            return found[1]
    try:
        return importlib.metadata.version("check_operator")
    except importlib.metadata.PackageNotFoundError:
        return ""  # a copy that lies beside an installed program, which brought it


def said_by(path: str) -> Dict[str, Any]:
    """The version of a program, and the protocols that it speaks."""
    try:
        text = subprocess.run([path, "--version", "--json"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise MachineError(f"{path} can't be run: {error}; install check_operator again") from None
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {"version": text}  # as programs said it that know no --json here


def require_same_version(path: str) -> None:
    """Throws MachineError unless the program and this package are of one version, and speak one protocol."""
    said = said_by(path)
    if version() and said["version"] != version():
        raise MachineError(f"{path} is version {said['version']}, and the Python package beside it {version()}; "
                           "install both again, together")
    if not set(PROTOCOLS) & set(said.get("protocols", PROTOCOLS)):
        raise MachineError(f"{path} speaks protocol {', '.join(map(str, said['protocols']))}, and the Python package "
                           f"beside it {', '.join(map(str, PROTOCOLS))}; install both again, together")


def require_same_version_if_bundled() -> None:
    if os.path.exists(BUNDLED):
        require_same_version(BUNDLED)


@functools.lru_cache(maxsize=None)
def find(chosen: str) -> str:
    if os.path.exists(BUNDLED):
        return BUNDLED  # compared on import
    path = chosen or shutil.which("check_operator")
    if not path:
        raise MachineError(f"the program check_operator was not found; 'pip install' this package, put the program on PATH, "
                           f"or name it in {VARIABLE}")
    require_same_version(path)
    return path


def program() -> str:
    """The program that belongs to this package; without one, the one of CHECK_OPERATOR_PROGRAM or of PATH. Throws
    MachineError when there is none, or one of another version."""
    return find(os.environ.get(VARIABLE, ""))


def contract_path(contract: "str | os.PathLike[str]") -> str:
    """A file, or the shipped policy of that name."""
    if not isinstance(contract, (str, os.PathLike)):
        raise InputError(f"contract: expected a path or the name of a policy, got {type(contract).__name__}")
    contract = os.fspath(contract)
    if os.path.exists(contract) or os.sep in contract or contract.endswith(".json"):
        return contract
    folder = os.path.dirname(os.path.realpath(program()))
    names: List[str] = []
    for above in ("../share/check_operator", "../..", "."):
        policies = os.path.normpath(os.path.join(folder, above, "contracts", "policies"))
        if os.path.isdir(policies):
            names = sorted(name[:-len(".json")] for name in os.listdir(policies) if name.endswith(".json"))
            if contract in names:
                return os.path.join(policies, contract + ".json")
            break
    raise InputError(f"contract: '{contract}' is neither a file nor a shipped policy; known: {', '.join(names)}")


def run(arguments: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    """Starts the program. Throws MachineError where that can't be."""
    try:
        return subprocess.Popen([program(), *arguments], stdin=subprocess.DEVNULL, **how)
    except OSError as error:
        raise MachineError(f"{program()} can't be run: {error}; install check_operator again") from None


NAME = "check_operator: "  # what the program's own lines on its standard error begin with


def own_words(error: str) -> str:
    """The program's own lines on its standard error; the others are of a candidate."""
    return "\n".join(line[len(NAME):] for line in error.splitlines() if line.startswith(NAME))


def others_words(error: str) -> str:
    return "\n".join(line for line in error.splitlines() if not line.startswith(NAME))


def ask(arguments: Sequence[str]) -> str:
    """Standard output of a command that judges nothing. Throws InputError or MachineError."""
    child = run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = child.communicate()
    if child.returncode:
        raise error_of(child.returncode, error.decode(errors="replace"))
    return out.decode(errors="replace")


def is_report(path: str, exit_code: int) -> bool:
    """Whether a run wrote its report to the end; an error on the way leaves what it had so far."""
    return exit_code not in (2, 5) and os.path.exists(path)


def error_of(exit_code: int, error: str) -> Exception:
    """For a run that made no report."""
    text = own_words(error) or error.strip() or f"check_operator ended with exit code {exit_code} and said nothing"
    return InputError(text) if exit_code == 2 else MachineError(text)


def main() -> NoReturn:
    """The command: the program itself takes this process's place, with its signals, terminal and exit code."""
    try:
        path = program()
    except MachineError as error:
        print(f"check_operator: {error}", file=sys.stderr)
        sys.exit(5)
    os.environ.setdefault("CHECK_OPERATOR_PYTHON", sys.executable)  # for functions that it serves
    os.execv(path, ["check_operator", *sys.argv[1:]])
