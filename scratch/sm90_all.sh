#!/usr/bin/env bash
# Hopper's attention in one go: bash scratch/sm90_all.sh STEP ...      in the repository root of the device machine, with COMMIT=... where there is no git. Seconds on an H100 with 16 cores (an H200 has them too), by
# estimate; the limit behind the slash is kept by the clock (an interrupt, 10 s later the end), so that a hang costs no more.
#   tests 100/170    GPU tests of this kernel and of every candidate, 12 processes (carry .gpu: pytest-xdist in .gpu/site; without it one process)
#   large 30/60      tensors beyond 2^31 elements, alone
#   new 35/100       scratch/sm90_new.py: tiles, halves and sections on the 16 cells, right first
#   regret 200/240   benchmarks/regret.py with this kernel (BUDGET=200): times of candidates; then, without a GPU: python benchmarks/regret.py --from sm90_regret.json --fit 100 (4 minutes of a core)
#   peers 15/60      unpacks .peers/*.tar.xz, and what came in two parts (report_peers.sh .peers fa3 fa4: fa3.tar.xz and fa4.tar.xz.0 with one call, fa4.tar.xz.1, 40 MiB, with the next; 64 MiB a call,
#                    10 of them the tree; what is unpacked stays in /tmp while the machine is warm, 30 s after a call)
#   warm 90/130      compiles FlexAttention and FA4 in 14 processes (WARM="first" for the table in bf16 alone: 40 s)
#   table_a 90/150   (1,32,8192,128), all masks, bf16 and fp16, all peers      table_b 80/150   (16,12,2048,64)      heavy 110/150   (1,16,32768,128)
#   dims 40/100      full and causal in head dims 64 to 256      small 80/140   (8,12,512,64), (1,12,128,64)      scattered 50/110   vertical-slash, 1 % of elements, packed or not
#   fuzz 75/110      2,000 cases of this kernel alone      memcheck 70/95   24 of them under compute-sanitizer (racecheck does not follow mbarriers)
#   sum              the table, ratios and goals of all that was measured; also at the end of every call with a bench in it
# A bench step goes on where it stopped: what is whole in /tmp/sm90/hopper.json is not run again (AGAIN=1: it is). WAYS=ours,FA3 limits the ways, K="and bf16" the cells.
# $OUT gets at most five files: sm90_hopper.json (all benches joined), sm90_regret.json, sm90_new.json, sm90_fuzz.json and sm90_log.txt. To go on on another machine: put them into scratch/earlier/.
# e.g.  tests new     |     peers regret     |     peers warm table_a table_b     |     heavy dims small scattered     |     fuzz memcheck large
set -u
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=/tmp/fa4_cache
kept=/tmp/sm90 site=/tmp/peers; mkdir -p "$OUT" "$STOF_CACHE_DIR" $kept $site
export PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/scratch:$PWD/.gpu/site:$site:$site/nvidia_cutlass_dsl/dsl_packages
commit=${COMMIT:-$(cat .gpu/commit 2> /dev/null || git rev-parse --short HEAD 2> /dev/null || echo unknown)}
for f in hopper regret new fuzz; do [ -e "scratch/earlier/sm90_$f.json" ] && [ ! -e "$kept/$f.json" ] && cp "scratch/earlier/sm90_$f.json" "$kept/$f.json"; done
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
keep() { for f in hopper regret new fuzz; do [ -e "$kept/$f.json" ] && cp "$kept/$f.json" "$OUT/sm90_$f.json"; done; cp $kept/log.txt "$OUT/sm90_log.txt" 2> /dev/null; }
# limit SECONDS COMMAND: its output goes to the log and, whole, to /tmp/sm90/last.txt
limit() { timeout -s INT -k 10 "$@" > $kept/last.txt 2>&1; local rc=$?; { echo "##### ${*:2}" | cut -c1-300; tail -c 300000 $kept/last.txt; } >> $kept/log.txt; [ $rc -ge 124 ] && echo "!!! cut off after $1 s (rc $rc)"; return $rc; }
told() { grep -E "^(FAILED|ERROR|E  )|passed|failed|skipped|Interrupt|no tests ran|INTERNALERROR> [A-Z]" $kept/last.txt | cut -c1-170 | sort | uniq -c | sort -rn | head -"${1:-14}"; }
xdist() { python3 -c "import xdist" 2> /dev/null && echo "-n 12 -p xdist"; }
pytests() { limit "$1" python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable "${@:2}"; told; }
# bench SECONDS WORDS ...: cells of bench_attention_hopper.py
bench() {
  limit "$1" python3 -m pytest benchmarks/bench_attention_hopper.py -q -rs -m gpu --require-gpu -p no:cacheprovider --benchmark-only --benchmark-quiet --benchmark-disable-gc --commit "$commit" \
    --budget $(($1 - 30)) --results $kept/hopper.json --benchmark-json=$kept/last.json ${WAYS:+--ways "$WAYS"} ${AGAIN:+--again} "${@:3}" -k "$2 ${K:-}"
  grep -E "^(FAILED|ERROR|E  )|passed|failed|no tests ran" $kept/last.txt | cut -c1-170 | tail -8
  grep -E "^SKIPPED" $kept/last.txt | grep -vE "alone|a dense mask|: masks|no kernel" | sed 's/^SKIPPED \[\([0-9]*\)\] [^ ]*: /  \1 skipped: /' | cut -c1-170 | sort | uniq -c | sort -rn | head -8
  benched=1
}
for step in "$@"; do
  at "$step"
  case $step in
    tests) pytests 170 $(xdist) tests/ops/test_attention_sm90_gpu.py tests/ops/test_attention_candidates.py tests/ops/test_attention_device_masks.py ;;
    large) pytests 60 tests/ops/test_large_tensors.py -k hopper ;;
    new) OUT=$kept limit 100 python3 scratch/sm90_new.py; mv $kept/sm90_new.json $kept/new.json 2> /dev/null; grep -vE "^ *$" $kept/last.txt | tail -60 | cut -c1-190 ;;
    regret) how=; python3 benchmarks/regret.py --help | grep -q -- --hopper && how=--hopper
      limit 240 python3 benchmarks/regret.py $how --out $kept/regret.json --budget "${BUDGET:-200}" --commit "$commit"; tail -22 $kept/last.txt | cut -c1-170 ;;
    peers) mkdir -p $site/parts; cp .peers/*.tar.xz.[01] $site/parts 2> /dev/null
      for a in $site/parts/*.tar.xz.0; do whole=${a%.0}; [ -e "$a" ] && [ -e "$whole.1" ] && cat "$whole.0" "$whole.1" > "$whole" && rm "$whole.0" "$whole.1"; done
      for a in .peers/*.tar.xz $site/parts/*.tar.xz; do [ -e "$a" ] && [ ! -e "$site/.$(basename "$a")" ] && timeout 60 tar -C $site -xJf "$a" && touch "$site/.$(basename "$a")"; done
      for m in flash_attn.cute flash_attn_interface cudnn.block_sparse_attention._interface; do timeout 60 python3 -c "import torch, $m; print('  $m', getattr($m, '__version__', 'is there'))" 2>&1 | tail -1 | cut -c1-150; done ;;
    warm) limit 130 python3 scratch/sm90_warm.py 14 115 ${WARM:-}; grep "^warm" $kept/last.txt | cut -c1-220 ;;
    table_a) bench 150 "table and 8192x128" ;;
    table_b) bench 150 "table and 2048x64" ;;
    heavy) bench 150 "table_heavy" --heavy ;;
    dims) bench 100 "dims" ;;
    small) bench 140 "small" ;;
    scattered) bench 110 "scattered" ;;
    fuzz) OUT=$kept limit 110 python3 -m tests.ops.fuzz_attention --no-others --cases 2000 --processes 14 --limit 80; mv $kept/fuzz_attention.json $kept/fuzz.json 2> /dev/null; tail -9 $kept/last.txt | cut -c1-200 ;;
    memcheck) OUT= limit 95 compute-sanitizer --tool memcheck --target-processes all python3 -m tests.ops.fuzz_attention --no-others --cases 24 --processes 4 --limit 60
      grep -E "SUMMARY|Invalid|cases|failures" $kept/last.txt | sort | uniq -c | tail -8 ;;
    sum) benched=1 ;;
    *) echo "no step named $step" ;;
  esac
  keep
done
[ -n "${benched:-}" ] && [ -e $kept/hopper.json ] && { at goals; python3 benchmarks/summary_hopper.py $kept/hopper.json | cut -c1-235; }
keep; at end; ls -l "$OUT" | tail -n +2 | awk '{print $5, $9}'
