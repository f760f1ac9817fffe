#!/usr/bin/env bash
# Issue 9 on a GPU, a step after another; every step goes on where the results file ends, so that what is left of a session can be spent on it.
#   LIMIT=560 bash scratch/report_gpu.sh grid_paper fusion ...      LIMIT: seconds of the whole call; a step begins with what is left of it
# In the repository root of the device machine. `bash scratch/report_peers.sh .gpu` here first packs the peers (20 minutes). scratch/ is ignored by git: each call carries
# scratch/report_gpu.sh scratch/report_warm.py scratch/engine_gpu.sh, too. scratch/PLAN_7_8_9.md says all of it.
#   call 1 carries .gpu/commit .gpu/fa3.tar.xz .gpu/flashinfer.tar.xz .gpu/fa4.tar.xz.0  (48 MiB):  bash scratch/report_gpu.sh peers                          40 s
#   call 2 carries .gpu/commit .gpu/fa4.tar.xz.1                                         (40 MiB):  LIMIT=580 bash scratch/report_gpu.sh peers check grid_paper  540 s
#   call 3 carries .gpu/commit:                                                  LIMIT=580 bash scratch/report_gpu.sh grid_artifact fusion tuning   480 s
#   call 4 likewise:                                                             LIMIT=580 bash scratch/report_gpu.sh ablation start scaling        510 s
#   what is left of any session:                                                 LIMIT=280 bash scratch/report_gpu.sh grid_paper grid_artifact anchors stacks
#   A fresh machine has to be given its peers again; without them cells are measured beside the peers that torch brings, and again once the others are there.
# What was unpacked stays in /tmp/peers while the machine is held. Results come back as $OUT/*_h200.json: put them to benchmarks/results and `make report`.
# Seconds, by estimate from runs of bench_attention on an H100 (a cell of six ways took 2 s, FlexAttention compiled before), a fresh machine, 16 cores:
#   peers 15 an archive | check 45 | grid_paper 400 = 75 compiling + 72 cells x 4 + 30 | grid_artifact 300 | fusion 110 | ablation 120 | tuning 60 | start 150
#   scaling 230 = 50 + 31 cells x 5 | anchors 420 = 60 + 72 cells x 5 | decoding 30 | masks 300 | grid_fast 200: all of the grid without FlexAttention
#   stacks: engine_gpu.sh, 120 a cell of Fig. 11 | tuning_full 430. The first of everything takes what importing torch does, 10 s a step.
# Files of $OUT: paper_attention_h200.json, paper_fusion_h200.json, paper_tuning_h200.json, paper_start_h200.json, paper_scaling_h200.json, attention_h200.json, log.txt
set -u
: "${OUT:=/tmp/report_gpu}"
export OUT PEERS=${PEERS:-/tmp/peers} PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1 STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof}
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=/tmp/fa4_cache
export PYTHONPATH=$PWD:$PWD/benchmarks:$PEERS/fa4:$PEERS/fa4/nvidia_cutlass_dsl/dsl_packages:$PEERS/fa3:$PEERS/flashinfer FLASHINFER_WORKSPACE_BASE=/tmp FLASHINFER_CUDA_ARCH_LIST=9.0a
[ -n "${FLASHINFER_JIT:-}" ] || export FLASHINFER_DISABLE_JIT=1 # its FA3 kernel, which takes 100 s to compile, is only for masks of whole blocks: 6 cells of scaling
PY=${PY:-python3} COMMIT=${COMMIT:-$(cat .gpu/commit 2>/dev/null || git rev-parse --short HEAD)} JOBS=${JOBS:-14}
CARD=${CARD:-$($PY benchmarks/cards.py)} # h200: results files are of one card
KEEP=${KEEP:-/tmp/report_kept}; mkdir -p "$OUT" "$KEEP"
deadline=$(($(date +%s) + ${LIMIT:-560}))
left() { echo $((deadline - $(date +%s))); }

start_from() { # what an earlier call on this machine left, or the repository has
  [ -e "$1" ] || cp "$KEEP/$(basename "$1")" "$1" 2>/dev/null || cp "benchmarks/results/$(basename "$1")" "$1" 2>/dev/null
}
bench() { # bench NAME SECONDS [pytest's arguments]: cells until SECONDS are over, or what is left but 25 s; the file is written as they come
  local name=$1 budget=$2 file="$OUT/$1_$CARD.json" most; shift 2
  start_from "$file"
  most=$(($(left) - 25)); [ "$budget" -lt "$most" ] || budget=$most
  if [ "$budget" -lt 15 ]; then echo "no time for $name $*"; return; fi
  for _ in 1 2 3; do # what takes the GPU's context with it is left out at the next try
    timeout $((budget + 25)) $PY -m pytest "benchmarks/bench_$name.py" -m gpu --require-gpu --benchmark-only --benchmark-disable-gc --benchmark-quiet -q -rs \
      -p no:cacheprovider --budget "$budget" --results "$file" --commit "$COMMIT" "$@" > "$OUT/last.$$.txt" 2>&1
    local status=$?
    cat "$OUT/last.$$.txt" >> "$OUT/log.txt"
    grep -hE "^(E  |FAILED|ERROR)|passed|failed|took the GPU" "$OUT/last.$$.txt" | cut -c1-200 | sort | uniq -c | sort -rn | head -12
    [ $status -eq 2 ] && grep -q "took the GPU" "$OUT/last.$$.txt" || break
    budget=$(($(left) - 25)); [ "$budget" -gt 15 ] || break
  done
}
warm() { # warm NAME SECONDS [-k PART]: FlexAttention's kernels of what the file has not
  local name=$1 limit=$2 most file="$OUT/$1_$CARD.json"; shift 2
  start_from "$file"
  most=$((($(left) - 40) / 2)); [ -n "${W:-}" ] && most=$(($(left) - 25)) # nothing but this is to be done
  [ "$limit" -lt "$most" ] || limit=$most
  [ "$limit" -gt 10 ] || return
  TORCHINDUCTOR_COMPILE_THREADS=1 timeout $((limit + 30)) $PY scratch/report_warm.py "$name" --jobs "$JOBS" --limit "$limit" --results "$file" "$@" 2>&1 | grep -vi warn | tail -8
}
for step in "$@"; do
  start=$(date +%s)
  case $step in
    peers) mkdir -p "$PEERS/parts"; cp .gpu/*.tar.xz.[01] "$PEERS/parts" 2>/dev/null
      for a in "$PEERS"/parts/*.0; do whole=${a%.0}; [ -e "$a" ] && [ -e "$whole.1" ] && [ ! -e "$whole" ] && cat "$a" "$whole.1" > "$whole"; done
      for a in .gpu/*.tar.xz "$PEERS"/parts/*.tar.xz; do [ -e "$a" ] || continue; d=$PEERS/$(basename "$a" .tar.xz); [ -e "$d.done" ] && continue; mkdir -p "$d"; tar -C "$d" -xJf "$a" && touch "$d.done" && echo "unpacked $d"; done
      for m in flash_attn_interface flash_attn.cute flashinfer; do $PY -c "import $m" 2>&1 | tail -1 | cut -c1-200; done ;;
    # one small cell of everyone: who runs, and why not
    check) rm -f "$OUT/check.json"; timeout 150 $PY -m pytest benchmarks/bench_paper_attention.py -m gpu --require-gpu --benchmark-only --benchmark-quiet -q -rs -p no:cacheprovider \
        --results "$OUT/check.json" --commit "$COMMIT" -k "1x256 and (paper-sliding or paper-causal)" 2>&1 | tail -25 | cut -c1-250
      $PY -c "import json,os; [print(b['extra_info']['way'], round(b['extra_info']['device_p50_ms'], 4), 'ms;', b['wall_s'], 's in all') for b in json.load(open(os.environ['OUT'] + '/check.json'))['benchmarks']]" ;;
    grid_paper) warm paper_attention 110 -k paper-; bench paper_attention 420 -k "paper-" ;;
    grid_artifact) warm paper_attention 90 -k artifact-; bench paper_attention 330 -k "artifact-" ;;
    grid_fast) bench paper_attention 200 --ways ours,SDPA-mask,FA2,cuDNN,FA3,FA4,FlashInfer ;;
    # a half of a step each, for several GPUs (lanes/): kernels of FlexAttention, then the cells named by K
    warm_paper) warm paper_attention 150 -k paper- ;;
    warm_artifact) warm paper_attention 110 -k artifact- ;;
    warm_scaling) warm paper_scaling 90 ;;
    warm_anchors) warm attention 120 ;;
    cells_paper | cells_artifact) bench paper_attention 600 -k "$K" ;;
    cells_scaling) bench paper_scaling 600 -k "$A" ;;
    cells_attention) bench attention 600 -k "$K" ;;
    fusion) bench paper_fusion 150 -k segment ;;
    ablation) bench paper_fusion 160 -k ablation ;;
    tuning) bench paper_tuning 90 ;;
    tuning_full) bench paper_tuning 400 --heavy ;;
    start) bench paper_start 200 ;;
    scaling) warm paper_scaling 80; bench paper_scaling 260 ;;
    anchors) warm attention 90; bench attention 420 -k "anchors or small or elements" ;;
    decoding) bench attention 60 -k decoding ;;
    masks) bench masks 300 ;;
    stacks) [ "$(left)" -gt 200 ] && NEXT=9 BUDGET=$(($(left) - 170)) bash scratch/engine_gpu.sh peers ;;
    *) echo "no step $step" ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s; $(left) s are left"
done
for f in "$OUT"/*_"$CARD".json; do [ -e "$f" ] || continue
  cp "$f" "$KEEP/"
  $PY - "$f" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
print(sys.argv[1].rpartition("/")[2], len(d["benchmarks"]), "timings,", len(d["skipped"]), "skipped,", len(d["runs"]), "runs")
EOF
done
$PY -m stof_cupy report --results "$OUT" --view overview 2>&1 | tail -12
rm -f "$OUT/last.$$.txt"
