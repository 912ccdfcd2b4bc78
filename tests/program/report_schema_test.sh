#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# These reports must match the schema: of a pass, of several kinds of failures including expected ones, of unsupported
# cases, of a non-finite output, of declared and granted recipes, of inputs from one file and from two, of shards, and of
# merged shards.
# Usage: report_schema_test.sh CHECK_OPERATOR PLUGIN_FOLDER WORK_FOLDER VALIDATE...
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=$1 plugins=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work"

report() {  # report NAME EXPECTED_EXIT MUST_CONTAIN FLAGS...
  local name=$1 expected=$2 must_contain=$3 code=0
  shift 3
  "$tool" "$@" --device cpu --check-grad --json "$work/$name.json" >"$work/$name.txt" 2>&1 || code=$?
  if [[ $code != "$expected" ]]; then
    cat "$work/$name.txt"
    echo "report_schema_test: $name: expected exit $expected, got $code" >&2
    exit 1
  fi
  if ! grep -q "$must_contain" "$work/$name.json"; then
    echo "report_schema_test: $name.json lacks $must_contain" >&2
    exit 1
  fi
}

small=(--op logp --batch 1 --seq 3 --vocab 17)
report pass 0 '"verdict": "pass"' --op all --candidate native --dtype fp32,bf16,fp16 \
  --batch 2 --seq 3 --vocab 17 --hidden 8 --k-dim 8 --n-dim 8 --q-heads 2 --kv-heads 1 --head-dim 8 --cache-seq 4 \
  --tokens 6 --tokens-q 6 --tokens-k 6
report no_rows 0 '"count": 0' --op matmul,rms_norm --check-grad --candidate native --batch 0 --seq 3 --hidden 8 --k-dim 8 --n-dim 8
faults=zeros,unwritten_row,out_of_bounds_write,input_overwritten,nondeterministic,batch_dependent
report fail 1 '"verdict": "fail"' "${small[@]}" --plugin "$plugins/mutants.so" --candidate "mutant-${faults//,/,mutant-}"
report nonfinite 1 '"NaN"' "${small[@]}" --plugin "$plugins/mutants.so" --candidate mutant-nan
report recipes 0 '"by": "--recipe"' --op rms_norm --dtype bf16 --batch 1 --seq 4 --hidden 512 --plugin "$plugins/mutants.so" \
  --candidate recipe-normalised_row_in_16_bit --recipe normalised_row_in_16_bit
known='"expect": "fail", "reason": "r", "owner": "o", "expires": "never"'
sed "s|^  \"demands\"|  \"known\": [{\"match\": {\"candidate\": \"mutant-*\"}, $known}],&|" contracts/default.json \
  >"$work/known.contract"
report xfail 0 '"verdict": "xfail"' "${small[@]}" --plugin "$plugins/mutants.so" --candidate mutant-zeros \
  --contract "$work/known.contract"
sed 's/mutant-/nativ/' "$work/known.contract" >"$work/xpass.contract"
report xpass 1 '"verdict": "xpass"' "${small[@]}" --candidate native --contract "$work/xpass.contract"
"$tool" "${small[@]}" --dtype fp32 --candidate native --device cpu --save-tensors "$work" --save all >"$work/save.txt"
saved=$(echo "$work"/*.safetensors)
report given 0 '"logits": ".*:input/logits"' "${small[@]}" --dtype fp32 --candidate native --input "logits=$saved:input/logits"
"$tool" compare "$saved" "$saved" --class logprob --contract contracts/rl_kernel.json --filter 'output/*' \
  --json "$work/compare.json" >"$work/compare.txt"
report unsupported 3 '"verdict": "unsupported"' "${small[@]}" --candidate native --dtype fp64

for i in 0 1; do
  report "shard_$i" 0 '"shard"' "${small[@]}" --candidate native --shard-index "$i" --total-shards 2 --check invariance
done
sed 's/"driver": ""/"driver": "another"/' "$work/shard_1.json" >"$work/other.json"
"$tool" report merge "$work/shard_0.json" "$work/other.json" --json "$work/merged.json" >"$work/merged.txt"
if ! grep -q '^     "device": {' "$work/merged.json"; then  # a case's device
  echo "report_schema_test: merged.json does not tell the machines apart" >&2
  exit 1
fi
"$tool" report merge "$work/shard_0.json" --partial --json "$work/partial.json" >"$work/partial.txt" || [[ $? == 4 ]]

"$@" contracts/report.schema.json "$work"/*.json

# The schema must be able to fail: the same report with one field name misspelled.
sed 's/"max_abs_error": /"max_abs_eror": /' "$work/pass.json" >"$work/wrong.json.broken"
if "$@" contracts/report.schema.json "$work/wrong.json.broken" >"$work/wrong.txt" 2>&1; then
  echo "report_schema_test: the schema accepted a misspelt key" >&2
  exit 1
fi
