#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the faults and controls of `check_operator mutate` under commonly used tolerance policies and writes a table of the faults that each finds.

Faults of behaviour (unwritten rows, guards, determinism, batch) are excluded: no tolerance can find them. The table goes to standard output and
into docs/contracts.md, between <!-- policies --> and <!-- end of policies -->; --check writes nothing and exits 1 if the page has another table.
Usage: compare_policies.py [--tool build/cpu/check_operator] [--check]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- policies -->\n", "<!-- end of policies -->\n"

POLICIES = (
    ("default.json", "contracts/default.json"),
    ("rl_kernel.json", "contracts/rl_kernel.json"),
    ("assert_close", "contracts/policies/assert_close.json"),
    ("KernelBench", "contracts/policies/kernelbench.json"),
    ("abs or rel 1e-2", "contracts/policies/abs_or_rel.json"),
    ("NMSE 5e-4", "contracts/policies/nmse.json"),
    ("cosine 1e-5", "contracts/policies/cosine.json"),
    ("2x rule", "contracts/policies/two_times.json"),
)
VOCAB = "--batch 4 --seq 8 --vocab 151936"
GRPO = "--batch 4 --seq 4 --vocab 151936 --clip-eps 0.01 --beta 0.04 --eps 0.5"
# Name of a table row, and the arguments that select its cases.
QUESTIONS = (
    ("logp forward, vocabulary 151936", f"--op logp --pass forward --dtype bf16 {VOCAB}"),
    ("logp backward, vocabulary 151936", f"--op logp --pass backward --dtype bf16 {VOCAB}"),
    ("ratio_kl, vocabulary 151936", f"--op ratio_kl --dtype bf16 {VOCAB}"),
    ("grpo_loss, vocabulary 151936", f"--op grpo_loss --dtype bf16 {GRPO}"),
    ("det_gemm forward, 64 x 4096 x 64", "--op det_gemm --pass forward --dtype bf16 --batch 1 --seq 64 --k-dim 4096 --n-dim 64"),
    ("every operator, small, bf16", "--suite mutation --dtype bf16"),
    ("every operator, small, fp32", "--suite mutation --dtype fp32"),
)
BEHAVIOUR = {"unwritten_row", "unwritten_zeros", "out_of_bounds_write", "input_overwritten", "input_toggled", "nondeterministic",
             "batch_dependent"}


class Score:
    """Result of one policy for one question."""

    def __init__(self, record):
        faults = [fault for entry in record["passes"] for fault in entry["faults"]
                  if fault["cases"] > 0 and fault["fault"] not in BEHAVIOUR]
        self.faults, self.killed = len(faults), sum(fault["killed"] for fault in faults)
        self.alive = {fault["fault"] for fault in faults if not fault["killed"]}
        self.false_alarms = sum(len(entry["controls_rejected"]) for entry in record["passes"])

    def __str__(self):
        text = f"**{self.killed}**" if self.killed == self.faults else str(self.killed)
        return f"{text}, {self.false_alarms} false" if self.false_alarms else text


def mutate(tool, contract, arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [tool, "mutate", *arguments.split(), "--contract", contract, "--json", file.name]
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if result.returncode not in (0, 1):
            sys.exit(f"compare_policies: exit {result.returncode} of: {' '.join(command)}")
        with open(file.name, encoding="utf-8") as text:
            return Score(json.load(text))


def table(tool):
    lines = ["| faults found | of | " + " | ".join(name for name, _ in POLICIES) + " |", "|---|---|" + "---|" * len(POLICIES)]
    totals, faults = [0] * len(POLICIES), 0
    for question, arguments in QUESTIONS:
        scores = [mutate(tool, contract, arguments) for _, contract in POLICIES]
        print(question, [sorted(score.alive) for score in scores], file=sys.stderr)
        faults += scores[0].faults
        totals = [total + score.killed for total, score in zip(totals, scores)]
        lines.append(f"| {question} | {scores[0].faults} | " + " | ".join(map(str, scores)) + " |")
    lines.append(f"| sum | {faults} | " + " | ".join(map(str, totals)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/cpu/check_operator"), help="check_operator to run")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when docs/contracts.md holds another table")
    options = parser.parse_args()
    text = table(os.path.abspath(options.tool))
    print(text, end="")
    path = os.path.join(ROOT, "docs", "contracts.md")
    with open(path, encoding="utf-8") as file:
        page = file.read()
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    if page[begin:end] == text:
        return 0
    if options.check:
        print("compare_policies: docs/contracts.md holds another table; run scripts/compare_policies.py", file=sys.stderr)
        return 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(page[:begin] + text + page[end:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
