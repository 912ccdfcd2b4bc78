#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The HTML report in a headless browser: its script runs to the end and shows the report's content.
# Usage: report_page_test.sh CHECK_OPERATOR PLUGIN_FOLDER WORK_FOLDER CHROMIUM
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=$1 plugins=$2 work=$3 chromium=$4
rm -rf "$work"
mkdir -p "$work"

# dom NAME URL_PART: prints the page after its script has run.
dom() {
  timeout 120 "$chromium" --headless=new --no-sandbox --disable-gpu --user-data-dir="$work/profile" \
    --virtual-time-budget=5000 --enable-logging=stderr --dump-dom "file://$work/$1.html$2" 2>"$work/$1.log"
}
expect() {  # expect NAME TEXT: checks that the page contains TEXT
  grep -qF -- "$2" "$work/$1.dom" || { echo "report_page_test: $1: no '$2'" >&2; exit 1; }
}
count() { { grep -oF -- "$2" "$work/$1.dom" || true; } | wc -l; }
equal() { [[ $2 == "$3" ]] || { echo "report_page_test: $1: expected $3, got $2" >&2; exit 1; }; }

run() { "$tool" --device cpu --plugin "$plugins/mutants.so" --html "$work/$1.html" "${@:2}" >"$work/$1.txt" 2>&1 || true; }
run fail --op logp --candidate native,mutant-zeros,mutant-nan --check-grad --batch 2 --seq 3 --vocab 200
dom fail "" >"$work/fail.dom"
expect fail 'Not passed: 4 of 6 checks did not pass: 4 fail'
expect fail '6 of 6'
equal "rows of the table" "$(count fail 'class="case"')" 6
equal "cases that are open" "$(count fail 'class="detail"')" 1
expect fail 'NOT MET'
expect fail 'aria-label="Map of errors of logp'
expect fail '<rect '
expect fail 'two runs have the same bits'
expect fail '>Copy</button>'
# A link opens its case, here the second, which passes.
dom fail "#check-1" >"$work/fail.dom"
equal "cases that are open by a link" "$(count fail 'class="detail"')" 1
expect fail 'holds'
run many --op silu --candidate native --batch 1 --seq 1:1000 --hidden 64
dom many "" >"$work/many.dom"
expect many 'Passed: 1000 checks passed'
equal "rows shown of 1000" "$(count many 'class="case"')" 300
expect many 'Show more (700 left)'
size=$(stat -c %s "$work/many.html")
((size < 10000000)) || { echo "report_page_test: a page of 1000 cases has $size bytes" >&2; exit 1; }
if grep -hE 'CONSOLE.*(Error|error)' "$work"/*.log; then echo "report_page_test: errors in the page's code" >&2; exit 1; fi
echo "report_page_test: pages show their reports; 1000 cases take $size bytes"
