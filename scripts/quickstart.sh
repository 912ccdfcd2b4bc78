#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh checkout to verdicts: sets up, builds the CPU-only preset and checks every operator's CPU candidate,
# forward and backward, in three dtypes, matrix products at sizes that suit a CPU. The exit code is check_operator's.
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}  # setup.sh installs ninja; a fresh machine has no make

scripts/setup.sh
# Only these targets: the tests are configured here but built by scripts/test.sh.
cmake --preset cpu
cmake --build --preset cpu -j "$(nproc)" --target check_operator kernels

command=(build/cpu/check_operator --op all --candidate native --dtype fp32,bf16,fp16 --device cpu --check-grad
  --k-dim 512 --n-dim 512 --capacity 128)
echo "+ ${command[*]}"
exec "${command[@]}"
