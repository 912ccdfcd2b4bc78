#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The installed program for a new user: from any folder, after moving the prefix, and with the user's own project.
# Usage: install_test.sh moved|init|packages|gtest BUILD_FOLDER SCRATCH_FOLDER [CXX_FLAGS [PYTHON]]
set -euo pipefail
what=$1 build=$(readlink -f "$2") scratch=$3 flags=${4:-} python=${5:-/usr/bin/python3}
source=$(dirname "$(readlink -f "$0")")/../..
rm -rf "$scratch"
mkdir -p "$scratch/empty"
scratch=$(readlink -f "$scratch")
cd "$scratch/empty"

fail() { echo "install_test.sh: $*" >&2; exit 1; }

# expect CODE TEXT COMMAND...: checks the command's exit code, and a fixed string in its output, ignoring line breaks.
# CTest says "100% tests passed, 0 tests failed out of 2" before CMake 4, and "100% tests passed out of 2" from there on.
expect() {
  local wanted=$1 text=$2 code=0
  shift 2
  "$@" >"$scratch/log" 2>&1 || code=$?
  [[ $code == "$wanted" ]] || { cat "$scratch/log"; fail "exit code $code, expected $wanted: $*"; }
  tr -s ' \n' ' ' <"$scratch/log" | sed 's/ passed, 0 tests failed out of/ passed out of/' | grep -F -- "$text" >/dev/null || { cat "$scratch/log"; fail "'$text' is not in the output of $*"; }
}

cmake --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/prefix"
prefix=$scratch/prefix tool=$scratch/prefix/bin/check_operator

case $what in
  moved)
    # Every shipped file comes from the prefix: cases, contract, plugins.
    expect 0 "contract $prefix/share/check_operator/contracts/default.json" \
      "$tool" --suite smoke --op silu --candidate native --device cpu --json report.json
    grep -q "\"$prefix/lib/check_operator/kernels/silu/native.so\"" report.json || fail "not the prefix's plugin"
    expect 0 "qwen3-8b" "$tool" list
    ln -s "$tool" linked
    expect 0 "1 pass" ./linked --op logp --candidate native --device cpu --batch 1 --seq 2 --vocab 17
    # The installation must not use a source tree two folders above the program, or one in the working folder.
    mkdir -p "$scratch/contracts" contracts
    echo '{' | tee "$scratch/contracts/default.json" >contracts/default.json
    expect 0 "contract $prefix/share/check_operator/contracts/default.json" \
      "$tool" --op logp --candidate native --device cpu --batch 1 --seq 2 --vocab 17
    [[ -s $prefix/include/check_operator.h ]] || fail "no header"
    # The documents lie as in the source tree: what README.md links to is there, and the examples find their helper.
    cd "$prefix/share/doc/check_operator"
    links=$(grep -o '](docs/[^)#]*' README.md | cut -c3- | sort -u)
    [[ $(wc -l <<<"$links") -gt 5 ]] || fail "README.md links to no documents"
    for link in $links; do
      [[ -s $link || ! -e $source/$link ]] || fail "README.md links to $link, which is not installed"
    done
    expect 0 "2 pass" "$tool" --op rms_norm --check-grad --device cpu --batch 1 --seq 4 --hidden 32 \
      --exec "$python docs/exec/rms_norm_numpy.py" --candidate exec
    ;;
  init)
    expect 0 "candidate 'my_op' for rms_norm" "$tool" init my_op project --cpu
    cd project
    expect 0 "" cmake -B build -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_CXX_FLAGS=$flags"
    expect 0 "my_op" cmake --build build
    checks=(ctest --test-dir build --no-tests=error --output-on-failure)
    expect 0 "100% tests passed out of 2" "${checks[@]}"
    # The tests do detect a wrong kernel.
    sed -i 's|static_cast<float>(hidden);|static_cast<float>(hidden + 1);|' my_op.cpp
    expect 0 "my_op" cmake --build build
    expect 8 "0% tests passed, 2 tests failed out of 2" "${checks[@]}"
    grep -qF "out of bound" "$scratch/log" || fail "no numerical failure"
    # A missing plugin is a failed test, not the absence of tests.
    rm build/my_op.so
    expect 8 "my_op.so: no such file" "${checks[@]}"
    # One test per case, with additional flags.
    cp CMakeLists.txt good.txt
    sed 's/DEVICE cpu/EACH_CASE ARGUMENTS --dtype fp32/' good.txt >CMakeLists.txt
    sed -i 's|hidden + 1);|hidden);|' my_op.cpp
    expect 0 "my_op" cmake --build build
    expect 0 "my_op/rms_norm/forward/my_op/rms_norm-fp32-2x33x257" "${checks[@]}"
    grep -qE "passed(, 0 tests failed)? out of 9" "$scratch/log" || fail "not one test for each of the 9 cases in fp32"
    # An invalid registration fails the configuration.
    sed '/enable_testing/d' good.txt >CMakeLists.txt
    expect 1 "call enable_testing() first" cmake -B build
    sed 's/OPERATOR rms_norm/OPERATR rms_norm/' good.txt >CMakeLists.txt
    expect 1 "no OPERATOR given" cmake -B build
    sed 's/(my_op CASES/(my_op DEVCE cpu CASES/' good.txt >CMakeLists.txt
    expect 1 "unknown argument 'DEVCE;cpu'" cmake -B build
    sed 's/cases.json/none.json/' good.txt >CMakeLists.txt
    expect 1 "there are no cases at" cmake -B build
    ;;
  packages)
    expect 0 "" cpack --config "$build/CPackConfig.cmake" -B "$scratch/packages"
    mkdir "$scratch/deb" "$scratch/tgz"
    dpkg-deb -x "$scratch"/packages/check-operator_*.deb "$scratch/deb"
    tar -xzf "$scratch"/packages/check-operator-*.tar.gz -C "$scratch/tgz" --strip-components=1
    for prefix in "$scratch/deb/usr" "$scratch/tgz"; do
      expect 0 "contract $prefix/share/check_operator/contracts/default.json" \
        "$prefix/bin/check_operator" --suite smoke --op silu --candidate native --device cpu
      expect 0 "candidate 'my_op' for rms_norm" "$prefix/bin/check_operator" init my_op project --cpu
      expect 0 "" cmake -S project -B project/build "-DCMAKE_PREFIX_PATH=$prefix"
      rm -r project
    done
    # The package depends on the libraries that it links.
    expect 0 "libopenblas" dpkg-deb --field "$scratch"/packages/check-operator_*.deb Depends
    expect 0 "libfmt" dpkg-deb --field "$scratch"/packages/check-operator_*.deb Depends
    ;;
  gtest)
    cp -r "$prefix/share/doc/check_operator/examples/gtest" example
    cd example
    expect 0 "" cmake -B build -DCMAKE_BUILD_TYPE=Release "-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_CXX_FLAGS=$flags"
    expect 0 "" cmake --build build
    expect 0 "100% tests passed out of 6" ctest --test-dir build --no-tests=error --output-on-failure
    # The tests detect a wrong kernel, and use the contract that they name.
    sed -i 's/rms_norm(call, 1)/rms_norm(call, 2)/' rms_norm_test.cpp
    expect 0 "" cmake --build build
    expect 1 "does not pass as \"rms_norm\" 4 of 6 checks did not pass" build/rms_norm_test --gtest_filter=RmsNorm.Mine
    sed -i 's/"cases.json", "--device cpu"/"cases.json", "--device cpu", {"--contract", "no such.json"}/' rms_norm_test.cpp
    expect 0 "" cmake --build build
    expect 1 "no such.json: cannot be opened" build/rms_norm_test --gtest_filter=RmsNorm.Mine
    ;;
  *)
    fail "unknown part '$what'"
    ;;
esac
echo "install_test.sh: $what: as expected"
