#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, lints, builds the CPU-only preset and runs its tests. Usage: scripts/test.sh [--no-lint]
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}  # setup.sh installs ninja; a fresh machine has no make

lint=true
case "${1:-}" in
  "") ;;
  --no-lint) lint=false ;;
  *) echo "test.sh: unknown argument '$1'; usage: scripts/test.sh [--no-lint]" >&2; exit 2 ;;
esac

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

check_format() {
  find src reference kernels sdk tests -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' |
    sort | xargs clang-format-14 --dry-run -Werror
}

run_clang_tidy() {
  local sources
  # device_cuda.cpp needs the CUDA headers, which a CPU-only machine lacks.
  sources=$(find src reference -name '*.cpp' ! -name device_cuda.cpp | sort)
  # One file per process, to use all cores; prints output only for files with findings.
  xargs -P "$jobs" -n 1 clang-tidy -p build/cpu --quiet --extra-arg=-Wno-unknown-warning-option <<<"$sources" \
    2> >(grep -vE '^[0-9]+ warnings? (generated|treated)' >&2 || true)
}

check_no_cuda_library() {
  local file found=0
  for file in build/cpu/check_operator build/cpu/kernels/*/*.so; do
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
if $lint; then
  stage "format" check_format
  stage "lint" /usr/bin/python3 scripts/lint.py
fi
# TESTS=ON explicitly, because the cache may say otherwise.
stage "configure" cmake --preset cpu -DCHECK_OPERATOR_TESTS=ON
if $lint; then
  stage "clang-tidy" run_clang_tidy
fi
stage "build" cmake --build --preset cpu -j "$jobs"
stage "no CUDA library" check_no_cuda_library
stage "tests" ctest --preset cpu -j $((jobs + 1))  # one more than cores: some tests mostly wait
printf 'test.sh: all passed:'
printf ' %s;' "${timings[@]}"
printf ' %s s in all\n' "$SECONDS"
