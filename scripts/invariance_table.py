#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the number of rows does to products into README.md, between <!-- invariance --> and <!-- end of invariance -->.

Of every tests/gpu/results/*/invariance.json, a report of suite `invariance` that `scripts/gpu.sh DIR invariance` makes: one row per size of
the weights, and beside cuBLAS's defaults the candidates that keep their bits. With --check nothing is written and the exit code is 1 when
the README does not hold what the reports say.
Usage: invariance_table.py [--check]
"""
import glob
import json
import os
import sys

from readme_block import RESULTS, ROOT, write_or_check

DEFAULT = "cublas"  # the candidate that chooses its kernel by the number of rows


def axis_of(check, name):
    return next((axis for axis in check["axes"] if axis["axis"] == name), None)


def largest_part(check):
    """The largest share of a launch's elements that changed, of those that the report tells one by one."""
    batch = axis_of(check, "batch")
    parts = [(entry["different"] / entry["compared"], entry) for entry in (batch or {"broken": []})["broken"]]
    if not parts:
        return "none"
    entry = max(parts, key=lambda part: part[0])[1]
    return f"{entry['different']} of {entry['compared']}"


def other_axes(check):
    """What else than the number of rows, and than what changes it too, changes bits."""
    of_the_number = {"batch", "chunks", "padding"}
    return ", ".join(axis["axis"] for axis in check["axes"] if axis["different"] and axis["axis"] not in of_the_number) or "-"


def cell(case):
    """What the other candidates make of the same size."""
    if case is None:
        return "-"
    if case["verdict"] == "unsupported":
        return "unsupported"
    if case["verdict"] == "pass":
        return "same bits"
    if not case["bit_checks"]:
        return f"**{case['verdict']}**"
    axes = [axis["axis"] for axis in case["bit_checks"][0]["axes"] if axis["different"]]
    return f"**{case['verdict']}: {', '.join(axes) or case['kind']}**"


def row(sizes, cases, others):
    text = f"| {sizes[0]} x {sizes[1]} | "
    default = cases.get(DEFAULT)
    if default is None or not default["bit_checks"]:
        text += f"{cell(default)} | | | | |"
    else:
        check = default["bit_checks"][0]
        text += (f"{check['rows']['different'] or 'none'} | {check['rows']['same'] or 'none'} | "
                 f"{check['smallest_rows'] or '-'} | {largest_part(check)} | {other_axes(check)} |")
    return text + "".join(f" {cell(cases.get(name))} |" for name in others) + "\n"


def table(path):
    report = json.load(open(path, encoding="utf-8"))
    groups = {}
    for candidate in report["candidates"]:
        for case in candidate["cases"]:
            sizes = (case["dims"]["k_dim"], case["dims"]["n_dim"])
            groups.setdefault(sizes, {"rows": case["dims"]["batch"] * case["dims"]["seq"]})[candidate["backend"]] = case
    if not groups:
        sys.exit(f"{path}: holds no case")
    rows = {group.pop("rows") for group in groups.values()}
    if len(rows) != 1:
        sys.exit(f"{path}: its cases have {sorted(rows)} rows, expected one number")
    others = sorted({name for group in groups.values() for name in group} - {DEFAULT})
    device, count = report["device"], rows.pop()
    text = (f"On one {device['name']} ({device['arch_key']}, {device['multiprocessors']} multiprocessors, CUDA {device['runtime']}), bf16, "
            f"rows of a batch of {count}, from `{os.path.relpath(path, ROOT)}`:\n\n"
            f"| k_dim x n_dim | {DEFAULT}: other bits at so many rows | same bits | not as alone from | elements changed | also with |"
            + "".join(f" {name} |" for name in others) + "\n|" + "---|" * (6 + len(others)) + "\n")
    return text + "".join(row(sizes, groups[sizes], others) for sizes in sorted(groups))


if __name__ == "__main__":
    write_or_check("invariance", "\n".join(table(report) for report in sorted(glob.glob(os.path.join(RESULTS, "*", "invariance.json")))))
