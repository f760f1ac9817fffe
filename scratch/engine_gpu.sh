#!/usr/bin/env bash
# The engine on a GPU, in order of worth; seconds are those of an H100 with 16 cores. Run in the repository root: bash scratch/engine_gpu.sh
# What it writes lies in $OUT (or /tmp/engine_gpu). Steps can be picked: bash scratch/engine_gpu.sh tests first cells
set -u
export OUT=${OUT:-/tmp/engine_gpu} PYTHONPATH=$PWD STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} COMMIT=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}
mkdir -p "$OUT"; steps=${*:-tests graphs first ours peers search}
for step in $steps; do
  start=$(date +%s)
  case $step in
    # 90 s: recorded runs, streams, threads, memory, tuning, another device (T26, T29 with two GPUs)
    tests) timeout 200 python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu tests/runtime tests/engine tests/fusion tests/graph -x > "$OUT/tests.txt" 2>&1; tail -3 "$OUT/tests.txt" ;;
    # 40 s: what one launch a run is worth, packed against padded; random weights, so nothing is downloaded
    graphs) timeout 150 python3 scratch/ragged.py 2>&1 | tee "$OUT/graphs.txt" ;;
    # 60 s: first result from an empty cache, second process, kernels compiled by 100 lengths
    first) timeout 200 python3 benchmarks/engine_first.py --tune fast off --out "$OUT/first.jsonl" 2>&1 | tail -12 ;;
    # 60 s: ours alone and eager through the five anchors, wrong results and failures show here
    ours) timeout 240 python3 benchmarks/engine_grid.py --out "$OUT/ours.jsonl" --cells anchors --ways ours,eager --commit "$COMMIT" 2>&1 | tail -8 ;;
    # 90-150 s a cell: all peers through the anchors
    peers) timeout 560 python3 benchmarks/engine_grid.py --out "$OUT/grid.jsonl" --cells anchors --budget 400 --commit "$COMMIT" --table 2>&1 | tail -8 ;;
    # 60 s: the search against exhaustive, random, rules; ablations
    search) timeout 200 python3 -m pytest -q -p no:cacheprovider benchmarks/bench_search.py -m gpu -s -k table > "$OUT/search.txt" 2>&1; grep -v "^$" "$OUT/search.txt" | tail -30 ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s"
done
