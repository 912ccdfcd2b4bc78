# SPDX-License-Identifier: Apache-2.0
"""A part of README.md that a script writes, between the lines <!-- NAME --> and <!-- end of NAME -->."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "tests", "gpu", "results")


def write_or_check(name, content):
    """Writes `content` there. With --check nothing is written and the exit code is 1 when README.md does not hold it."""
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    wanted = text[:text.index(begin) + len(begin)] + "\n" + (content or "No results yet.\n") + "\n" + text[text.index(end):]
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit(f"README.md: its part '{name}' is not what tests/gpu/results holds; run scripts/{os.path.basename(sys.argv[0])}")
        print(f"README.md holds the part '{name}'")
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(wanted)


def number_of(sizes):
    """How many devices took part, in words: as many as the largest of the cases' numbers of ranks."""
    most = max((dims.get("world_size", 1) for dims in sizes), default=1)
    return {1: "one", 2: "two", 4: "four", 8: "eight"}.get(most, str(most))
