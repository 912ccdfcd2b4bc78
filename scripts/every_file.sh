#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Compiles every file by itself, without code: neither a file before it in the same unit nor a precompiled header hides an
# include that a file lacks. Takes five minutes on two cores, so that CI leaves it out. Needs what setup.sh --ci installs.
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}

cmake --preset cpu -B build/ci-files -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DCHECK_OPERATOR_TESTS=OFF -DCMAKE_UNITY_BUILD=OFF
/usr/bin/python3 -c '
import json, shlex
for entry in json.load(open("build/ci-files/compile_commands.json")):
    command = shlex.split(entry["command"])
    command[command.index("-o") : command.index("-o") + 2] = ["-fsyntax-only", "-Werror", "-Wno-deprecated-declarations"]
    print(shlex.quote(shlex.join(command)))
' | (cd build/ci-files && xargs -P "$(nproc)" -n 1 bash -c)
