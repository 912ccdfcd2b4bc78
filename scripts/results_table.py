#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of tests/gpu/results into README.md, between the lines <!-- results --> and <!-- end of results -->.

One row per report, operator, pass and candidate. With --check nothing is written and the exit code is 1 when the README
does not hold what the reports say.
Usage: results_table.py [--check]
"""
import glob
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"


def sizes(cases):
    """The sizes of one case, or how many there are."""
    names = sorted({case["case_name"].split("-", 2)[2] for case in cases})
    if len(names) == 1:
        return " ".join(f"{name}={size}" for name, size in cases[0]["dims"].items())
    return f"{len(names)} sizes"


def headroom(cases):
    """How often the worst element of all would fit into its limit."""
    values = [float(gate["headroom"]) for case in cases for output in case["outputs"] for gate in output["gates"]]
    return f"{min(values):.3g}x" if values else "-"


def verdict(cases):
    failed = [case for case in cases if not case["passed"]]
    if not failed:
        return "pass" if len(cases) == 1 else f"{len(cases)} pass"
    kinds = sorted({case["kind"] for case in failed})
    share = "" if len(cases) == 1 else f"{len(failed)} of {len(cases)} "
    return f"**{share}fail: {', '.join(kinds)}**"


def rows_of(report):
    groups = {}
    for candidate in report["candidates"]:
        for case in candidate["cases"]:
            key = (case["op"], case["pass"], candidate["backend"])
            groups.setdefault(key, []).append(case)
    for (op, direction, backend), cases in sorted(groups.items()):
        dtypes = " ".join(sorted({case["dtype"] for case in cases}))
        yield f"| {op} {direction} | {backend} | {sizes(cases)} | {dtypes} | {verdict(cases)} | {headroom(cases)} |"


def tables():
    text = ""
    for folder in sorted(glob.glob(os.path.join(ROOT, "tests", "gpu", "results", "*"))):
        reports = [json.load(open(path, encoding="utf-8")) for path in sorted(glob.glob(folder + "/report-*.json"))]
        if not reports:
            continue
        device = reports[0]["device"]
        text += f"On one {device['name']} ({device['arch_key']}, CUDA {device['runtime']}), from `{os.path.relpath(folder, ROOT)}`:\n\n"
        text += "| operator, pass | candidate | sizes | dtypes | verdict | least headroom |\n|---|---|---|---|---|---|\n"
        text += "\n".join(row for report in reports for row in rows_of(report)) + "\n"
    return text or "No results yet.\n"


def main():
    path = os.path.join(ROOT, "README.md")
    text = open(path, encoding="utf-8").read()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    wanted = text[:begin] + "\n" + tables() + "\n" + text[end:]
    if "--check" in sys.argv[1:]:
        if wanted != text:
            sys.exit("README.md: its results are not those of tests/gpu/results; run scripts/results_table.py")
        print("README.md holds the results")
        return
    open(path, "w", encoding="utf-8").write(wanted)


if __name__ == "__main__":
    main()
