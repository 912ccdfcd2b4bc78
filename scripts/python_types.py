#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the names that check_operator takes as types of the Python package: python/check_operator/_names.py.

Usage: python_types.py PROGRAM [--check]

--check writes nothing and exits with 1 where the file is not what the program says.
"""
import json
import os
import subprocess
import sys

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "check_operator", "_names.py")
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Names that the program takes, for editors and type checkers. Written by scripts/python_types.py."""
from typing import Literal

'''
TYPES = (("Op", "operators"), ("DType", "dtypes"), ("Class", "classes"), ("CheckName", "checks"), ("Suite", "suites"),
         ("Policy", "policies"))


def literal(name, values):
    """One line, or several of at most 120 characters."""
    lines, line = [], f"{name} = Literal["
    indent = " " * len(line)
    for index, value in enumerate(values):
        word = f'"{value}"' + ("]" if index == len(values) - 1 else ",")
        if len(line) + len(word) + 1 > 120:
            lines.append(line.rstrip())
            line = indent
        line += word + " "
    return "\n".join([*lines, line.rstrip()]) + "\n"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    said = json.loads(subprocess.run([sys.argv[1], "show", "--json"], stdout=subprocess.PIPE, check=True).stdout)
    said["operators"] = [op["name"] for op in said["operators"]]
    text = HEAD + "".join(literal(name, said[key]) for name, key in TYPES)
    if sys.argv[2:]:
        with open(PLACE, encoding="utf-8") as file:
            if file.read() == text:
                return 0
        print("python/check_operator/_names.py is not what the program says; run scripts/python_types.py PROGRAM")
        return 1
    with open(PLACE, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
