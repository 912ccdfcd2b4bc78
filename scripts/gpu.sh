#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one call: builds, checks the CUDA candidates, runs them under compute-sanitizer.
#
#   scripts/gpu.sh DIR             tests, judge, suites and sanitize; reports and logs go to DIR
#   scripts/gpu.sh DIR STAGE       one of these stages, or one that is not run by default:
#     bench       timings of the memory-bound operators; products: of the products, beside cuBLAS. The GPU must be idle.
#                 OPS=LIST: those of these operators
#     invariance  how bits depend on the number of rows and the other axes; certificates: of the candidates `cuda`
#     sizes       the Hopper candidates in realistic sizes and for 1 to 300 rows
#     frameworks  kernels of PyTorch, Hugging Face and Triton from docs/exec under both contracts, and with faults planted
#     suites      every operator's cases of the suites smoke, ci and large; OPS=LIST: those of these operators
#     sanitize    every kernel under compute-sanitizer; SANITIZE=REGEX selects runs such as linear_logp-racecheck
#     soak        the products and attention in random sizes, for about five minutes
#     ranks       operators over ranks on all GPUs of the machine, at least two; scaling: their times
#
# The contents of DIR are not committed; the repository keeps summaries. `scripts/results.py summarize` merges DIR into
# tests/gpu/results/<device>.json. A summary can't distinguish the files of a folder, so DIR may only hold results of
# one kind of device and one state of the kernels, recorded in DIR/device.txt and DIR/kernels.json. Reports above one
# megabyte are compressed.
#
# A FAIL is a result: the report and the table record it, and the script goes on. The exit status is 1 when a result is
# missing: a command ended with 2 (bad question), 3 (nothing checked or, but for sanitize, a case declined), 4 (crash or
# time limit) or 5 (no device, no sanitizer), ran out of time, or left no report.
set -euo pipefail

readonly stage=${2:-all}
if [[ $# -lt 1 || $# -gt 2 || ! $stage =~ ^(all|tests|judge|suites|sanitize|bench|products|invariance|certificates|sizes|frameworks|soak|ranks|scaling)$ ]]; then
  echo "usage: scripts/gpu.sh DIR [tests|judge|suites|sanitize|bench|products|invariance|certificates|sizes|frameworks|soak|ranks|scaling]" >&2
  exit 2
fi
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for op in ${OPS:+${OPS//,/ }}; do
  [[ -d kernels/$op ]] && continue
  echo "gpu.sh: OPS: no operator '$op'; name folders of kernels/, with commas between them" >&2
  exit 2
done
readonly out tool=build/cuda/check_operator
readonly rows=$out/rows  # one file per table line, since checks run in parallel; .trouble exists after any failure
rm -rf "$rows" && mkdir "$rows"

# row NAME RESULT SECONDS FILE
row() { printf '%-34s %-26s %5ss  %s\n' "$1" "$2" "$3" "$4" >>"$rows/$1"; }
trouble() { touch "$rows/.trouble"; }

meaning() {
  case $1 in
    0) echo "PASS" ;;
    1) echo "FAIL" ;;
    2) echo "2: bad question" ;;
    3) echo "3: declined cases, or nothing checked" ;;
    4) echo "4: crash or time limit" ;;
    5) echo "5: environment" ;;
    124 | 137) echo "$1: out of time" ;;
    *) echo "$1: unexpected exit" ;;
  esac
}

# judge NAME LIMIT_S ARGUMENTS...: runs the tool once, with a JSON report
judge() {
  local name=$1 limit=$2 rc=0 start=$SECONDS
  shift 2
  local report=$out/report-$name.json result
  rm -f "$report"
  echo "== $name: check_operator $*"
  timeout --kill-after=10 "$limit" "$tool" "$@" --device cuda --json "$report" >"$out/$name.log" 2>&1 || rc=$?
  result=$(meaning "$rc")
  ((rc <= 1)) || trouble
  if [[ ! -s $report ]]; then
    result+=", no report"
    trouble
  fi
  ((rc == 0)) || tail -n 15 "$out/$name.log"
  row "$name" "$result" $((SECONDS - start)) "report-$name.json"
}

is_selected() { [[ -z ${OPS:-} || ,$OPS, == *,$1,* ]]; }

# forget OP...: removes the timings of operators, before the first bench of each
forget() {
  local op
  for op; do ! is_selected "$op" || rm -f "$out/bench-$op.jsonl"; done
}

# bench OP CANDIDATES LIMIT_S ARGUMENTS...: timings of one operator, unless OPS leaves it out; further calls append to the
# same file
bench() {
  local op=$1 candidates=$2 limit=$3 rc=0 start=$SECONDS
  shift 3
  is_selected "$op" || return 0
  local records=$out/bench-$op.jsonl more=$out/bench.part
  echo "== bench $op: $*"
  timeout --kill-after=10 "$limit" "$tool" bench --op "$op" --candidate "$candidates" --device cuda --dtype bf16 "$@" \
    --json "$more" 2>&1 | tee -a "$out/bench.log" || rc=$?
  cat "$more" >>"$records" || trouble
  rm -f "$more"
  ((rc == 0)) || trouble
  row "bench-$op" "$(meaning "$rc"), $(wc -l <"$records") records" $((SECONDS - start)) "bench-$op.jsonl"
}

find_sanitizer() {
  local cuda
  cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
  command -v compute-sanitizer ||
    find "$cuda/bin" "$cuda/compute-sanitizer" -maxdepth 1 -name compute-sanitizer 2>/dev/null | head -n 1
}

# sanitize TOOL NAME ARGUMENTS...: candidates run in child processes, hence --target-processes all. Leaves the log and
# the exit status for sanitizer_row.
sanitize() {
  local check=$1 name=$2-$1 rc=0
  shift 2
  # Tells whose log it is, even if the run ends before its first check.
  echo "check_operator $*" >"$out/sanitizer-$name.log"
  timeout --kill-after=10 520 "$sanitizer" --tool "$check" --target-processes all --error-exitcode 86 \
    "$tool" "$@" --device cuda >>"$out/sanitizer-$name.log" 2>&1 || rc=$?
  echo "$rc" >"$out/sanitizer-$name.status"
}

# sanitizer_row TOOL NAME
sanitizer_row() {
  local name=$2-$1 rc checks result
  local log=$out/sanitizer-$name.log
  rc=$(cat "$out/sanitizer-$name.status")
  rm -f "$out/sanitizer-$name.status"
  # Without a summary the sanitizer never saw the process that launched the kernels. racecheck words its summary
  # differently.
  if ! grep -Eq '(ERROR|RACECHECK) SUMMARY: ' "$log"; then
    result="no summary, exit $rc"
    trouble
  elif [[ $rc -eq 86 ]] || grep -Eq 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$log"; then
    result="ERRORS FOUND"
    trouble
    grep -m 15 -E '^=========' "$log"
  else
    checks=$(grep -cE '^\[ +(OK|FAILED) +\] [a-z0-9_]+/' "$log" || true)
    result="clean, verdict $(meaning "$rc"), $checks checks"
    # These candidates decline some cases of the suite, which ends with 3.
    ((rc <= 1 || (rc == 3 && checks > 0))) || trouble
  fi
  row "sanitizer-$name" "$result" - "$(basename "$log")"
}

# --- build -------------------------------------------------------------------------------------------------------------
{
  nvidia-smi --query-gpu=index,name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv || true
  nvcc --version || true
} >"$out/environment.txt" 2>&1
export NCCL_NVLS_ENABLE=0  # no NVLink multicast
gpus=$(nvidia-smi --list-gpus | wc -l)

# only FILE WHAT TEXT: writes TEXT to DIR/FILE, or ends the script if the file already holds another text
only() {
  if [[ -e $out/$1 && $(<"$out/$1") != "$3" ]]; then
    echo "gpu.sh: $out/$1: the folder holds results of $2; name another folder, or remove that one" >&2
    exit 2
  fi
  echo "$3" >"$out/$1"
}
# Stages that use several GPUs have results for that number; the others use one GPU of any machine.
device=$(nvidia-smi --id=0 --query-gpu=name --format=csv,noheader | sed -E 's/^NVIDIA //; s/[^A-Za-z0-9]+/-/g; s/.*/\L&/')
[[ ! $stage =~ ^(ranks|scaling)$ ]] || ((gpus == 1)) || device+=-x$gpus
kernels=$(scripts/results.py digests)  # before the build, so that the hashed sources are the compiled ones
readonly gpus device kernels
only device.txt "another device or number of GPUs" "$device"
only kernels.json "other kernels" "$kernels"

cmake --preset cuda
cmake --build --preset cuda --parallel "$(nproc)"

# What only a GPU can get wrong, through the whole program: runs the tests with a label.
run_labelled() {
  local rc=0 start=$SECONDS log=$1-tests.log
  timeout --kill-after=10 300 ctest --preset cuda -L "^$1\$" >"$out/$log" 2>&1 || rc=$?
  if ((rc != 0)); then
    trouble
    tail -n 40 "$out/$log"
  fi
  row "$1-tests" "$(meaning "$rc"), $(grep -c ' Passed ' "$out/$log" || true) passed" $((SECONDS - start)) "$log"
}
run_tests() { run_labelled gpu; }

run_judge() {
  judge logp 600 --op logp --candidate cuda --dtype bf16 --batch 8 --seq 512 --vocab 151936 --check-grad
  judge linear_logp 600 --op linear_logp --candidate cuda --dtype bf16 --batch 4 --seq 256 --hidden 4096 --vocab 128256 --check-grad
  judge matmul 600 --op matmul --candidate cublas,cuda --dtype bf16 --batch 1 --seq 4096 --k-dim 4096 --n-dim 4096 --check-grad
  judge matmul-64x14336x4096 600 --op matmul --candidate cublas,cuda --dtype bf16 --batch 1 --seq 64 --k-dim 14336 --n-dim 4096 --check-grad
  # Edges of warps, vectors, tiles and blocks that the suites do not cover.
  judge logp-edges 300 --op logp --candidate cuda --dtype fp32,fp16,bf16 --batch 2 --seq 1,5 --check-grad --vocab 2,255,256,1024,1025,4095,8192,8193
  judge linear_logp-edges 300 --op linear_logp --candidate cuda --dtype fp32,fp16,bf16 --batch 1 --seq 1,129 --hidden 40,513 \
    --vocab 257,513 --check-grad
  # More than one block of rows (1024) and of columns (16384).
  judge linear_logp-blocks 300 --op linear_logp --candidate cuda --dtype bf16 --batch 1 --seq 1030 --hidden 24 \
    --vocab 16384,17001 --with bias --check-grad
}

run_suites() {
  # Every operator, forward and backward, in every dtype; in parallel, since most of the work is on the host.
  local -r ops=${OPS:+--op=$OPS}
  judge smoke 500 --suite smoke --candidate all $ops &
  judge ci 500 --suite ci --candidate all $ops &
  # It rounds P and dS to 16 bits, which the default contract does not allow.
  local rounding="" op
  for op in attention varlen_attention paged_attention; do
    ! is_selected "$op" || rounding+=,$op
  done
  if [[ -n $rounding ]]; then
    local -r framework=(--op "${rounding#,}" --candidate cuda-sm90 --contract contracts/framework.json)
    judge smoke-framework 500 --suite smoke "${framework[@]}" &
    judge ci-framework 500 --suite ci "${framework[@]}" &
  fi
  [[ -z $ops ]] || { wait; return; }
  judge large 300 --suite large --op logp,ratio_kl,grpo_loss,lm_head --candidate cuda --dtype bf16 --filter '*bf16-[18]x1[47]*' &
  judge large-rows 300 --suite large --op rms_norm,silu,swiglu,gated_rms_norm,quant_fp8_block,embedding,entropy --candidate cuda \
    --check accuracy &
  judge large-linear_logp 120 --suite large --op linear_logp --candidate cuda --dtype bf16 --pass forward
  wait
}

run_sanitize() {
  sanitizer=$(find_sanitizer || true)
  if [[ -z $sanitizer ]]; then
    row sanitizer "5: no compute-sanitizer" - -
    trouble
    return
  fi
  # Control: a kernel that writes to an illegal address must be reported; otherwise the sanitizer does not see the
  # workers.
  timeout --kill-after=10 120 "$sanitizer" --tool memcheck --target-processes all --error-exitcode 86 \
    "$tool" --op matmul --device cuda --batch 1 --seq 2 --k-dim 4 --n-dim 4 --candidate illegal_address \
    --plugin build/cuda/tests/plugins/gpu_faults.so >"$out/sanitizer-control.log" 2>&1 || true
  local seen="illegal write reported"
  grep -q 'Invalid __global__ write' "$out/sanitizer-control.log" || { seen="BLIND: illegal write not seen" && trouble; }
  row sanitizer-control "$seen" 0 sanitizer-control.log
  # One process per operator. Kernels of libraries are not checked.
  local -A groups=([products-sm90]="cuda-sm90 matmul,det_gemm,lm_head" [linear_logp-sm90]="cuda-sm90 linear_logp"
    [linear_policy_loss-sm90]="cuda-sm90 linear_policy_loss"
    [attention-sm90]="cuda-sm90 attention" [varlen_attention-sm90]="cuda-sm90 varlen_attention"
    [paged_attention-sm90]="cuda-sm90 paged_attention" [grouped_gemm-sm90]="cuda-sm90 grouped_gemm,masked_grouped_gemm"
    [fp8-sm90]="cuda-sm90 fp8_block_gemm,grouped_fp8_block_gemm,masked_grouped_fp8_block_gemm"
    [held_rows]="cuda logp,ratio_kl,grpo_loss")
  local check group candidates ops filter dtypes op
  local -a cases
  for op in kernels/*/cuda.cu; do
    op=$(basename "$(dirname "$op")")
    groups[$op]="cuda $op"
  done
  for check in racecheck memcheck initcheck synccheck; do
    for group in "${!groups[@]}"; do
      [[ $group-$check =~ ${SANITIZE:-} ]] || continue
      read -r candidates ops <<<"${groups[$group]}"
      filter='*'
      # racecheck takes minutes for 65537 or 70000 small batches, experts or rows, which are the first size of a case's name or
      # the second one.
      case $check-$group in
        racecheck-*attention*) filter='*[26]-[!67]*' ;;
        racecheck-grouped_gemm*) filter='*[26]-?[!5]*' ;;
        racecheck-linear_*-sm90) ;;
        racecheck-linear_*) filter='*[26]-?x[!6]*' ;;
      esac
      cases=(--suite smoke --filter "$filter")
      # In fp32 this candidate is the portable kernel, which has a group of its own.
      dtypes=fp32,bf16
      [[ $group != *attention-sm90 ]] || dtypes=bf16
      # Rows that clusters hold are longer than those of suite smoke.
      [[ $group != held_rows ]] || cases=(--batch 2 --seq 2 --vocab 50257 --check-grad)
      while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
      sanitize "$check" "$group" --op "$ops" --candidate "$candidates" --dtype "$dtypes" --check memory "${cases[@]}" &
    done
  done
  wait
  for check in "$out"/sanitizer-*.status; do
    check=$(basename "$check" .status) && check=${check#sanitizer-}
    sanitizer_row "${check##*-}" "${check%-*}"
  done
}

# rows, columns of the first matrix, columns of the second
readonly product_sizes="4096,4096,4096 4096,4096,6144 4096,4096,24576 4096,12288,4096 8192,8192,8192 1024,4096,12288 2048,4096,151936"
# rows, hidden, vocab
readonly logp_sizes="4096,4096,128256 4096,2048,131072 1024,4096,128256 8192,4096,151936"

run_bench() {
  forget logp ratio_kl grpo_loss rms_norm add_rms_norm gated_rms_norm qk_norm_rope silu swiglu embedding rope
  # 50257 columns: rows begin at any even address.
  bench logp cuda 300 --check-grad --batch 8 --seq 512 --vocab 128256,50257
  bench logp cuda 300 --check-grad --batch 16 --seq 512 --vocab 151936
  bench ratio_kl cuda 300 --check-grad --batch 8 --seq 512 --vocab 128256,50257
  bench grpo_loss cuda 300 --check-grad --batch 8 --seq 512 --vocab 128256,151936,50257 --beta 0.04
  bench rms_norm cuda 300 --check-grad --batch 1 --seq 8192 --hidden 4096,8192
  bench add_rms_norm cuda 300 --check-grad --batch 1 --seq 8192 --hidden 4096,8192
  bench gated_rms_norm cuda 300 --check-grad --batch 1 --seq 8192 --hidden 4096
  bench qk_norm_rope cuda 300 --check-grad --tokens 8192 --q-heads 32 --kv-heads 8 --head-dim 128
  bench silu cuda 300 --check-grad --batch 1 --seq 8192 --hidden 12288
  bench swiglu cuda 300 --check-grad --batch 1 --seq 8192 --hidden 12288
  bench embedding cuda 300 --check-grad --batch 1 --seq 8192 --hidden 4096 --vocab 151936
  # One id for all tokens, then few ids.
  bench embedding cuda 300 --check-grad --batch 1 --seq 8192 --hidden 4096 --vocab 1,64
  bench rope cuda 300 --check-grad --batch 2 --heads 32 --seq 4096 --head-dim 128
}

run_products() {
  forget det_gemm grouped_gemm fp8_block_gemm lm_head linear_logp linear_policy_loss attention varlen_attention paged_attention
  local sizes m k n
  for sizes in $product_sizes; do
    IFS=, read -r m k n <<<"$sizes"
    bench det_gemm cublas,cuda-sm90 120 --batch 1 --seq "$m" --k-dim "$k" --n-dim "$n" --check-grad --baseline cublas
  done
  for sizes in 4096,4096 4096,12288 12288,4096 14336,4096; do
    IFS=, read -r k n <<<"$sizes"
    bench det_gemm cublas,cuda-sm90 120 --batch 1 --seq 1,8,64,128 --k-dim "$k" --n-dim "$n" --baseline cublas --timing burst
  done
  # Rows, experts, columns of a and of c. All rows have an expert; det_gemm multiplies as many rows by one matrix.
  local experts
  for sizes in 16384,8,4096,14336 16384,64,2048,1408; do
    IFS=, read -r m experts k n <<<"$sizes"
    bench grouped_gemm cuda-sm90 120 --rows "$m" --experts "$experts" --k-dim "$k" --n-dim "$n" --check-grad --ignored-every 0
    bench det_gemm cuda-sm90 120 --batch 1 --seq "$m" --k-dim "$k" --n-dim "$n" --check-grad
  done
  # The groups of the first one, each alone: five eighths of the rows are of one expert, the others of five.
  bench det_gemm cublas,cuda-sm90 120 --batch 1 --seq 1229,10240 --k-dim 4096 --n-dim 14336 --check-grad --baseline cublas
  # The product alone, for comparison with linear_logp. It ignores no row.
  for sizes in $logp_sizes; do
    IFS=, read -r m k n <<<"$sizes"
    bench lm_head cublas 120 --batch 1 --seq "$m" --hidden "$k" --vocab "$n" --check-grad
    bench linear_logp cuda-sm90 120 --batch 1 --seq "$m" --hidden "$k" --vocab "$n" --check-grad --ignored-every 0
  done
  local -r logits=(linear_logp cuda-sm90 120 --batch 1 --hidden 4096 --vocab 128256)
  bench "${logits[@]}" --seq 1,8,64,128 --ignored-every 0
  bench "${logits[@]}" --seq 4096 --check-grad --ignored-every 2 --ignored-run 512
  bench "${logits[@]}" --seq 4096 --pass backward --ignored-every 0 --with dlm_head_weight_carry
  # A quarter of the tokens is masked: 4096 count. The backward pass computes the losses, too.
  bench linear_policy_loss cuda-sm90 300 --batch 1 --seq 5461 --hidden 4096 --vocab 128256 --pass backward
  # Beside cuDNN, FlashAttention and cuBLASLt, where python3 has PyTorch.
  local -a beside=() beside_fp8=()
  if python3 -c 'import torch' 2>/dev/null; then
    beside=(--peer 'python3 docs/exec/torch_peers.py' --baseline cudnn)
    beside_fp8=("${beside[@]:0:2}" --baseline cublaslt)
  fi
  for sizes in 4096,7168,4096 4096,2048,7168 128,7168,4096; do
    IFS=, read -r m k n <<<"$sizes"
    bench fp8_block_gemm cuda-sm90 120 --batch 1 --seq "$m" --k-dim "$k" --n-dim "$n" "${beside_fp8[@]}"
  done
  # batch, query heads, key heads, queries and keys, head_dim, causal
  local b h kv s d causal
  for sizes in 1,32,8,4096,128,1 1,32,8,16384,128,1 4,32,8,4096,128,0 2,64,8,8192,64,1; do
    IFS=, read -r b h kv s d causal <<<"$sizes"
    # It rounds P and dS, which the default contract does not allow. The backward pass has o and lse, as in training.
    local -a attention=(attention cuda-sm90 300 --batch "$b" --q-heads "$h" --kv-heads "$kv" --q-seq "$s" --kv-seq "$s"
      --head-dim "$d" --causal "$causal" --contract contracts/framework.json)
    bench "${attention[@]}" "${beside[@]}" --pass forward
    bench "${attention[@]}" "${beside[@]}" --pass backward --with lse+o
  done
  # 20 sizes drawn at random, with head_dims of models.
  local pass
  for pass in forward 'backward --with lse+o'; do
    # shellcheck disable=SC2086  # two words
    bench attention cuda-sm90 580 --random-cases 20 --seed 23 --head-dim 64,80,96,128 --timing burst --contract contracts/framework.json \
      "${beside[@]}" --pass $pass
  done
  local -r packed=(cuda-sm90 200 --q-heads 32 --kv-heads 8 --head-dim 128 --contract contracts/framework.json)
  bench varlen_attention "${packed[@]}" --tokens-q 16384 --tokens-k 16384 --seqs 4 --pass forward
  # Fewer heads: the gold has all rows.
  bench varlen_attention "${packed[@]:0:2}" --q-heads 8 --kv-heads 2 "${packed[@]:6}" --tokens-q 8192 --tokens-k 8192 --seqs 4 \
    --pass backward --with lse+o
  # Decoding: at most 8192 keys in each of 64 sequences.
  bench paged_attention "${packed[@]}" --tokens-q 64 --seqs 64 --pages 32768 --page-size 16 --max-pages 512
}

run_sizes() {
  local sizes m k n mode
  local -r once=(--dtype bf16 --batch 1 --check accuracy,determinism)
  judge det_gemm-rows 300 --op det_gemm --candidate cuda,cuda-sm90 --dtype bf16 --batch 1 --seq 1:300:1 --k-dim 131 --n-dim 127 \
    --check-grad --check accuracy &
  judge linear_logp-rows 500 --op linear_logp --candidate cuda-sm90 --dtype bf16 --batch 1 --seq 1:300:1 --hidden 136 \
    --vocab 1031 --check-grad --check accuracy,invariance,determinism &
  # Several blocks of columns, whose exponentials are kept in the memory of the fp32 dlm_head_weight.
  local -r carry=(--op linear_logp --candidate cuda-sm90 --dtype bf16 --batch 1 --seq 4096 --hidden 1024 --vocab 40000
    --pass backward --with dlm_head_weight_carry --check accuracy,invariance,determinism)
  judge linear_logp-carry 300 "${carry[@]}" --ignored-every 0 &
  judge linear_logp-carry-ignored 300 "${carry[@]}" --ignored-every 2 --ignored-run 512 &
  judge det_gemm-few-rows 300 --op det_gemm --candidate cuda-sm90 "${once[@]}" --seq 1,8,64,128 --k-dim 4096,12288,14336 --n-dim 4096
  for sizes in $product_sizes; do
    IFS=, read -r m k n <<<"$sizes"
    judge "det_gemm-${sizes//,/x}" 300 --op det_gemm --candidate cuda-sm90 "${once[@]}" --seq "$m" --k-dim "$k" --n-dim "$n" --check-grad
  done
  for sizes in $logp_sizes; do
    IFS=, read -r m k n <<<"$sizes"
    judge "linear_logp-${sizes//,/x}" 300 --op linear_logp --candidate cuda-sm90 "${once[@]}" --seq "$m" --hidden "$k" --vocab "$n" --check-grad
    for mode in peaked wide; do
      judge "linear_logp-${sizes//,/x}-$mode" 300 --op linear_logp --candidate cuda-sm90 "${once[@]}" --seq "$m" --hidden "$k" \
        --vocab "$n" --input-mode "$mode" --pass forward
    done
  done
  wait
}

# framework NAME CONTRACT COMMAND OPS: like judge, but into DIR/frameworks-*.json, because its passes say nothing about the
# kernels of this tree. NAME is the candidate, with +FAULT where one is planted.
framework() {
  local name=frameworks-${1/+/-}-$2-$4
  while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
  { judge "$name" 300 --cases "$out/framework-sizes.json" --suite smoke --op "$4" --pass all --dtype bf16,fp16 --check accuracy \
      --contract "contracts/$2.json" --exec "python3 docs/exec/$3" --exec-name "$1" --candidate "$1" --threads 2
    [[ ! -s $out/report-$name.json ]] || mv "$out/report-$name.json" "$out/$name.json"; } &
}

run_frameworks() {
  local name fault op
  export TORCHINDUCTOR_COMPILE_THREADS=1  # as many processes run already as there are cores
  # The cases of suite smoke, and sizes of a model of 8 billion parameters; of linear_logp, whose gold runs for many
  # sets of recipes, 16 tokens and a quarter of the vocabulary.
  /usr/bin/python3 - cases >"$out/framework-sizes.json" <<'PYTHON'
import glob, json, sys
cases = [case for path in sorted(glob.glob(f"{sys.argv[1]}/*.json")) for case in json.load(open(path)).get("cases", ())
         if "smoke" in case["suites"]]
for op, dims in {"rms_norm": dict(batch=1, seq=8192, hidden=4096), "swiglu": dict(batch=1, seq=2048, hidden=14336),
                 "rope": dict(batch=1, heads=32, seq=4096, head_dim=128), "logp": dict(batch=1, seq=128, vocab=128256),
                 "linear_logp": dict(batch=1, seq=16, hidden=4096, vocab=32000),
                 "attention": dict(batch=1, q_heads=32, kv_heads=8, q_seq=768, kv_seq=768, head_dim=128)}.items():
    cases.append({"op": op, "dims": dims, "dtype": "bf16", "suites": ["smoke"]})
print(json.dumps({"format": "check_operator/cases-1", "cases": cases}))
PYTHON
  local -rA command=(
    [hf]='torch_frameworks.py hf' [compile]='torch_frameworks.py compile' [sdpa-flash]='torch_frameworks.py sdpa-flash'
    [sdpa-cudnn]='torch_frameworks.py sdpa-cudnn' [sdpa-math]='torch_frameworks.py sdpa-math' [triton]='triton_kernels.py'
    [rms_norm_triton]='rms_norm_triton.py')
  local -rA ops=(
    [hf]='linear_logp attention rope rms_norm swiglu logp' [compile]='rms_norm swiglu logp' [sdpa-flash]=attention
    [sdpa-cudnn]=attention [sdpa-math]=attention [triton]='attention swiglu logp' [rms_norm_triton]=rms_norm)
  for name in hf sdpa-cudnn sdpa-flash sdpa-math compile triton rms_norm_triton; do
    for op in ${ops[$name]}; do
      framework "$name" default "${command[$name]}" "$op"
      framework "$name" framework "${command[$name]}" "$op"
    done
  done
  for name in hf sdpa-flash sdpa-cudnn; do
    for fault in tail factor head rounding; do
      for op in ${ops[$name]}; do
        if [[ $fault == head && $op != attention || $fault == rounding && $name != hf ]]; then continue; fi
        framework "$name+$fault" framework "torch_faults.py $name $fault" "$op"
      done
    done
  done
  wait
}

run_soak() {
  judge soak-framework 400 --op attention,varlen_attention,paged_attention --candidate cuda-sm90 --dtype bf16,fp16 --check-grad \
    --head-dim 8,40,64,72,80,96,128 --random-cases 1000 --for 300 --seed 2026 --contract contracts/framework.json &
  judge soak 400 --op matmul,det_gemm,lm_head --candidate cuda-sm90 --dtype bf16,fp16 --check-grad --random-cases 10000 --for 300 \
    --seed 2026 --shuffle 2026
  wait
}

# certify OP LIMIT_S: a certificate of the candidate `cuda` in realistic sizes
certify() {
  local op=$1 limit=$2 rc=0 start=$SECONDS
  local file=$out/certificates/$op-cuda.json
  rm -f "$file"
  timeout --kill-after=10 "$limit" "$tool" certify --op "$op" --candidate cuda --device cuda --suite ci --dtype bf16 --out "$file" \
    >"$out/certificates/$op-cuda.log" 2>&1 || rc=$?
  ((rc <= 1)) || trouble
  ((rc == 0)) || tail -n 5 "$out/certificates/$op-cuda.log"
  row "certificate-$op" "$(meaning "$rc")" $((SECONDS - start)) "certificates/$op-cuda.json"
}

# bits NAME LIMIT_S ARGUMENTS...: like judge, but into DIR/NAME.json, because its passes say nothing about accuracy
bits() {
  judge "$@" --check invariance,determinism
  [[ ! -s $out/report-$1.json ]] || mv "$out/report-$1.json" "$out/$1.json"
}

run_invariance() {
  bits invariance 600 --suite invariance --candidate cublas,cublas-invariant,cuda,cuda-sm90
  local -r both=(--candidate cublas,cublas-invariant --dtype bf16 --check-grad --batch 4)
  bits invariance-products 300 --op matmul,det_gemm "${both[@]}" --seq 128 --k-dim 4096 --n-dim 1024
  bits invariance-lm_head 300 --op lm_head "${both[@]}" --seq 64 --hidden 2048 --vocab 32064
}

run_certificates() {
  local op ops
  ops=$(dirname kernels/*/cuda.cu | xargs basename -a | paste -sd,)
  bits invariance-ci 300 --suite ci --op "$ops" --candidate cuda  # for its running time in the table
  mkdir -p "$out/certificates"
  for op in ${ops//,/ }; do certify "$op" 300 & done
  wait
}

# By default mpirun binds each process to one core, but rank 0 computes the gold on many.
readonly mpirun=(mpirun --allow-run-as-root --bind-to none)

# processes NAME N LIMIT_S ARGUMENTS...: like judge, with one process per GPU
processes() {
  local name=$1 n=$2 limit=$3 rc=0 start=$SECONDS
  shift 3
  local report=$out/report-$name.json
  rm -f "$report"
  echo "== $name: $n processes, check_operator $*"
  timeout --kill-after=10 "$limit" "${mpirun[@]}" -np "$n" "$tool" "$@" --device cuda --json "$report" >"$out/$name.log" 2>&1 || rc=$?
  ((rc <= 1)) && [[ -s $report ]] || trouble
  ((rc == 0)) || tail -n 15 "$out/$name.log"
  row "$name" "$(meaning "$rc")" $((SECONDS - start)) "report-$name.json"
}

# lost SIGNAL ARGUMENTS...: runs two processes and sends rank 1 the signal while checks run. The row says whether the job
# ended in time with a report whose exit code is 4; mpirun itself exits with 137 where a process was killed.
lost() {
  local signal=$1 name=ranks-lost-$1 rc=0 start=$SECONDS
  shift
  local report=$out/$name.json pid=$out/$name.pid
  rm -f "$report"
  (sleep 15 && kill -s "$signal" "$(<"$pid")") &
  timeout --kill-after=10 120 "${mpirun[@]}" -np 2 bash -c '[[ $OMPI_COMM_WORLD_RANK != 1 ]] || echo $$ >"$0"; exec "$@"' "$pid" \
    "$tool" "$@" --timeout-s 60 --device cuda --json "$report" >"$out/$name.log" 2>&1 || rc=$?
  wait
  rm -f "$pid"
  [[ $signal != KILL || $rc != 137 ]] || rc=4
  ((rc == 4)) && grep -q '"exit_code": 4' "$report" || trouble
  row "$name" "$(meaning "$rc")" $((SECONDS - start)) "$name.json"
}

# Bounds of $1 parts of $2 columns; later parts are longer.
uneven() { seq 0 "$1" | awk -v n="$1" -v v="$2" '{ printf "%s%d", (NR > 1 ? "," : ""), v * ($1 / n) ^ 1.25 }'; }

run_ranks() {
  local n sizes m k v dtype signal order
  local -r here="*@[1-$gpus]*"  # cases with no more ranks than GPUs
  local -r collectives=(--op all_reduce,reduce_scatter,all_gather --candidate nccl,nccl-ordered)
  local -r portable=(--op tp_logp,tp_linear_logp --candidate nccl) hopper=(--op tp_linear_logp --candidate nccl-sm90 --dtype bf16)
  # In parallel, since most of the time goes into starting processes.
  for n in 0 1 2 3; do judge "ranks-smoke-$n" 500 "${portable[@]}" --suite smoke --filter "$here" --shard-index "$n" --total-shards 4 & done
  judge ranks-smoke-sm90 500 "${hopper[@]}" --suite smoke --filter "$here" &
  judge ranks-ci 500 "${portable[@]}" --suite ci --filter "$here" &
  judge ranks-ci-sm90 500 "${hopper[@]}" --suite ci --filter "$here" &
  judge ranks-collectives-smoke 300 "${collectives[@]}" --suite smoke --filter "$here" &
  for order in -1 0 1; do
    judge "ranks-collectives-order$order" 300 "${collectives[@]}" --check-grad --leaves "$gpus,8" --numel 65536,400003 \
      --world-size "$gpus" --order "$order" &
  done
  for ((n = 2; n <= gpus; n *= 2)); do
    # Sizes and dtypes that another implementation has published; the vocabulary is divided unevenly.
    for sizes in 128,256,4096,fp32 256,512,{4096,8192},bf16 512,1024,8192,bf16 4096,2048,32768,bf16 8192,4096,65536,bf16; do
      IFS=, read -r m k v dtype <<<"$sizes"
      judge "ranks-$n-$m-$k-$v" 300 --op tp_linear_logp --candidate nccl-sm90 --dtype "$dtype" --check-grad --batch 1 --seq "$m" \
        --hidden "$k" --vocab "$v" --with bias --shard-bounds "$(uneven "$n" "$v")" --check accuracy
    done &
  done
  ((gpus < 4)) || { run_labelled ranks & judge ranks-bounds 300 "${portable[@]}" --suite smoke --filter '*@0-3-7-12-16*' & }
  wait
  judge ranks-canonical 300 "${hopper[@]}" --check-grad --batch 2 --seq 96 --hidden 512 --vocab 8191 --world-size "$gpus" \
    --canonical-segments 8 --check accuracy,invariance,determinism
  for ((n = 1; n <= gpus; n *= 2)); do
    processes "ranks-processes-$n" "$n" 200 "${hopper[@]}" --check-grad --batch 2 --seq 64 --hidden 512 --vocab 4099
  done
  for signal in KILL STOP; do lost "$signal" "${hopper[@]}" --check-grad --random-cases 100 --for 60; done
}

run_scaling() {
  local op
  rm -f "$out/bench-tp_linear_logp.jsonl"
  bench tp_linear_logp nccl-sm90 300 --check-grad --batch 1 --seq 4096 --hidden 4096 --vocab 128256,151936 --ignored-every 0 \
    --world-size "$(seq -s, 1 "$gpus")"
  # A message of 64 MiB, of which each rank has one summand (or its part).
  rm -f "$out"/bench-{all_reduce,reduce_scatter,all_gather}.jsonl
  for op in all_reduce reduce_scatter all_gather; do
    bench "$op" nccl,nccl-ordered 120 --leaves "$gpus" --numel $((32 << 20)) --world-size "$gpus" --order -1 --baseline nccl
  done
}

if [[ $stage == all ]]; then
  run_tests
  run_judge
  run_suites
  run_sanitize
else
  "run_$stage"
fi
# Removes the path of DIR, which means nothing to readers elsewhere.
find "$out" -maxdepth 1 -name '*.json' -exec sed -i "/^ \"command\": /s#$out/##g" {} +
find "$out" -maxdepth 1 -name '*-tests.log' -exec sed -i '/^Test project /d' {} +
find "$out" -maxdepth 1 -name 'report-*.json' -size +1M -exec gzip -9nf {} +
cat "$rows"/* | tee "$out/table-$stage.txt"

summary=tests/gpu/results/$device.json
scripts/results.py summarize "$out" --into "$summary"
cp "$summary" "$out/$device.json"
echo "To keep these results: copy $out/$device.json to $summary of the repository, run scripts/results.py page, and commit both."
[[ ! -e $rows/.trouble ]]
