#!/usr/bin/env bash
# The GEMM on an H100, what is worth most first: bash scratch/gemm.sh [right] [time] [compiled]; all three about 570 s, of which right 170, time 260, compiled 120.
# Each may be a device call of its own (kernels stay in /tmp while the machine is warm). Carry .gpu with wheels of scratch/vendor_bundle.sh in .gpu/vendor
# (git show a819b43:scratch/vendor_bundle.sh), or cuBLASLt is no candidate of ours. COMMIT=... where there is no git.
# To go on from an earlier run: put its gemm*.json and gemm_times.tar into scratch/earlier/ (64 MiB travel); cells that are whole there are not run again.
set -u
parts=${*:-right time compiled}
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton
mkdir -p "$OUT" "$STOF_CACHE_DIR"
site=/tmp/site; for w in .gpu/vendor/*.whl; do [ -e "$w" ] && [ ! -e $site/nvmath ] && for v in .gpu/vendor/*.whl; do python3 -m zipfile -e "$v" $site; done; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch
if [ -d scratch/earlier ]; then
  for f in scratch/earlier/gemm*.json; do [ -e "$f" ] && [ ! -e "$OUT/$(basename "$f")" ] && cp "$f" "$OUT/"; done
  [ -e scratch/earlier/gemm_times.tar ] && tar xkf scratch/earlier/gemm_times.tar -C "$STOF_CACHE_DIR" 2> /dev/null
fi
at() { echo "=== $(($(date +%s) - start)) s: $*"; }
start=$(date +%s); commit=${COMMIT:-$(git rev-parse --short HEAD 2> /dev/null)}
has() { [[ " $parts " == *" $1 "* ]]; }
keep() { (cd "$STOF_CACHE_DIR" && find . -name 'gemm-*.json' | tar cf "$OUT/gemm_times.tar" -T - 2> /dev/null); }
# bench SECONDS NAME ARGUMENTS: cells of bench_gemm.py into $OUT/gemm.json, which is written at the end of each, and a table of what is new.
bench() {
  local seconds=$1 name=$2; shift 2
  at "$name"
  timeout $((seconds + 45)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$commit" --budget "$seconds" \
    --benchmark-quiet --results "$OUT/gemm.json" --benchmark-json=/tmp/last.json "$@" > /tmp/bench.txt 2>&1
  grep -E "^(FAILED|ERROR|E  )|passed|failed|left out" /tmp/bench.txt | cut -c1-160 | tail -12
  [ -e /tmp/last.json ] && python3 benchmarks/summary_gemm.py /tmp/last.json | cut -c1-150; rm -f /tmp/last.json
  keep
}
if has right; then
  at compile; timeout 120 python3 scratch/gemm_compile.py ladder grid tests 2>&1 | tail -5
  setsid timeout 170 python3 scratch/gemm_warm.py 5 > /tmp/warm.txt 2>&1 & warm=$!
  at ladder; [ -e scratch/earlier/gemm_ladder.json ] || timeout 130 python3 scratch/gemm_ladder.py "$OUT/gemm_ladder.json" 2>&1 | tail -20 | cut -c1-200
  at tests; timeout 100 python3 scratch/gemm_bench.py -q -p no:cacheprovider -m gpu --require-gpu tests/ops/test_gemm_fold.py tests/ops/test_gemm_vendor.py \
    tests/ops/test_gemm_choice.py tests/ops/test_gemm_stages.py 2>&1 | grep -E "^(FAILED|ERROR|E  )|passed|failed" | cut -c1-160 | tail -15
  at "end of warming"; kill -- -$warm 2> /dev/null; wait $warm 2> /dev/null; tail -2 /tmp/warm.txt; sleep 1
fi
if has time; then
  [ -e /tmp/stof/kernels ] || timeout 100 python3 scratch/gemm_compile.py grid 2>&1 | tail -3
  many="512x or 4096x or 8192x or 32768x"
  bench 80 "plain, M >= 512 first" -k "copy or plain"
  bench 45 "bias + GELU" -k "bias_gelu and not compiled and ($many)"
  bench 25 "residual + LayerNorm" -k "layer_norm and not compiled and ($many)"
  bench 40 "LayerNorm folded" -k "fold and not compiled and ($many)"
  bench 35 "SwiGLU" -k "swiglu and not compiled and ($many)"
  at regret; python3 benchmarks/gemm_regret.py "$OUT/gemm.json" --improve --worst 8 2>&1 | tail -24 | cut -c1-220
fi
if has compiled; then
  bench 40 "torch.compile: bias + GELU, M = 32768, K <= 1024" --heavy -k "compiled and bias_gelu and 32768x and (x768- or x1024- or x576-)"
  bench 50 "torch.compile: the others of BERT, M = 32768" --heavy -k "compiled and 32768x and (layer_norm or fold or swiglu) and (x768- or 768x3072-)"
  bench ${REST:-30} "torch.compile: fewer rows" --heavy -k "compiled and (4096x or -512x) and (x768- or 768x3072-)"
fi
at goals; python3 benchmarks/summary_gemm.py "$OUT/gemm.json" | tail -30 | cut -c1-170
ls -l "$OUT"
