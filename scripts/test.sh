#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds without CUDA and runs the tests. Usage: scripts/test.sh [cpu|ci], a preset. With ci, warnings are errors,
# and the tests of generated files and packages run, too.
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}  # setup.sh installs ninja; a fresh machine has no make

preset=${1:-cpu}
if (($# > 1)) || [[ ! $preset =~ ^(cpu|ci)$ ]]; then
  echo "test.sh: unknown argument '${*: -1}'; usage: scripts/test.sh [cpu|ci]" >&2
  exit 2
fi

# The CPU-only build must not need nvcc: hide it from PATH. System folders always stay.
unset CUDACXX CUDA_HOME CUDA_PATH
cpu_path=
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
  case "$folder" in
    /bin | /usr/bin | /usr/local/bin) ;;
    *) [[ -x $folder/nvcc ]] && continue ;;
  esac
  cpu_path+=${cpu_path:+:}$folder
done
export PATH=$cpu_path

jobs=$(nproc)
timings=()
stage() {  # stage NAME COMMAND...: runs the command, records its time, ends the script if it fails
  local name=$1 started=$SECONDS
  shift
  echo "=== $name"
  if ! "$@"; then
    echo "test.sh: stage '$name' failed after $((SECONDS - started)) s" >&2
    exit 1
  fi
  timings+=("$name $((SECONDS - started)) s")
}

check_no_cuda_library() {
  local file found=0
  for file in "build/$preset/check_operator" "build/$preset"/kernels/*/*.so; do
    [[ -e $file ]] || { echo "$file was not built" >&2; return 1; }
    if ldd "$file" | grep -E 'cudart|cublas|nvcuda|libcuda\.'; then
      echo "$file: the CPU-only build links a CUDA library" >&2
      return 1
    fi
    found=$((found + 1))
  done
  echo "$found files link no CUDA library"
}

stage "set-up" scripts/setup.sh --tests
# TESTS=ON explicitly, since a CMake cache may say otherwise.
stage "configure" cmake --preset "$preset" -DCHECK_OPERATOR_TESTS=ON
stage "build" cmake --build --preset "$preset" -j "$jobs"
stage "no CUDA library" check_no_cuda_library
leave_out=()
[[ $preset == ci ]] || leave_out=(--label-exclude '^release$')
stage "tests" ctest --preset "$preset" -j $((jobs + 1)) "${leave_out[@]}"  # one more than cores: some mostly wait
printf 'test.sh: all passed:'
printf ' %s;' "${timings[@]}"
printf ' %s s in all\n' "$SECONDS"
