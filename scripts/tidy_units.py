#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what clang-tidy looks at: the units that the build compiles of src/ and reference/, one a line.

Most of its time goes to the standard headers, once more for each unit, and the build compiles each file of reference/ by
itself, since names of different files are the same. Here files without a header of their own are put into a few units, each
in a namespace of its own that sees `checkop`. They are written to BUILD/tidy/, and their commands into BUILD's compile_commands.json.
Usage: tidy_units.py BUILD
"""
import itertools
import json
import os
import re
import sys

GROUPS = 2  # of each folder
INCLUDE = re.compile(r"^#include .*$", re.M)
MEMBER = re.compile(r"^[A-Za-z][\w:<>,&* ]*::~?\w+\(", re.M)  # of a class of a header


def unit_of(files):
    texts = {}
    for path in files:
        with open(path, encoding="utf-8") as file:
            texts[path] = file.read()
    # All headers first: their own #include then finds nothing new, so that no header lies in a file's namespace.
    lines = sorted({line for text in texts.values() for line in INCLUDE.findall(text)})
    for number, path in enumerate(files):
        own = f"checkop_{number}"
        lines += [f"namespace {own} {{", "using namespace checkop;", "}", f"#define checkop {own}", f'#include "{path}"', "#undef checkop"]
    return "\n".join(lines) + "\n"


def needs_its_namespace(path):
    with open(path, encoding="utf-8") as file:
        return os.path.exists(path.removesuffix(".cpp") + ".hpp") or MEMBER.search(file.read())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[-1])
    build = os.path.abspath(sys.argv[1])
    commands = os.path.join(build, "compile_commands.json")
    with open(commands, encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if not entry["file"].startswith(os.path.join(build, "tidy", ""))]
    of_reference = [entry for entry in entries if "/reference/" in entry["file"]]
    grouped = [entry for entry in of_reference if not needs_its_namespace(entry["file"])]
    units = [entry["file"] for entry in entries if "/CMakeFiles/checkop_" in entry["file"]]
    units += [entry["file"] for entry in of_reference if entry not in grouped]
    os.makedirs(os.path.join(build, "tidy"), exist_ok=True)
    for group, folder in itertools.product(range(GROUPS), sorted({os.path.dirname(entry["file"]) for entry in grouped})):
        path = os.path.join(build, "tidy", f"{os.path.basename(folder)}_{group}.cpp")
        members = [entry["file"] for entry in grouped if os.path.dirname(entry["file"]) == folder]
        with open(path, "w", encoding="utf-8") as file:
            file.write(unit_of(members[group::GROUPS]))
        like = grouped[0]
        entries.append({**like, "file": path, "command": like["command"].replace(like["file"], path)})
        units.append(path)
    with open(commands, "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
    print("\n".join(units))


if __name__ == "__main__":
    main()
