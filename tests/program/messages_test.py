#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of tests/data/messages and compares everything they print, and their exit codes, with what stands there.

    messages_test.py PROGRAM [--write]

A file there is a list of blocks. Lines between `<<< NAME` and `>>>` are a file that the commands after them may name. Of
NAME.safetensors they are the header and then its data, each line a code of Python's struct and numbers. `! COMMAND` is a
command of the shell that prepares files and prints nothing.
`$ ARGUMENTS` is a command line of check_operator, the lines up to `[CODE]` are what it prints on both outputs. Settings of
the environment may stand before the arguments: `$ NAME=VALUE ARGUMENTS`. Files of plugins are named `{plugins}/NAME.so`, those of the source tree `{source}/NAME`; `{folder}`, `{build}` and `{source}` stand
for paths in what is printed, `N` for what changes from run to run. The commands of a file run in one folder, which starts
with contracts/ and cases/.
`--write` puts what is printed into the files, to be read before it is committed.
"""

import concurrent.futures
import difflib
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Times, digests of contracts, the machine, and folders for files that are handed over.
CHANGING = (
    (r"\(\d+ ms\)", "(N ms)"),
    (r"\b[0-9a-f]{16}\b", "N"),
    (r"; device (?!none).*", "; device N"),
    (r"(?m)^  candidates: .*", "  candidates: N"),
    (r"the architecture of .* \(", "the architecture of N ("),
    (r"ranks on cpu .*: [0-9., e+]+ ms", "ranks on cpu N: N ms"),
    (r"needs .* of the host's memory, of which .* are free", "needs N of the host's memory, of which N are free"),
    (r"(?m)^( +).*(; contract .*; )[0-9-]+T[0-9:]+Z on .*", r"\1N\2N on N"),
    (re.escape(tempfile.gettempdir()) + r"/check_operator\.\w{6}", "{folder of exec}"),
)


def safetensors(text):
    """The bytes of a safetensors file: see above."""
    header, *data = text.splitlines()
    written = struct.pack("<Q", len(header)) + header.encode()
    for line in data:
        code, *words = line.split()
        for word in words:
            written += struct.pack("<" + code, float(word) if code in "fd" else int(word))
    return written


def run(program, arguments, folder):
    """What the command prints, with names of places for paths, and its exit code in brackets."""
    plugins = program.parent / "tests/plugins"
    arguments = arguments.replace("{plugins}", str(plugins)).replace("{source}", str(ROOT))
    settings, arguments = re.fullmatch(r"((?:[A-Z_]+=\S+ )*)(.*)", arguments).groups()
    done = subprocess.run(["bash", "-c", f"{settings}'{program}' {arguments}"], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    text = done.stdout.replace(str(plugins), "{plugins}").replace(str(folder), "{folder}")
    text = text.replace(str(program.parent), "{build}").replace(str(ROOT), "{source}")
    for changing, instead in CHANGING:
        text = re.sub(changing, instead, text)
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
                    content = "".join(held)
                    file.write_bytes(safetensors(content) if file.suffix == ".safetensors" else content.encode())
                    file = None
                else:
                    held.append(line)
            elif line.startswith("<<< "):
                written.append(line)
                file, held = folder / line[4:].strip(), []
            elif line.startswith("!"):
                written.append(line)
                subprocess.run(["bash", "-c", line[1:]], cwd=folder, check=True)
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
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        os.environ.pop(name, None)
    wrong = commands = 0
    paths = sorted((ROOT / "tests/data/messages").glob("*.txt"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        printed = list(pool.map(lambda path: with_output(program, path), paths))
    for path, actual in zip(paths, printed):
        expected = path.read_text()
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
