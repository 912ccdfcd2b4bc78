#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of tests/gpu/results into README.md, between the lines <!-- results --> and <!-- end of results -->.

One row per operator, pass and candidate over all reports of a device. With --check nothing is written and the exit code is 1 when the README
does not hold what the reports say.
Usage: results_table.py [--check]
"""
import glob
import gzip
import json
import os

from readme_block import RESULTS, ROOT, number_of, write_or_check



def load(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def headroom(cases, narrow):
    """How often the worst element of all outputs of 16 bits, or of all wider ones, would fit into its limit."""
    values = [float(gate["headroom"]) for case in cases for output in case["outputs"] for gate in output["gates"]
              if (output["candidate_dtype"] in ("bf16", "fp16")) == narrow]
    finite = [value for value in values if value != float("inf")]
    return f"{min(finite):.3g}x" if finite else ("exact" if values else "-")


def verdict(cases):
    refused = sum(case["verdict"] == "unsupported" for case in cases)
    failed = [case for case in cases if not case["passed"] and case["verdict"] != "unsupported"]
    kinds = sorted({case["kind"] for case in failed})
    if refused == len(cases):
        return "unsupported"
    text = f"**{len(failed)} fail: {', '.join(kinds)}**" if failed else "pass"
    return f"{text}, {refused} unsupported" if refused else text


def largest(cases):
    """The sizes of the case with the largest product of them."""
    def product(case):
        result = 1
        for size in case["dims"].values():
            result *= size
        return result
    return " ".join(f"{name}={size}" for name, size in max(cases, key=product)["dims"].items())


def tables():
    text = ""
    for folder in sorted(glob.glob(os.path.join(RESULTS, "*"))):
        sanitizers = os.path.join(folder, "table-sanitize.txt")
        if os.path.exists(sanitizers):
            text += f"From `{os.path.relpath(folder, ROOT)}`:\n\n```\n" + open(sanitizers, encoding="utf-8").read() + "```\n\n"
        reports = [load(path) for path in sorted(glob.glob(folder + "/report-*.json*"))]
        if not reports:
            continue
        groups = {}
        for candidate in (candidate for report in reports for candidate in report["candidates"]):
            for case in candidate["cases"]:
                groups.setdefault((case["op"], case["pass"], candidate["backend"]), []).append(case)
        device = reports[0]["device"]
        cases = [case for group in groups.values() for case in group]
        dtypes = ", ".join(sorted({case["dtype"] for case in cases}))
        text += (f"On {number_of(case['dims'] for case in cases if case['passed'])} {device['name']} "
                 f"({device['arch_key']}, CUDA {device['runtime']}), {dtypes}, from `{os.path.relpath(folder, ROOT)}`:\n\n"
                 "| operator, pass | candidate | checks | largest | verdict | least headroom, fp32 outputs | 16-bit outputs |\n"
                 "|---|---|---|---|---|---|---|\n")
        for (op, direction, backend), cases in sorted(groups.items()):
            text += (f"| {op} {direction} | {backend} | {len(cases)} | {largest(cases)} | {verdict(cases)} | "
                     f"{headroom(cases, False)} | {headroom(cases, True)} |\n")
        text += "\n"
    return text.rstrip() + "\n" if text else text


if __name__ == "__main__":
    write_or_check("results", tables())
