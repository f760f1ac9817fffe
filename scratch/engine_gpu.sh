#!/usr/bin/env bash
# The engine on a GPU, in order of worth; seconds are guesses for a Hopper with 16 cores. In the repository root of the device machine:
#   bash scratch/engine_gpu.sh tests ours          140 s: right? and where does the time of the five stacks go
#   bash scratch/engine_gpu.sh first graphs fold   180 s
#   CELLS="bert-base:1x128:full ..." bash scratch/engine_gpu.sh peers      90-150 s a cell; NEXT=4 instead: the next of the grid; BUDGET=400: none begins later
# What comes back lies in $OUT (or /tmp/engine_gpu). paper_stacks_{card}.json is benchmarks/results' with new cells: put it there and call again.
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
    # the five stacks: ours, and eager for the error's floor; each kernel's time beside the predicted one. TUNE=off|fast|full,     # HOW=--fold: norms folded where that should pay
    ours) timeout 280 python3 benchmarks/engine_profile.py --measure ${CELLS:+--cells $CELLS} --tune "${TUNE:-fast}" ${HOW:-} 2>&1 | tee -a "$OUT/ours.txt" | grep -vE "Warning|^ *warn|profiler" ;;
    # from an empty cache, and in a second process; then what 100 lengths compile (0 is right)
    # and what one launch a run is worth, packed against padded, the search: scratch/stacks_gpu.sh rest
    first|graphs|search) [ -n "${did:-}" ] || GPUS=${GPUS:-0} bash scratch/stacks_gpu.sh rest; did=1 ;;
    # norms folded into products: right, and faster?
    fold) timeout 150 python3 scratch/fold_norms.py "$OUT/fold.json" 2>&1 | tail -40 ;;
    # ours and all peers, a cell after another, added to what there is
    peers) GPUS=${GPUS:-0} BUDGET=${BUDGET:-400} bash scratch/stacks_gpu.sh stacks ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s"
done
