#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/gold/OPERATOR.json: the expected results of the FP64 gold, computed with mpmath at 50 digits.

These results are independent: formulas are written out from the definitions, no code is shared with reference/, and each
gradient is checked against numerical differentiation of the forward formula before it is written. Every input has at
most eight significant bits and a small exponent, so that fp32, fp16 and bf16 store it exactly.
Numbers are the shortest decimals that give the double nearest to the exact value; infinities are strings. `scale` is
the magnitude of the terms that an element is the sum of: FP64 rounding may cause an error of a few 1e-16 times `scale`.
One module per operator, with a function vectors().
Usage: gold_vectors [FOLDER]
"""
import importlib
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHARED = {"__main__", "common", "formats"}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "..", "tests", "data", "gold")
    os.makedirs(folder, exist_ok=True)
    names = sorted(file[:-3] for file in os.listdir(HERE) if file.endswith(".py"))
    for name in names:
        if name in SHARED:
            continue
        vectors = list(importlib.import_module(name).vectors())
        path = os.path.join(folder, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"format": "check_operator/gold_vectors-1", "made_by": "scripts/gold_vectors", "vectors": [\n')
            file.write(",\n".join(json.dumps(v, sort_keys=True, separators=(",", ":")) for v in vectors))
            file.write("\n]}\n")
        print(f"{path}: {len(vectors)} vectors, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
