#!/usr/bin/env bash
# The engine on a GPU, in order of worth; seconds are guesses for a Hopper with 16 cores. In the repository root of the device machine:
#   bash scratch/engine_gpu.sh tests ours          140 s: right? and where does the time of the five stacks go
#   bash scratch/engine_gpu.sh first graphs fold   180 s
#   CELLS="bert-base:1x128:full ..." bash scratch/engine_gpu.sh peers      90-150 s a cell; NEXT=4 instead: the next of the grid; BUDGET=400: none begins later
# What comes back lies in $OUT (or /tmp/engine_gpu). engine_grid_{card}.jsonl (engine_grid_h200.jsonl) is benchmarks/results' with new lines: put it there and call again.
# Wants numpy, cupy, scipy, ml_dtypes, pytest; torch for ours and peers. Carry .gpu for pytest-xdist (tests take 30 s with it, 100 s without).
set -u
export OUT=${OUT:-/tmp/engine_gpu} PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/.gpu/site${PYTHONPATH:+:$PYTHONPATH} STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton} PYTHONUNBUFFERED=1
COMMIT=${COMMIT:-$(cat .gpu/commit 2>/dev/null || git rev-parse --short HEAD 2>/dev/null)} CARD=${CARD:-$(python3 benchmarks/cards.py)}
mkdir -p "$OUT"; steps=${*:-tests ours first}
for step in $steps; do
  start=$(date +%s)
  case $step in
    # recorded runs, streams, threads, memory, tuning, masks, another device (T26; T29 with two GPUs). Tests of memory alone, because others hold some.
    tests) T="timeout 150 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu"
      timeout 100 python3 scratch/compile_specs.py scratch/engine_specs.pkl.xz 2>&1 | tail -4  # on all cores
      python3 -c "import xdist" 2>/dev/null && N="-n 8 -p xdist" || N=
      $T $N tests/engine tests/fusion tests/graph tests/runtime/test_recorder.py > "$OUT/tests.txt" 2>&1
      $T tests/runtime/test_program_gpu.py > "$OUT/runtime.txt" 2>&1
      grep -hE "^[0-9]+ (passed|failed)|passed|failed" "$OUT/tests.txt" "$OUT/runtime.txt" | tail -2; grep -hE "^(FAILED|ERROR|E  )" "$OUT/tests.txt" "$OUT/runtime.txt" | cut -c1-170 | head -30 ;;
    # the five stacks: ours, and eager for the error's floor; each kernel's time beside the predicted one. TUNE=off|fast|full, WAYS=ours,eager,flex
    # HOW=--fold: norms folded where that should pay
    ours) timeout 280 python3 benchmarks/engine_grid.py --out "$OUT/ours.jsonl" --cells ${CELLS:-anchors} --ways "${WAYS:-ours,eager}" --tune "${TUNE:-fast}" ${HOW:-} --profile --commit "$COMMIT" 2>&1 \
        | tee -a "$OUT/ours.txt" | grep -vE "Warning|^ *warn|profiler" ;;
    # from an empty cache, and in a second process; then what 100 lengths compile (0 is right)
    first) timeout 200 python3 benchmarks/engine_first.py --cells ${CELLS:-bert-base:8x512:longformer gpt2:16x2048:full} --tune ${TUNE:-fast} --out "$OUT/first.jsonl" 2>&1 | tail -8 ;;
    # what one launch a run is worth, packed against padded; random weights
    graphs) timeout 150 python3 scratch/ragged.py 2>&1 | tee "$OUT/graphs.txt" ;;
    # norms folded into products: right, and faster?
    fold) timeout 150 python3 scratch/fold_norms.py "$OUT/fold.json" 2>&1 | tail -40 ;;
    # ours and all peers, a cell after another, added to what there is
    peers) grid=engine_grid_$CARD.jsonl kept=/tmp/engine_kept; mkdir -p "$kept"
      [ -e "$OUT/$grid" ] || cp "$kept/$grid" "$OUT/" 2>/dev/null || cp "benchmarks/results/$grid" "$OUT/" 2>/dev/null
      if [ -n "${NEXT:-}" ]; then pick="--next $NEXT"; else pick="--cells ${CELLS:-anchors}"; fi
      timeout 570 python3 benchmarks/engine_grid.py --out "$OUT/$grid" $pick --ways "${WAYS:-ours,eager,flex,compiled}" --budget "${BUDGET:-400}" ${HOW:-} --commit "$COMMIT" --table 2>&1 | tee "$OUT/peers.txt" | tail -14
      cp "$OUT/$grid" "$kept/" ;;
    # the search against exhaustive, random and rules; ablations
    search) timeout 200 python3 -m pytest -q -p no:cacheprovider benchmarks/bench_search.py -m gpu -s -k table > "$OUT/search.txt" 2>&1; grep -v "^$" "$OUT/search.txt" | tail -30 ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s"
done
