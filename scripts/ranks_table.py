#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the errors of tp_linear_logp on several GPUs into README.md, between <!-- ranks --> and <!-- end of ranks -->.

One row per report-ranks-<GPUs>-<rows>-<hidden>-<vocab>.json of a folder of tests/gpu/results: the largest absolute error of each output against
the FP64 gold, and what RL-Kernel has published of its own. With --check nothing is written and the exit code is 1 when the README does not
hold what the reports say.
Usage: ranks_table.py [--check]
"""
import glob
import json
import os
import re

from readme_block import RESULTS, ROOT, write_or_check

OUTPUTS = ("logp", "dhidden", "dlm_head_weight", "dbias")
# (rows, hidden, vocab): RL-Kernel's errors of OUTPUTS on its own inputs, against a reference of the same dtype.
PUBLISHED = {(512, 1024, 8192): "3.05e-4, 6.25e-2, 6.25e-2, 1.56e-2", (256, 512, 4096): "1.07e-4, 3.13e-2, 3.13e-2, 1.95e-3"}


def row(path, ranks, sizes):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    cases = [case for candidate in report["candidates"] for case in candidate["cases"]]
    errors = {output["name"]: output for case in cases for output in case["outputs"]}
    cells = [f"{errors[name]['max_abs_error']:.2e}" if name in errors else "-" for name in OUTPUTS]
    gold = errors.get("dhidden", {}).get("gold_rows", "-")
    counted = gold if isinstance(gold, str) else len(gold)
    verdicts = ", ".join(sorted({case["verdict"] for case in cases}))
    return (f"| {' x '.join(map(str, sizes))} | {cases[0]['dtype']} | {ranks} | {' | '.join(cells)} | {counted} | {verdicts} | "
            f"{PUBLISHED.get(sizes, '-')} |\n")


def tables():
    rows = []
    for path in glob.glob(os.path.join(RESULTS, "*", "report-ranks-*.json")):
        name = re.fullmatch(r"report-ranks-(\d+)-(\d+)-(\d+)-(\d+)\.json", os.path.basename(path))
        if name:
            ranks, *sizes = map(int, name.groups())
            rows.append((os.path.dirname(path), tuple(sizes), ranks, path))
    text = ""
    for folder in sorted({row[0] for row in rows}):
        text += (f"From `{os.path.relpath(folder, ROOT)}`, candidate `nccl-sm90`, parts of uneven length, with a bias:\n\n"
                 f"| rows x hidden x vocab | dtype | GPUs | {' | '.join(OUTPUTS)} | rows of the gold | verdict | RL-Kernel's own |\n"
                 + "|" + "---|" * (len(OUTPUTS) + 6) + "\n")
        text += "".join(row(path, ranks, sizes) for at, sizes, ranks, path in sorted(rows) if at == folder)
    return text


if __name__ == "__main__":
    write_or_check("ranks", tables())
