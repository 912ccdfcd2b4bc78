#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run that is killed, interrupted or out of disk space leaves a valid report with every finished check.
# Usage: report_killed_test.sh CHECK_OPERATOR PLUGIN_FOLDER WORK_FOLDER VALIDATE...
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=$1 plugins=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work/tmp"
export TMPDIR=$work/tmp

die() { echo "report_killed_test: $*" >&2; exit 1; }
count() { { grep -o '"case_name"' "$1" || true; } | wc -l; }
count_lines() { grep -c '^\[       OK \]' "$1" || true; }
# Checks of a few ms each.
many=(--op silu --candidate native --device cpu --batch 1 --seq 1:100 --hidden 8 --threads 1)

# --- SIGKILL at twenty moments, spread over the run ---
started=${EPOCHREALTIME/./}
"$tool" "${many[@]}" --json "$work/killed-0.json" >"$work/killed-0.txt"
span=$(((${EPOCHREALTIME/./} - started) / 1000))
all=$(count_lines "$work/killed-0.txt")
((all > 99)) || die "only $all checks are in the text of the whole run"
finished=0
for i in {1..20}; do
  "$tool" "${many[@]}" --json "$work/killed-$i.json" >"$work/killed-$i.txt" 2>&1 &
  pid=$!
  moment=$((RANDOM % span))
  sleep "$((moment / 1000)).$(printf '%03d' $((moment % 1000)))"
  kill -KILL "$pid" 2>/dev/null || true
  code=0
  wait "$pid" 2>/dev/null || code=$?
  if [[ $code != 137 ]]; then finished=$((finished + 1)); continue; fi
  # Killed before its first write, it leaves no report; the text output tells which checks were finished.
  lines=$(count_lines "$work/killed-$i.txt")
  if [[ ! -e $work/killed-$i.json ]]; then
    ((lines == 0)) || die "run $i: $lines checks were finished, and there is no report"
    continue
  fi
  checks=$(count "$work/killed-$i.json")
  if grep -q '"complete":false' "$work/killed-$i.json"; then
    # The text of a check is written right after its entry in the report.
    ((checks == lines || checks == lines + 1)) || die "run $i: $checks checks in the report, $lines in the text"
  else
    # The signal came between the end of the report and the end of the program. A whole report names each case once
    # more, beside its time.
    ((checks == 2 * all && lines == all)) ||
      die "run $i: the report is complete with $checks names of cases, and the text has $lines checks of $all"
  fi
done
((finished < 20)) || die "no run was killed: all were over before"
"$@" contracts/report.schema.json "$work"/killed-*.json
rm -rf "$TMPDIR"/*  # a process can't remove its temporary folder when it is killed

# --- SIGTERM and SIGINT: exit code 4, the report so far, no temporary file ---
for signal in TERM INT; do
  report=$work/stopped-$signal.json
  # Enable job control: otherwise a background process of a script ignores SIGINT.
  set -m
  "$tool" "${many[@]/100/40000}" --json "$report" >"$work/stopped-$signal.txt" 2>&1 &
  pid=$!
  set +m
  until [[ -e $report ]] && (($(count "$report") > 3)); do sleep 0.05; done
  kill -"$signal" "$pid"
  code=0
  wait "$pid" || code=$?
  [[ $code == 4 ]] || die "SIG$signal: expected exit 4, got $code"
  grep -q "SIG$signal stopped the run" "$work/stopped-$signal.txt" || die "SIG$signal: the text does not say so"
  grep -q '"complete": false' "$report" || die "SIG$signal: the report does not say so"
  grep -q '"total_ms"' "$report" || die "SIG$signal: no timings"
done
# A hanging candidate does not delay the end.
report=$work/stopped-hanging.json
set -m
"$tool" --op matmul --device cpu --batch 1 --seq 2 --k-dim 2 --n-dim 4 --plugin "$plugins/crashes.so" --candidate sleeps \
  --json "$report" >"$work/hanging.txt" 2>&1 &
pid=$!
set +m
until [[ -e $report ]]; do sleep 0.05; done
sleep 0.3
kill -TERM "$pid"
code=0
wait "$pid" || code=$?
[[ $code == 4 ]] || die "a hanging candidate: expected exit 4, got $code"
"$@" contracts/report.schema.json "$work"/stopped-*.json
if compgen -G "$work/stopped-*.tmp" >/dev/null; then die "spare files are left: $(ls "$work")"; fi
[[ -z $(ls -A "$TMPDIR") ]] || die "temporary folders are left: $(ls "$TMPDIR")"

# --- no disk space: exit code 5, one sentence, the report so far ---
code=0
(ulimit -f 64; exec "$tool" "${many[@]}" --json "$work/full.json") >"$work/full.txt" 2>&1 || code=$?
[[ $code == 5 ]] || die "no room: expected exit 5, got $code"
grep -q 'full.json: cannot be written: File too large; make room' "$work/full.txt" || die "no room: $(tail -1 "$work/full.txt")"
(($(count "$work/full.json") > 3)) || die "no room: the report so far is gone"
"$@" contracts/report.schema.json "$work/full.json"
code=0
"$tool" "${many[@]/100/4}" --json >/dev/full 2>"$work/stdout.txt" || code=$?
[[ $code == 5 ]] || die "standard output without room: expected exit 5, got $code"
echo "report_killed_test: $((20 - finished)) runs killed, all reports valid"
