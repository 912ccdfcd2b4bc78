#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of tests/data/messages and compares everything they print, and their exit codes, with what stands there.

    messages_test.py PROGRAM [--write]

A file there is a list of blocks. Lines between `<<< NAME` and `>>>` are a file that the commands after them may name.
`$ ARGUMENTS` is a command line of check_operator, the lines up to `[CODE]` are what it prints on both outputs. Files of
plugins are named `{plugins}/NAME.so`; `{folder}`, `{build}` and `{source}` stand for paths in what is printed. The commands
of a file run in one folder, which starts with contracts/ and cases/.
`--write` puts what is printed into the files, to be read before it is committed.
"""

import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(program, arguments, folder):
    """What the command prints, with names of places for paths, and its exit code in brackets."""
    plugins = program.parent / "tests/plugins"
    done = subprocess.run(["bash", "-c", f"'{program}' {arguments.replace('{plugins}', str(plugins))}"], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    text = done.stdout.replace(str(plugins), "{plugins}").replace(str(folder), "{folder}")
    text = text.replace(str(program.parent), "{build}").replace(str(ROOT), "{source}")
    text = re.sub(r"\(\d+ ms\)", "(N ms)", text)
    if text and not text.endswith("\n"):
        text += "\n"
    return f"{text}[{done.returncode}]\n"


def with_output(program, path):
    """The file's text with what its commands print now."""
    written = []
    lines = path.read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("contracts", "cases"):
            shutil.copytree(ROOT / part, folder / part)
        file = None  # that the lines are written to
        for line in lines:
            if file is not None:
                written.append(line)
                if line == ">>>\n":
                    file.close()
                    file = None
                else:
                    file.write(line)
            elif line.startswith("<<< "):
                written.append(line)
                file = (folder / line[4:].strip()).open("w")
            elif line.startswith("$"):
                written.append(line)
                written.append(run(program, line[1:].strip(), folder))
            elif line.startswith("#"):
                written.append(line)
            # Any other line is what a command printed before.
    return "".join(written)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    os.environ["NO_COLOR"] = "1"
    wrong = commands = 0
    for path in sorted((ROOT / "tests/data/messages").glob("*.txt")):
        expected, actual = path.read_text(), with_output(program, path)
        commands += len(re.findall(r"^\$ ", expected, re.M))
        if sys.argv[2:] == ["--write"]:
            path.write_text(actual)
        elif expected != actual:
            wrong += 1
            sys.stdout.writelines(difflib.unified_diff(expected.splitlines(True), actual.splitlines(True),
                                                       str(path), "printed"))
    print(f"messages_test.py: {commands} commands, {wrong} files differ")
    return 1 if wrong or commands == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
