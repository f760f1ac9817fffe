#!/usr/bin/env bash
# Fig. 11, the search and ragged batches on several GPUs of a host, a process each; again: goes on. In the repository root of the device machine:
#   GPUS="0 1 2 3" BUDGET=540 bash scratch/stacks_gpu.sh stacks          cells that $COMMIT has not measured; about 3650 GPU seconds for all 61 (950 on four)
#   bash scratch/stacks_gpu.sh rest                                      ragged (70 s), search (90 s), first results of stacks (100 s), on the first three GPUs beside each other
# ARGS: more of pytest's, e.g. "-k 16x2048" or "--ways ours,eager". Results come back as $OUT/*_h200.json; what an earlier call left is in /tmp/stacks_kept.
set -u
export OUT=${OUT:-/tmp/stacks} PYTHONPATH=$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH} STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof} OPENBLAS_NUM_THREADS=4
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/inductor} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton}
COMMIT=${COMMIT:-$(cat .gpu/commit 2>/dev/null || git rev-parse --short HEAD)} CARD=${CARD:-$(python3 benchmarks/cards.py)} BUDGET=${BUDGET:-540} GPUS=${GPUS:-0 1 2 3}
kept=/tmp/stacks_kept; mkdir -p "$OUT" "$kept"
bench() { # bench GPU NAME [pytest's arguments]
  local gpu=$1 name=$2 file="$OUT/$2_$CARD.json"; shift 2
  CUDA_VISIBLE_DEVICES=$gpu timeout -s INT $((BUDGET + 45)) python3 -m pytest "benchmarks/bench_$name.py" -m gpu --require-gpu --benchmark-only --benchmark-quiet -q -rs -p no:cacheprovider \
    --budget "$BUDGET" --results "$file" --commit "$COMMIT" --older "$@" > "$OUT/$name.$gpu.txt" 2>&1
  grep -hE "^(E  |FAILED|ERROR)|passed|failed|took the GPU" "$OUT/$name.$gpu.txt" | cut -c1-200 | sort | uniq -c | sort -rn | head -8
}
for name in paper_stacks ragged search paper_start; do file=${name}_$CARD.json
  [ -e "$OUT/$file" ] || cp "$kept/$file" "$OUT/" 2>/dev/null || cp "benchmarks/results/$file" "$OUT/" 2>/dev/null
done
for step in ${*:-stacks}; do
  case $step in
    stacks) for gpu in $GPUS; do bench "$gpu" paper_stacks ${ARGS:-} & done; wait; python3 benchmarks/summary_stacks.py "$OUT/paper_stacks_$CARD.json" | tail -70 ;;
    rest) set -- $GPUS; bench "$1" ragged & bench "${2:-$1}" search & bench "${3:-$1}" paper_start -k first_stack & wait
      for view in ragged search first-stack; do python3 -m stof_cupy report --results "$OUT" --view $view; done ;;
  esac
done
cp "$OUT"/*_"$CARD".json "$kept/"
