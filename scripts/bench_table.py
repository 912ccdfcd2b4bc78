#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the timings of tests/gpu/results/*/bench-*.jsonl into README.md, between <!-- bench --> and <!-- end of bench -->.

One row per case and candidate. With --check nothing is written and the exit code is 1 when the README does not hold what the records say.
Usage: bench_table.py [--check]
"""
import glob
import json
import os
import re

from readme_block import RESULTS, ROOT, number_of, write_or_check


def ratio(record):
    return "" if record is None or record["ratio"] is None else f"{record['ratio']:.3f}"


def share(record, of, rate, unit):
    return "" if record[of] is None else f"{record[of]:.2f} ({record[rate]:.0f} {unit})"


def row(timings):
    burst, sustained = timings.get("burst"), timings.get("sustained")
    record = burst or sustained
    sizes = " ".join(f"{name}={size}" for name, size in record["dims"].items() if not (name == "batch" and size == 1))
    extras = re.sub(r"^[^+~]*|~ignored0$", "", record["case"])  # but for that no row is left out, as of all products
    sizes += " " + extras if extras else ""
    if record["status"] != "ok":
        return f"| {record['op']} {record['pass']} | {sizes} | {record['candidate']} | {record['status']} | | | | | |\n"
    milliseconds = lambda timing: "" if timing is None else f"{timing['ms_median']:.4g}"
    return (f"| {record['op']} {record['pass']} | {sizes} | {record['candidate']} | {milliseconds(burst)} | {milliseconds(sustained)} | "
            f"{share(record, 'of_copy', 'gbps', 'GB/s')} | {share(record, 'of_cublas', 'tflops', 'TFLOP/s')} | "
            f"{ratio(burst)} | {ratio(sustained)} |\n")


def table(folder):
    groups = {}
    for path in sorted(glob.glob(folder + "/bench-*.jsonl")):
        with open(path, encoding="utf-8") as lines:
            for record in map(json.loads, lines):
                key = (record["run"], record["op"], record["pass"], record["case"], record["candidate"])
                groups.setdefault(key, {})[record["timing"]] = record
    if not groups:
        return ""
    records = [record for timings in groups.values() for record in timings.values()]
    return (f"On {number_of(record['dims'] for record in records)} {records[0]['device']}, bf16, from `{os.path.relpath(folder, ROOT)}`:\n\n"
            "| operator, pass | sizes | candidate | burst, ms | sustained, ms | of copy | of cublas | cublas' time over it, burst | sustained |\n"
            "|---|---|---|---|---|---|---|---|---|\n") + "".join(row(timings) for timings in groups.values())


if __name__ == "__main__":
    write_or_check("bench", "\n".join(filter(None, map(table, sorted(glob.glob(os.path.join(RESULTS, "*")))))))
