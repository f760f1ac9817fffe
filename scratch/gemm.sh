#!/usr/bin/env bash
# The GEMM on a Hopper (H200), what is worth most first: bash scratch/gemm.sh first | right | time | compiled | sanitize | ncu ... Seconds, by estimate: first 240 (LIMIT=235, by the clock), right 150,
# time 260, compiled 120, sanitize 150 (TOOLS=memcheck: 90), ncu 40 (gemm_ncu.py). `first` says whether all is right (gemm_ladder.py, and tests of what never ran), and has plain, bias + GELU and LayerNorm at M = 16, 512, 4096, 32768;
# the others go on from there. A product of the ladder's `bad` is left out from then on.
# Each may be a device call of its own: kernels and results stay in /tmp while the machine is warm. Carry .gpu with wheels of scratch/vendor_bundle.sh in .gpu/vendor,
# or cuBLASLt is no candidate of ours. COMMIT=... where there is no git. To go on on another machine: put gemm*.json and gemm_times.tar into scratch/earlier/ (64 MiB travel); cells that are whole there are not run again.
set -u
parts=${*:-first right time compiled}
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton
mkdir -p "$OUT" "$STOF_CACHE_DIR"
site=/tmp/site; for w in .gpu/vendor/*.whl; do [ -e "$w" ] && [ ! -e $site/nvmath ] && for v in .gpu/vendor/*.whl; do python3 -m zipfile -e "$v" $site; done; done
export PYTHONPATH=$site:$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site
kept=/tmp/gemm_kept; mkdir -p $kept
for f in $kept/gemm*.json scratch/earlier/gemm*.json; do [ -e "$f" ] && [ ! -e "$OUT/$(basename "$f")" ] && cp "$f" "$OUT/"; done
[ -e scratch/earlier/gemm_times.tar ] && tar xkf scratch/earlier/gemm_times.tar -C "$STOF_CACHE_DIR" 2> /dev/null
at() { echo "=== $(($(date +%s) - start)) s: $*"; }
start=$(date +%s); commit=${COMMIT:-$(cat .gpu/commit 2> /dev/null || git rev-parse --short HEAD 2> /dev/null || echo unknown)}
has() { [[ " $parts " == *" $1 "* ]]; }
keep() { (cd "$STOF_CACHE_DIR" && find . -name 'gemm-*.json' | tar cf "$OUT/gemm_times.tar" -T - 2> /dev/null); cp "$OUT"/gemm*.json $kept/ 2> /dev/null; }
# bench SECONDS NAME ARGUMENTS: cells of bench_gemm.py into $OUT/gemm.json, which is written at the end of each, and a table of what is new.
bench() {
  local seconds=$(($1 > 5 ? $1 : 5)) name=$2; shift 2
  at "$name"
  timeout -s INT $((seconds + 25)) python3 scratch/gemm_bench.py benchmarks/bench_gemm.py -q -m gpu -p no:cacheprovider --commit "$commit" --budget "$seconds" \
    --benchmark-quiet --results "$OUT/gemm.json" --benchmark-json=/tmp/last.json "$@" > /tmp/bench.txt 2>&1
  grep -E "^(FAILED|ERROR|E  )|passed|failed|left out" /tmp/bench.txt | cut -c1-160 | tail -12
  [ -e /tmp/last.json ] && python3 benchmarks/summary_gemm.py /tmp/last.json | cut -c1-150; rm -f /tmp/last.json
  keep
}
# tests SECONDS FILES AND ARGUMENTS: an interrupt at the end of the time, so that pytest says what it had
tests() {
  local seconds=$1; shift
  at "tests: $*"
  timeout -s INT -k 5 "$seconds" python3 scratch/gemm_bench.py -q -p no:cacheprovider -m gpu --require-gpu "$@" > /tmp/tests.txt 2>&1
  grep -E "^(FAILED|ERROR|E  )|passed|failed|KeyboardInterrupt" /tmp/tests.txt | cut -c1-160 | tail -15
}
left() { echo $((${LIMIT:-235} - ($(date +%s) - start))); }
if has first; then
  at compile; timeout 90 python3 scratch/gemm_compile.py ladder first_tests first 2>&1 | tail -5
  at ladder; grep -qs '"at": -1' "$OUT/gemm_ladder.json" || timeout 75 python3 scratch/gemm_ladder.py "$OUT/gemm_ladder.json" 60 2>&1 | tail -20 | cut -c1-200
  tests 25 tests/ops/test_gemm_gemm.py tests/ops/test_gemm_fold.py tests/ops/test_gemm_choice.py
  at "two products in one"; timeout 25 python3 scratch/gemm_pair.py 2>&1 | tail -22 | cut -c1-220
  four="(32768x or 4096x or -512x or -16x)"  # a budget spent leaves out the last of: M >= 512, then 16
  bench $(($(left) * 42 / 100)) "plain" -k "copy or (plain and $four)"
  bench $(($(left) * 60 / 100)) "bias + GELU" -k "bias_gelu and not compiled and $four"
  bench $(($(left) - 8)) "residual + LayerNorm" -k "layer_norm and not compiled and $four"
fi
if has right; then
  at compile; timeout 120 python3 scratch/gemm_compile.py ladder right_tests grid 2>&1 | tail -5
  setsid timeout 170 python3 scratch/gemm_warm.py 5 > /tmp/warm.txt 2>&1 & warm=$!
  at ladder; grep -qs '"at": -1' "$OUT/gemm_ladder.json" || timeout 130 python3 scratch/gemm_ladder.py "$OUT/gemm_ladder.json" 2>&1 | tail -20 | cut -c1-200
  tests 100 tests/ops/test_gemm_stages.py tests/ops/test_gemm_norm.py tests/ops/test_gemm_vendor.py tests/ops/test_gemm_fold.py tests/ops/test_gemm_choice.py
  at "end of warming"; kill -- -$warm 2> /dev/null; wait $warm 2> /dev/null; tail -2 /tmp/warm.txt; sleep 1
fi
if has time; then
  at compile; timeout 100 python3 scratch/gemm_compile.py grid 2>&1 | tail -3  # what is there takes no time
  many="512x or 4096x or 8192x or 32768x"
  bench 80 "plain, M >= 512 first" -k "copy or plain"
  bench 45 "bias + GELU" -k "bias_gelu and not compiled and ($many)"
  bench 25 "residual + LayerNorm" -k "layer_norm and not compiled and ($many)"
  bench 40 "LayerNorm folded" -k "fold and not compiled and ($many)"
  bench 35 "SwiGLU" -k "swiglu and not compiled and ($many)"
  [ -e "$OUT/gemm.json" ] && at regret && python3 benchmarks/gemm_regret.py "$OUT/gemm.json" --worst 8 2>&1 | tail -24 | cut -c1-220
fi
if has compiled; then
  bench 40 "torch.compile: bias + GELU, M = 32768, K <= 1024" --heavy -k "compiled and bias_gelu and 32768x and (x768- or x1024- or x576-)"
  bench 50 "torch.compile: the others of BERT, M = 32768" --heavy -k "compiled and 32768x and (layer_norm or fold or swiglu) and (x768- or 768x3072-)"
  bench ${REST:-30} "torch.compile: fewer rows" --heavy -k "compiled and (4096x or -512x) and (x768- or 768x3072-)"
fi
# Waits of the ladder are bounded by the clock, so it is tests that run here. racecheck does not follow mbarriers: of Hopper's kernels only memcheck says anything.
if has sanitize; then
  at compile; timeout 60 python3 scratch/gemm_compile.py sanitize_tests 2>&1 | tail -3
  for tool in ${TOOLS:-memcheck racecheck}; do
    at $tool; some=(tests/ops/test_gemm_gemm.py tests/ops/test_gemm_few_rows.py)
    [ $tool = memcheck ] && some+=(tests/ops/test_gemm_sm90.py -k "sm90 and epilogues and (128x256_c2 or 128x192_c2_pingpong or joined4 or swapped) or gemm_gemm or few_rows")
    timeout 75 compute-sanitizer --tool $tool python3 scratch/gemm_bench.py -q -x -p no:cacheprovider -m gpu "${some[@]}" > "$OUT/gemm_$tool.txt" 2>&1
    grep -E "SUMMARY|Invalid|Race reported|passed|failed" "$OUT/gemm_$tool.txt" | sort | uniq -c | tail -8
  done
fi
if has ncu; then at ncu; timeout 170 python3 scratch/gemm_ncu.py 2>&1 | cut -c1-240; fi
[ -e "$OUT/gemm.json" ] && { at goals; python3 benchmarks/summary_gemm.py "$OUT/gemm.json" | tail -30 | cut -c1-170; }
keep; ls -l "$OUT"
